defmodule Snakepit.Bench.Nodes do
  @moduledoc """
  Three connected BEAMs on this host, with an `epmd` of their own, which are the members of a cluster.
  """

  alias Snakepit.Bench.SecondBeam
  alias Snakepit.Test.BeamPort

  @names [:"one@127.0.0.1", :"two@127.0.0.1", :"three@127.0.0.1"]
  @patience_ms 60_000

  @doc "Runs `fun` with the nodes: a map of names to `SecondBeam`s, and a function that starts one of them again."
  def with_nodes(lease, fun) do
    Snakepit.Bench.with_directory(fn directory ->
      {epmd, port} = start_epmd()
      start = &start(&1, lease, port, directory)

      try do
        nodes = Map.new(@names, &{&1, start.(&1)})
        fun.(nodes, start)
      after
        System.cmd("kill", ["-KILL", "#{epmd}"])
      end
    end)
  end

  @doc "Waits until `fun` gives a truthy value, and gives that."
  def await(fun, deadline \\ System.monotonic_time(:millisecond) + @patience_ms) do
    fun.() ||
      if System.monotonic_time(:millisecond) < deadline do
        Process.sleep(1)
        await(fun, deadline)
      else
        raise "nothing came of it within #{@patience_ms} ms"
      end
  end

  defp start(name, lease, epmd_port, directory) do
    flags =
      "-name #{name} -setcookie bench -start_epmd false -kernel inet_dist_use_interface {127,0,0,1}"

    env = [{"ELIXIR_ERL_OPTIONS", flags}, {"ERL_EPMD_PORT", "#{epmd_port}"}]
    data_dir = Path.join(directory, "#{name}")
    File.mkdir_p!(data_dir)
    config = [data_dir: data_dir, cluster: [members: @names, lease: lease]]
    port = BeamPort.open(config, env: env)
    Process.unlink(port)
    :started = BeamPort.value(port)
    beam = %SecondBeam{port: port, os_pid: nil}
    %{beam | os_pid: SecondBeam.run(beam, "String.to_integer(System.pid())")}
  end

  defp start_epmd do
    {:ok, socket} = :gen_tcp.listen(0, ip: {127, 0, 0, 1})
    {:ok, number} = :inet.port(socket)
    :gen_tcp.close(socket)
    arguments = ["-port", "#{number}", "-address", "127.0.0.1"]
    port = Port.open({:spawn_executable, System.find_executable("epmd")}, args: arguments)
    {:os_pid, os_pid} = Port.info(port, :os_pid)
    await(fn -> match?({:ok, _}, :gen_tcp.connect({127, 0, 0, 1}, number, [])) end)
    {os_pid, number}
  end
end

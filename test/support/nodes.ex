defmodule Snakepit.Test.Nodes do
  @moduledoc """
  Several second BEAMs that are a cluster, with an `epmd` and a cookie of their own: on this host, or each on one of
  `Snakepit.Test.Hosts`.
  """

  import ExUnit.Callbacks, only: [on_exit: 1]

  alias Snakepit.Cluster.Singleton
  alias Snakepit.Test.{Beam, Eventually, Hosts, Lives}

  @cookie "snakepit-test"

  defstruct [:name, :number, :beam, :config, :place]

  @doc "Starts so many nodes that are all members. Options are `:hosts`, and those of `cluster:`."
  def start(count, options \\ []) do
    place = place(Keyword.get(options, :hosts), count)
    names = for number <- 1..count, do: name(place, number)
    given = Keyword.take(options, [:lease, :members, :visible])
    cluster = Keyword.merge([members: names, lease: 2_000], given)

    launched =
      for number <- 1..count do
        config = [data_dir: Beam.temporary_directory(), cluster: cluster]

        %__MODULE__{name: name(place, number), number: number, config: config, place: place}
        |> launch()
      end

    Enum.map(launched, &await/1)
  end

  @doc "Starts a node again that has ended, with its data directory."
  def restart(node), do: node |> launch() |> await()

  @doc "Starts a node that is no member, with this cookie."
  def stranger(%__MODULE__{} = like, number, cookie) do
    name = name(like.place, number)
    config = Keyword.put(like.config, :data_dir, Beam.temporary_directory())
    %{like | name: name, number: number, config: config} |> launch(cookie) |> await()
  end

  defp launch(node, cookie \\ @cookie) do
    {address, wrapper} = node.place.host.(node.number)
    flags = "-name #{node.name} -setcookie #{cookie} -start_epmd false -kernel net_ticktime 4"
    # The port that accepts connections, too, is nobody else's business.
    {:ok, ip} = :inet.parse_address(to_charlist(address))
    interface = "-kernel inet_dist_use_interface {#{ip |> Tuple.to_list() |> Enum.join(",")}}"

    env = [
      {"ELIXIR_ERL_OPTIONS", flags <> " " <> interface},
      {"ERL_EPMD_PORT", "#{node.place.epmd_port}"}
    ]

    %{node | beam: Beam.launch(node.config, env: env, wrapper: wrapper)}
  end

  defp await(node), do: %{node | beam: Beam.await_start(node.beam)}

  defp place(nil, _count) do
    place = %{epmd_port: free_port(), host: fn _number -> {"127.0.0.1", []} end}
    start_epmd(place, "127.0.0.1", [])
    place
  end

  defp place(_hosts, count) do
    host = fn number -> {Hosts.address(number), Hosts.wrapper(number)} end
    place = %{epmd_port: 4369, host: host}
    for number <- 1..count, do: start_epmd(place, Hosts.address(number), Hosts.wrapper(number))
    place
  end

  defp name(place, number) do
    {address, _wrapper} = place.host.(number)
    :"n#{number}@#{address}"
  end

  defp free_port do
    {:ok, socket} = :gen_tcp.listen(0, ip: {127, 0, 0, 1})
    {:ok, port} = :inet.port(socket)
    :gen_tcp.close(socket)
    port
  end

  # In the foreground, so that its pid is known, and it is ended by that.
  defp start_epmd(place, address, wrapper) do
    port = "#{place.epmd_port}"
    [program | arguments] = wrapper ++ ["epmd"]
    executable = System.find_executable(program)
    options = [:binary, :exit_status, :stderr_to_stdout]
    arguments = arguments ++ ["-port", port, "-address", address]
    epmd = Port.open({:spawn_executable, executable}, [{:args, arguments} | options])
    {:os_pid, os_pid} = Port.info(epmd, :os_pid)
    on_exit(fn -> System.cmd("kill", ["-KILL", "#{os_pid}"], stderr_to_stdout: true) end)

    Eventually.eventually(fn ->
      [program | arguments] = wrapper ++ ["epmd", "-port", port, "-names"]
      match?({_, 0}, System.cmd(program, arguments, stderr_to_stdout: true))
    end)
  end

  @doc "Has a node try for a lease, for a program that writes to a file that it lives."
  def singleton(node, id, path, options \\ []) do
    options = [id: id, cmd: Lives.cmd(path)] ++ options
    Beam.call(node.beam, __MODULE__, :start_singleton, [options])
  end

  @doc false
  def start_singleton(options) do
    {module, options} = Keyword.pop(options, :module, Singleton)
    children = [{module, [name: name(options[:id])] ++ options}]
    parent = self()

    # The caller's end is not that of the singleton.
    spawn(fn ->
      {:ok, supervisor} =
        Supervisor.start_link(children, strategy: :one_for_one, max_restarts: 1_000)

      Process.register(supervisor, supervisor_name(options[:id]))
      send(parent, :supervised)
      Process.sleep(:infinity)
    end)

    receive do: (:supervised -> :ok)
  end

  @doc "Ends what `singleton/4` has begun."
  def stop_singleton(node, id), do: Beam.call(node.beam, __MODULE__, :end_singleton, [id])

  @doc false
  def end_singleton(id), do: Supervisor.stop(supervisor_name(id), :shutdown)

  @doc "The node among these on which the process is; `nil` if it is on none."
  def holder(nodes, id) do
    Enum.find(nodes, fn node ->
      match?({:running, _}, Beam.call(node.beam, __MODULE__, :info, [id]))
    end)
  end

  @doc false
  def info(id), do: Singleton.info(name(id))

  # Tests have few ids, so atoms are made of them.
  defp name(id), do: :"singleton_#{id}"
  defp supervisor_name(id), do: :"singleton_supervisor_#{id}"
end

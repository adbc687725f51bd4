defmodule Chaos.Driver do
  @moduledoc """
  What runs in the BEAMs of a round: workers and pools as a plan says, and a few commands on standard
  input. It is what is judged, so it has no say in the judgement.
  """

  # As often as they like: what ends here was made to.
  @restarts [max_restarts: 1_000_000, max_seconds: 1]

  # The BEAM counts as started only when this returns.
  def main, do: spawn(&run/0)

  defp run do
    [file] = :init.get_plain_arguments()
    {:ok, plan} = :file.consult(file)
    for {key, value} <- plan[:config], do: Application.put_env(:snakepit, key, value)
    Application.put_env(:logger, :level, :error)

    for {program, arguments} <- plan[:ports] do
      path = program |> System.find_executable() |> to_charlist()
      Port.open({:spawn_executable, path}, args: arguments, cd: ~c"/")
    end

    {:ok, _} = Application.ensure_all_started(:snakepit)
    say("running")
    {:ok, supervisor} = Supervisor.start_link([], [strategy: :one_for_one] ++ @restarts)

    for {id, size, worker} <- plan[:pools] do
      pool = {Snakepit.Pool, id: id, size: size, worker: worker}
      {:ok, _} = Supervisor.start_child(supervisor, Supervisor.child_spec(pool, id: id))
    end

    for command <- plan[:starts], do: spawn(fn -> start_without_end(command) end)
    say("started")
    obey(supervisor)
  end

  defp obey(supervisor) do
    case IO.read(:stdio, :line) do
      line when is_binary(line) ->
        line |> String.trim() |> obey(supervisor)
        obey(supervisor)

      # Whoever gave the orders is gone.
      _end_of_file ->
        System.halt(1)
    end
  end

  defp obey("stop", supervisor) do
    Supervisor.stop(supervisor)
    stop()
  end

  # Workers are still there, and others are being started.
  defp obey("stop at once", _supervisor), do: stop()
  defp obey("halt", _supervisor), do: System.halt(0)
  defp obey("check " <> answer, _supervisor), do: check(answer, 100)

  defp stop do
    :ok = Application.stop(:snakepit)
    say("stopped")
  end

  # Whether it still works. While the guardian is being replaced it may say no.
  defp check(answer, attempts) do
    case attempt(fn -> Snakepit.cmd("echo", [answer]) end) do
      {output, 0} -> say(String.trim(output))
      _failed when attempts > 0 -> Process.sleep(50) && check(answer, attempts - 1)
      failed -> say("failed: #{inspect(failed)}")
    end
  end

  defp start_without_end([program | arguments] = command) do
    attempt(fn ->
      Process.flag(:trap_exit, true)
      {:ok, worker} = Snakepit.Worker.start_link(cmd: command, stop_timeout: 50)
      Process.sleep(10)
      Snakepit.Worker.stop(worker)
    end)

    attempt(fn -> Snakepit.cmd(program, arguments, timeout: 30) end)
    # Once the library is stopped this fails at once, and it need not keep a core busy.
    Process.sleep(5)
    start_without_end(command)
  end

  defp attempt(fun) do
    fun.()
  rescue
    error -> {:raised, error}
  catch
    kind, reason -> {kind, reason}
  end

  defp say(word), do: IO.puts(word)
end

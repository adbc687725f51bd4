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

    if plan[:worker], do: Chaos.Operations.keep(plan)
    if plan[:held], do: wait_to_be_told()
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

  # Somebody wants to watch the start.
  defp wait_to_be_told do
    # Lines are binaries only once Elixir itself is started.
    for application <- [:logger, :crypto],
        do: {:ok, _} = Application.ensure_all_started(application)

    load_code()
    say("held")
    obey(nil)
  end

  # As a release has it: without this, a BEAM that cannot open files any more can neither say so nor
  # go on when it can again, because OTP's own processes die for want of their code.
  defp load_code do
    for application <- [:kernel, :stdlib, :crypto, :elixir, :logger] do
      {:ok, modules} = :application.get_key(application, :modules)
      :ok = :code.ensure_modules_loaded(modules)
    end
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
  defp obey("check " <> answer, _supervisor), do: check(answer, 5)
  defp obey("do " <> operation, _supervisor), do: say(Chaos.Operations.run(operation))

  defp stop do
    :ok = Application.stop(:snakepit)
    say("stopped")
  end

  # Whether it still works. The guardian may die while the command runs, and then the answer is no. The
  # next attempt needs no pause: a start waits for the new guardian by itself.
  defp check(answer, attempts) do
    case attempt(fn -> Snakepit.cmd("echo", [answer]) end) do
      {output, 0} -> say(String.trim(output))
      _failed when attempts > 0 -> check(answer, attempts - 1)
      failed -> say("failed: #{inspect(failed)}")
    end
  end

  # Until the library has stopped: then its supervisor has no name any more.
  defp start_without_end(command) do
    if Process.whereis(Snakepit.Supervisor) do
      start_twice(command)
      start_without_end(command)
    end
  end

  defp start_twice([program | arguments] = command) do
    attempt(fn ->
      Process.flag(:trap_exit, true)
      {:ok, worker} = Snakepit.Worker.start_link(cmd: command, stop_timeout: 50)
      # Its life, and nothing that is waited for: long enough for a strike to find it running.
      pause(10)
      Snakepit.Worker.stop(worker)
    end)

    attempt(fn -> Snakepit.cmd(program, arguments, timeout: 30) end)

    # Where nothing can be started, on a full disk, both fail at once. A busy loop is not the point.
    pause(5)
  end

  defp pause(milliseconds), do: receive(after: (milliseconds -> :ok))

  defp attempt(fun) do
    fun.()
  rescue
    error -> {:raised, error}
  catch
    kind, reason -> {kind, reason}
  end

  defp say(word), do: IO.puts(word)
end

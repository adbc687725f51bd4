defmodule Snakepit.Test.Nonsense do
  @moduledoc """
  Calls every function that users have with arguments that nobody means, in a second BEAM, and gives
  those after which something is not as it was.
  """

  alias Snakepit.{Auditor, Command, Guardian, HeartbeatMonitor, OSProcess, Pool, ProcessKiller}
  alias Snakepit.{ProcessTelemetry, RunID, RunState, Worker}
  alias Snakepit.Pool.{PIDLedger, ProcessRegistry}

  @modules [Snakepit, Auditor, Command, Guardian, HeartbeatMonitor, OSProcess, PIDLedger, Pool] ++
             [ProcessKiller, ProcessRegistry, ProcessTelemetry, RunID, RunState, Worker]

  # What they are for is to end something, or everything; or they are a supervisor's; or they ask what the process does
  # not answer, which ends it.
  @left_out [
              run_as_script: 1,
              run_as_script: 2,
              cleanup: 1,
              stop_all: 1,
              begin_request: 2,
              child_spec: 1,
              init: 1,
              terminate: 2
            ] ++
              [handle_call: 3, handle_cast: 2, handle_info: 2, note_shutdown: 1]

  @patience_ms 100

  @doc "What was called, and what it brought down, for each call that did; and how many calls there were."
  def run do
    Process.flag(:trap_exit, true)
    {:ok, worker} = Worker.start_link(cmd: ["cat"], stdio: :pipe, packet: :line)
    {:ok, pool} = Pool.start_link(size: 1, worker: [cmd: ["sleep", "600"]])
    {:ok, child} = Guardian.spawn(Command.new!(cmd: ["sleep", "600"]))
    :ok = Guardian.release(child)
    real = %{Worker => worker, Pool => pool, Guardian => child}
    calls = for(module <- @modules, call <- calls(module, real), do: call) ++ options()
    before = state(real)

    found =
      Enum.find_value(calls, fn call ->
        attempt(call)
        later = state(real)
        if later != before, do: {inspect(call), inspect(before -- later)}
      end)

    {length(calls), found}
  end

  defp calls(module, real) do
    for {function, arity} = one <- module.__info__(:functions),
        arity in 1..2,
        one not in @left_out,
        not String.starts_with?("#{function}", "__"),
        arguments <- arguments(arity, real[module]),
        # That is how it is ended.
        not (function == :stop and match?([_pid_or_child, []], arguments)),
        do: {module, function, arguments}
  end

  # Every option of what is started, one at a time.
  defp options do
    keys = ~w(id name env clear_env cd umask run_id_flag stdio packet output ready ready_timeout)a
    keys = keys ++ ~w(stop_signal stop_timeout heartbeat ping user group groups nice rlimits)a
    keys = keys ++ ~w(oom_score_adj timeout max_output input into stderr_to_stdout)a
    command = ["sleep", "0"]

    for key <- keys, value <- nonsense() ++ [[nofile: :x], [{<<255>>, <<255>>}], ["a\0b"]] do
      [
        {Worker, :start_link, [[{:cmd, command}, {key, value}]]},
        {Pool, :start_link, [[size: 1, worker: [{:cmd, command}, {key, value}]]]},
        {Snakepit, :cmd, ["sleep", ["0"], [{key, value}]]},
        {HeartbeatMonitor, :start_link,
         [[{:worker, self()}, {:ping, fn -> :ok end}, {key, value}]]}
      ]
    end
    |> List.flatten()
  end

  defp arguments(1, _real), do: for(one <- nonsense(), do: [one])
  defp arguments(2, real), do: for(one <- [real | nonsense()], two <- nonsense(), do: [one, two])

  # No number that is a process's.
  defp nonsense do
    [nil, :soon, "text", <<255>>, -1, 1.5, [], [:a], %{}, {:a}, make_ref(), fn -> :ok end] ++
      [
        [timeout: :x],
        [timeout: -1],
        [signal: :x],
        [force: 1],
        0x10000000000000000
      ]
  end

  # Whatever comes of it: a value, an exception, or nothing for too long.
  defp attempt({module, function, arguments}) do
    {pid, monitor} =
      spawn_monitor(fn ->
        try do
          apply(module, function, arguments)
        catch
          _kind, _reason -> :ok
        end
      end)

    receive do
      {:DOWN, ^monitor, :process, ^pid, _reason} -> :ok
    after
      @patience_ms -> Process.exit(pid, :kill)
    end
  end

  defp state(real) do
    children =
      for {id, pid, _type, _modules} <- Supervisor.which_children(Snakepit.Supervisor),
          do: {id, pid}

    [
      {:few_processes, :erlang.system_info(:process_count) < 1_000},
      {:worker, Process.alive?(real[Worker])},
      {:pool, Process.alive?(real[Pool])},
      {:child, ProcessKiller.process_alive?(real[Guardian].os_pid)}
      | Enum.sort(children)
    ]
  end
end

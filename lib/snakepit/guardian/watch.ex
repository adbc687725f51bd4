defmodule Snakepit.Guardian.Watch do
  @moduledoc false

  # Watches whether the guardian answers, while something runs or was requested. Any process of the same user
  # may stop the guardian with a signal, and a debugger does; it then reads no request and ends no process. A
  # guardian that the kernel reports as stopped gets SIGCONT. One that has not answered for half a minute is
  # killed and another one is started: all that it guarded ends with it, and workers start again.
  #
  # This is a process of its own because the server waits in its write to a guardian that does not read.

  require Logger

  alias Snakepit.{AlignedTimer, Native, OSProcess, Telemetry}
  alias Snakepit.Guardian.Wire

  @interval_ms 2_000
  # Intervals, and not time: when the BEAM itself was stopped, what the guardian has said is there unread.
  @patience 15

  @heard 1
  @asked 2
  @running 3
  @ending 4

  @type t :: :atomics.atomics_ref()

  @doc "Begins to watch for the server that calls this."
  @spec start(port(), OSProcess.t(), keyword()) :: t()
  def start(port, process, opts) do
    watch = :atomics.new(4, [])
    # Tests have guardians that count what they are told, and others that are given up sooner.
    interval = Keyword.get(opts, :watch_ms, @interval_ms)
    if interval != :infinity, do: start_loop(watch, port, process, interval)
    watch
  end

  defp start_loop(watch, port, process, interval) do
    server = self()

    spawn_link(fn ->
      loop(%{
        watch: watch,
        server: Process.monitor(server),
        port: port,
        process: process,
        interval_ms: interval,
        heard: 0,
        asked: 0,
        # Intervals since the ping; `nil` if none is on its way.
        silent: nil
      })
    end)
  end

  @doc "Notes that the guardian has sent something."
  def heard(watch), do: :atomics.add(watch, @heard, 1)

  @doc "Notes that something was asked of the guardian."
  def asked(watch), do: :atomics.add(watch, @asked, 1)

  @doc "Notes how many processes the guardian has."
  def running(watch, count), do: :atomics.put(watch, @running, count)

  @doc "Stops watching a guardian that ends everything and then itself. Its answers are not read any more."
  def ending(watch), do: :atomics.put(watch, @ending, 1)

  defp loop(%{server: server} = state) do
    receive do
      {:DOWN, ^server, :process, _pid, _reason} -> :ok
    after
      max(AlignedTimer.next(state.interval_ms) - System.monotonic_time(:millisecond), 1) ->
        state |> look() |> loop()
    end
  end

  defp look(state) do
    heard = :atomics.get(state.watch, @heard)
    asked = :atomics.get(state.watch, @asked)
    idle? = asked == state.asked and :atomics.get(state.watch, @running) == 0

    cond do
      heard != state.heard -> %{state | heard: heard, silent: nil}
      state.silent != nil -> judge(%{state | silent: state.silent + 1})
      idle? -> state
      true -> judge(ping(%{state | asked: asked}))
    end
  end

  # Order: what was asked for counts as seen to when it is followed by a ping. That something was heard says
  # nothing of what was asked for after it, by a server that may still be at writing it.
  defp ping(state) do
    Wire.try_command(state.port, :ping)
    %{state | silent: 0}
  end

  defp judge(state) do
    mode = mode(state.process.os_pid)

    cond do
      mode in ["T", "t"] and state.silent < @patience ->
        if state.silent <= 1, do: tell(state, mode, :continued)
        signal(state.process, :sigcont, true)
        state

      # In a system call that nothing interrupts it has not even got SIGKILL.
      state.silent < @patience or mode in ["D", nil] or :atomics.get(state.watch, @ending) == 1 ->
        state

      true ->
        tell(state, mode, :killed)
        signal(state.process, :sigkill, false)
        state
    end
  end

  # Nobody else may signal it.
  defp signal(%{identity: identity}, signal, protected?) do
    Native.guardian_protect(identity, false)
    Native.process_signal(identity, signal)
    if protected?, do: Native.guardian_protect(identity, true)
  end

  # Of a process that may have ended: then its port says so. `nil` where there is no such file.
  defp mode(os_pid) do
    with {:ok, stat} <- File.read("/proc/#{os_pid}/stat"),
         # Behind the name, which may contain anything.
         [_all, mode] <- Regex.run(~r/.*\) (.)/s, stat) do
      mode
    else
      _unreadable -> nil
    end
  end

  defp tell(%{process: %{os_pid: os_pid}, silent: silent} = state, mode, action) do
    silent_ms = silent * state.interval_ms
    metadata = %{guardian_pid: os_pid, state: mode, action: action}
    Telemetry.execute([:snakepit, :watchdog, :silent], %{silent_ms: silent_ms}, metadata)
    log(action, os_pid, silent_ms)
  end

  defp log(:continued, os_pid, _silent_ms) do
    Logger.warning(
      "Snakepit's guardian (OS pid #{os_pid}) was stopped, by SIGSTOP or a debugger; sent it SIGCONT"
    )
  end

  defp log(:killed, os_pid, silent_ms) do
    Logger.error("""
    Snakepit's guardian (OS pid #{os_pid}) has not answered for #{silent_ms} ms; ended it with SIGKILL. \
    Another one is started, and workers start their processes again.\
    """)
  end
end

defmodule Snakepit.Guardian.Server do
  @moduledoc false

  # The one process that talks to the guardian, over `Wire`. It hands waiting children to waiting callers,
  # passes answers on, monitors the owners of children, and sweeps up if the guardian dies.
  # `Snakepit.Guardian` says what all of that promises.
  #
  # A supervisor cannot know how long the children of a guardian may take to end. `terminate/2` knows it, and
  # waits that long.

  # The supervisor cannot know how long the children of then may take to end. `terminate/2` does, and
  # keeps to it.
  use GenServer, shutdown: :infinity

  require Logger

  alias Snakepit.{DataDir, Error, Guardian, Native, OSProcess, SelfTest, Telemetry}
  alias Snakepit.Guardian.{Ahead, Child, Children, Events, Grace, Shutdown, State, Watch, Wire}
  alias Snakepit.Cleanup.PreviousGuardian
  alias Snakepit.Pool.PIDLedger

  # Children kept waiting at the gate, so that the next one asked for is there already.
  @ahead 8
  # What the guardian may take on top of the grace period to end everything: longer than it has
  # patience with what it has killed.
  @all_gone_ms 15_000
  # What a sweep may take on top of all that.
  @sweep_ms 10_000
  # How the port says that a system call filter has killed it: 128 and the number of SIGSYS.
  @sigsys 159
  # What the guardian may take to write its last word when nothing is left.
  @guardian_end_ms 5_000

  @doc false
  def start_link(opts), do: GenServer.start_link(__MODULE__, opts, name: Guardian)

  @doc "Returns the markers of this run, with an empty worker id."
  def markers, do: :persistent_term.get({__MODULE__, :markers})

  @doc "Returns the path of the guardian's listener socket; `nil` if there is none."
  def listener(nil), do: nil
  def listener(run), do: :persistent_term.get({__MODULE__, :listener, run.id}, nil)

  @doc "Returns the connection over which descriptors go to the guardian of a run, or why there is none."
  def channel(nil), do: {:error, {:closed, nil}}

  def channel(run) do
    # Without a descriptor or memory at the guardian's start there was none, and there may be one now.
    with {:error, _then} <- :persistent_term.get({__MODULE__, :channel, run.id}, {:error, :none}),
         do: open_channel(run, listener(run))
  end

  defp open_channel(run, path) do
    with {:ok, channel} = opened <- Native.channel_open(path || "") do
      :persistent_term.put({__MODULE__, :channel, run.id}, {:ok, channel})
      opened
    end
  end

  @doc "Returns the environment that the guardian was started with."
  def environment, do: :persistent_term.get({__MODULE__, :environment})

  @impl true
  def init(opts) do
    # So that `terminate/2` runs when the application stops, and when a write to a guardian that has
    # just died closes the port with `:epipe`.
    Process.flag(:trap_exit, true)
    run = Keyword.fetch!(opts, :run)
    config = Keyword.fetch!(opts, :config)
    # Order: before there is another one, so that no two of them act for one run.
    if PreviousGuardian.await_end(run), do: Shutdown.sweep(run)
    PreviousGuardian.note_server(run)
    # Not in the state, which is printed when this process ends: it may hold secrets.
    :persistent_term.put({__MODULE__, :environment}, :os.env())
    # All but the worker's id stay the same, and finding them out reads from /proc.
    {:ok, markers} = Native.marker_environment(run.id, "", run.instance)
    :persistent_term.put({__MODULE__, :markers}, markers)
    port = Wire.open(opts)
    Wire.command(port, {:hello, Wire.hello(run, config, @ahead)})

    with {:ok, {:welcome, _version, os_pid, identity, socket}} <- Wire.first_event(port, opts),
         {:ok, process} <- process(os_pid, identity),
         :ok <- DataDir.written!(PIDLedger.register_guardian(process.identity), run.data_dir) do
      PreviousGuardian.note(run, process)
      # The children of the last guardian ended with it.
      Ahead.forget_all(run)
      :persistent_term.put({__MODULE__, :listener, run.id}, socket)
      # Without a connection, calls that need pipes return the reason.
      :persistent_term.erase({__MODULE__, :channel, run.id})
      open_channel(run, socket)
      metadata = %{beam_pid: String.to_integer(System.pid()), guardian_pid: os_pid}
      Telemetry.execute([:snakepit, :watchdog, :started], %{count: 1}, metadata)

      state = %State{
        run: run,
        port: port,
        process: process,
        socket: socket,
        watch: Watch.start(port, process, opts),
        log_level: config.log_level,
        grace_ms: config.watchdog.grace_period_ms
      }

      {:ok, state}
    else
      {:ok, {:refused, reason}} -> {:stop, {:guardian_refused, reason}}
      {:ok, {:unable, call, reason}} -> raise SelfTest.error([SelfTest.unable(call, reason)])
      {:error, {:exit_status, @sigsys}} -> raise SelfTest.error([SelfTest.filtered()])
      {:error, reason} -> {:stop, {:guardian_failed, reason}}
    end
  end

  # Its own word: it knows when its start time cannot be another's any more.
  defp process(os_pid, ""), do: OSProcess.lookup(os_pid)
  defp process(os_pid, identity), do: {:ok, %OSProcess{os_pid: os_pid, identity: identity}}

  @impl true
  def handle_call(request, from, state) do
    Watch.asked(state.watch)
    answer(request, from, state)
  end

  defp answer({:spawn, request}, {owner, _tag} = from, state) do
    # One more than the guardian keeps ahead, if all of those are spoken for.
    if :queue.is_empty(state.ready), do: Wire.command(state.port, {:fork, 1})
    waiting = :queue.in({request, from, Process.monitor(owner)}, state.waiting)
    {:noreply, Children.serve(Ahead.record(%{state | waiting: waiting}))}
  end

  defp answer({:release, id}, from, state) do
    case state.children do
      %{^id => %Child{phase: :assigned} = child} ->
        Wire.command(state.port, {:release, id})
        {:noreply, Children.put(state, %{child | phase: :released, releasing: from})}

      %{^id => %Child{phase: :failed} = child} ->
        {:reply, {:error, child.failure}, Children.drop_failed(state, child)}

      _other ->
        {:reply, {:error, %Error{operation: :release, reason: :esrch}}, state}
    end
  end

  defp answer({:stop, id, signal, timeout_ms}, from, state) do
    case state.children do
      %{^id => child} ->
        Wire.command(state.port, {:stop, id, signal, timeout_ms})
        {:noreply, Children.put(state, %{child | stopping: [from | child.stopping]})}

      _gone ->
        {:reply, :ok, state}
    end
  end

  defp answer({:signal, id, signal, scope}, _from, state) do
    if Map.has_key?(state.children, id),
      do: Wire.command(state.port, {:signal, id, signal, scope})

    {:reply, :ok, state}
  end

  defp answer({:tail, id}, from, state) do
    case state.children do
      %{^id => child} ->
        Wire.command(state.port, {:tail, id})
        {:noreply, Children.put(state, %{child | reading: [from | child.reading]})}

      _gone ->
        {:reply, {:error, %Error{operation: :output_tail, reason: :esrch}}, state}
    end
  end

  defp answer({:roots, id}, from, state) do
    case state.children do
      %{^id => child} ->
        Wire.command(state.port, {:roots, id})
        {:noreply, Children.put(state, %{child | looking: [from | child.looking]})}

      _gone ->
        {:reply, {:error, %Error{operation: :usage, reason: :esrch}}, state}
    end
  end

  defp answer({:stop_all, _timeout_ms, _strict?} = request, from, state),
    do: {:noreply, Events.stop_all(state, from, request)}

  defp answer(:info, from, state) do
    Wire.command(state.port, :info)
    {:noreply, update_in(state.asking.info, &[from | &1])}
  end

  defp answer(:os_pid, _from, state), do: {:reply, state.process.os_pid, state}

  @impl true
  def handle_cast(request, state) when elem(request, 0) in [:stop, :extend] do
    id = elem(request, 1)
    if Map.has_key?(state.children, id), do: Wire.command(state.port, request)
    {:noreply, state}
  end

  def handle_cast({:lease, _lease, _ask_at, _kill_at} = request, state) do
    Wire.command(state.port, request)
    {:noreply, state}
  end

  @impl true
  def handle_info({port, {:data, frame}}, %{port: port} = state) do
    Watch.heard(state.watch)

    case Wire.decode(frame) do
      {:ok, event} -> {:noreply, Events.handle(event, state)}
      {:error, :malformed} -> {:stop, :guardian_malformed, state}
    end
  end

  # The journal's, on children that wait at the gate.
  def handle_info({tag, answer}, %{recording: {tag, _children}} = state) do
    case Ahead.recorded(state, answer) do
      {:ok, state} -> {:noreply, Children.serve(state)}
      {:error, error, state} -> {:noreply, Children.refuse(state, error)}
    end
  end

  def handle_info({port, {:exit_status, status}}, %{port: port} = state) do
    if status == @sigsys, do: Logger.error("Snakepit: #{SelfTest.sentence(SelfTest.filtered())}")

    Logger.error(
      "Snakepit's guardian ended with status #{status}; its processes are ended, and another guardian is started"
    )

    {:stop, :guardian_down, state}
  end

  # Without a status before it: the write that found the guardian dead closed the port.
  def handle_info({:EXIT, port, reason}, %{port: port} = state) do
    Logger.error(
      "Snakepit's guardian is gone (#{inspect(reason)}); its processes are ended, and another guardian is started"
    )

    {:stop, :guardian_down, state}
  end

  def handle_info({:EXIT, _linked, reason}, state), do: {:stop, reason, state}

  def handle_info({:DOWN, monitor, :process, _owner, _reason}, state) do
    case Map.pop(state.owners, monitor) do
      {nil, _owners} ->
        # Died while waiting for a child.
        alive = :queue.filter(fn {_request, _from, ref} -> ref != monitor end, state.waiting)
        {:noreply, %{state | waiting: alive}}

      {id, owners} ->
        Wire.command(state.port, {:stop, id, :sigkill, 0})
        {:noreply, %{state | owners: owners}}
    end
  end

  # If the guardian went first, what is left is swept up here.
  @impl true
  def terminate(:guardian_down, state) do
    PreviousGuardian.note_loss(state.run)
    # Order: before the sweep, which may find another with that pid.
    PreviousGuardian.expose(state.run)
    for {_id, child} <- state.children, do: Child.fail(child, :guardian_down)

    for {_request, from, _monitor} <- :queue.to_list(state.waiting) do
      GenServer.reply(from, {:error, %Error{operation: :spawn, reason: :guardian_down}})
    end

    for from <- state.asking.info,
        do: GenServer.reply(from, {:error, %Error{operation: :info, reason: :guardian_down}})

    for {from, _request} <- state.asking.stop_all,
        do: GenServer.reply(from, {:error, %Error{operation: :stop_all, reason: :guardian_down}})

    # A new guardian makes a socket of its own.
    File.rm(state.socket)
    Shutdown.sweep(state.run)
    PreviousGuardian.forget(state.run)
  end

  # Otherwise this returns when nothing is left, the guardian included. It takes the closed port for the
  # death of the BEAM, so whatever the reason, it ends everything and then itself.
  def terminate(_reason, state) do
    Watch.ending(state.watch)
    patience = Grace.longest(state.run) + @all_gone_ms

    # The wait is bounded, also for a guardian that has stopped reading and blocks every write to it.
    {:ok, _timer} = :timer.kill_after(patience + @sweep_ms + @guardian_end_ms)

    if Wire.command(state.port, {:stop_all, state.grace_ms, false}),
      do: Shutdown.await_all_gone(state.port, state.run, patience),
      else: Shutdown.sweep(state.run)

    # The guardian's events of their end were not passed on, and there are no others.
    for {_id, child} <- state.children, do: Child.fail(child, :guardian_down)
    Wire.close(state.port)
    Native.process_await([state.process.identity], @guardian_end_ms)
    Shutdown.hear_last_word(state.run)
    :persistent_term.erase({__MODULE__, :listener, state.run.id})
    :persistent_term.erase({__MODULE__, :channel, state.run.id})
    PreviousGuardian.forget(state.run)
  end
end

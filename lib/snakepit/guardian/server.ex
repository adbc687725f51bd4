defmodule Snakepit.Guardian.Server do
  @moduledoc false

  # The one process that talks to the guardian (over `Line`): it gives waiting children to waiting
  # callers, passes answers on, watches owners, and sweeps up if the guardian should die. What it
  # promises is described in `Snakepit.Guardian`.

  use GenServer

  require Logger

  alias Snakepit.{Error, Guardian, Native, OSProcess, Telemetry}
  alias Snakepit.Guardian.{Child, Ending, Environment, Line, Predecessor}
  alias Snakepit.Pool.PIDLedger

  # Children kept waiting at the gate, so that the next one asked for is there already.
  @ahead 8
  # What the guardian may take on top of the grace period to end everything: longer than it has
  # patience with what it has killed.
  @all_gone_ms 15_000
  # What a sweep may take on top of all that.
  @sweep_ms 10_000
  # What the guardian may take to write its last word when nothing is left.
  @guardian_end_ms 5_000

  @doc false
  def start_link(opts), do: GenServer.start_link(__MODULE__, opts, name: Guardian)

  # Longer than anything that `terminate/2` waits for.
  @doc false
  def child_spec(opts) do
    grace_ms = Keyword.fetch!(opts, :config).watchdog.grace_period_ms
    shutdown = grace_ms + @all_gone_ms + @sweep_ms + @guardian_end_ms
    Map.put(super(opts), :shutdown, shutdown)
  end

  @doc "The markers of this run, with an empty worker id."
  def markers, do: :persistent_term.get({__MODULE__, :markers})

  defp environment, do: :persistent_term.get({__MODULE__, :environment})

  @impl true
  def init(opts) do
    # So that `terminate/2` runs when the application stops, and when a write to a guardian that has
    # just died closes the port with `:epipe`.
    Process.flag(:trap_exit, true)
    run = Keyword.fetch!(opts, :run)
    config = Keyword.fetch!(opts, :config)
    # Order: before there is another one, so that no two of them act for one run.
    if Predecessor.await_end(run, config.watchdog.grace_period_ms), do: Ending.sweep(run)
    # Not in the state, which is printed when this process ends: it may hold secrets.
    :persistent_term.put({__MODULE__, :environment}, :os.env())
    # All but the worker's id stay the same, and finding them out reads from /proc.
    {:ok, markers} = Native.marker_environment(run.id, "", run.instance)
    :persistent_term.put({__MODULE__, :markers}, markers)
    port = Line.open(opts)
    Line.command(port, {:hello, Line.hello(run, config, @ahead)})

    with {:ok, {:welcome, _version, os_pid, identity, socket}} <- Line.first_event(port, opts),
         {:ok, process} <- process(os_pid, identity),
         :ok <- PIDLedger.register_guardian(process.identity) do
      Predecessor.note(run, process.identity)
      metadata = %{beam_pid: String.to_integer(System.pid()), guardian_pid: os_pid}
      Telemetry.execute([:snakepit, :watchdog, :started], %{count: 1}, metadata)

      state = %{
        run: run,
        port: port,
        process: process,
        socket: socket,
        log_level: config.log_level,
        grace_ms: config.watchdog.grace_period_ms,
        ready: :queue.new(),
        waiting: :queue.new(),
        children: %{},
        owners: %{},
        asking: %{info: [], stop_all: []}
      }

      {:ok, state}
    else
      {:ok, {:refused, reason}} -> {:stop, {:guardian_refused, reason}}
      {:error, reason} -> {:stop, {:guardian_failed, reason}}
    end
  end

  # Its own word: it knows when its start time cannot be another's any more.
  defp process(os_pid, ""), do: OSProcess.lookup(os_pid)
  defp process(os_pid, identity), do: {:ok, %OSProcess{os_pid: os_pid, identity: identity}}

  @impl true
  def handle_call({:spawn, request}, {owner, _tag} = from, state) do
    # One more than the guardian keeps ahead, if all of those are spoken for.
    if :queue.is_empty(state.ready), do: Line.command(state.port, {:fork, 1})
    waiting = :queue.in({request, from, Process.monitor(owner)}, state.waiting)
    {:noreply, serve_waiting(%{state | waiting: waiting})}
  end

  def handle_call({:release, id}, from, state) do
    case state.children do
      %{^id => %Child{phase: :assigned} = child} ->
        Line.command(state.port, {:release, id})
        {:noreply, put_child(state, %{child | phase: :released, releasing: from})}

      %{^id => %Child{phase: :failed} = child} ->
        {:reply, {:error, child.failure}, drop_failed(state, child)}

      _other ->
        {:reply, {:error, %Error{operation: :release, reason: :esrch}}, state}
    end
  end

  def handle_call({:stop, id, signal, timeout_ms}, from, state) do
    case state.children do
      %{^id => child} ->
        Line.command(state.port, {:stop, id, signal, timeout_ms})
        {:noreply, put_child(state, %{child | stopping: [from | child.stopping]})}

      _gone ->
        {:reply, :ok, state}
    end
  end

  def handle_call({:signal, id, signal, scope}, _from, state) do
    if Map.has_key?(state.children, id),
      do: Line.command(state.port, {:signal, id, signal, scope})

    {:reply, :ok, state}
  end

  def handle_call({:tail, id}, from, state) do
    case state.children do
      %{^id => child} ->
        Line.command(state.port, {:tail, id})
        {:noreply, put_child(state, %{child | reading: [from | child.reading]})}

      _gone ->
        {:reply, {:error, %Error{operation: :output_tail, reason: :esrch}}, state}
    end
  end

  def handle_call({:stop_all, timeout_ms}, from, state) do
    Line.command(state.port, {:stop_all, timeout_ms, true})
    {:noreply, update_in(state.asking.stop_all, &[from | &1])}
  end

  def handle_call(:info, from, state) do
    Line.command(state.port, :info)
    {:noreply, update_in(state.asking.info, &[from | &1])}
  end

  def handle_call(:os_pid, _from, state), do: {:reply, state.process.os_pid, state}
  def handle_call(:socket, _from, state), do: {:reply, state.socket, state}

  @impl true
  def handle_info({port, {:data, frame}}, %{port: port} = state) do
    case Line.decode(frame) do
      {:ok, event} -> {:noreply, handle_event(event, state)}
      {:error, :malformed} -> {:stop, :guardian_malformed, state}
    end
  end

  def handle_info({port, {:exit_status, status}}, %{port: port} = state) do
    Logger.error("Snakepit's guardian ended with status #{status}; sweeping up after it")
    {:stop, :guardian_down, state}
  end

  # Without a status before it: the write that found the guardian dead closed the port.
  def handle_info({:EXIT, port, reason}, %{port: port} = state) do
    Logger.error("Snakepit's guardian is gone (#{inspect(reason)}); sweeping up after it")
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
        Line.command(state.port, {:stop, id, :sigkill, 0})
        {:noreply, %{state | owners: owners}}
    end
  end

  # If the guardian went first, what is left is swept up here.
  @impl true
  def terminate(:guardian_down, state) do
    for {_id, child} <- state.children, do: Child.fail(child, :guardian_down)

    for {_request, from, _monitor} <- :queue.to_list(state.waiting) do
      GenServer.reply(from, {:error, %Error{operation: :spawn, reason: :guardian_down}})
    end

    for {operation, callers} <- state.asking, from <- callers do
      GenServer.reply(from, {:error, %Error{operation: operation, reason: :guardian_down}})
    end

    # A new guardian opens a door of its own.
    File.rm(state.socket)
    Ending.sweep(state.run)
    Predecessor.forget(state.run)
  end

  # Otherwise this returns when nothing is left, the guardian included. It takes the closed port for the
  # death of the BEAM, so whatever the reason, it ends everything and then itself.
  def terminate(_reason, state) do
    if Line.command(state.port, {:stop_all, state.grace_ms, false}),
      do: Ending.await_all_gone(state.port, state.run, state.grace_ms + @all_gone_ms),
      else: Ending.sweep(state.run)

    # What the guardian said of their end was not passed on, and nobody else will say it.
    for {_id, child} <- state.children, do: Child.fail(child, :guardian_down)
    Line.close(state.port)
    Native.process_await([state.process.identity], @guardian_end_ms)
    Predecessor.forget(state.run)
  end

  defp handle_event({:ready, id, os_pid, identity}, state) do
    serve_waiting(%{state | ready: :queue.in({id, os_pid, identity}, state.ready)})
  end

  defp handle_event({:fork_failed, reason}, state) do
    case :queue.out(state.waiting) do
      {{:value, {_request, from, monitor}}, waiting} ->
        Process.demonitor(monitor, [:flush])
        GenServer.reply(from, {:error, %Error{operation: :spawn, reason: reason, step: :fork}})
        %{state | waiting: waiting}

      {:empty, _waiting} ->
        state
    end
  end

  defp handle_event({:started, id}, state) do
    update_child(state, id, fn child ->
      GenServer.reply(child.releasing, :ok)
      %{child | phase: :running, releasing: nil}
    end)
  end

  defp handle_event({:failed, id, step, reason}, state) do
    # One that waited at the gate for nobody in particular may have been killed by someone.
    state = %{state | ready: :queue.filter(fn {ready, _, _} -> ready != id end, state.ready)}
    error = %Error{operation: :spawn, reason: reason, step: step}

    case state.children do
      %{^id => %Child{phase: :assigned} = child} ->
        put_child(state, %{child | phase: :failed, failure: error})

      %{^id => child} ->
        if child.releasing, do: GenServer.reply(child.releasing, {:error, error})
        drop_failed(state, %{child | phase: :failed, failure: error, releasing: nil})

      _unknown ->
        state
    end
  end

  defp handle_event({:exited, id, exit, tail}, state) do
    update_child(state, id, fn child ->
      send(child.owner, {Guardian, id, {:exited, exit, tail}})
      %{child | phase: :exited}
    end)
  end

  defp handle_event({:tree_gone, id, killed, survivors}, state) do
    case state.children do
      %{^id => child} ->
        send(child.owner, {Guardian, id, {:tree_gone, killed}})
        for from <- child.stopping, do: GenServer.reply(from, gone(:stop, survivors, :ok))

        # A request that has crossed this on its way gets no answer from the guardian, or one too late.
        Child.answer(%{child | stopping: []}, :esrch)
        drop_child(state, child)

      _unknown ->
        state
    end
  end

  defp handle_event({:all_gone, stopped, killed, survivors}, state) do
    answer = gone(:stop_all, survivors, {:ok, %{stopped: stopped, killed: killed}})
    for from <- state.asking.stop_all, do: GenServer.reply(from, answer)
    put_in(state.asking.stop_all, [])
  end

  defp handle_event({:tail, id, tail}, state) do
    update_child(state, id, fn child ->
      for from <- child.reading, do: GenServer.reply(from, {:ok, tail})
      %{child | reading: []}
    end)
  end

  defp handle_event({:info, info}, state) do
    for from <- state.asking.info, do: GenServer.reply(from, {:ok, info})
    put_in(state.asking.info, [])
  end

  defp handle_event({:log, level, message}, state) do
    level = if level == :warn, do: :warning, else: level

    if state.log_level != :none and Logger.compare_levels(level, state.log_level) != :lt do
      Logger.log(level, "Snakepit's guardian: #{message}")
    end

    state
  end

  defp handle_event({:refused, reason}, state) do
    Logger.error("Snakepit's guardian does not understand this BEAM: #{reason}")
    state
  end

  # Gives waiting children to waiting callers.
  defp serve_waiting(state) do
    with {{:value, {request, from, monitor}}, waiting} <- :queue.out(state.waiting),
         {{:value, {id, os_pid, identity}}, ready} <- :queue.out(state.ready) do
      # First, so that the caller goes on while this is under way: its release comes after it anyway.
      GenServer.reply(from, {:ok, %{id: id, os_pid: os_pid, identity: identity}})
      request = Environment.add(request, Environment.changes(environment()))
      Line.command(state.port, {:spawn, Map.put(request, :id, id)})
      {owner, _tag} = from

      %{state | waiting: waiting, ready: ready}
      |> put_child(%Child{id: id, owner: owner, monitor: monitor})
      |> serve_waiting()
    else
      {:empty, _queue} -> state
    end
  end

  defp put_child(state, child) do
    %{
      state
      | children: Map.put(state.children, child.id, child),
        owners: Map.put(state.owners, child.monitor, child.id)
    }
  end

  defp update_child(state, id, fun) do
    case state.children do
      %{^id => child} -> put_child(state, fun.(child))
      _gone -> state
    end
  end

  # Who waits for its end is told by the guardian when it is gone.
  defp drop_failed(state, %Child{stopping: []} = child), do: drop_child(state, child)
  defp drop_failed(state, child), do: put_child(state, child)

  defp drop_child(state, child) do
    Process.demonitor(child.monitor, [:flush])

    %{
      state
      | children: Map.delete(state.children, child.id),
        owners: Map.delete(state.owners, child.monitor)
    }
  end

  defp gone(_operation, [], answer), do: answer

  defp gone(operation, survivors, _answer) do
    {:error, %Error{operation: operation, reason: :survivors, os_pids: survivors}}
  end
end

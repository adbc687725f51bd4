defmodule Snakepit.Guardian do
  @moduledoc """
  The one process that talks to the guardian, the helper that starts, watches and ends all others.

  Most people want a worker, not this. Here is what workers are made of:

      iex> command = Snakepit.Command.new!(cmd: ["sleep", "60"])
      iex> {:ok, child} = Snakepit.Guardian.spawn(command, worker_id: "doc")
      iex> :ok = Snakepit.Guardian.release(child)
      iex> Snakepit.ProcessKiller.process_alive?(child.os_pid)
      true
      iex> Snakepit.Guardian.stop(child)
      :ok
      iex> Snakepit.ProcessKiller.process_alive?(child.os_pid)
      false

  ## The gate

  `spawn/2` gives a process that exists and has run nothing: its pid can be recorded. `release/1`
  lets it execute its program and returns when it has. In between, the death of the caller, of this
  process, of the guardian or of the BEAM ends it before it has run anything.

  ## What the owner hears

  The process that calls `spawn/2` owns the child. When the child ends, it gets

    * `{Snakepit.Guardian, id, {:exited, exit, tail}}` at once, with a map of status, signal and
      resource usage, and the end of the output
    * `{Snakepit.Guardian, id, {:tree_gone, killed}}` when nothing that the child started is left

  When the owner dies, the child and its tree are killed.

  ## When the guardian dies

  The kernel kills its children. This process sweeps up what else carries the run's marks, fails
  those who wait with `:guardian_down`, and ends; its supervisor starts both anew.
  """

  # Longer than the grace period and the guardian's own patience with what it has killed.
  use GenServer, shutdown: 30_000

  require Logger

  alias Snakepit.{Command, Error, Native, OSProcess, Run, Telemetry}
  alias Snakepit.Guardian.Child

  # Children kept waiting at the gate, so that the next one asked for is there already.
  @ahead 8
  @call_timeout 60_000
  @connect_timeout 5_000

  @type child :: %{id: pos_integer(), os_pid: pos_integer(), identity: binary()}

  @doc false
  def start_link(opts), do: GenServer.start_link(__MODULE__, opts, name: __MODULE__)

  @doc """
  A process that will run `command` once it is released. Options: `:worker_id`, for its marker.
  """
  @spec spawn(Command.t(), keyword()) :: {:ok, child()} | {:error, Error.t()}
  def spawn(%Command{} = command, opts \\ []) do
    opts = Keyword.validate!(opts, worker_id: "")
    worker_id = opts[:worker_id]

    with {:ok, request} <- Command.to_request(command, markers(worker_id), environment_changes()) do
      call({:spawn, Map.put(request, :worker_id, worker_id)}, :spawn)
    end
  end

  @doc "Lets a child execute its program; returns when it runs, or with the step that failed."
  @spec release(child()) :: :ok | {:error, Error.t()}
  def release(%{id: id}), do: call({:release, id}, :release)

  @doc """
  Ends a child and everything that descends from it; returns when all of it is gone.

  Options: `:signal` (`:sigterm`) and `:timeout_ms` (2000), the time until SIGKILL.
  """
  @spec stop(child(), keyword()) :: :ok | {:error, Error.t()}
  def stop(%{id: id}, opts \\ []) do
    opts = Keyword.validate!(opts, signal: :sigterm, timeout_ms: 2_000)
    call({:stop, id, opts[:signal], opts[:timeout_ms]}, :stop, opts[:timeout_ms])
  end

  @doc "Sends a signal to the `:process`, its `:group` or its whole `:tree`."
  @spec signal(child(), Native.signal(), :process | :group | :tree) :: :ok | {:error, Error.t()}
  def signal(%{id: id}, signal, scope \\ :group) when scope in [:process, :group, :tree] do
    unless Native.signal_valid(signal) do
      raise ArgumentError, "expected a signal, got: #{inspect(signal)}"
    end

    call({:signal, id, signal, scope}, :signal)
  end

  @doc """
  Ends all children and everything that descends from them, in one grace period.
  """
  @spec stop_all(keyword()) ::
          {:ok, %{stopped: integer(), killed: integer()}} | {:error, Error.t()}
  def stop_all(opts \\ []) do
    opts = Keyword.validate!(opts, timeout_ms: 2_000)
    call({:stop_all, opts[:timeout_ms]}, :stop_all, opts[:timeout_ms])
  end

  @doc "The end of a child's output so far."
  @spec output_tail(child()) :: {:ok, binary()} | {:error, Error.t()}
  def output_tail(%{id: id}), do: call({:tail, id}, :output_tail)

  @doc """
  How many children run, how many wait at the gate, and how many processes the guardian has adopted.
  """
  @spec info() :: {:ok, map()} | {:error, Error.t()}
  def info, do: call(:info, :info)

  @doc "The guardian's own pid."
  @spec os_pid() :: pos_integer()
  def os_pid, do: GenServer.call(__MODULE__, :os_pid)

  @doc """
  A connection that a child can be given: pass the token as `stdio: {:pipe, token}` or as
  `lifeline: token`. What the child writes to it arrives at the socket, and the other way round.
  Socket options are those of `:gen_tcp`.
  """
  @spec connect([:gen_tcp.connect_option()]) ::
          {:ok, :gen_tcp.socket(), binary()} | {:error, Error.t()}
  def connect(options \\ []) do
    token = :crypto.strong_rand_bytes(16)
    address = {:local, GenServer.call(__MODULE__, :socket)}
    first = [:binary, active: false, packet: :raw]

    with {:ok, socket} <- :gen_tcp.connect(address, 0, first, @connect_timeout),
         :ok <- :gen_tcp.send(socket, token),
         :ok <- :inet.setopts(socket, options) do
      {:ok, socket, token}
    else
      {:error, reason} -> {:error, %Error{operation: :connect, reason: reason}}
    end
  end

  defp markers(worker_id) do
    run = Run.current!()
    {:ok, markers} = Native.marker_environment(run.id, worker_id, run.instance)
    markers
  end

  # The guardian has the environment that the BEAM had when it started it. Most of the time that is
  # still the same, and comparing costs less than sending it along each time.
  defp environment_changes do
    before = :persistent_term.get({__MODULE__, :environment}, [])

    case :os.env() do
      ^before ->
        []

      now ->
        removed = for {name, _value} <- before, not List.keymember?(now, name, 0), do: {name, nil}
        pairs = (now -- before) ++ removed
        for {name, value} <- pairs, do: {text(name), value && text(value)}
    end
  end

  defp text(characters), do: :unicode.characters_to_binary(characters)

  # The guardian keeps all deadlines; this one is for a guardian that has stopped answering.
  defp call(request, operation, extra \\ 0) do
    GenServer.call(__MODULE__, request, @call_timeout + extra)
  catch
    :exit, {reason, _call} when reason != :timeout ->
      {:error, %Error{operation: operation, reason: :guardian_down}}
  end

  @impl true
  def init(opts) do
    # So that `terminate/2` runs when the application stops.
    Process.flag(:trap_exit, true)
    run = Keyword.fetch!(opts, :run)
    config = Keyword.fetch!(opts, :config)
    executable = Application.app_dir(:snakepit, "priv/native/snakepit_guardian")
    # Not over standard input and output: those stay the BEAM's, for children that inherit them.
    options = [:binary, :exit_status, :nouse_stdio, packet: 4]
    :persistent_term.put({__MODULE__, :environment}, :os.env())
    port = Port.open({:spawn_executable, executable}, options)

    hello = %{
      beam_pid: String.to_integer(System.pid()),
      run_id: run.id,
      run_directory: run.directory,
      grace_ms: config.watchdog.grace_period_ms,
      tail_bytes: config.output_tail_bytes,
      ahead: @ahead
    }

    command(port, {:hello, hello})

    with {:ok, {:welcome, _version, os_pid, socket}} <- first_event(port),
         {:ok, process} <- OSProcess.lookup(os_pid) do
      metadata = %{beam_pid: hello.beam_pid, guardian_pid: os_pid}
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

  defp first_event(port) do
    receive do
      {^port, {:data, frame}} -> Native.wire_decode(frame)
      {^port, {:exit_status, status}} -> {:error, {:exit_status, status}}
    after
      10_000 -> {:error, :no_answer}
    end
  end

  @impl true
  def handle_call({:spawn, request}, {owner, _tag} = from, state) do
    waiting = :queue.in({request, from, Process.monitor(owner)}, state.waiting)
    # One more than the guardian keeps ahead, if all of those are spoken for.
    if :queue.len(state.ready) < :queue.len(waiting), do: command(state.port, {:fork, 1})
    {:noreply, serve_waiting(%{state | waiting: waiting})}
  end

  def handle_call({:release, id}, from, state) do
    case state.children do
      %{^id => %Child{phase: :assigned} = child} ->
        command(state.port, {:release, id})
        {:noreply, put_child(state, %{child | phase: :released, releasing: from})}

      %{^id => %Child{phase: :failed} = child} ->
        {:reply, {:error, child.failure}, drop_child(state, child)}

      _other ->
        {:reply, {:error, %Error{operation: :release, reason: :esrch}}, state}
    end
  end

  def handle_call({:stop, id, signal, timeout_ms}, from, state) do
    case state.children do
      %{^id => child} ->
        command(state.port, {:stop, id, signal, timeout_ms})
        {:noreply, put_child(state, %{child | stopping: [from | child.stopping]})}

      _gone ->
        {:reply, :ok, state}
    end
  end

  def handle_call({:signal, id, signal, scope}, _from, state) do
    if Map.has_key?(state.children, id), do: command(state.port, {:signal, id, signal, scope})
    {:reply, :ok, state}
  end

  def handle_call({:tail, id}, from, state) do
    case state.children do
      %{^id => child} ->
        command(state.port, {:tail, id})
        {:noreply, put_child(state, %{child | reading: [from | child.reading]})}

      _gone ->
        {:reply, {:error, %Error{operation: :output_tail, reason: :esrch}}, state}
    end
  end

  def handle_call({:stop_all, timeout_ms}, from, state) do
    command(state.port, {:stop_all, timeout_ms})
    {:noreply, update_in(state.asking.stop_all, &[from | &1])}
  end

  def handle_call(:info, from, state) do
    command(state.port, :info)
    {:noreply, update_in(state.asking.info, &[from | &1])}
  end

  def handle_call(:os_pid, _from, state), do: {:reply, state.process.os_pid, state}
  def handle_call(:socket, _from, state), do: {:reply, state.socket, state}

  @impl true
  def handle_info({port, {:data, frame}}, %{port: port} = state) do
    case Native.wire_decode(frame) do
      {:ok, event} -> {:noreply, handle_event(event, state)}
      {:error, :malformed} -> {:stop, :guardian_malformed, state}
    end
  end

  def handle_info({port, {:exit_status, status}}, %{port: port} = state) do
    Logger.error("Snakepit's guardian ended with status #{status}; sweeping up after it")
    {:stop, :guardian_down, state}
  end

  # The port's exit status says the same and comes first.
  def handle_info({:EXIT, port, _reason}, %{port: port} = state), do: {:noreply, state}
  def handle_info({:EXIT, _linked, reason}, state), do: {:stop, reason, state}

  def handle_info({:DOWN, monitor, :process, _owner, _reason}, state) do
    case Map.pop(state.owners, monitor) do
      {nil, _owners} ->
        # Died while waiting for a child.
        alive = :queue.filter(fn {_request, _from, ref} -> ref != monitor end, state.waiting)
        {:noreply, %{state | waiting: alive}}

      {id, owners} ->
        command(state.port, {:stop, id, :sigkill, 0})
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
    sweep(state.run)
  end

  # Otherwise this returns when nothing is left. The port closes with this process, which the guardian
  # takes for the death of the BEAM, so whatever the reason, it ends everything and then itself.
  def terminate(_reason, state) do
    command(state.port, {:stop_all, state.grace_ms})
    await_all_gone(state.port)
  end

  defp await_all_gone(port) do
    receive do
      {^port, {:exit_status, _status}} ->
        :ok

      {^port, {:data, frame}} ->
        case Native.wire_decode(frame) do
          {:ok, {:all_gone, _stopped, _killed, []}} -> :ok
          {:ok, {:all_gone, _stopped, _killed, left}} -> log_survivors(left)
          _other -> await_all_gone(port)
        end
    end
  end

  defp log_survivors(os_pids) do
    Logger.error("Snakepit: processes survived the stop of the application: #{inspect(os_pids)}")
  end

  defp sweep(run) do
    case Native.run_stop(run.id, true, 0, 5_000) do
      {:ok, %{survivors: []}} ->
        :ok

      {:ok, %{survivors: left}} ->
        Logger.error("Snakepit: still there after the sweep: #{inspect(left)}")

      {:error, reason} ->
        Logger.error("Snakepit: the sweep failed: #{inspect(reason)}")
    end
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
        drop_child(state, child)

      _unknown ->
        state
    end
  end

  defp handle_event({:exited, id, exit, tail}, state) do
    update_child(state, id, fn child ->
      send(child.owner, {__MODULE__, id, {:exited, exit, tail}})
      %{child | phase: :exited}
    end)
  end

  defp handle_event({:tree_gone, id, killed, survivors}, state) do
    case state.children do
      %{^id => child} ->
        send(child.owner, {__MODULE__, id, {:tree_gone, killed}})
        for from <- child.stopping, do: GenServer.reply(from, gone(:stop, survivors, :ok))
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
      command(state.port, {:spawn, Map.put(request, :id, id)})
      {owner, _tag} = from
      GenServer.reply(from, {:ok, %{id: id, os_pid: os_pid, identity: identity}})

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

  defp command(port, request), do: Port.command(port, Native.wire_encode(request))
end

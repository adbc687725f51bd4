defmodule Snakepit.Worker.Server do
  @moduledoc false

  # The BEAM process of a worker: starts its OS process (`Launch`), waits until it is of use
  # (`Readiness`), passes on what goes in and out (`Output`), and ends it and everything else that the
  # worker has (`Ending`). What it promises is described in `Snakepit.Worker`.

  use GenServer

  alias Snakepit.{Error, Guardian, HeartbeatMonitor, Launch, ProcessLabel, RunState, Telemetry}

  alias Snakepit.Worker.{
    ApplicationStop,
    Client,
    Exit,
    Info,
    Linger,
    News,
    Notify,
    Options,
    Output,
    Readiness,
    StopCommand,
    StopRequest,
    Talk,
    Terminal
  }

  # In the report of a crash: not the environment, which may hold secrets.
  @derive {Inspect, only: [:options, :exit, :tree_gone?, :survivors]}
  @enforce_keys [:options, :child, :guardian, :output, :monitor, :started_at]
  defstruct [
    :options,
    :child,
    :guardian,
    :output,
    :monitor,
    :started_at,
    # The process that hears what its process says of itself.
    :notify,
    # The process that talks to it, for workers of other kinds.
    :client,
    exit: nil,
    tree_gone?: false,
    # How many processes it left behind that had to be killed, when it ended by itself.
    left: 0,
    # Those of its tree that the kernel does not let anybody end.
    survivors: [],
    # Why it exits, and the timer until then, if output of a process that has ended is still to be read.
    lingers: nil,
    # Whether its process was asked to end because its application stops.
    stopping?: false,
    # The `:stop_command`, if it was begun.
    asking: nil,
    ended: nil
  ]

  # Of a pool: whatever takes long is done when its supervisor has gone on to the next.
  @impl true
  def init({opts, owner}) do
    Process.flag(:trap_exit, true)
    ProcessLabel.set({Snakepit.Worker, opts[:id]})
    {:ok, {opts, owner}, {:continue, :launch}}
  end

  def init(options) do
    # So that `terminate/2` runs whatever ends this process, short of `:kill`, and that is the
    # guardian's and the registry's business.
    Process.flag(:trap_exit, true)
    ProcessLabel.set({Snakepit.Worker, options.id})
    launch_and_wait(options)
  end

  defp launch_and_wait(options) do
    with {:ok, worker} <- launch(options),
         {:ok, worker} <- await_ready(worker) do
      News.started(worker)
      {:ok, worker}
    else
      {:error, error} ->
        News.not_started(options, error)
        {:stop, {:shutdown, error}}
    end
  end

  defp launch(options) do
    started_at = now()

    Telemetry.span([:snakepit, :launch], %{worker_id: options.id}, fn ->
      with {:ok, options} <- Output.open_file(options),
           {:ok, notify} <- Notify.open(options),
           {:ok, %{child: child} = launched} <- run(options, notify) do
        Notify.attach(notify, child)
        {{:ok, new(launched, options, started_at, notify)}, %{os_pid: child.os_pid}}
      else
        {:error, error} ->
          error = %{error | worker_id: options.id}
          {{:error, error}, %{error: error}}
      end
    end)
  end

  defp run(options, notify) do
    with {:error, error} <- Launch.run(Options.plan(options, Notify.environment(notify))) do
      Exit.stop_linked(notify)
      {:error, error}
    end
  end

  defp new(launched, options, started_at, notify) do
    client = Client.start(options, launched.child, notify)

    %__MODULE__{
      options: options,
      child: launched.child,
      guardian: launched.guardian,
      output: Output.new(options, launched.streams),
      monitor: start_monitor(options, launched, client),
      started_at: started_at,
      notify: notify,
      client: client
    }
  end

  defp start_monitor(%{heartbeat: nil}, _launched, _client), do: nil

  defp start_monitor(options, launched, client) do
    {:ok, monitor} =
      HeartbeatMonitor.start_link(
        [
          worker: self(),
          worker_id: options.id,
          os_pid: launched.child.os_pid,
          ping: Client.ping(options, client),
          socket: launched.lifeline,
          patient: options.ready in [:heartbeat, :client]
        ] ++ Map.to_list(options.heartbeat)
      )

    monitor
  end

  defp await_ready(worker) do
    case Readiness.await(worker, parent()) do
      {:ok, output} ->
        Notify.watch(worker.notify)
        {:ok, %{worker | output: output}}

      {:error, :guardian_down, output} when worker.options.on_guardian_down == :restart ->
        start_again(%{worker | output: output})

      {:error, why, output} ->
        # Order: all of its output is there only when it is gone.
        worker = %{worker | output: output, exit: known_exit(why)} |> Exit.end_process(:forced)
        error = Exit.not_ready(worker, why)
        Exit.run(worker, :forced, {:shutdown, error})
        {:error, error}
    end
  end

  # With everything that the process had, in a new process.
  defp start_again(worker) do
    Exit.let_go(worker)
    with {:ok, worker} <- launch(worker.options), do: await_ready(worker)
  end

  defp known_exit({:exited, exit, tail}), do: {exit, tail}
  defp known_exit(_why), do: nil

  defp parent do
    case Process.get(:"$ancestors") do
      [parent | _] when is_atom(parent) -> Process.whereis(parent)
      [parent | _] -> parent
    end
  end

  @impl true
  def handle_continue(:launch, {opts, owner}) do
    options = %{Options.new!(opts) | owner: owner}

    case launch(options) do
      {:ok, worker} ->
        tell_owner(worker, {:launched, options.id})
        {:noreply, worker, {:continue, :get_ready}}

      {:error, error} ->
        News.not_started(options, error)
        {:stop, {:shutdown, error}, options}
    end
  end

  def handle_continue(:get_ready, worker) do
    case await_ready(worker) do
      {:ok, worker} ->
        News.started(worker)
        tell_owner(worker, {:ready, worker.options.id})
        {:noreply, worker}

      {:error, error} ->
        News.not_started(worker.options, error)
        tell_end(worker, error)
        {:stop, {:shutdown, error}, %{worker | child: nil}}
    end
  end

  @impl true
  def handle_call(request, from, %{child: nil} = worker), do: Linger.call(request, from, worker)
  def handle_call(:os_pid, _from, worker), do: {:reply, {:ok, worker.child.os_pid}, worker}

  def handle_call(:child, _from, worker),
    do: {:reply, {:ok, {worker.child, worker.options.signal_scope}}, worker}

  def handle_call(:client, _from, worker), do: {:reply, {:ok, worker.client}, worker}

  def handle_call(:info, _from, worker) do
    info = %Info{
      id: worker.options.id,
      os_pid: worker.child.os_pid,
      cmd: worker.options.command.cmd,
      uptime_ms: now() - worker.started_at
    }

    {:reply, {:ok, {info, worker.monitor, worker.notify, worker.child}}, worker}
  end

  def handle_call(:output_tail, _from, worker),
    do: {:reply, {:ask, worker.child, Output.tails(worker.output)}, worker}

  def handle_call({:talk, request, deadline}, from, worker),
    do: unless_at_fault(Talk.call(request, from, deadline, worker.output), worker)

  def handle_call(:reopen_output, _from, worker) do
    {answer, output} = Output.reopen(worker.output)
    {:reply, answer, %{worker | output: output}}
  end

  def handle_call({:terminal, request}, _from, worker) do
    {answer, output} = Terminal.handle(worker.output, request)
    {:reply, answer, %{worker | output: output}}
  end

  def handle_call({:stop, opts}, _from, worker) do
    options = worker.options
    # Whoever names a signal wants that one.
    command = if opts.signal, do: nil, else: options.stop_command
    signal = opts.signal || options.stop_signal
    timeout = opts.timeout || options.stop_timeout
    options = %{options | stop_signal: signal, stop_timeout: timeout, stop_command: command}
    {answer, worker} = Exit.run(%{worker | options: options}, :graceful, :normal)
    {:stop, :normal, answer, worker}
  end

  @impl true
  def handle_info(message, %{child: nil} = worker), do: Linger.info(message, worker)

  def handle_info({Guardian, id, event}, %{child: %{id: id}} = worker), do: hear(event, worker)

  def handle_info({:DOWN, guardian, :process, _server, _reason}, %{guardian: guardian} = worker),
    do: hear(:guardian_down, worker)

  def handle_info(message, worker) when elem(message, 0) == Terminal,
    do: {:noreply, %{worker | output: Terminal.hear(worker.output, message)}}

  # Its supervisor comes by later, and finds the process gone or on its way.
  def handle_info({Snakepit.Worker, :application_stops}, worker) do
    if worker.options.stop_order == :together,
      do: {:noreply, StopRequest.begin(%{worker | stopping?: true})},
      else: {:noreply, worker}
  end

  # It is to take longer. The guardian has been told; a command has its time from here.
  def handle_info({Notify, notify, {:extend, timeout}}, %{notify: notify} = worker),
    do: {:noreply, StopRequest.extend(worker, timeout)}

  # Its supervisor has not come by yet.
  def handle_info({StopCommand, news}, worker), do: {:noreply, StopRequest.hear(worker, news)}

  # Busy with its end.
  def handle_info({:EXIT, _pid, :heartbeat_timeout}, %{stopping?: true} = worker),
    do: {:noreply, worker}

  # From its own monitor, or from one that somebody has put beside it.
  def handle_info({:EXIT, _pid, :heartbeat_timeout}, worker),
    do: {:stop, :heartbeat_timeout, worker}

  def handle_info({:EXIT, _port_or_pid, :normal}, worker), do: {:noreply, worker}
  def handle_info({:EXIT, _linked, reason}, worker), do: {:stop, reason, worker}

  def handle_info(message, worker),
    do: unless_at_fault(Talk.info(message, worker.output, worker.options), worker)

  defp unless_at_fault({:ok, output}, worker), do: {:noreply, %{worker | output: output}}

  defp unless_at_fault({:fault, reason, output}, worker),
    do: {:stop, reason, %{worker | output: output}}

  # The tree outlives its leader by as long as it takes to kill it: the worker is not gone before.
  defp hear({:exited, exit, tail}, worker) do
    tell_end(worker, Exit.reason(exit))
    {:noreply, %{worker | exit: {exit, tail}}}
  end

  # Order: before all other ends. A supervisor that has not come by yet would start it again, in vain.
  defp hear(event, %{stopping?: true} = worker), do: {:noreply, await_supervisor(event, worker)}

  # It had ended by itself, and the rest of its tree is swept up.
  defp hear(:guardian_down, %{exit: {exit, _tail}} = worker),
    do: stop_when_read(worker, Exit.reason(exit))

  defp hear(:guardian_down, %{options: %{on_guardian_down: :restart}} = worker) do
    cond do
      RunState.current() != :running -> {:stop, :guardian_down, worker}
      ApplicationStop.system_stops?() -> {:noreply, %{worker | stopping?: true}}
      true -> recover(worker)
    end
  end

  defp hear(:guardian_down, worker), do: {:stop, :guardian_down, worker}

  # Those who stop the BEAM may send the signal to everyone at once.
  defp hear({:tree_gone, killed}, %{exit: {exit, _tail}} = worker) do
    worker = %{worker | tree_gone?: true, left: killed}

    if ApplicationStop.system_stops?(),
      do: {:noreply, %{worker | stopping?: true}},
      else: stop_when_read(worker, Exit.reason(exit))
  end

  # Perhaps without an exit before it: then its leader is one of them.
  defp hear({:survivors, os_pids}, worker),
    do: {:stop, {:survivors, os_pids}, %{worker | survivors: os_pids}}

  defp stop_when_read(worker, reason) do
    if Linger.worth?(worker), do: Linger.begin(worker, reason), else: {:stop, reason, worker}
  end

  defp await_supervisor({:tree_gone, _killed}, worker), do: %{worker | tree_gone?: true}
  defp await_supervisor({:survivors, os_pids}, worker), do: %{worker | survivors: os_pids}
  defp await_supervisor(:guardian_down, worker), do: worker

  # This process goes on, with its name, its place in its supervisor or pool, and its callers' messages.
  defp recover(lost) do
    begun = now()
    # Order: before the long part, so that a pool gives it to nobody meanwhile.
    tell_owner(lost, {:lost, lost.options.id})

    case start_again(lost) do
      {:ok, worker} ->
        News.restarted(worker, lost, now() - begun)
        tell_owner(worker, {:ready, worker.options.id})
        {:noreply, worker}

      # Its supervisor or the application wants it gone.
      {:error, %Error{reason: :shutting_down}} ->
        tell_end(lost, :shutdown)
        {:stop, :shutdown, %{lost | child: nil}}

      {:error, error} ->
        News.not_restarted(lost, error)
        tell_end(lost, error)
        {:stop, error, %{lost | child: nil}}
    end
  end

  @impl true
  def terminate(_reason, {_opts, _owner}), do: :ok
  def terminate(_reason, %Options{}), do: :ok
  def terminate(reason, %{child: nil}), do: leave(reason)

  def terminate(reason, worker) do
    # Order: before those who use it hear of it, so that a pool does not give it to the next.
    tell_end(worker, reason)
    how = Exit.how(worker, reason)
    # Order: before it waits for its own process.
    if how == :graceful and not worker.stopping?, do: ApplicationStop.begin()
    Exit.run(worker, how, reason)
    leave(reason)
  end

  # Order: everything is done. What the log has to say about these reasons it has said, in one line; a
  # GenServer would repeat it with its state. A reason that is none of them is a fault, and reported.
  defp leave(reason) do
    if News.told?(reason) do
      Process.flag(:trap_exit, false)
      Process.exit(self(), reason)
    end
  end

  defp tell_end(worker, reason), do: tell_owner(worker, {:ended, worker.options.id, reason})

  defp tell_owner(%{options: %{owner: nil}}, _news), do: :ok

  defp tell_owner(%{options: options}, news),
    do: send(options.owner, {Snakepit.Worker, self(), news})

  defp now, do: System.monotonic_time(:millisecond)
end

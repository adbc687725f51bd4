defmodule Snakepit.ServiceManager do
  @moduledoc """
  Tells the service manager how this application is: systemd, or whatever has started the BEAM with `NOTIFY_SOCKET`.

      config :snakepit, notify: true

  With this it is told

    * `READY=1` when the BEAM has booted, so when all applications of a release have started
    * `STATUS=` with the number of workers, when that has changed, unless `status/1` says something else
    * `WATCHDOG=1` in time, where it has set `WATCHDOG_USEC` for the BEAM, and for as long as the guardian answers
    * `STOPPING=1` when the BEAM stops, with `EXTEND_TIMEOUT_USEC=` for the longest grace period of a worker

  With `notify: :manual` the application says itself when it is ready, by `ready/0`: for one that is not after its start,
  and where applications are started by `mix run`. For a service of systemd:

      [Service]
      Type=notify
      WatchdogSec=30

  Without `NOTIFY_SOCKET`, or without the configuration, nothing is sent and every function here returns `:ok`.

  Workers do not find the variable. What they say would be taken for the application's word, so it is removed from their
  environment, with `WATCHDOG_USEC` and `WATCHDOG_PID`. What workers say to Snakepit is another matter: see
  `Snakepit.Worker`.
  """

  use GenServer

  alias Snakepit.{Guardian, Run}
  alias Snakepit.Guardian.Grace
  alias Snakepit.Pool.ProcessRegistry

  # How often it is looked whether the BEAM has booted, of which nothing tells.
  @boot_ms 100
  @status_ms 10_000
  # What the guardian may take on top of the longest grace period.
  @slack_ms 15_000

  @typedoc "Fields of a message, by `sd_notify(3)`."
  @type fields :: [{String.t(), String.t() | integer()}]

  @doc false
  def start_link(config), do: GenServer.start_link(__MODULE__, config.notify, name: __MODULE__)

  @doc "Says that the application is ready. Nothing happens if it has been said."
  @spec ready() :: :ok
  def ready, do: cast(:ready)

  @doc "Says how the application is, in words: what `systemctl status` shows."
  @spec status(String.t()) :: :ok
  def status(text) when is_binary(text), do: cast({:status, text})

  @doc "Sends fields of the caller's own, such as `[{\"ERRNO\", 2}]`."
  @spec notify(fields()) :: :ok
  def notify(fields) do
    with address when address != nil <- address(), do: transmit(address, fields)
    :ok
  end

  # The stop has begun. Said once, by whoever notices first.
  @doc false
  @spec stopping() :: :ok
  def stopping do
    with address when address != nil <- address(),
         false <- :persistent_term.get({__MODULE__, :stopping}, false) do
      :persistent_term.put({__MODULE__, :stopping}, true)
      extension_us = (Grace.longest(Run.current()) + @slack_ms) * 1_000
      transmit(address, [{"STOPPING", 1}, {"EXTEND_TIMEOUT_USEC", extension_us}])
    end

    :ok
  end

  @doc false
  @spec forget() :: :ok
  def forget do
    for key <- [:address, :stopping], do: :persistent_term.erase({__MODULE__, key})
    :ok
  end

  defp cast(request), do: GenServer.cast(__MODULE__, request)

  defp address, do: :persistent_term.get({__MODULE__, :address}, nil)

  @impl true
  def init(mode) do
    :persistent_term.put({__MODULE__, :address}, parse(System.get_env("NOTIFY_SOCKET")))
    state = %{ready?: false, said: nil, own_status?: false}

    if address() do
      if mode == true, do: send(self(), :look_at_boot)
      begin_watchdog()
      {:ok, state}
    else
      :ignore
    end
  end

  # As the kernel has them: an abstract name begins with a zero.
  defp parse("@" <> name), do: %{family: :local, path: <<0, name::binary>>}
  defp parse("/" <> _ = path), do: %{family: :local, path: path}
  # Of a virtual machine, or nothing.
  defp parse(_other), do: nil

  defp begin_watchdog do
    own? = System.get_env("WATCHDOG_PID") in [nil, System.pid()]

    case Integer.parse(System.get_env("WATCHDOG_USEC", "")) do
      # Twice as often as it has to be said.
      {us, ""} when us > 0 and own? -> :timer.send_interval(max(div(us, 2_000), 1), :watchdog)
      _none -> :ok
    end
  end

  @impl true
  def handle_cast(:ready, state), do: {:noreply, say_ready(state)}

  def handle_cast({:status, text}, state) do
    notify([{"STATUS", text}])
    {:noreply, %{state | own_status?: true}}
  end

  @impl true
  def handle_info(:look_at_boot, state) do
    case :init.get_status() do
      {:started, _provided} ->
        {:noreply, say_ready(state)}

      _starting_or_stopping ->
        Process.send_after(self(), :look_at_boot, @boot_ms)
        {:noreply, state}
    end
  end

  # A guardian that does not answer keeps this process waiting, and the manager hears nothing.
  def handle_info(:watchdog, state) do
    with {:ok, _counts} <- Guardian.info(), do: notify([{"WATCHDOG", 1}])
    {:noreply, state}
  end

  def handle_info(:status, state) do
    Process.send_after(self(), :status, @status_ms)
    {:noreply, say_status(state)}
  end

  defp say_ready(%{ready?: true} = state), do: state

  defp say_ready(state) do
    notify([{"READY", 1}])
    send(self(), :status)
    %{state | ready?: true}
  end

  defp say_status(%{own_status?: true} = state), do: state

  defp say_status(state) do
    case length(ProcessRegistry.get_active_process_pids()) do
      count when count == state.said ->
        state

      count ->
        notify([{"STATUS", "#{count} workers"}])
        %{state | said: count}
    end
  end

  # To a manager that does not read it is not worth waiting for.
  defp transmit(address, fields) do
    # A line would end there.
    lines = for {name, value} <- fields, do: "#{name}=#{String.replace("#{value}", "\n", " ")}"

    with {:ok, socket} <- :socket.open(:local, :dgram) do
      :socket.sendto(socket, Enum.join(lines, "\n"), address, [], :nowait)
      :socket.close(socket)
    end
  end
end

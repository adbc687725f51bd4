defmodule Snakepit.Worker.Client do
  @moduledoc false

  # A process of a worker's own that talks to its OS process, such as `Snakepit.GRPCWorker.Link`. It begins with each OS
  # process and ends after it, so that what is under way can end while the process stops. It says when the worker is
  # ready, and asks for signs of life.
  #
  # It is linked: if it crashes, so does the worker.

  alias Snakepit.Guardian
  alias Snakepit.Worker.Exit

  @typedoc "The module of the process, and its options."
  @type spec :: {module(), term()}

  @typedoc "`notify` hears what the OS process says of itself, see `Snakepit.Worker.Notify`."
  @type info :: %{worker: pid(), worker_id: String.t(), os_pid: pos_integer(), notify: pid()}

  @doc "Starts it, linked. It sends the worker `ready/0` once."
  @callback start_link(info(), term()) :: {:ok, pid()}

  @doc "Asks the OS process for a sign of life, as the `:ping` of a worker does. May hang."
  @callback ping(pid()) :: term()

  @doc "Returns what it waits for, for the error of a worker that is not ready in time."
  @callback pending(pid()) :: String.t()

  @doc "Starts the client of a worker that has one."
  @spec start(Snakepit.Worker.Options.t(), Guardian.child(), pid() | nil) :: pid() | nil
  def start(%{client: nil}, _child, _notify), do: nil

  def start(%{client: {module, opts}} = options, child, notify) do
    info = %{worker: self(), worker_id: options.id, os_pid: child.os_pid, notify: notify}
    {:ok, client} = module.start_link(info, opts)
    client
  end

  @doc "Returns the `:ping` function of a worker."
  @spec ping(Snakepit.Worker.Options.t(), pid() | nil) :: function() | nil
  def ping(%{client: nil, ping: ping}, nil), do: ping
  def ping(%{client: {module, _opts}}, client), do: fn -> module.ping(client) end

  @doc "Tells a worker that its client finds the OS process ready."
  @spec ready(pid()) :: :ok
  def ready(worker) do
    send(worker, {__MODULE__, self(), :ready})
    :ok
  end

  @doc "Returns why the worker is not ready."
  @spec pending(Snakepit.Worker.Options.t(), pid() | nil) :: String.t() | nil
  def pending(%{client: nil}, nil), do: nil
  def pending(%{client: {module, _opts}}, client), do: module.pending(client)

  @doc """
  Has the address that the OS process announces sent to the calling process, as
  `{Snakepit.Worker.Notify, notify, {:address, address}}`.
  """
  @spec await_address(pid()) :: :ok
  def await_address(notify), do: GenServer.cast(notify, {:await_address, self()})

  @doc "Ends it."
  @spec stop(pid() | nil) :: :ok
  defdelegate stop(client), to: Exit, as: :stop_linked
end

defmodule Snakepit.Worker.Viewer do
  @moduledoc false

  # Who looks at a worker's terminal beside its `:output`: see `Snakepit.Terminal.attach/2`.
  #
  # It says how much it has shown. While it is far behind, the worker does not read, and its process waits.

  @enforce_keys [:pid, :monitor]
  defstruct [:pid, :monitor, unseen: 0]

  @type t :: %__MODULE__{pid: pid(), monitor: reference(), unseen: non_neg_integer()}

  @most_unseen 65_536

  @doc "A viewer, whose end the caller hears of: `{tag, monitor, :process, pid, reason}`."
  @spec new(pid(), atom()) :: t()
  def new(pid, tag),
    do: %__MODULE__{pid: pid, monitor: :erlang.monitor(:process, pid, tag: tag)}

  @doc "Shows it what was written."
  @spec show(t() | nil, binary()) :: t() | nil
  def show(nil, _data), do: nil

  def show(viewer, data) do
    send(viewer.pid, {__MODULE__, self(), {:output, data}})
    %{viewer | unseen: viewer.unseen + byte_size(data)}
  end

  @doc "It has shown so many bytes."
  @spec seen(t(), non_neg_integer()) :: t()
  def seen(viewer, bytes), do: %{viewer | unseen: viewer.unseen - bytes}

  @doc "Whether it is so far behind that nothing should be read."
  @spec behind?(t() | nil) :: boolean()
  def behind?(viewer), do: viewer != nil and viewer.unseen >= @most_unseen

  @doc "There is nothing more to see."
  @spec close(t() | nil) :: :ok
  def close(nil), do: :ok

  def close(viewer) do
    Process.demonitor(viewer.monitor, [:flush])
    send(viewer.pid, {__MODULE__, self(), :closed})
    :ok
  end
end

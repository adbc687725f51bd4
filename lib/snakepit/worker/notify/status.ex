defmodule Snakepit.Worker.Notify.Status do
  @moduledoc """
  What a worker's process has said of itself, by `sd_notify(3)`.

    * `:state` - `:starting`, `:ready`, `:reloading` or `:stopping`
    * `:text` - its last `STATUS=`, or `nil`
    * `:address` - its last `X_SNAKEPIT_ADDRESS=`, where it serves, or `nil`; see `Snakepit.GRPCWorker`
    * `:watchdogs` - how many times it has said `WATCHDOG=1`

  """

  defstruct state: :starting, text: nil, address: nil, watchdogs: 0

  @type t :: %__MODULE__{
          state: :starting | :ready | :reloading | :stopping,
          text: String.t() | nil,
          address: String.t() | nil,
          watchdogs: non_neg_integer()
        }

  @doc false
  @spec update(t(), Snakepit.Worker.Notify.Message.t()) :: t()
  def update(status, message) do
    %{
      status
      | state: state(status.state, message),
        text: Map.get(message, :status, status.text),
        address: Map.get(message, :address, status.address),
        watchdogs: status.watchdogs + if(message[:watchdog] == :alive, do: 1, else: 0)
    }
  end

  defp state(_before, %{stopping: true}), do: :stopping
  defp state(_before, %{ready: true}), do: :ready
  defp state(_before, %{reloading: true}), do: :reloading
  defp state(before, _message), do: before
end

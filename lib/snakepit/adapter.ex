defmodule Snakepit.Adapter do
  @moduledoc """
  What makes the workers of a pool answer `Snakepit.execute/3` and `Snakepit.execute_stream/4`.

  A pool whose `:worker` is `{module, options}` has workers of that kind, and the module is its adapter.
  `Snakepit.GRPCWorker` is one. A pool of `Snakepit.Python` has one too: a command is a function of Python there, and its
  arguments are keyword arguments.

      {Snakepit.Pool, name: MyApp.Models, size: 4, worker: {Snakepit.GRPCWorker, cmd: ["python3", "models.py"]}}

  """

  alias Snakepit.{Error, Pool}

  @typedoc """
  Checked options. `:deadline` is a time of `System.monotonic_time(:millisecond)`, or `:infinity`, for everything that
  the call needs, a free worker included. `:affinity` is that of `Snakepit.Pool.with_worker/3` for the `:session_id`.
  """
  @type opts :: %{
          deadline: integer() | :infinity,
          session_id: String.t() | nil,
          affinity: :hint | :strict | :fail_fast
        }

  @doc """
  Returns the options of `Snakepit.Worker` for a worker of this kind. Raises `ArgumentError` on invalid ones.
  """
  @callback worker_options(keyword()) :: keyword()

  @doc "Has a worker of the pool carry out a command, and returns its result."
  @callback run_command(Pool.pool(), command :: String.t(), arguments :: map(), opts()) ::
              {:ok, term()} | {:error, Error.t()}

  @doc """
  Has a worker of the pool carry out a command that answers in parts. Each is given to `fun`, in the calling process;
  if that raises, the command is cancelled.
  """
  @callback stream_command(
              Pool.pool(),
              command :: String.t(),
              arguments :: map(),
              fun :: (term() -> term()),
              opts()
            ) :: :ok | {:error, Error.t()}
end

defmodule Snakepit.Usage do
  @moduledoc """
  What a worker's process and everything that descends from it use at one moment: `Snakepit.Worker.usage/2`.

    * `:processes` - how many run
    * `:threads` - how many they have together
    * `:user_us`, `:system_us` - microseconds of processor time in user mode and in the kernel since the start, also of
      those that have ended
    * `:rss_bytes` - memory that is in RAM. What several processes share counts for each of them
    * `:pss_bytes` - the same, where shared memory counts once; `nil` unless it was asked for
    * `:descriptors` - how many are open
    * `:read_bytes`, `:written_bytes` - by system calls from and to files, pipes and terminals; not what is received
      from and sent to sockets
    * `:storage_read_bytes`, `:storage_written_bytes` - of that, what was fetched from storage and sent to it

  The kernel is asked about this tree alone, so the cost depends on its size and not on that of the host. Processes that
  come and go meanwhile may be missing. Processor time is counted in hundredths of a second.

  The last six are `nil` if the BEAM may read them of none of the processes, as with workers of another user. What it may
  not read of one process is left out of the sum.
  """

  alias Snakepit.{Error, Guardian, Native}

  @io [:read_bytes, :written_bytes, :storage_read_bytes, :storage_written_bytes]
  @sums [:threads, :user_us, :system_us, :rss_bytes, :pss_bytes, :descriptors | @io]

  @enforce_keys [:processes | @sums]
  defstruct @enforce_keys

  @type t :: %__MODULE__{
          processes: non_neg_integer(),
          threads: non_neg_integer(),
          user_us: non_neg_integer(),
          system_us: non_neg_integer(),
          rss_bytes: non_neg_integer(),
          pss_bytes: non_neg_integer() | nil,
          descriptors: non_neg_integer() | nil,
          read_bytes: non_neg_integer() | nil,
          written_bytes: non_neg_integer() | nil,
          storage_read_bytes: non_neg_integer() | nil,
          storage_written_bytes: non_neg_integer() | nil
        }

  @typedoc """
  One process of a tree, parents first. `parent` is the pid of its parent, which for the worker's own process, and for
  those whose parent has ended, is the guardian. One that has ended and was not waited for is not `alive`. The times
  include those of the children that it has waited for.
  """
  @type os_process :: %{
          os_pid: pos_integer(),
          parent: non_neg_integer(),
          name: binary(),
          arguments: [binary()],
          alive: boolean(),
          threads: non_neg_integer(),
          user_us: non_neg_integer(),
          system_us: non_neg_integer(),
          rss_bytes: non_neg_integer(),
          pss_bytes: non_neg_integer() | nil,
          descriptors: non_neg_integer() | nil,
          read_bytes: non_neg_integer() | nil,
          written_bytes: non_neg_integer() | nil,
          storage_read_bytes: non_neg_integer() | nil,
          storage_written_bytes: non_neg_integer() | nil
        }

  @doc false
  @spec of(Guardian.child(), boolean()) :: {:ok, t()} | {:error, Error.t()}
  def of(child, pss?) do
    with {:ok, roots, ended} <- Guardian.roots(child),
         {:ok, rows} <- read(child, roots, pss?, false),
         do: {:ok, sum(rows, ended)}
  end

  # For whoever has asked the guardian about several children at once.
  @doc false
  @spec of_roots(
          %{os_pid: pos_integer(), identity: binary()},
          [{pos_integer(), non_neg_integer()}],
          {non_neg_integer(), non_neg_integer()}
        ) :: {:ok, t()} | {:error, Error.t()}
  def of_roots(child, roots, ended) do
    with {:ok, rows} <- read(child, roots, false, false), do: {:ok, sum(rows, ended)}
  end

  @doc false
  @spec processes(Guardian.child(), boolean()) :: {:ok, [os_process()]} | {:error, Error.t()}
  def processes(child, pss?) do
    with {:ok, roots, _ended} <- Guardian.roots(child), do: read(child, roots, pss?, true)
  end

  defp read(child, roots, pss?, arguments?) do
    case Native.tree_usage(child.identity, roots, pss?, arguments?) do
      # Since the guardian has said who is there.
      {:ok, []} -> {:error, %Error{operation: :usage, reason: :esrch, os_pid: child.os_pid}}
      {:ok, rows} -> {:ok, Enum.map(rows, &name_io/1)}
      {:error, error} -> {:error, Error.from_native(:usage, error)}
    end
  end

  defp name_io(%{io: io} = row) do
    values = if io, do: Tuple.to_list(io), else: [nil, nil, nil, nil]
    row |> Map.delete(:io) |> Map.merge(Map.new(Enum.zip(@io, values)))
  end

  # With the time of adopted processes that have ended, which nobody else has counted.
  defp sum(rows, {user_us, system_us}) do
    sums = Map.new(@sums, fn key -> {key, total(for(%{^key => value} <- rows, do: value))} end)
    times = %{user_us: sums.user_us + user_us, system_us: sums.system_us + system_us}
    running = Enum.count(rows, & &1.alive)
    struct!(__MODULE__, sums |> Map.merge(times) |> Map.put(:processes, running))
  end

  defp total(values) do
    case Enum.reject(values, &is_nil/1) do
      [] -> nil
      known -> Enum.sum(known)
    end
  end
end

defmodule Snakepit.Ledger.Table do
  @moduledoc false

  # The DETS table of a run: one sealed record per worker, and what is known of the run itself.
  #
  # DETS opens files that have lost bytes and returns wrong values, so nothing that comes out of it is
  # believed without its seal. Any call may fail on a full disk. And DETS does not read dead tables at
  # all: see `Snakepit.Ledger.Salvage`.

  alias Snakepit.{Error, Native}
  alias Snakepit.Ledger.{RunDirectory, Salvage, Seal}

  @type contents :: %{
          run: map() | nil,
          guardian: Native.identity() | nil,
          grace: non_neg_integer() | nil,
          workers: %{optional(String.t()) => map()},
          bad: non_neg_integer()
        }

  @spec path(Path.t()) :: Path.t()
  defdelegate path(directory), to: RunDirectory, as: :table

  @doc "Opens or makes the table of a directory."
  @spec open(term(), Path.t()) :: {:ok, term()} | {:error, term()}
  def open(name, directory) do
    :dets.open_file(name, file: String.to_charlist(path(directory)), auto_save: :infinity)
  end

  @doc """
  The table of a dead run. An error for a file that is no table; one that has lost records counts as
  having one that is bad.
  """
  @spec read(Path.t()) :: {:ok, contents()} | {:error, term()}
  def read(directory) do
    case Salvage.read(path(directory)) do
      {:ok, found} ->
        # Those that were freed are not damaged, but written over.
        freed = %{Enum.reduce(found.leftovers, empty(), &object/2) | bad: 0}
        contents = Enum.reduce(found.objects, freed, &object/2)
        {:ok, if(found.complete?, do: contents, else: %{contents | bad: contents.bad + 1})}

      {:error, :enoent} ->
        {:ok, empty()}

      {:error, reason} ->
        {:error, reason}
    end
  end

  @doc "Returns all that is in an open table."
  @spec contents(term()) :: contents()
  def contents(name) do
    case :dets.match_object(name, :_) do
      objects when is_list(objects) -> Enum.reduce(objects, empty(), &object/2)
      {:error, _reason} -> %{empty() | bad: 1}
    end
  end

  @doc "Returns the contents with entries of the journal applied, which are younger."
  @spec apply_entries(contents(), [tuple()]) :: contents()
  def apply_entries(contents, entries), do: Enum.reduce(entries, contents, &entry/2)

  @doc "Stores entries of the journal in an open table, and waits for the disk."
  @spec store(term(), [Snakepit.Ledger.Journal.entry()]) :: :ok | {:error, Error.t()}
  def store(name, entries) do
    # Most workers of a batch came and went: only the last word on each is written.
    changes = entries |> Enum.map(&change/1) |> Enum.reject(&is_nil/1) |> Map.new()
    {gone, objects} = Enum.split_with(changes, fn {_key, object} -> object == nil end)

    with :ok <- :dets.insert(name, Enum.map(objects, fn {_key, object} -> object end)),
         :ok <- delete(name, for({key, nil} <- gone, do: key)),
         :ok <- :dets.sync(name) do
      :ok
    else
      # That is the usual form. After an error of the disk DETS also returns terms of its own.
      {:error, reason} -> {:error, refusal(reason)}
      reason -> {:error, refusal(reason)}
    end
  end

  defp refusal(reason),
    do: %Error{operation: :store, reason: :dets, detail: "DETS says #{inspect(reason)}"}

  # Up to the first that fails.
  defp delete(name, keys),
    do: Enum.find_value(keys, :ok, fn key -> with :ok <- :dets.delete(name, key), do: nil end)

  @doc "Moves a file out of the way, under a name that says when and why."
  @spec set_aside(Path.t(), String.t()) :: Path.t()
  def set_aside(path, why) do
    stamp = Calendar.strftime(DateTime.utc_now(), "%Y%m%dT%H%M%S")
    aside = "#{path}.#{why}-#{stamp}-#{System.unique_integer([:positive])}"
    # If the rename fails, the file stays where it is, which harms nothing.
    File.rename(path, aside)
    aside
  end

  @doc "Returns the contents of a table without objects."
  @spec empty() :: contents()
  def empty, do: %{run: nil, guardian: nil, grace: nil, workers: %{}, bad: 0}

  defp object({:current_run, sealed}, contents), do: unseal(contents, :run, sealed)
  defp object({:guardian, sealed}, contents), do: unseal(contents, :guardian, sealed)
  defp object({:grace, sealed}, contents), do: unseal(contents, :grace, sealed)

  defp object({id, sealed}, contents) when is_binary(id) do
    case Native.record_check(sealed) do
      {:ok, record} -> put_in(contents.workers[record.worker_id], record)
      {:error, _flaw} -> %{contents | bad: contents.bad + 1}
    end
  end

  defp object(_foreign, contents), do: %{contents | bad: contents.bad + 1}

  defp unseal(contents, key, sealed) do
    case Seal.open(sealed) do
      {:ok, value} -> Map.put(contents, key, value)
      :error -> %{contents | bad: contents.bad + 1}
    end
  end

  defp entry({:run, record}, contents), do: %{contents | run: record}
  defp entry({:guardian, identity}, contents), do: %{contents | guardian: identity}
  defp entry({:grace, grace_ms}, contents), do: %{contents | grace: grace_ms}

  defp entry({:gone, worker_id}, contents),
    do: %{contents | workers: Map.delete(contents.workers, worker_id)}

  defp entry(worker, contents) do
    case sealed(worker) do
      {:ok, sealed} -> object({sealed.worker_id, sealed}, contents)
      :error -> %{contents | bad: contents.bad + 1}
    end
  end

  defp change({:run, record}), do: {:current_run, {:current_run, Seal.seal(record)}}
  defp change({:guardian, identity}), do: {:guardian, {:guardian, Seal.seal(identity)}}
  defp change({:grace, grace_ms}), do: {:grace, {:grace, Seal.seal(grace_ms)}}

  defp change({:gone, id}), do: {id, nil}

  defp change(worker) do
    case sealed(worker) do
      {:ok, sealed} -> {sealed.worker_id, {sealed.worker_id, sealed}}
      :error -> nil
    end
  end

  defp sealed({:worker, id, run_id, status, os_pid, pgid, identity, owner, command, spawned_at}) do
    record = %{
      worker_id: id,
      run_id: run_id,
      status: status,
      os_pid: os_pid,
      pgid: pgid,
      identity: identity,
      elixir_pid: owner,
      command: command,
      spawned_at: spawned_at
    }

    {:ok, Map.merge(record, Native.record_seal(record))}
  rescue
    # A term of another program, or of a later version: not a record, or of fields that are none.
    _error in [ArgumentError, ErlangError] -> :error
  end

  defp sealed(_foreign), do: :error
end

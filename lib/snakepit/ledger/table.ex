defmodule Snakepit.Ledger.Table do
  @moduledoc false

  # The DETS table of a run: one sealed record per worker, and what is known of the run itself.
  #
  # DETS opens files that have lost bytes and returns wrong values, so no value is believed without its seal.
  # Any call may fail on a full disk. Tables of dead runs are not read by DETS at all: see
  # `Snakepit.Ledger.Salvage`.

  alias Snakepit.{Error, Native}
  alias Snakepit.Ledger.{RunDirectory, Salvage, Seal}

  @type contents :: %{
          run: map() | nil,
          guardian: Native.identity() | nil,
          grace: non_neg_integer() | nil,
          workers: %{optional(String.t()) => map()},
          children: [Native.identity()],
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
  Returns the contents of a dead run's table, or an error for a file that is no table. A table that has lost records
  counts as having a bad one.
  """
  @spec read(Path.t()) :: {:ok, contents()} | {:error, term()}
  def read(directory) do
    case Salvage.read(path(directory)) do
      {:ok, found} ->
        # Those that were freed are not damaged, but written over.
        freed = %{Enum.reduce(found.leftovers, empty(), &object/2) | bad: 0}
        contents = Enum.reduce(found.objects, freed, &object/2)
        {:ok, if(found.complete?, do: contents, else: bad(contents))}

      {:error, :enoent} ->
        {:ok, empty()}

      {:error, reason} ->
        {:error, reason}
    end
  end

  @doc """
  Returns all that is in the open table of a directory. After an error of the disk DETS answers with that error
  until it is closed; then the file is read as a dead run's is.
  """
  @spec contents(term(), Path.t()) :: contents()
  def contents(name, directory) do
    with objects when is_list(objects) <- :dets.match_object(name, :_) do
      Enum.reduce(objects, empty(), &object/2)
    else
      _error ->
        case read(directory) do
          {:ok, contents} -> contents
          {:error, _reason} -> bad(empty())
        end
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
    changes = Map.merge(changes, children(name, entries))
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

  # The few that wait at the gate, or have not been named since: one object for all.
  defp children(name, entries) do
    stored =
      case :dets.lookup(name, :children) do
        [object] -> object(object, empty())
        _none -> empty()
      end

    %{children: children} = Enum.reduce(entries, stored, &child/2)
    if children == stored.children, do: %{}, else: %{children: {:children, Seal.seal(children)}}
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
  def empty, do: %{run: nil, guardian: nil, grace: nil, workers: %{}, children: [], bad: 0}

  defp object({:current_run, sealed}, contents), do: unseal(contents, :run, sealed)
  defp object({:guardian, sealed}, contents), do: unseal(contents, :guardian, sealed)
  defp object({:grace, sealed}, contents), do: unseal(contents, :grace, sealed)

  defp object({:children, sealed}, contents) do
    contents = unseal(contents, :children, sealed)
    if identities?(contents.children), do: contents, else: bad(%{contents | children: []})
  end

  defp object({id, sealed}, contents) when is_binary(id) do
    case Native.record_check(sealed) do
      {:ok, record} -> put_in(contents.workers[record.worker_id], record)
      {:error, _flaw} -> bad(contents)
    end
  end

  defp object(_foreign, contents), do: bad(contents)

  defp unseal(contents, key, sealed) do
    case Seal.open(sealed) do
      {:ok, value} -> Map.put(contents, key, value)
      :error -> bad(contents)
    end
  end

  defp bad(contents), do: %{contents | bad: contents.bad + 1}

  defp entry({:run, record}, contents), do: %{contents | run: record}
  defp entry({:guardian, identity}, contents), do: %{contents | guardian: identity}
  defp entry({:grace, grace_ms}, contents), do: %{contents | grace: grace_ms}

  defp entry({:gone, worker_id}, contents),
    do: %{contents | workers: Map.delete(contents.workers, worker_id)}

  defp entry({:children, added, gone} = entry, contents) do
    if identities?(added) and (gone == :all or identities?(gone)),
      do: child(entry, contents),
      else: bad(contents)
  end

  defp entry(worker, contents) do
    case sealed(worker) do
      {:ok, sealed} -> object({sealed.worker_id, sealed}, child(worker, contents))
      :error -> bad(contents)
    end
  end

  # A child that has become a worker has a record of its own.
  defp child({:children, added, :all}, contents), do: %{contents | children: added}

  defp child({:children, added, gone}, contents),
    do: %{contents | children: added ++ (contents.children -- gone)}

  defp child({:worker, _, _, :active, _, _, identity, _, _, _}, contents),
    do: %{contents | children: List.delete(contents.children, identity)}

  defp child(_other, contents), do: contents

  defp identities?(term),
    do: is_list(term) and not List.improper?(term) and Enum.all?(term, &is_binary/1)

  defp change({:run, record}), do: {:current_run, {:current_run, Seal.seal(record)}}
  defp change({:guardian, identity}), do: {:guardian, {:guardian, Seal.seal(identity)}}
  defp change({:grace, grace_ms}), do: {:grace, {:grace, Seal.seal(grace_ms)}}

  defp change({:gone, id}), do: {id, nil}
  defp change({:children, _added, _gone}), do: nil

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

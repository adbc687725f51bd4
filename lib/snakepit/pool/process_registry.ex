defmodule Snakepit.Pool.ProcessRegistry do
  @moduledoc """
  The registry of every worker of this BEAM, with its OS process and the BEAM process that owns it.

  A worker is registered in two steps, one before its process exists and one before it may run
  anything:

      :ok = ProcessRegistry.reserve_worker(id)
      {:ok, child} = Guardian.spawn(command, worker_id: id)
      :ok = ProcessRegistry.activate_worker(id, self(), child.os_pid, identity: child.identity)
      :ok = Guardian.release(child)

  When `activate_worker/4` returns, the ledger has the process and its reservation: see `Snakepit.Pool.PIDLedger`.
  Neither step waits for another BEAM process, and neither does any function that reads. An entry is deleted by the one
  caller that passes its gate. Otherwise a late second delete could remove a new worker that reuses the id.

  When an owner dies, its process is ended. An entry is deleted only when its process is known to be gone, so a process
  that could not be ended is not lost.
  """

  alias Snakepit.{Error, Native, Options, Run}
  alias Snakepit.Pool.PIDLedger
  alias Snakepit.Pool.ProcessRegistry.{Server, Table}

  @typedoc """
  `state` is that of the process: `:reserved` (none yet), `:alive` or `:dead`. `uptime_ms` counts from
  the activation.
  """
  @type info :: %{
          optional(:child_id) => pos_integer(),
          worker_id: String.t(),
          run_id: String.t(),
          status: :reserved | :active,
          owner: pid(),
          os_pid: pos_integer() | nil,
          pgid: pos_integer() | nil,
          identity: binary() | nil,
          command: [binary()],
          since_ms: integer(),
          spawned_at: integer() | nil
        }

  @doc false
  defdelegate child_spec(opts), to: Server

  @doc """
  Takes a worker id, before there is a process. The caller is its owner until it is activated.

      iex> alias Snakepit.Pool.ProcessRegistry
      iex> ProcessRegistry.reserve_worker("doc-registry")
      :ok
      iex> {:error, error} = ProcessRegistry.reserve_worker("doc-registry")
      iex> error.reason
      :already_registered
      iex> ProcessRegistry.unregister_worker("doc-registry")
      :ok

  """
  @spec reserve_worker(String.t()) :: :ok | {:error, Error.t()}
  def reserve_worker(worker_id) do
    Options.check!(worker_id, :text, :worker_id)

    info = %{
      worker_id: worker_id,
      run_id: Run.current!().id,
      status: :reserved,
      owner: self(),
      os_pid: nil,
      pgid: nil,
      identity: nil,
      command: [],
      since_ms: System.monotonic_time(:millisecond),
      spawned_at: nil
    }

    # Order: the name first, so that no two get it; then the ledger; a failure there gives it back.
    case Table.claim(info) do
      true ->
        note_reservation(worker_id)

      false ->
        # Its owner may have died without anybody having noticed yet.
        GenServer.cast(__MODULE__, :watch_new)
        {:error, error(:reserve_worker, :already_registered, worker_id)}

      :registry_down ->
        {:error, error(:reserve_worker, :registry_down, worker_id)}
    end
  end

  defp note_reservation(worker_id) do
    case PIDLedger.note(worker_id, PIDLedger.check!(status: :reserved)) do
      :ok ->
        unless_down(:reserve_worker, worker_id, Table.note_new(worker_id, self()))

      {:error, error} ->
        Table.delete(worker_id)
        {:error, %{error | operation: :reserve_worker}}
    end
  end

  @doc """
  Records the process of a reserved worker, before it may run anything.

  `fingerprint` identifies the process. It is the identity that `Snakepit.Guardian.spawn/2` returns, or a keyword
  list of `:identity`, `:pgid` and `:command`. Without an identity it is looked up.
  """
  @spec activate_worker(String.t(), pid(), pos_integer(), binary() | keyword() | nil) ::
          :ok | {:error, Error.t()}
  def activate_worker(worker_id, owner, os_pid, fingerprint \\ nil)
      when is_pid(owner) and is_integer(os_pid) do
    with {:ok, fields} <- fingerprint(os_pid, fingerprint),
         # Order: before the reservation is taken, so that a mistake leaves it as it was.
         record = PIDLedger.check!(record(owner, os_pid, fields)),
         {:ok, info} <- take_reservation(worker_id) do
      activate(info, owner, record, &PIDLedger.record/2)
    end
  end

  # As `activate_worker/4`, for a child of the guardian that the caller has just started. The ledger has its
  # identity, so nobody waits until it has the name too.
  @doc false
  @spec activate_child(String.t(), Snakepit.Guardian.child(), [binary()]) ::
          :ok | {:error, Error.t()}
  def activate_child(worker_id, child, command) do
    with {:ok, info} <- take_reservation(worker_id) do
      record = record(self(), child.os_pid, identity: child.identity, command: command)
      # What the guardian calls it, to ask about it.
      info = Map.put(info, :child_id, child.id)
      activate(info, self(), record, &PIDLedger.note/2)
    end
  end

  defp activate(%{worker_id: worker_id} = info, owner, record, write) do
    case write.(worker_id, record) do
      :ok ->
        since = %{owner: owner, since_ms: System.monotonic_time(:millisecond)}
        put = Table.put(info |> Map.merge(Map.delete(record, :elixir_pid)) |> Map.merge(since))

        # Most of the time it is the one that made the reservation, who is watched or about to be.
        if owner != info.owner, do: GenServer.cast(__MODULE__, {:watch, worker_id, owner})
        unless_down(:activate_worker, worker_id, put)

      {:error, error} ->
        Table.put(info)
        {:error, %{error | operation: :activate_worker}}
    end
  end

  defp record(owner, os_pid, fields) do
    %{
      status: :active,
      os_pid: os_pid,
      # A session leader leads its group.
      pgid: fields[:pgid] || os_pid,
      identity: fields[:identity],
      command: fields[:command] || [],
      spawned_at: System.os_time(:millisecond),
      elixir_pid: List.to_string(:erlang.pid_to_list(owner))
    }
  end

  @doc """
  Forgets a worker whose process is gone. One whose process is still there stays, and that is an
  error; one that is not registered is none.
  """
  @spec unregister_worker(String.t()) :: :ok | {:error, Error.t()}
  def unregister_worker(worker_id) do
    case Table.lookup(worker_id) do
      nil -> :ok
      # What it knows comes back with it, and the dead are sorted out then.
      :registry_down -> {:error, error(:unregister_worker, :registry_down, worker_id)}
      info -> with done when done in [:forgotten, :passed] <- forget(info), do: :ok
    end
  end

  # By the caller: another process would have to be woken. `:passed` if another is at it, to forget it, or
  # to activate what was a reservation.
  @doc false
  @spec forget(info()) :: :forgotten | :passed | {:error, Error.t()}
  def forget(%{worker_id: worker_id} = info) do
    if Table.gone?(info) do
      case Table.take(info) do
        true -> remove(info)
        false -> :passed
        :registry_down -> {:error, error(:unregister_worker, :registry_down, worker_id)}
      end
    else
      {:error, %{error(:unregister_worker, :alive, worker_id) | os_pid: info.os_pid}}
    end
  end

  # Order: the ledger first. If that fails the entry stays, and whoever comes by later tries again;
  # and nobody can take the name before the ledger has let go of it. A reservation that the ledger keeps
  # names no process.
  defp remove(%{worker_id: worker_id, status: status}) do
    case PIDLedger.unregister_process(worker_id) do
      {:error, error} when status != :reserved ->
        Table.reopen(worker_id)
        {:error, %{error | operation: :unregister_worker}}

      _done ->
        Table.delete(worker_id)
        # A registry that is being started again monitors those alone that the ledger still has.
        if Table.drop_new(worker_id) == false,
          do: GenServer.cast(__MODULE__, {:forgotten, worker_id})

        :forgotten
    end
  end

  @doc """
  Returns what is known of a worker. The reason of the error is `:not_found`, or `:registry_down` while the registry is
  being started again.
  """
  @spec get_worker_info(String.t()) :: {:ok, info()} | {:error, Error.t()}
  def get_worker_info(worker_id) do
    case Table.lookup(worker_id) do
      nil -> {:error, error(:get_worker_info, :not_found, worker_id)}
      :registry_down -> {:error, error(:get_worker_info, :registry_down, worker_id)}
      info -> {:ok, info}
    end
  end

  @doc """
  Returns all workers, reserved ones included. Waits for a registry that is being started again because the guardian was
  lost: it would seem to have none.
  """
  @spec list_all_workers() :: [{String.t(), info()}]
  def list_all_workers do
    for info <- Table.await(&Table.all/0), do: {info.worker_id, info}
  end

  @doc "Returns whether a worker of this id is registered or reserved."
  @spec worker_registered?(String.t()) :: boolean()
  def worker_registered?(worker_id), do: Table.await(fn -> Table.lookup(worker_id) end) != nil

  @doc "Returns the OS pids of all active workers."
  @spec get_active_process_pids() :: [pos_integer()]
  def get_active_process_pids,
    do: for({_id, %{status: :active} = info} <- list_all_workers(), do: info.os_pid)

  @doc "Returns the OS pids of the active workers of a run; an empty list unless it is this one."
  @spec pids_for_run(Snakepit.RunID.t()) :: [pos_integer()]
  def pids_for_run(run_id) do
    for {_id, %{status: :active, run_id: ^run_id} = info} <- list_all_workers(), do: info.os_pid
  end

  @doc "Returns this run's id."
  @spec get_run_id() :: Snakepit.RunID.t()
  def get_run_id, do: Run.current!().id

  @doc "Returns how many workers there are, and how many of their processes are alive."
  @spec get_stats() :: %{
          total_registered: non_neg_integer(),
          alive_workers: non_neg_integer(),
          dead_workers: non_neg_integer(),
          active_process_pids: [pos_integer()],
          reserved: non_neg_integer()
        }
  def get_stats do
    {reserved, active} =
      Enum.split_with(list_all_workers(), fn {_id, info} -> info.status == :reserved end)

    {dead, alive} = Enum.split_with(active, fn {_id, info} -> Table.gone?(info) end)

    %{
      total_registered: length(reserved) + length(active),
      alive_workers: length(alive),
      dead_workers: length(dead),
      active_process_pids: for({_id, info} <- active, do: info.os_pid),
      reserved: length(reserved)
    }
  end

  @doc "Returns workers whose process is gone. Their entries are about to be deleted, or their end was not noticed yet."
  @spec validate_workers() :: [{String.t(), info()}]
  def validate_workers do
    for {_id, %{status: :active} = info} = entry <- list_all_workers(),
        Table.gone?(info),
        do: entry
  end

  @doc "Deletes the entries of workers whose process is gone. Returns how many."
  @spec cleanup_dead_workers() :: non_neg_integer()
  def cleanup_dead_workers, do: GenServer.call(__MODULE__, :cleanup_dead_workers, 30_000)

  @doc "Deletes reservations that were abandoned. Returns how many."
  @spec sweep_reservations(non_neg_integer()) :: non_neg_integer()
  def sweep_reservations(older_than_ms \\ Server.reservation_limit_ms())
      when is_integer(older_than_ms),
      do: GenServer.call(__MODULE__, {:sweep_reservations, older_than_ms})

  defp take_reservation(worker_id) do
    with %{status: :reserved} = info <- Table.lookup(worker_id),
         true <- Table.take_reservation(worker_id) do
      {:ok, info}
    else
      :registry_down -> not_taken(:registry_down, worker_id)
      _other -> not_taken(:not_reserved, worker_id)
    end
  end

  defp not_taken(reason, worker_id), do: {:error, error(:activate_worker, reason, worker_id)}

  defp unless_down(operation, worker_id, done) do
    if done == true, do: :ok, else: {:error, error(operation, :registry_down, worker_id)}
  end

  defp fingerprint(_os_pid, identity) when is_binary(identity), do: {:ok, [identity: identity]}

  defp fingerprint(os_pid, fields) do
    fields = fields || []

    case fields[:identity] do
      nil ->
        case Native.process_lookup(os_pid) do
          {:ok, {_os_pid, identity}} -> {:ok, [identity: identity] ++ fields}
          {:error, error} -> {:error, Error.from_native(:activate_worker, error)}
        end

      _identity ->
        {:ok, fields}
    end
  end

  @doc false
  def error(operation, reason, worker_id) do
    id = if is_binary(worker_id), do: worker_id, else: inspect(worker_id)
    %Error{operation: operation, reason: reason, worker_id: id}
  end
end

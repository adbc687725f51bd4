defmodule Snakepit.Native do
  @moduledoc false

  # The NIFs. Each returns within microseconds on a normal scheduler, except for those marked *waits* or
  # *scans*, which run on a dirty I/O scheduler. A BEAM has ten of those by default, and all file access uses
  # them too. So a function that waits is not called a hundred times at once: it takes many processes in one
  # call instead.
  #
  # An identity is the opaque binary of a `Snakepit.OSProcess`. Errors are `{reason, os_pid | nil}`;
  # `Snakepit.Error` makes sentences of them.

  @on_load :load
  # The library is built after this module, so the compiler must not try to load it.
  @compile {:autoload, false}

  @type identity :: binary()
  @type signal :: atom() | pos_integer()
  @type error :: {:error, {reason :: atom(), os_pid :: integer() | nil}}
  @type outcome ::
          :stopped | :killed | :gone | :not_permitted | :ambiguous | :refused | :survived

  @doc false
  def load do
    :snakepit
    |> Application.app_dir("priv/native/snakepit_nif")
    |> String.to_charlist()
    |> :erlang.load_nif(0)
  end

  @spec run_id_generate() :: {:ok, String.t()} | error()
  def run_id_generate, do: unloaded()

  @spec run_id_valid(binary()) :: boolean()
  def run_id_valid(_id), do: unloaded()

  @spec run_id_extract([binary()]) :: String.t() | nil
  def run_id_extract(_arguments), do: unloaded()

  @spec marker_environment(String.t(), String.t(), String.t()) ::
          {:ok, [{String.t(), String.t()}]} | error()
  def marker_environment(_run_id, _worker_id, _instance), do: unloaded()

  # Reads a few files of `/proc`, one of which is as long as there are mounts. `table` is `:own`,
  # `{:foreign, os_pid_there}` or `{:absent, posix}`.
  @spec self_test() :: %{
          os_pid: pos_integer(),
          table: :own | {:foreign, integer()} | {:absent, atom()},
          pidfd: {call :: String.t(), atom()} | nil,
          handles: boolean(),
          lock_limit: non_neg_integer() | nil,
          hides: boolean(),
          boot: boolean(),
          filtered: boolean()
        }
  def self_test, do: unloaded()

  # *waits*. Reads files of `/proc`, and makes one in each directory for a moment. Levels are `:fine`, `:note`,
  # `:weaker` and `:broken`. Empty elsewhere than on Linux.
  @spec doctor_report([Path.t()]) :: [map()]
  def doctor_report(_data_dirs), do: unloaded()

  @spec signal_valid(term()) :: boolean()
  def signal_valid(_signal), do: unloaded()

  # Before Linux 6.14 the identity of a process is exact once its first clock tick is over. That wait
  # is not for a normal scheduler, and the way through a dirty one is not for every other lookup.
  @spec process_lookup(integer()) :: {:ok, {pos_integer(), identity()}} | error()
  def process_lookup(os_pid) do
    with {:error, {:ambiguous, _os_pid}} <- process_identify(os_pid), do: process_settle(os_pid)
  end

  @spec process_identify(integer()) :: {:ok, {pos_integer(), identity()}} | error()
  def process_identify(_os_pid), do: unloaded()

  # Waits, at most 10 ms.
  @spec process_settle(integer()) :: {:ok, {pos_integer(), identity()}} | error()
  def process_settle(_os_pid), do: unloaded()

  @spec process_alive(identity()) :: {:ok, boolean()} | error()
  def process_alive(_identity), do: unloaded()

  @spec process_info(identity()) :: {:ok, map()} | error()
  def process_info(_identity), do: unloaded()

  @spec process_signal(identity(), signal()) :: {:ok, :sent | :gone} | error()
  def process_signal(_identity, _signal), do: unloaded()

  # Waits.
  @spec process_stop([identity()], signal(), non_neg_integer(), non_neg_integer()) ::
          {:ok, [outcome()]} | error()
  def process_stop(_identities, _signal, _grace_ms, _kill_wait_ms), do: unloaded()

  # Waits. Returns the processes that have not ended in time.
  @spec process_await([identity()], non_neg_integer()) ::
          {:ok, [{pos_integer(), identity()}]} | error()
  def process_await(_identities, _timeout_ms), do: unloaded()

  # Scans where the kernel is older than 6.9.
  @spec group_signal(integer() | identity(), signal()) :: {:ok, :sent | :gone} | error()
  def group_signal(_pgid_or_leader, _signal), do: unloaded()

  # Waits.
  @spec group_stop(integer() | identity(), signal(), non_neg_integer(), non_neg_integer()) ::
          {:ok, outcome()} | error()
  def group_stop(_pgid_or_leader, _signal, _grace_ms, _kill_wait_ms), do: unloaded()

  # Scans.
  @spec run_find(binary(), boolean()) :: {:ok, [{pos_integer(), identity()}]} | error()
  def run_find(_run_id, _any_user), do: unloaded()

  # Waits.
  @spec run_stop(binary(), boolean(), non_neg_integer(), non_neg_integer()) ::
          {:ok,
           %{stopped: integer(), killed: integer(), survivors: [{pos_integer(), identity()}]}}
          | error()
  def run_stop(_run_id, _any_user, _grace_ms, _kill_wait_ms), do: unloaded()

  # Waits. As `run_stop/4` for all users, but arguments do not count: nobody named this run. And
  # those that it has noted, also where the process table hides them.
  @spec run_sweep(binary(), [identity()], non_neg_integer(), non_neg_integer()) ::
          {:ok,
           %{stopped: integer(), killed: integer(), survivors: [{pos_integer(), identity()}]}}
          | error()
  def run_sweep(_run_id, _noted, _grace_ms, _kill_wait_ms), do: unloaded()

  # Waits, at most 10 ms.
  @spec guardian_find(identity(), binary()) ::
          {:ok, {pos_integer(), identity()} | nil} | error()
  def guardian_find(_identity, _run_id), do: unloaded()

  # Everyone is refused who wants to signal it or its group, until it ends or is not protected any more.
  @spec guardian_protect(binary(), boolean()) :: {:ok, {}} | error()
  def guardian_protect(_identity, _protected), do: unloaded()

  @spec guardian_environment() :: [{String.t(), String.t()}]
  def guardian_environment, do: unloaded()

  @spec record_seal(map()) :: %{version: pos_integer(), checksum: non_neg_integer()}
  def record_seal(_record), do: unloaded()

  @spec record_check(term()) :: {:ok, map()} | {:error, :malformed | :version | :checksum}
  def record_check(_sealed), do: unloaded()

  @spec identity_scope(identity()) ::
          {:ok, :here | :other_boot | :other_namespace | :elsewhere | :unknown} | error()
  def identity_scope(_identity), do: unloaded()

  # A lock is held until it is released, no term refers to it, or the BEAM is gone. `nil`: someone
  # else has it.
  @spec lock_take(Path.t()) :: {:ok, reference() | nil} | error()
  def lock_take(_path), do: unloaded()

  @spec lock_release(reference()) :: :ok
  def lock_release(_lock), do: unloaded()

  @spec journal_open(Path.t(), pos_integer()) :: {:ok, reference()} | error()
  def journal_open(_path, _max_bytes), do: unloaded()

  # Waits for nobody. `:appended` where that needs no disk; otherwise `{tag, {:ok, {}} | error()}` is sent,
  # after `journal_write/1` if it says `:write`.
  @spec journal_append(reference(), binary(), tag :: term()) ::
          {:ok, :appended | :write | :waits} | error()
  def journal_append(_journal, _entry, _tag), do: unloaded()

  # Waits for nobody. An entry that the next write takes along; `false` if the last one failed.
  @spec journal_note(reference(), binary()) :: boolean()
  def journal_note(_journal, _entry), do: unloaded()

  # Waits for the disk, if nobody else does so for this journal.
  @spec journal_write(reference()) :: :ok
  def journal_write(_journal), do: unloaded()

  # Waits for the disk.
  @spec journal_sync(reference()) :: {:ok, {}} | error()
  def journal_sync(_journal), do: unloaded()

  @spec journal_empty(reference()) :: boolean()
  def journal_empty(_journal), do: unloaded()

  @spec journal_rotate(reference(), Path.t()) :: {:ok, {}} | error()
  def journal_rotate(_journal, _aside), do: unloaded()

  @spec journal_close(reference()) :: :ok
  def journal_close(_journal), do: unloaded()

  @spec journal_read(Path.t()) ::
          {:ok, %{entries: [binary()], ignored: non_neg_integer()}} | error()
  def journal_read(_path), do: unloaded()

  @spec directory_list(Path.t()) :: {:ok, [binary()]} | error()
  def directory_list(_path), do: unloaded()

  # Everything about directories and files waits for the disk. What is made is this user's alone.
  @spec directory_make(Path.t()) :: {:ok, {}} | error()
  def directory_make(_path), do: unloaded()

  # `:eexist` if there is something of that name.
  @spec directory_claim(Path.t()) :: {:ok, {}} | error()
  def directory_claim(_path), do: unloaded()

  # Through a link only if it `follows`.
  @spec directory_look(Path.t(), boolean()) ::
          {:ok,
           %{
             owner: non_neg_integer(),
             user: non_neg_integer(),
             shared: boolean(),
             remote: String.t() | nil
           }}
          | error()
  def directory_look(_path, _follows), do: unloaded()

  # To others than its user.
  @spec path_close(Path.t()) :: {:ok, {}} | error()
  def path_close(_path), do: unloaded()

  # With the names of the files in each.
  @spec directory_runs(Path.t()) ::
          {:ok, {own :: [{String.t(), [binary()]}], foreign :: [String.t()]}} | error()
  def directory_runs(_path), do: unloaded()

  # `:eperm` if it is another's or others may write to it, `:efbig` if it is longer.
  @spec file_read(Path.t(), pos_integer()) :: {:ok, binary()} | error()
  def file_read(_path, _max_bytes), do: unloaded()

  # Many at once; `nil` for those that cannot be read.
  @spec files_read([Path.t()], pos_integer()) :: [binary() | nil]
  def files_read(_paths, _max_bytes), do: unloaded()

  # Whole, and synced; one that is there stays as it is.
  @spec file_create(Path.t(), binary()) :: {:ok, {}} | error()
  def file_create(_path, _content), do: unloaded()

  @spec adopted_read(Path.t()) :: {:ok, [{pos_integer(), identity()}]} | error()
  def adopted_read(_directory), do: unloaded()

  # *waits*. What was reaped of a dead run, by the fields of `snakepit_core::obituary::Reaped`.
  @spec obituary_add(Path.t(), map()) :: {:ok, {}} | error()
  def obituary_add(_directory, _reaped), do: unloaded()

  @spec obituary_read(Path.t()) :: map() | nil
  def obituary_read(_directory), do: unloaded()

  # Scans.
  @spec run_members(binary()) :: {:ok, [map()]} | error()
  def run_members(_run_id), do: unloaded()

  # Scans.
  @spec run_strays(binary(), pos_integer()) :: {:ok, [{pos_integer(), identity()}]} | error()
  def run_strays(_run_id, _root), do: unloaded()

  # Waits.
  @spec run_reap([map()], binary(), [binary()], non_neg_integer(), non_neg_integer()) ::
          {:ok, %{runs: [map()], strays: map()}} | error()
  def run_reap(_runs, _instance, _spared, _grace_ms, _kill_wait_ms), do: unloaded()

  @spec wire_encode(tuple() | atom()) :: binary()
  def wire_encode(_request), do: unloaded()

  @spec wire_decode(binary()) :: {:ok, tuple()} | {:error, :malformed}
  def wire_decode(_frame), do: unloaded()

  # Reads `/proc` if the process has no lineage. `leader` is the pid of the child.
  @spec process_descends(integer(), integer(), String.t(), pos_integer()) ::
          {:ok, boolean()} | error()
  def process_descends(_os_pid, _leader, _run_id, _child), do: unloaded()

  # Reads some files of `/proc` for each process of the tree. `roots` are pids with their start, or 0.
  @spec tree_usage(identity(), [{integer(), non_neg_integer()}], boolean(), boolean()) ::
          {:ok, [map()]} | error()
  def tree_usage(_leader, _roots, _proportional, _arguments), do: unloaded()

  # May ask the network.
  @spec user_lookup(String.t()) :: {:ok, {integer(), integer(), [integer()]}} | error()
  def user_lookup(_name), do: unloaded()

  # May ask the network. `nil` for the user that this BEAM is and must stay.
  @spec user_lookup_number(non_neg_integer()) ::
          {:ok, {integer(), integer(), [integer()]} | nil} | error()
  def user_lookup_number(_uid), do: unloaded()

  # May ask the network.
  @spec group_lookup(String.t()) :: {:ok, integer()} | error()
  def group_lookup(_name), do: unloaded()

  # A connection over which `pipes_pass/3` passes descriptors to the guardian that listens there.
  @spec channel_open(binary()) :: {:ok, reference()} | error()
  def channel_open(_path), do: unloaded()

  # A connection to the same listener, for `terminal_open/2`.
  @spec guard_open(binary()) :: {:ok, reference()} | error()
  def guard_open(_path), do: unloaded()

  # The BEAM's ends of new pipes, for those of standard input, output and error that are wanted; the program's ends go
  # to the guardian, by this token.
  @spec pipes_pass(reference(), binary(), {boolean(), boolean(), boolean()}) ::
          {:ok, {reference() | nil, reference() | nil, reference() | nil}} | error()
  def pipes_pass(_channel, _token, _wanted), do: unloaded()

  # This side of a new terminal of so many rows and columns, that shows what is typed or not, and is raw or not.
  @spec terminal_pass(
          reference(),
          binary(),
          {pos_integer(), pos_integer()},
          {echo :: boolean(), raw :: boolean()}
        ) :: {:ok, reference()} | error()
  def terminal_pass(_channel, _token, _size, _modes), do: unloaded()

  @spec terminal_resize(reference(), {pos_integer(), pos_integer()}) :: {:ok, {}} | error()
  def terminal_resize(_terminal, _size), do: unloaded()

  # A control character that is switched off is 0.
  @spec terminal_modes(reference()) :: {:ok, Snakepit.Terminal.modes()} | error()
  def terminal_modes(_terminal), do: unloaded()

  # The terminal that this BEAM runs in, raw until it is closed. `:eperm` if this BEAM is not in front of it. The guard
  # is what `guard_open/1` returns.
  @spec terminal_open(Path.t(), reference()) :: {:ok, reference()} | error()
  def terminal_open(_path, _guard), do: unloaded()

  # After `:again` the caller gets `{:select, pipe, tag, :ready_input}` when there is something to read.
  @spec pipe_read(reference(), reference()) :: {:ok, binary() | :eof | :again} | error()
  def pipe_read(_pipe, _tag), do: unloaded()

  # Whether there is something to read within so many microseconds, at most 100, in which it waits actively.
  @spec pipe_await(reference(), non_neg_integer()) :: {:ok, boolean()} | error()
  def pipe_await(_pipe, _microseconds), do: unloaded()

  # How many bytes were taken. After `:again` the caller gets `{:select, pipe, tag, :ready_output}`.
  @spec pipe_write(reference(), binary(), reference()) :: {:ok, pos_integer() | :again} | error()
  def pipe_write(_pipe, _data, _tag), do: unloaded()

  # The lines behind a position, where the next one begins, and whether that has no end yet, is longer than the limit,
  # or is for another call.
  @spec lines_cut(binary(), non_neg_integer(), pos_integer()) ::
          {[binary()], non_neg_integer(), :rest | :too_long | :more}
  def lines_cut(_data, _from, _limit), do: unloaded()

  @spec pipe_close(reference()) :: :ok
  def pipe_close(_pipe), do: unloaded()

  defp unloaded, do: :erlang.nif_error(:snakepit_nif_not_loaded)
end

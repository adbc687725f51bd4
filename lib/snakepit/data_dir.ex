defmodule Snakepit.DataDir do
  @moduledoc false

  # The directory that holds the runs. Its contents decide which processes are killed, so only files that this
  # user alone can have written are read. `Snakepit.DataDir.Place` finds a directory to which nobody else can
  # write. Runs in it that belong to other users are left alone.

  require Logger

  alias Snakepit.DataDir.{Default, Instance, Place}
  alias Snakepit.{Error, Native}
  alias Snakepit.Ledger.RunDirectory

  @doc """
  Chooses the directory, makes it if need be, and checks whose it is. Returns it and its instance, which
  keeps its processes apart from all others. Raises `ArgumentError` that names the key and the path.
  """
  @spec prepare!(map()) :: {Path.t(), String.t()}
  def prepare!(config) do
    directory = Place.choose!(config)
    own = Instance.fetch!(directory)
    if config.data_dir == nil, do: Default.warn_of_former(directory)
    {directory, config.instance || own}
  end

  @typedoc "A run: its id, its directory, and the names of the files in it."
  @type listed :: {Snakepit.RunID.t(), Path.t(), [binary()]}

  @doc "Returns the runs in a data directory."
  @spec runs(Path.t()) :: [listed()]
  def runs(path) do
    case Native.directory_runs(path) do
      {:ok, {own, _foreign}} -> paths(path, own)
      {:error, _error} -> []
    end
  end

  @doc """
  As `runs/1`, but raises if the directory cannot be read, for callers to which a missing run would matter. Logs a warning
  if there are runs that may not be read.
  """
  @spec runs!(Path.t()) :: [listed()]
  def runs!(path) do
    case Native.directory_runs(path) do
      {:ok, {own, foreign}} ->
        if foreign != [], do: warn_of_foreign(path, foreign)
        paths(path, own)

      {:error, {reason, _os_pid}} ->
        refuse!(path, "cannot be read: #{why(reason)}")
    end
  end

  @doc "Returns the runs that were not closed. Raises as `runs!/1` does."
  @spec open_runs!(Path.t()) :: [listed()]
  def open_runs!(path),
    do: Enum.reject(runs!(path), fn {_id, _directory, files} -> RunDirectory.closed?(files) end)

  defp paths(path, own),
    do: for({id, files} <- Enum.sort(own), do: {id, Path.join(path, id), files})

  defp warn_of_foreign(path, foreign) do
    Logger.warning(
      "Snakepit: #{length(foreign)} runs in #{path} are not read, because others can have written " <>
        "there (#{Enum.join(Enum.take(foreign, 5), ", ")}): remove them, or chmod -R go-w if they are yours"
    )
  end

  @doc """
  Returns `otherwise` if something could not be read because it is missing or damaged. Raises if the reason is temporary
  and does not tell that, for example a lack of memory.
  """
  @spec unreadable!(atom(), atom(), value) :: value when value: term()
  def unreadable!(operation, reason, _otherwise)
      when reason in [:emfile, :enfile, :enomem, :eio, :eintr, :eagain],
      do: raise(%Error{operation: operation, reason: reason})

  def unreadable!(_operation, _reason, otherwise), do: otherwise

  @doc "Raises if something in it could not be written."
  @spec written!(:ok | {:ok, term()} | {:error, term()}, Path.t()) :: :ok
  def written!({:error, reason}, path), do: refuse!(path, "cannot be written to: #{why(reason)}")
  def written!(_written, _path), do: :ok

  @doc "Describes the error of a file system or a NIF."
  @spec why(term()) :: iodata()
  def why(%Error{reason: reason}), do: :file.format_error(reason)
  def why({:file_error, _file, reason}), do: :file.format_error(reason)
  def why(reason) when is_atom(reason), do: :file.format_error(reason)
  def why(reason), do: inspect(reason)

  @doc "Raises `ArgumentError`. `source` is the setting that named the path."
  @spec refuse!(Path.t(), String.t(), String.t()) :: no_return()
  def refuse!(path, why, source \\ "config :snakepit, :data_dir") do
    raise ArgumentError, "#{source}: #{path} #{why}"
  end
end

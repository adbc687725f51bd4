defmodule Snakepit.DataDir do
  @moduledoc false

  # The directory that holds the runs. What is in it decides what is killed, so nobody else may be
  # able to write there.

  import Bitwise

  alias Snakepit.{Error, Native}

  # Not the group's bit: on many systems everybody's umask leaves it set, for a group of one.
  @writable_by_all 0o002

  @doc """
  Makes it if need be, and checks whose it is. Raises `ArgumentError` that names the key and the path.
  """
  @spec prepare!(Path.t()) :: :ok
  def prepare!(path) do
    case make(path) do
      :ok -> check!(path)
      {:error, reason} -> refuse!(path, "cannot be made: #{:file.format_error(reason)}")
    end
  end

  @doc "What keeps this user's runs in this directory apart from all others."
  @spec instance(Path.t()) :: String.t()
  def instance(path) do
    hash = :crypto.hash(:sha256, "#{user()}:#{path}")
    hash |> binary_part(0, 8) |> Base.encode16(case: :lower)
  end

  @doc "The directories of runs in it, by run id."
  @spec runs(Path.t()) :: [{Snakepit.RunID.t(), Path.t()}]
  def runs(path) do
    case Native.directory_list(path) do
      {:ok, names} -> runs(path, names)
      {:error, _error} -> []
    end
  end

  @doc "The same; raises if it cannot be read, where to have overlooked one would matter."
  @spec runs!(Path.t()) :: [{Snakepit.RunID.t(), Path.t()}]
  def runs!(path) do
    case Native.directory_list(path) do
      {:ok, names} -> runs(path, names)
      {:error, {reason, _os_pid}} -> refuse!(path, "cannot be read: #{why(reason)}")
    end
  end

  defp runs(path, names) do
    for name <- Enum.sort(names),
        Snakepit.RunID.valid?(name),
        do: {name, Path.join(path, name)}
  end

  @doc """
  What to make of something that could not be read: `otherwise`, if the reason lies in what is there.
  Raises if it says nothing of that and may pass: then it is neither missing nor damaged.
  """
  @spec unreadable!(atom(), atom(), value) :: value when value: term()
  def unreadable!(operation, reason, _otherwise)
      when reason in [:emfile, :enfile, :enomem, :eio, :eintr, :eagain],
      do: raise(%Error{operation: operation, reason: reason})

  def unreadable!(_operation, _reason, otherwise), do: otherwise

  @doc "Raises if something in it could not be written."
  @spec written!(:ok | {:error, term()}, Path.t()) :: :ok
  def written!(:ok, _path), do: :ok
  def written!({:error, reason}, path), do: refuse!(path, "cannot be written to: #{why(reason)}")

  defp why(%Snakepit.Error{reason: reason}), do: :file.format_error(reason)
  defp why({:file_error, _file, reason}), do: :file.format_error(reason)
  defp why(reason) when is_atom(reason), do: :file.format_error(reason)
  defp why(reason), do: inspect(reason)

  @doc false
  @spec refuse!(Path.t(), String.t()) :: no_return()
  def refuse!(path, why) do
    raise ArgumentError, "config :snakepit, :data_dir: #{path} #{why}"
  end

  # What is made here is this user's alone; what was there is left as it is.
  defp make(path) do
    if File.dir?(path) do
      :ok
    else
      with :ok <- File.mkdir_p(path), do: File.chmod(path, 0o700)
    end
  end

  defp check!(path) do
    {:ok, %File.Stat{uid: uid, mode: mode}} = File.stat(path)

    cond do
      uid != user() ->
        refuse!(path, "belongs to another user (#{uid}), who could have processes killed")

      (mode &&& @writable_by_all) != 0 ->
        refuse!(
          path,
          "can be written to by everybody, who could have processes killed: chmod o-w"
        )

      true ->
        :ok
    end
  end

  # The owner of what this process makes, which is what the kernel goes by.
  defp user do
    case File.stat("/proc/self") do
      {:ok, %File.Stat{uid: uid}} -> uid
      {:error, _no_proc} -> File.stat!(System.user_home!()).uid
    end
  end
end

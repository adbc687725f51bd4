defmodule Snakepit.DataDir.Place do
  @moduledoc false

  # Chooses the data directory. The next start has to find the same one, whatever version of the application
  # it is and wherever that is installed; otherwise nothing ends what the last run has left behind. So a
  # directory that was configured is used or refused, and never replaced by another. Of the default places,
  # one that has been used before is preferred.
  #
  # Nobody else may be able to write there. On volumes where others may, as in Kubernetes, it is a directory
  # below the volume that belongs to this user alone. Others can still move that away. Then nothing wrong is
  # read, but the recorded runs are lost.

  alias Snakepit.DataDir
  alias Snakepit.DataDir.{Default, Instance}
  alias Snakepit.Native

  @configured "config :snakepit, :data_dir"
  @root 0
  # These errors are temporary and say nothing about the place, so no other place is taken because of them.
  @passing [:emfile, :enfile, :enomem, :eio, :eintr, :eagain, :enospc, :edquot]

  @typep failure :: {reason :: atom(), Path.t(), String.t()}

  @doc "Returns the directory, made and checked. Raises `ArgumentError`."
  @spec choose!(map()) :: Path.t()
  def choose!(config) do
    case config.data_dir || named_by_environment() do
      nil -> default!(Default.candidates(), config)
      {variable, path} -> use!(Path.expand(path), variable, config)
      path -> use!(path, @configured, config)
    end
  end

  @doc "Returns the directory that a start would use, if there is one. Makes nothing, and does not check whose it is."
  @spec existing(Path.t() | nil) :: Path.t() | nil
  def existing(configured) do
    path =
      case configured || named_by_environment() do
        nil -> Enum.find_value(Default.candidates(), &used/1)
        {_variable, path} -> Path.expand(path)
        path -> Path.expand(path)
      end

    if path && File.dir?(path), do: path
  end

  # systemd sets the second one, for this service and its user, in all versions of the service.
  defp named_by_environment do
    case {System.get_env("SNAKEPIT_DATA_DIR", ""), System.get_env("STATE_DIRECTORY", "")} do
      {"", ""} -> nil
      {"", state} -> {"STATE_DIRECTORY", state |> first() |> Path.join("snakepit")}
      {path, _state} -> {"SNAKEPIT_DATA_DIR", path}
    end
  end

  defp first(paths), do: paths |> String.split(":") |> hd()

  defp use!(path, source, config), do: path |> usable(config) |> directory!(source)

  defp directory!({:ok, directory}, _source), do: directory

  defp directory!({:error, {reason, at, why}}, source),
    do: DataDir.refuse!(at, why <> advice(reason, at), source)

  defp advice(reason, path) when reason in [:eacces, :erofs, :enoent] do
    parent = nearest(path)

    who =
      case Native.directory_look(parent, true) do
        {:ok, %{user: user}} -> "user #{user}"
        {:error, _unknown} -> "this user"
      end

    " (the nearest directory that exists is #{parent}). Make it and give it to #{who}, or name one that " <>
      "#{who} can write to: config :snakepit, data_dir: or SNAKEPIT_DATA_DIR"
  end

  defp advice(_reason, _path), do: ""

  defp nearest(path) do
    parent = Path.dirname(path)
    if parent == path or File.dir?(parent), do: parent, else: nearest(parent)
  end

  defp default!(candidates, config) do
    case Enum.find(candidates, &used_before?/1) do
      nil -> first_usable!(candidates, config, [])
      {name, _base, _rest} = known -> known |> candidate(config) |> directory!(name)
    end
  end

  defp used_before?(candidate), do: used(candidate) != nil

  defp used({_name, base, rest}) do
    with {:ok, %{user: user}} <- Native.directory_look(base, true) do
      places = for private <- [base, below(base, user)], do: Path.join(private, rest)
      Enum.find(places, &Instance.known?/1)
    else
      {:error, _missing} -> nil
    end
  end

  defp first_usable!([], _config, failures) do
    tried = for {name, at, why} <- Enum.reverse(failures), do: "\n  * #{name}: #{at} #{why}"

    raise ArgumentError,
          "#{@configured}: no directory was named, and none of the usual ones will do:#{tried}\n" <>
            "Name one that only this user can write to: config :snakepit, data_dir: or SNAKEPIT_DATA_DIR"
  end

  defp first_usable!([{name, _base, _rest} = one | others], config, failures) do
    case candidate(one, config) do
      {:ok, directory} -> directory
      {:error, {reason, at, why}} when reason in @passing -> DataDir.refuse!(at, why, name)
      {:error, {_reason, at, why}} -> first_usable!(others, config, [{name, at, why} | failures])
    end
  end

  # The base is not made: a home directory that does not exist stays so.
  defp candidate({_name, base, rest}, config) do
    with {:ok, _standing} <- look(base),
         {:ok, private} <- usable(base, config),
         do: private |> Path.join(rest) |> usable(config)
  end

  @spec usable(Path.t(), map()) :: {:ok, Path.t()} | {:error, failure()}
  defp usable(path, config) do
    # Order: asked before anything is made, so that a place that is refused stays as it was.
    with {:ok, nearest} <- look_upwards(path),
         :ok <- check_file_system(nearest, path, config),
         :ok <- make(path),
         {:ok, standing} <- look(path),
         :ok <- check_owner(standing, path),
         do: private(path, standing)
  end

  defp look(path) do
    case Native.directory_look(path, true) do
      {:ok, standing} -> {:ok, standing}
      {:error, {reason, _os_pid}} -> failure(reason, path, "cannot be used: ")
    end
  end

  defp look_upwards(path) do
    case Native.directory_look(path, true) do
      {:error, {:enoent, _os_pid}} when path != "/" -> path |> Path.dirname() |> look_upwards()
      {:ok, standing} -> {:ok, standing}
      {:error, {reason, _os_pid}} -> failure(reason, path, "cannot be made: ")
    end
  end

  defp make(path) do
    case Native.directory_make(path) do
      {:ok, {}} -> :ok
      {:error, {reason, _os_pid}} -> failure(reason, path, "cannot be made: ")
    end
  end

  defp check_file_system(%{remote: nil}, _path, _config), do: :ok
  defp check_file_system(_remote, _path, %{allow_network_data_dir: true}), do: :ok

  defp check_file_system(%{remote: name}, path, _config) do
    {:error,
     {:remote, path,
      "is on a file system (#{name}) that other hosts may use too, whose locks and pids mean nothing " <>
        "here: name a directory on a local disk, or say config :snakepit, allow_network_data_dir: true " <>
        "if this host alone uses it"}}
  end

  # Root can have everything killed anyway.
  defp check_owner(%{owner: owner, user: user}, _path) when owner in [user, @root], do: :ok
  defp check_owner(%{owner: owner}, path), do: foreign(path, owner)

  # One that was made when others could write there is used later too.
  defp private(path, %{shared: false, user: user}) do
    case Native.directory_look(below(path, user), false) do
      {:ok, %{owner: ^user}} -> private_below(path, user)
      _none_of_ours -> {:ok, path}
    end
  end

  defp private(path, %{shared: true, user: user}) do
    if Instance.known?(path) do
      {:error,
       {:shared, path,
        "can by now be written to by others, who could have processes killed: chmod go-w"}}
    else
      private_below(path, user)
    end
  end

  defp private_below(path, user) do
    below = below(path, user)

    case Native.directory_claim(below) do
      {:ok, {}} -> {:ok, below}
      {:error, {:eexist, _os_pid}} -> check_below(below, user)
      {:error, {reason, _os_pid}} -> failure(reason, below, "cannot be made: ")
    end
  end

  defp check_below(below, user) do
    case Native.directory_look(below, false) do
      {:ok, %{owner: ^user, shared: false}} -> {:ok, below}
      {:ok, %{owner: ^user}} -> close(below)
      {:ok, %{owner: owner}} -> foreign(below, owner)
      {:error, {reason, _os_pid}} -> failure(reason, below, "cannot be used: ")
    end
  end

  # Kubernetes gives the group of a volume rights to all in it when a pod is made. Of what is in there each
  # run is looked at by itself, and the instance is believed: it can make no other user's processes ours.
  defp close(below) do
    with {:ok, {}} <- Native.path_close(below), {:ok, {}} <- Instance.close(below) do
      {:ok, below}
    else
      {:error, {reason, _os_pid}} -> failure(reason, below, "cannot be closed to others: ")
    end
  end

  defp foreign(path, owner) do
    {:error,
     {:foreign, path, "belongs to another user (#{owner}), who could have processes killed"}}
  end

  defp failure(reason, path, what), do: {:error, {reason, path, "#{what}#{DataDir.why(reason)}"}}

  defp below(path, user), do: Path.join(path, "snakepit-#{user}")
end

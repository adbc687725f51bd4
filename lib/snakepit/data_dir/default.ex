defmodule Snakepit.DataDir.Default do
  @moduledoc false

  # The default place for runs. It is not the application's own directory, which has the version in its name,
  # may be read-only, and is replaced with a release.

  require Logger

  alias Snakepit.{DataDir, Native}

  @doc """
  Places in the order in which they are tried: a name for people, a directory that has to be there, and
  the path below it. Each application has its own.
  """
  @spec candidates() :: [{String.t(), Path.t(), Path.t()}]
  def candidates do
    name = application()
    home = variable("HOME")

    [
      {"$XDG_STATE_HOME", variable("XDG_STATE_HOME"), "snakepit/#{name}"},
      {"$HOME", home, ".local/state/snakepit/#{name}"},
      # Kept over a reboot, though it may be cleared of what is old.
      {"/var/tmp", "/var/tmp", "#{name}"},
      {"the temporary directory", System.tmp_dir(), "#{name}"}
    ]
    |> Enum.filter(fn {_name, base, _rest} -> base != nil and Path.type(base) == :absolute end)
    |> Enum.uniq_by(fn {_name, base, rest} -> {base, rest} end)
  end

  @doc "Warns if there are open runs in the directory that earlier versions used."
  @spec warn_of_former(Path.t()) :: :ok
  def warn_of_former(directory) do
    for former <- former(), former != directory, open?(former) do
      Logger.warning(
        "Snakepit: there are open runs in #{former}, which are ignored, because runs are recorded in " <>
          "#{directory} now. To end what they left, start once with config :snakepit, data_dir: #{inspect(former)}"
      )
    end

    :ok
  end

  defp open?(path) do
    match?({:ok, {[_ | _], _foreign}}, Native.directory_runs(path)) and
      DataDir.open_runs!(path) != []
  end

  defp former do
    case hosts() do
      [host] -> [Application.app_dir(host, "priv/data")]
      _none_or_several -> [Path.expand("priv/data")]
    end
  rescue
    # An application in an archive has no directory.
    ArgumentError -> []
  end

  # The one application that asked for Snakepit. If there are several it is the release's name, and theirs
  # together where there is no release. Scripts share one: they can, like all BEAMs of one directory.
  defp application do
    case {hosts(), variable("RELEASE_NAME")} do
      {[host], _release} -> Atom.to_string(host)
      {_several, release} when release != nil -> file_name(release)
      {[], nil} -> "scripts"
      {several, nil} -> several |> Enum.sort() |> Enum.join("+")
    end
  end

  defp hosts do
    for {application, _description, _version} <- Application.loaded_applications(),
        :snakepit in (Application.spec(application, :applications) || []),
        do: application
  end

  defp file_name(text), do: String.replace(text, ~r/[^[:alnum:]_.+-]/, "_")

  defp variable(name) do
    case System.get_env(name, "") do
      "" -> nil
      value -> value
    end
  end
end

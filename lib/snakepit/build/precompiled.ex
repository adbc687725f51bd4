defmodule Snakepit.Build.Precompiled do
  @moduledoc false

  # An archive from a directory or a URL, instead of what cargo would build. A copy of what was downloaded is kept in
  # a cache, and checked like any other.
  #
  # What is not there is no error, for it can be built. What is there and is not what it should be is one: somebody
  # has to look at it.

  alias Snakepit.Build.{Archive, Checksums, Download, Settings}

  @doc "Returns the files of an archive, or why there are none and cargo has to be asked."
  @spec take(Settings.t()) ::
          {:ok, [{String.t(), binary()}]} | {:unavailable, String.t()} | {:error, String.t()}
  def take(%Settings{archive: archive} = settings) do
    with {:ok, known} <- Checksums.read(settings.checksums),
         {:ok, sha256} <- checksum(known, archive, settings),
         {:ok, bytes, place} <- bytes(settings, archive, sha256),
         do: unpack(bytes, place)
  end

  defp checksum(known, archive, settings) do
    case Checksums.fetch(known, archive) do
      {:ok, sha256} ->
        {:ok, sha256}

      :other_targets ->
        {:unavailable,
         "#{settings.checksums} has archives for other systems and not #{archive.name}"}

      :none ->
        {:error,
         "#{archive.name} is not taken from #{settings.precompiled}, because #{settings.checksums} does not have its " <>
           "checksum#{others(known)}. Set SNAKEPIT_CHECKSUMS to a file that has it, such as the SHA256SUMS that was " <>
           "published with the archive, or unset SNAKEPIT_PRECOMPILED to build from source"}
    end
  end

  defp others(known) when known == %{}, do: ", nor any other"
  defp others(known), do: " (it has #{known |> Map.keys() |> Enum.sort() |> Enum.join(", ")})"

  defp bytes(%{precompiled: source} = settings, archive, sha256) do
    if Settings.url?(source),
      do: cached(settings, archive, sha256),
      else: from_directory(Path.join(source, archive.name), sha256)
  end

  defp from_directory(path, sha256) do
    case File.read(path) do
      {:ok, bytes} -> verified(bytes, sha256, path)
      {:error, reason} -> {:unavailable, "#{path} cannot be read: #{:file.format_error(reason)}"}
    end
  end

  # One that does not match any more is fetched anew.
  defp cached(settings, archive, sha256) do
    path = Path.join(settings.cache, archive.name)

    with {:ok, bytes} <- File.read(path), true <- Checksums.match?(bytes, sha256) do
      {:ok, bytes, path}
    else
      _missing_or_other -> download(settings.precompiled, archive, sha256, path)
    end
  end

  defp download(source, archive, sha256, path) do
    url = String.trim_trailing(source, "/") <> "/" <> archive.name

    case Download.get(url) do
      {:ok, bytes} ->
        with {:ok, bytes, url} <- verified(bytes, sha256, url) do
          keep(bytes, path)
          {:ok, bytes, url}
        end

      {:error, why} ->
        {:unavailable, "#{url} cannot be had: #{why}"}
    end
  end

  # A cache that cannot be written costs another download, and nothing else.
  defp keep(bytes, path) do
    temporary = "#{path}.#{System.pid()}.#{System.unique_integer([:positive])}.tmp"

    with :ok <- File.mkdir_p(Path.dirname(path)),
         :ok <- File.write(temporary, bytes),
         do: File.rename(temporary, path)
  end

  defp verified(bytes, sha256, place) do
    if Checksums.match?(bytes, sha256),
      do: {:ok, bytes, place},
      else:
        {:error,
         "#{place} is refused: its checksum is not the one that is known (#{sha256}). It is damaged, or not what " <>
           "was published; remove it, or find out who has changed it"}
  end

  defp unpack(bytes, place) do
    with {:error, why} <- Archive.unpack(bytes), do: {:error, "#{place} is refused: #{why}"}
  end
end

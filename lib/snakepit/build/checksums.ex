defmodule Snakepit.Build.Checksums do
  @moduledoc false

  # The archives that are known, each by the SHA-256 of its bytes: lines as `sha256sum` writes them, and comments.
  # What is not in here is not taken, wherever it comes from.

  @type t :: %{optional(name :: String.t()) => sha256 :: String.t()}

  @doc "Reads such a file. Nothing in it is passed over: a line that is damaged might be the one that counts."
  @spec read(Path.t()) :: {:ok, t()} | {:error, String.t()}
  def read(path) do
    with {:ok, text} <- File.read(path), {:ok, checksums} <- parse(text) do
      {:ok, checksums}
    else
      {:error, reason} when is_atom(reason) ->
        {:error, "the checksums in #{path} cannot be read: #{:file.format_error(reason)}"}

      {:error, number} ->
        {:error,
         "line #{number} of #{path} is no checksum: expected 64 hexadecimal digits, two spaces and a name"}
    end
  end

  @doc "The checksums in a text, or the number of the first line that is none."
  @spec parse(String.t()) :: {:ok, t()} | {:error, pos_integer()}
  def parse(text) do
    text
    |> String.split("\n")
    |> Enum.with_index(1)
    |> Enum.reduce_while({:ok, %{}}, fn {line, number}, {:ok, known} ->
      case Regex.run(~r/\A([0-9a-fA-F]{64}) [ *](\S+)\z/, String.trim(line)) do
        [_, sha256, name] -> {:cont, {:ok, Map.put(known, name, String.downcase(sha256))}}
        nil -> if comment?(line), do: {:cont, {:ok, known}}, else: {:halt, {:error, number}}
      end
    end)
  end

  defp comment?(line), do: String.trim(line) =~ ~r{\A(#|\z)}

  @doc """
  The checksum of an archive. `:other_targets` if archives of this version are known, but none for this target;
  `:none` if there is nothing of this version, so that nobody can have meant this archive.
  """
  @spec fetch(t(), Snakepit.Build.Archive.t()) :: {:ok, String.t()} | :other_targets | :none
  def fetch(known, archive) do
    with :error <- Map.fetch(known, archive.name),
         do: if(sibling?(known, archive), do: :other_targets, else: :none)
  end

  defp sibling?(known, archive),
    do: known |> Map.keys() |> Enum.any?(&String.starts_with?(&1, archive.release))

  @doc "Whether bytes have a checksum."
  @spec match?(binary(), String.t()) :: boolean()
  def match?(bytes, sha256),
    do: Base.encode16(:crypto.hash(:sha256, bytes), case: :lower) == sha256
end

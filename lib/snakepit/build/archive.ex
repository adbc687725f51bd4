defmodule Snakepit.Build.Archive do
  @moduledoc false

  # An archive of `script/package`: the library and the guardian for one target, and nothing else.

  @typedoc "`release` is what the names of all archives of its version begin with."
  @type t :: %__MODULE__{name: String.t(), release: String.t()}

  @enforce_keys [:name, :release]
  defstruct [:name, :release]

  @members ["snakepit_guardian", "snakepit_nif.so"]

  @doc "The archive for a target. `nif` is the version of Erlang's interface that the library needs."
  @spec new(version :: String.t(), nif :: String.t(), triple :: String.t()) :: t()
  def new(version, nif, triple) do
    release = "snakepit-#{version}-nif-#{nif}-"
    %__MODULE__{name: "#{release}#{triple}.tar.gz", release: release}
  end

  @doc """
  The files in an archive. One that holds anything else is refused as a whole, so that no name in it ever becomes a
  path.
  """
  @spec unpack(binary()) ::
          {:ok, [{name :: String.t(), content :: binary()}]} | {:error, String.t()}
  def unpack(bytes) do
    with {:ok, tar} <- gunzip(bytes),
         {:ok, table} <- tar(:erl_tar.table({:binary, tar}, [:verbose])),
         :ok <- check(table),
         {:ok, files} <- tar(:erl_tar.extract({:binary, tar}, [:memory])) do
      {:ok, for({name, content} <- files, do: {to_string(name), content})}
    end
  end

  defp gunzip(bytes) do
    {:ok, :zlib.gunzip(bytes)}
  rescue
    ErlangError -> {:error, "it is not compressed by gzip, or not whole"}
  end

  defp tar({:ok, result}), do: {:ok, result}

  defp tar({:error, reason}),
    do: {:error, "it is no tar archive, or not whole: #{inspect(reason)}"}

  defp check(table) do
    entries = for entry <- table, do: {to_string(elem(entry, 0)), elem(entry, 1)}

    if Enum.sort(entries) == for(name <- @members, do: {name, :regular}),
      do: :ok,
      else:
        {:error, "expected #{Enum.join(@members, " and ")} in it, and found #{shown(entries)}"}
  end

  defp shown([]), do: "nothing"

  defp shown(entries),
    do: Enum.map_join(entries, ", ", fn {name, type} -> "#{inspect(name)} (#{type})" end)
end

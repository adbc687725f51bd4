defmodule Snakepit.RunID do
  @moduledoc """
  Names one life of one BEAM: seven characters of `0-9a-z`.

  Every process that Snakepit starts carries its run's id in its environment and, with `:run_id_flag`, in its
  arguments. So a process can be attributed to its run.
  """

  alias Snakepit.{Error, Native}

  @typedoc "Seven characters of `0-9a-z`."
  @type t :: String.t()

  @doc """
  A new id.

  Where a BEAM begins among the 36⁷ ids is drawn from the OS's entropy; from there on it goes
  through them without repeating one. Two BEAMs share an id only if their stretches overlap. (Ids
  drawn one by one would repeat: among 100,000, with a probability of 6 %.)

      iex> id = Snakepit.RunID.generate()
      iex> Snakepit.RunID.valid?(id)
      true

  """
  @spec generate() :: t()
  def generate do
    case Native.run_id_generate() do
      {:ok, id} -> id
      {:error, reason} -> raise Error.from_native(:generate, reason)
    end
  end

  @doc """
  Returns whether a term is a run id.

      iex> Snakepit.RunID.valid?("k3x9a2p")
      true
      iex> Enum.map(["", "k3x9a2", "k3x9a2pq", "K3X9A2P", "k3x9a2-", nil], &Snakepit.RunID.valid?/1)
      [false, false, false, false, false, false]

  """
  @spec valid?(term()) :: boolean()
  def valid?(id), do: is_binary(id) and Native.run_id_valid(id)

  @doc """
  Returns the run id in a command line.

  It understands `--run-id X`, `--run-id=X` and the `--snakepit-run-id` of the earlier Snakepit, as
  arguments of their own. Takes a list of arguments, or one string, which is split at NUL bytes if it
  has some (as in `/proc/<pid>/cmdline`) and at white space otherwise.

      iex> Snakepit.RunID.extract_from_command("python worker.py --run-id k3x9a2p")
      {:ok, "k3x9a2p"}
      iex> Snakepit.RunID.extract_from_command(["sh", "-c", "worker --run-id k3x9a2p"])
      {:error, :not_found}

  """
  @spec extract_from_command(binary() | [binary()]) :: {:ok, t()} | {:error, :not_found}
  def extract_from_command(command) when is_binary(command) do
    separator = if String.contains?(command, <<0>>), do: <<0>>, else: [" ", "\t", "\n"]
    command |> :binary.split(separator, [:global, :trim_all]) |> extract_from_command()
  end

  def extract_from_command(arguments) when is_list(arguments) do
    unless Enum.all?(arguments, &is_binary/1) do
      raise ArgumentError, "expected arguments that are binaries, got: #{inspect(arguments)}"
    end

    case Native.run_id_extract(arguments) do
      nil -> {:error, :not_found}
      id -> {:ok, id}
    end
  end
end

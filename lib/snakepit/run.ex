defmodule Snakepit.Run do
  @moduledoc false

  # This life of this BEAM: its id and its directory.

  alias Snakepit.RunID

  @enforce_keys [:id, :directory, :instance]
  defstruct [:id, :directory, :instance]

  @typedoc "`instance` stands for data directory and user: one never touches another's processes."
  @type t :: %__MODULE__{id: RunID.t(), directory: Path.t(), instance: String.t()}

  @doc """
  Claims a new id by creating its directory: a directory can be created once, so no two runs of a
  host share an id.
  """
  @spec create!(map()) :: t()
  def create!(%{data_dir: data_dir}) do
    with {:error, reason} <- File.mkdir_p(data_dir), do: refuse!(data_dir, reason)
    run = claim!(data_dir)
    :persistent_term.put(__MODULE__, run)
    run
  end

  @doc "This BEAM's run; raises if Snakepit is not started."
  @spec current!() :: t()
  def current! do
    :persistent_term.get(__MODULE__, nil) ||
      raise "Snakepit is not started: add :snakepit to your applications, or run Application.ensure_all_started(:snakepit)"
  end

  @doc false
  def forget, do: :persistent_term.erase(__MODULE__)

  defp claim!(data_dir) do
    id = RunID.generate()
    directory = Path.join(data_dir, id)

    with :ok <- File.mkdir(directory),
         :ok <- File.chmod(directory, 0o700) do
      %__MODULE__{id: id, directory: directory, instance: instance(data_dir)}
    else
      {:error, :eexist} -> claim!(data_dir)
      {:error, reason} -> refuse!(data_dir, reason)
    end
  end

  defp instance(data_dir) do
    {:ok, %{uid: uid}} = File.stat(data_dir)
    hash = :crypto.hash(:sha256, "#{uid}:#{data_dir}")
    hash |> binary_part(0, 8) |> Base.encode16(case: :lower)
  end

  defp refuse!(data_dir, reason) do
    raise ArgumentError,
          "config :snakepit, :data_dir: cannot write to #{data_dir}: #{:file.format_error(reason)}"
  end
end

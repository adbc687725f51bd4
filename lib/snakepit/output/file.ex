defmodule Snakepit.Output.File do
  @moduledoc false

  # Output that passes through the BEAM into a file which can be reopened (`stdio: {:file, path, reopen: true}`).
  #
  # It is written as it comes, by the worker, so that a disk that is slow makes the process wait, as it would without
  # the BEAM. What cannot be written is lost: a worker that kept it would run out of memory, and one that waited would
  # stop its process because a disk is full. This is told when it begins and, with the number of bytes, when it is
  # over, in the log and in the file itself.

  require Logger

  alias Snakepit.{Error, Options}

  @schema [
    reopen: [
      type: :boolean,
      default: false,
      doc: "whether `Snakepit.Worker.reopen_output/1` can change to a new file of that name"
    ],
    truncate: [type: :boolean, default: false, doc: "whether each start empties the file"]
  ]

  @enforce_keys [:path, :id, :file]
  defstruct [:path, :id, :file, :failed, lost: 0]

  @typedoc "`failed` is why the last write has failed, and `lost` how many bytes were not written since then."
  @type t :: %__MODULE__{
          path: Path.t(),
          id: String.t(),
          file: :file.fd(),
          failed: atom(),
          lost: non_neg_integer()
        }

  @doc "The options of a file."
  @spec schema() :: Options.schema()
  def schema, do: @schema

  @doc """
  Returns the `:stdio` of a worker with checked options: `{:passed_file, path, truncate?}` for a file that is written
  here, and what a `Snakepit.Command` has for one that the process has itself.
  """
  @spec prepare(term()) :: term()
  def prepare({:file, path, mode}) do
    opts = if mode == :truncate, do: [truncate: true], else: mode
    %{reopen: reopen?, truncate: truncate?} = Options.validate!(opts, @schema, ":stdio")

    cond do
      reopen? -> {:passed_file, path, truncate?}
      truncate? -> {:file, path, :truncate}
      true -> {:file, path}
    end
  end

  def prepare(stdio), do: stdio

  @doc false
  # Whether `:stdio` is a file with more to it than its path.
  def stdio?({:file, path, mode}) when is_binary(path) and path != "",
    do: mode == :truncate or Keyword.keyword?(mode)

  def stdio?(_other), do: false

  @doc "Opens the file of the worker with this id. The calling process owns it."
  @spec open(Path.t(), boolean(), String.t()) :: {:ok, t()} | {:error, Error.t()}
  def open(path, truncate?, id) do
    with :ok <- if(truncate?, do: truncate(path), else: :ok), {:ok, file} <- open_end(path) do
      {:ok, %__MODULE__{path: path, id: id, file: file}}
    else
      {:error, reason} -> {:error, error(:start, path, reason)}
    end
  end

  # Nothing but `append` alone leaves it to the kernel where the end is, which others may write to as well.
  defp open_end(path), do: :file.open(path, [:append, :raw, :binary])

  defp truncate(path), do: :file.write_file(path, "")

  @doc "Writes data at the end of the file."
  @spec put(t(), iodata()) :: t()
  def put(%__MODULE__{} = file, data) do
    with :ok <- tell_gap(file), :ok <- :file.write(file.file, data) do
      written(file)
    else
      {:error, reason} -> failed(file, data, reason)
    end
  end

  # Order: where it is missing, so before what comes next.
  defp tell_gap(%{lost: 0}), do: :ok

  defp tell_gap(%{lost: lost, failed: reason} = file) do
    cause = Error.posix(reason)

    :file.write(
      file.file,
      "\n[snakepit: up to #{lost} bytes could not be written here: #{cause}]\n"
    )
  end

  defp written(%{lost: 0} = file), do: file

  defp written(file) do
    Logger.warning(
      "Snakepit worker #{file.id} writes its output to #{inspect(file.path)} again; up to #{file.lost} bytes of it were lost"
    )

    %{file | lost: 0, failed: nil}
  end

  # Only the first time: it may write without end.
  defp failed(file, data, reason) do
    if file.failed == nil, do: report(file, reason)
    %{file | failed: reason, lost: file.lost + IO.iodata_length(data)}
  end

  defp report(file, reason) do
    Logger.error(
      "Snakepit worker #{file.id} cannot write its output to #{inspect(file.path)}: #{Error.posix(reason)}. " <>
        "Its process runs on, and what it writes is lost until that is possible again"
    )
  end

  @doc "Writes to the file that has its name now, or makes one. If there can be none, the old one stays."
  @spec reopen(t()) :: {:ok | {:error, Error.t()}, t()}
  def reopen(%__MODULE__{} = file) do
    # Order: the new one first.
    case open_end(file.path) do
      {:ok, new} ->
        :file.close(file.file)
        {:ok, %{file | file: new}}

      {:error, reason} ->
        {{:error, error(:reopen_output, file.path, reason)}, file}
    end
  end

  @doc "Closes the file."
  @spec close(t()) :: :ok
  def close(%__MODULE__{} = file) do
    if file.lost > 0 do
      Logger.error(
        "Snakepit worker #{file.id} has lost up to #{file.lost} bytes of its output to #{inspect(file.path)}: " <>
          Error.posix(file.failed)
      )
    end

    :file.close(file.file)
    :ok
  end

  defp error(operation, path, reason) do
    detail = "cannot open #{inspect(path)} for its output: #{Error.posix(reason)}"
    %Error{operation: operation, reason: reason, step: :stdio, detail: detail}
  end
end

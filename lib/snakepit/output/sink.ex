defmodule Snakepit.Output.Sink do
  @moduledoc false

  # Who gets output that is passed on as it comes: one function per kind. What is read on demand has no sink.
  #
  # A sink is a value that `put/2` returns anew, so that one which counts or limits can keep what it needs.

  alias Snakepit.{Error, Options}
  alias Snakepit.Output.{File, Log}

  @enforce_keys [:to, :id, :stream]
  defstruct [:to, :id, :stream]

  @typedoc "`stream` is what the pieces are called in a message."
  @type t :: %__MODULE__{to: to(), id: String.t(), stream: :output | :stderr}
  @type to :: :quiet | Log.t() | File.t() | {:send, pid()} | (binary() -> term())

  @doc "The types of the option that says who gets it, without those that mean nobody."
  @spec types() :: [Options.Type.t()]
  def types,
    do: [
      {:one_of, [:logger]},
      {:tagged, :logger, :keyword, "options"},
      {:tagged, :send, :pid, "pid"},
      {:function, [1]}
    ]

  @doc "What is asked for, with the options of a log checked. Raises `ArgumentError`."
  @spec prepare(term(), String.t()) :: to()
  def prepare(:logger, id), do: Log.new!(id)
  def prepare({:logger, opts}, id), do: Log.new!(id, opts)
  def prepare(to, _id), do: to

  @doc "For the output of the worker or program with this id."
  @spec new(term(), String.t(), :output | :stderr) :: t()
  def new(to, id, stream), do: %__MODULE__{to: prepare(to, id), id: id, stream: stream}

  @doc "Passes pieces on, in their order."
  @spec put(t(), [binary()]) :: t()
  def put(%__MODULE__{to: :quiet} = sink, _pieces), do: sink

  def put(%__MODULE__{to: %module{} = to} = sink, pieces) when module in [Log, File],
    do: %{sink | to: Enum.reduce(pieces, to, &module.put(&2, &1))}

  def put(%__MODULE__{to: {:send, pid}} = sink, pieces), do: send_all(sink, pid, pieces)
  def put(%__MODULE__{to: fun} = sink, pieces) when is_function(fun, 1), do: call(sink, pieces)

  @doc "Tells a process something about its output: that it has to ask for more, or that there is none."
  @spec tell(t(), :passive | :eof) :: term()
  def tell(%__MODULE__{to: {:send, pid}} = sink, what),
    do: send(pid, {Snakepit.Worker, sink.id, what})

  def tell(_sink, _what), do: :ok

  defp send_all(sink, _pid, []), do: sink

  defp send_all(%{id: id, stream: stream} = sink, pid, [piece | others]) do
    send(pid, {Snakepit.Worker, id, {stream, piece}})
    send_all(sink, pid, others)
  end

  defp call(%{to: fun} = sink, pieces) do
    Enum.each(pieces, fun)
    sink
  end

  @doc "Has what is written to a file written to the one that has its name now."
  @spec reopen(t() | nil) :: {:ok | {:error, Error.t()}, t() | nil}
  def reopen(%__MODULE__{to: %File{} = file} = sink) do
    {answer, file} = File.reopen(file)
    {answer, %{sink | to: file}}
  end

  def reopen(sink) do
    detail = "its :stdio is no {:file, path, reopen: true}"
    {{:error, %Error{operation: :reopen_output, reason: :einval, detail: detail}}, sink}
  end

  @doc "There is no more output."
  @spec close(t() | nil) :: :ok
  def close(%__MODULE__{to: %module{} = to}) when module in [Log, File] do
    module.close(to)
    :ok
  end

  def close(_sink), do: :ok
end

defmodule Snakepit.Worker.Terminal do
  @moduledoc false

  # The terminal of a worker with `stdio: :pty`: its options, and what else a worker with one has.

  alias Snakepit.{Error, Native, Options, Pipe, Stdio}
  alias Snakepit.Output.Tail
  alias Snakepit.Worker.{Keyboard, Output, Viewer}

  @size {:integer, 1, 65_535}

  @schema [
    rows: [type: @size, default: 24, doc: "how many lines it has"],
    cols: [type: @size, default: 80, doc: "how many characters a line has"],
    echo: [type: :boolean, default: true, doc: "whether what is typed becomes output as well"],
    raw: [
      type: :boolean,
      default: false,
      doc: "whether every byte goes through as it is, both ways: no lines, no echo, no signals"
    ],
    term: [
      type: :text,
      default: "xterm-256color",
      doc: "what `TERM` is in its environment, unless `:env` has one"
    ]
  ]

  @enforce_keys [:rows, :cols, :echo, :raw, :term]
  defstruct [:rows, :cols, :echo, :raw, :term]

  @type t :: %__MODULE__{
          rows: pos_integer(),
          cols: pos_integer(),
          echo: boolean(),
          raw: boolean(),
          term: String.t()
        }

  @doc "The options of a terminal."
  @spec schema() :: Options.schema()
  def schema, do: @schema

  @doc """
  The checked options of a worker, with what a terminal changes in them. `opts` are those that were given.

  Shells that talk to a person ignore SIGTERM. What ends them is what they get when their terminal goes away.
  """
  @spec prepare(map(), keyword()) :: map()
  def prepare(%{stdio: :pty} = given, opts), do: prepare(%{given | stdio: {:pty, []}}, opts)

  def prepare(%{stdio: {:pty, terminal}} = given, opts) do
    terminal = struct!(__MODULE__, Options.validate!(terminal, @schema, ":stdio"))
    signal = if Keyword.has_key?(opts, :stop_signal), do: given.stop_signal, else: :sighup

    %{
      given
      | stdio: terminal,
        stop_signal: signal,
        env: environment(terminal) ++ Enum.to_list(given.env)
    }
  end

  def prepare(given, _opts), do: given

  # Programs believe those two more than the terminal itself, and they are of the BEAM's. Order: what the user sets
  # comes behind this, and so counts.
  defp environment(terminal), do: [{"TERM", terminal.term}, {"LINES", nil}, {"COLUMNS", nil}]

  @doc "Where the streams of a worker's process lead."
  @spec stdio(t()) :: Stdio.t()
  def stdio(%__MODULE__{} = terminal) do
    %Stdio{terminal: {terminal.rows, terminal.cols}, modes: {terminal.echo, terminal.raw}}
  end

  @doc "Checks the size that a terminal is to have, of which one part may be missing."
  @spec size!(keyword()) :: map()
  def size!(size) do
    schema =
      for {key, entry} <- Keyword.take(@schema, [:rows, :cols]),
          do: {key, Keyword.delete(entry, :default)}

    Options.validate!(size, schema)
  end

  @doc "Does what a worker is asked for, with its output, which may be another one then."
  def handle(%Output{input: %{keyboard: %Keyboard{}, pipe: pipe}} = output, :modes),
    do: {answer(Native.terminal_modes(pipe), :terminal), output}

  def handle(%Output{input: %{keyboard: %Keyboard{}, pipe: pipe}} = output, {:resize, size}) do
    answer =
      with {:ok, modes} <- Native.terminal_modes(pipe),
           %{rows: rows, cols: cols} = Map.merge(modes, size),
           {:ok, {}} <- Native.terminal_resize(pipe, {rows, cols}),
           do: :ok

    {answer(answer, :resize), output}
  end

  def handle(%Output{input: %{keyboard: %Keyboard{}}} = output, {:attach, pid}) do
    case output.source do
      %{viewer: nil} = source ->
        {:ok, see(output, pid |> Viewer.new(__MODULE__) |> Viewer.show(prompt(source)))}

      _attached ->
        detail = "somebody else is attached to it"
        {{:error, %Error{operation: :attach, reason: :ebusy, detail: detail}}, output}
    end
  end

  def handle(output, request) do
    detail = "its :stdio is not :pty"
    operation = if is_tuple(request), do: elem(request, 0), else: :terminal
    {{:error, %Error{operation: operation, reason: :enotty, detail: detail}}, output}
  end

  defp see(output, viewer), do: %{output | source: %{output.source | viewer: viewer}}

  # A program that waits at its prompt has nothing more to say.
  defp prompt(source), do: source.tail |> Tail.content() |> String.split("\n") |> List.last()

  @doc "What the viewer of a terminal has seen, or its end: `{#{inspect(__MODULE__)}, ...}`."
  @spec hear(Output.t() | nil, tuple()) :: Output.t() | nil
  def hear(%Output{source: %{viewer: %{pid: pid} = viewer}} = output, {_, {:seen, pid, bytes}}) do
    seen = Viewer.seen(viewer, bytes)
    output = see(output, seen)
    read_on(output, Viewer.behind?(viewer) and not Viewer.behind?(seen))
  end

  def hear(%Output{source: %{viewer: %{monitor: gone}}} = output, {_, gone, :process, _, _}),
    do: read_on(see(output, nil), true)

  # Of one that a process before this one had.
  def hear(output, _message), do: output

  defp read_on(output, false), do: output

  defp read_on(output, true) do
    if output.source.open?, do: Pipe.read_later(output.source.pipe)
    output
  end

  defp answer({:error, reason}, operation), do: {:error, Error.from_native(operation, reason)}
  defp answer(answer, _operation), do: answer
end

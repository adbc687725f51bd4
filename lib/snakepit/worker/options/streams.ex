defmodule Snakepit.Worker.Options.Streams do
  @moduledoc false

  # The options of a worker that say where its standard streams lead and how one talks to it.

  alias Snakepit.{Options, Stdio}
  alias Snakepit.Output.{File, Sink}
  alias Snakepit.Worker.Terminal

  @schema [
    stdio: [
      type:
        {:or,
         [
           {:one_of, [:tail, :null, :inherit, :pipe, :pty]},
           {:tagged, :pty, :keyword, "options"},
           {:tagged, :file, :path, "path"},
           {:custom, &File.stdio?/1, "{:file, path, options}"}
         ]},
      default: :tail,
      doc: """
      `:tail` keeps the end of the output; `:null`, `:inherit`, `{:file, path}` or `{:file, path, options}`, see below;
      `:pipe` is for talking to it; `:pty` or `{:pty, options}` is a terminal, see below
      """
    ],
    packet: [
      type: {:one_of, [:raw, :line, 1, 2, 4]},
      default: nil,
      shown: "`:raw`",
      doc: """
      how a `:pipe` is cut into packets: `:raw` not at all, `:line`, or `1`, `2` or `4` for a length of so many
      bytes before each
      """
    ],
    max_packet: [
      type: {:integer, 1, 0x7FFFFFFF, "bytes"},
      default: 16_777_216,
      shown: "16 MiB",
      doc: "the longest line or packet of a `:pipe` in bytes; the worker ends over a longer one"
    ],
    in_flight: [
      type: {:integer, 1, 65_536, "requests"},
      default: 1,
      doc: "how many requests the process has at a time, see `request/3`"
    ],
    tag: [
      type: {:tagged, :bytes, {:integer, 1, 8}, "1 to 8"},
      default: nil,
      doc: """
      `{:bytes, n}` if answers may come in any order: each packet begins with `n` bytes that the process repeats
      at the beginning of its answer
      """
    ],
    answer_timeout: [
      type: {:milliseconds, 1},
      default: 30_000,
      doc: """
      how long the answer to a request may still come after its caller has given up; then the worker ends
      """
    ],
    # Called in the worker with the tag, a number, of a request that the process owes and nobody waits for any more.
    on_late: [type: {:or, [{:one_of, [nil]}, {:function, [1]}]}, default: nil, doc: false],
    output: [
      type: {:or, [{:one_of, [:quiet, :read]} | Sink.types()]},
      default: nil,
      shown: "`:quiet`",
      doc: """
      who gets what it writes: `:quiet`, `:logger` or `{:logger, options}`, `{:send, pid}`, a function of one argument,
      or `:read` for those who call `read/3`
      """
    ],
    active: [
      type: {:or, [{:one_of, [true, :once]}, {:integer, 1, 0x7FFFFFFF, "messages"}]},
      default: nil,
      shown: "`true`",
      doc: "how many messages `output: {:send, pid}` sends before it waits for `activate/2`"
    ],
    linger: [
      type: :milliseconds,
      default: 5_000,
      doc: "how long output that is to be read is kept after the process has ended, see below"
    ],
    stderr: [
      type: {:or, [{:one_of, [:tail, :merge, :null, :inherit, :read]} | Sink.types()]},
      default: nil,
      shown: "`:tail` with `stdio: :pipe`, else `:merge`",
      doc: """
      where standard error leads: its end is kept (`:tail`), it is a part of the output (`:merge`), it is dropped
      (`:null`), the BEAM's own (`:inherit`), read by `read_stderr/2` (`:read`), or passed on line by line as `:output`
      is
      """
    ]
  ]

  @doc false
  @spec schema() :: Options.schema()
  def schema, do: @schema

  @doc "Where the streams of a worker with these options lead."
  @spec stdio(Snakepit.Worker.Options.t()) :: Stdio.t() | term()
  # Output that somebody wants to see passes through the BEAM. Errors belong to it, except where it is
  # a channel with a format of its own.
  def stdio(%{stdio: :pipe} = options),
    do: %Stdio{input: :pipe, output: :pipe, error: error(options.stderr)}

  def stdio(%{stdio: :tail} = options) do
    case {passes?(options), error(options.stderr)} do
      {true, error} -> %Stdio{output: :pipe, error: error}
      {false, error} when error in [:merged, :tail] -> :tail
      {false, error} -> %Stdio{output: :tail, error: error}
    end
  end

  def stdio(%{stdio: %Terminal{} = terminal}), do: Terminal.stdio(terminal)

  def stdio(%{stdio: {:passed_file, _path, _truncate?}}),
    do: %Stdio{output: :pipe, error: :merged}

  # `:log_output` of the configuration is no reason to refuse those that write elsewhere.
  def stdio(%{stdio: stdio}), do: stdio

  @doc "Whether streams of that kind pass through the BEAM, so that the command itself leads nowhere."
  @spec passed?(term()) :: boolean()
  def passed?(stdio),
    do: stdio == :pipe or is_struct(stdio, Terminal) or match?({:passed_file, _, _}, stdio)

  defp error(:merge), do: :merged

  defp error(kept_or_elsewhere) when kept_or_elsewhere in [:tail, :null, :inherit],
    do: kept_or_elsewhere

  defp error(_read_or_passed_on), do: :pipe

  defp passes?(%{output: :quiet, ready: ready}), do: match?({:output, _pattern}, ready)
  defp passes?(_heard), do: true

  @doc "Raises `ArgumentError` for options that do not go together; `given` are those that were given."
  @spec agree!(Snakepit.Worker.Options.t(), map()) :: :ok
  def agree!(options, given) do
    if options.packet && options.stdio != :pipe,
      do: Options.mismatch!(:packet, "given only with stdio: :pipe", options.packet)

    if given.output not in [nil, :quiet] and not heard?(options.stdio) do
      expected = ":tail, :pipe or :pty, so that there is something to :output"
      Options.mismatch!(:stdio, expected, options.stdio)
    end

    if given.stderr not in [nil, :merge] and options.stdio not in [:tail, :pipe] do
      expected = ":tail or :pipe, so that there is something to :stderr"
      Options.mismatch!(:stdio, expected, options.stdio)
    end

    if options.active && not match?({:send, _pid}, options.output),
      do: Options.mismatch!(:active, "given only with output: {:send, pid}", options.active)

    if options.in_flight > 1 and options.packet in [nil, :raw] do
      expected = "1 without packet: :line, 1, 2 or 4"
      Options.mismatch!(:in_flight, expected, options.in_flight)
    end

    agree_on_tag!(options)

    if match?({:output, _}, options.ready) and not heard?(options.stdio) do
      expected = ":tail, :pipe or :pty, so that :ready can see the output"
      Options.mismatch!(:stdio, expected, options.stdio)
    end

    if match?({:output, _}, options.ready) and
         (options.output == :read or options.active not in [nil, true]) do
      expected =
        "something other than {:output, pattern}, as nothing is read before it is asked for"

      Options.mismatch!(:ready, expected, options.ready)
    end

    :ok
  end

  defp heard?(stdio), do: stdio in [:tail, :pipe] or is_struct(stdio, Terminal)

  defp agree_on_tag!(%{tag: nil}), do: :ok

  defp agree_on_tag!(%{tag: {:bytes, count} = tag} = options) do
    unless is_integer(options.packet),
      do: Options.mismatch!(:tag, "given only with packet: 1, 2 or 4", tag)

    if options.in_flight > Integer.pow(256, count) do
      expected = "at most 256 with tag: {:bytes, 1}"
      Options.mismatch!(:in_flight, expected, options.in_flight)
    end
  end
end

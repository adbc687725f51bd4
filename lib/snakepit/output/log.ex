defmodule Snakepit.Output.Log do
  @moduledoc false

  # Output that goes to `Logger`, an entry per line.
  #
  # What is in a line decides nothing: bytes that are no text are shown, a flood is cut off and counted, and a
  # transform function that fails lets its line through. What was left out in a second is told in one line when that
  # second is over, by a timer of its own: perhaps there is no output after it that could bring it to light.

  require Logger

  alias Snakepit.{Options, ProcessLabel}
  alias Snakepit.Output.Lines

  # A longer line becomes several entries.
  @line_bytes 65_536
  @window_ms 1_000

  @levels [:debug, :info, :notice, :warning, :error, :critical, :alert, :emergency]

  @schema [
    level: [type: {:one_of, @levels}, default: :info, doc: "the level of its entries"],
    prefix: [
      type: {:custom, &is_binary/1, "a string"},
      default: nil,
      shown: "the worker's id, and a colon",
      doc: "what each entry begins with"
    ],
    metadata: [type: :keyword, default: [], doc: "the metadata of its entries"],
    transform: [
      type: {:function, [1]},
      default: nil,
      doc: "returns what to log in the place of a line, or `nil` for nothing"
    ],
    max_per_second: [
      type: {:or, [{:integer, 1, :infinity, "lines"}, {:one_of, [:infinity]}]},
      default: 1_000,
      doc: "how many entries there may be in a second; more are counted and left out"
    ]
  ]

  @enforce_keys [:prefix, :level, :metadata, :max_per_second, :left_out]
  defstruct [
    :prefix,
    :level,
    :metadata,
    :transform,
    :max_per_second,
    :left_out,
    lines: nil,
    window: nil,
    logged: 0,
    failed?: false
  ]

  @typedoc """
  `window` is when the present second has begun, and `logged` how many entries it had. `left_out` counts those that
  were left out since this was told last. `failed?` is whether the transform function has failed.
  """
  @type t :: %__MODULE__{
          prefix: String.t(),
          level: Logger.level(),
          metadata: keyword(),
          transform: (String.t() -> String.t() | nil) | nil,
          max_per_second: pos_integer() | :infinity,
          left_out: :atomics.atomics_ref(),
          lines: Lines.t(),
          window: integer() | nil,
          logged: non_neg_integer(),
          failed?: boolean()
        }

  @doc "The options beside `:logger`."
  @spec schema() :: Options.schema()
  def schema, do: @schema

  @doc "The log of a worker. Raises `ArgumentError` for options that are none."
  @spec new!(String.t(), keyword()) :: t()
  def new!(id, opts \\ []) do
    given = Options.validate!(opts, @schema, ":output")

    struct!(
      __MODULE__,
      %{
        given
        | prefix: given.prefix || "#{id}: ",
          metadata: given.metadata
      }
      |> Map.merge(%{left_out: :atomics.new(1, signed: false), lines: Lines.new(@line_bytes)})
    )
  end

  @doc "Logs the lines that `data` completes."
  @spec put(t(), binary()) :: t()
  def put(%__MODULE__{} = log, data) do
    {lines, rest} = Lines.split_or_cut(log.lines, data)
    Enum.reduce(lines, %{log | lines: rest}, &line(&2, &1, now()))
  end

  @doc "Logs the line that has no newline yet, and what was left out."
  @spec close(t()) :: t()
  def close(%__MODULE__{} = log) do
    rest = Lines.rest(log.lines)
    log = if rest == "", do: log, else: line(%{log | lines: Lines.new(@line_bytes)}, rest, now())
    tell_left_out(log)
    log
  end

  @doc false
  # Logs a line at that time, in milliseconds.
  @spec line(t(), binary(), integer()) :: t()
  def line(%__MODULE__{} = log, line, now) do
    case admit(log, now) do
      {:ok, log} ->
        {text, log} = transform(log, text(line))
        if text, do: Logger.bare_log(log.level, log.prefix <> text, log.metadata)
        # What the function drops is no flood.
        if text, do: log, else: %{log | logged: log.logged - 1}

      {:full, log} ->
        leave_out(log, now)
    end
  end

  defp admit(%{max_per_second: :infinity} = log, _now), do: {:ok, %{log | logged: 0}}

  defp admit(%{window: begun} = log, now) when begun == nil or now - begun >= @window_ms,
    do: {:ok, %{log | window: now, logged: 1}}

  defp admit(%{logged: logged, max_per_second: most} = log, _now) when logged < most,
    do: {:ok, %{log | logged: logged + 1}}

  defp admit(log, _now), do: {:full, log}

  # Only the first one of a second has it told.
  defp leave_out(log, now) do
    if :atomics.add_get(log.left_out, 1, 1) == 1,
      do: tell_later(log, log.window + @window_ms - now)

    log
  end

  # A process of its own: the worker may have ended by then.
  defp tell_later(log, delay_ms) do
    spawn(fn ->
      ProcessLabel.set({__MODULE__, log.prefix})

      receive do
      after
        delay_ms -> tell_left_out(log)
      end
    end)
  end

  defp tell_left_out(log) do
    case :atomics.exchange(log.left_out, 1, 0) do
      0 ->
        :ok

      count ->
        most = "more than #{log.max_per_second} in a second"

        Logger.bare_log(
          :warning,
          "#{log.prefix}#{count} lines were left out: #{most}",
          log.metadata
        )
    end
  end

  defp transform(%{transform: nil} = log, text), do: {text, log}

  defp transform(log, text) do
    case log.transform.(text) do
      line when is_binary(line) or is_nil(line) -> {line, log}
      other -> failed(log, text, "returned #{inspect(other)}, which is neither a line nor nil")
    end
  catch
    kind, reason -> failed(log, text, Exception.format(kind, reason, __STACKTRACE__))
  end

  # Once, or its failures would be the flood.
  defp failed(%{failed?: true} = log, text, _why), do: {text, log}

  defp failed(log, text, why) do
    Logger.error(
      "#{log.prefix}the :transform of its output has failed, so lines on which it fails are logged as they are; " <>
        why
    )

    {text, %{log | failed?: true}}
  end

  @doc """
  Returns a line as text without its end. A byte that is no text is shown as a program would write it down.

      iex> Snakepit.Output.Log.text("caf\\xE9 \\u00E9\\r\\n")
      "caf\\\\xE9 \\u00E9"

  """
  @spec text(binary()) :: String.t()
  def text(line) do
    line = String.trim_trailing(line)
    if String.valid?(line), do: line, else: shown(line, "")
  end

  defp shown("", text), do: text
  defp shown(<<char::utf8, rest::binary>>, text), do: shown(rest, <<text::binary, char::utf8>>)

  defp shown(<<byte, rest::binary>>, text),
    do: shown(rest, text <> "\\x" <> Base.encode16(<<byte>>))

  defp now, do: System.monotonic_time(:millisecond)
end

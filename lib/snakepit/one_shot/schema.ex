defmodule Snakepit.OneShot.Schema do
  @moduledoc false

  # The options that `Snakepit.cmd/3`, `Snakepit.run/3` and streams have in common, and what only they need checked.

  alias Snakepit.{Command, Options}
  alias Snakepit.OneShot.Feeder

  # What the tree of a program that has ended, or is interrupted, gets to end by itself.
  @stop_timeout 2_000

  @own [
    input: [
      type: {:custom, &Feeder.input?/1, "iodata or an enumerable of iodata"},
      default: nil,
      doc: """
      what the program reads: iodata, or an enumerable of iodata, which is asked for the next piece when the program
      has taken the last one; without it, nothing
      """
    ],
    timeout: [
      type: :timeout,
      default: :infinity,
      doc: "how many milliseconds it may take; then it is killed"
    ],
    idle_timeout: [
      type: :timeout,
      default: :infinity,
      doc: "how many milliseconds it may take to write something that is read; then it is killed"
    ]
  ]

  # The program and the streams are the one-shot's own business.
  @command Command.Schema.schema()
           |> Keyword.drop([:cmd, :stdio, :lifeline])
           |> Options.put_defaults(stop_timeout: @stop_timeout)

  @doc "The options `own` of a function, those of all, and the command's."
  @spec complete(Options.schema()) :: Options.schema()
  def complete(own), do: own ++ @own ++ @command

  @doc "The option `:stderr`, whose `:capture` means something else for each function."
  @spec stderr(String.t()) :: Options.schema()
  def stderr(capture) do
    doc = """
    where standard error goes: `:tail` keeps its end for errors, #{capture}`:merge` makes it a part of the
    output, `:inherit` is the BEAM's own, and `:null` drops it
    """

    modes = [:tail, :capture, :merge, :inherit, :null]
    [stderr: [type: {:one_of, modes}, default: nil, shown: "`:tail`", doc: doc]]
  end

  @doc "The option `:success`."
  @spec success(Enumerable.t() | nil, String.t()) :: Options.schema()
  def success(default, shown) do
    [
      success: [
        type: {:custom, &__MODULE__.statuses/1, "a list or range of statuses"},
        default: default,
        shown: shown,
        doc: "the statuses that are no failure; any other one, and any signal, is an error"
      ]
    ]
  end

  @doc false
  def statuses(%Range{} = range), do: statuses_in(range)
  def statuses(list) when is_list(list), do: not List.improper?(list) and statuses_in(list)
  def statuses(_other), do: false

  defp statuses_in(statuses),
    do: Enum.all?(statuses, &(&1 in 0..255)) or {"statuses from 0 to 255", statuses}

  @doc "Where standard error goes, of the options that say so. Raises if they contradict each other."
  @spec error!(map()) :: :tail | :capture | :merge | :inherit | :null
  def error!(own) do
    case {own.stderr, Map.get(own, :stderr_to_stdout)} do
      {nil, true} -> :merge
      {nil, _not_merged} -> :tail
      {mode, nil} -> mode
      {:merge, true} -> :merge
      {:merge, false} -> contradiction!(":merge", false)
      {mode, true} -> contradiction!(inspect(mode), true)
      {mode, false} -> mode
    end
  end

  defp contradiction!(mode, merged?) do
    with_it = "#{if merged?, do: ":merge", else: "something else than :merge"} (or not given)"
    expected = "#{with_it} with stderr_to_stdout: #{merged?}"
    raise ArgumentError, "expected :stderr to be #{expected}, got: #{mode}"
  end
end

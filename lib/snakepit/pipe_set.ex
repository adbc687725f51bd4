defmodule Snakepit.PipeSet do
  @moduledoc false

  # The pipes from a program that one process reads: whichever has something, each in its turn, until a deadline. A
  # pipe that is not read makes the program wait, and no other pipe waits for that one.
  #
  # While it waits, the reader also hears what else it has asked for. Most of the time it waits for a pipe, with a
  # reference that it has just made: the runtime skips all messages that are older, and a reader may have thousands.
  # What else there is to hear has no such reference, so the reader looks for that only when no pipe has had anything
  # for a while, and when it is told to (`hear/1`).

  alias Snakepit.{Guardian, Pipe}

  # How long a wait is for the pipes alone. Long enough that a program that writes has written, and short for what
  # comes after it: only a pipe that somebody outside of the tree holds open makes anybody wait this long for nothing.
  @pipes_first_ms 20

  defstruct pipes: []

  @typedoc "Name, pipe, and whether the runtime may have a message for the reader about it."
  @type entry :: {atom(), Pipe.t(), boolean()}
  @type t :: %__MODULE__{pipes: [entry()]}

  @typedoc """
  What is heard beside the pipes: the guardian's words on a `child`, and messages that bear one of the references,
  each of them told by its name: a `:DOWN`, or `{tag, reference, word}`.
  """
  @type hearing :: %{child: pos_integer(), tag: atom(), references: %{reference() => atom()}}
  @type heard :: {:heard, atom(), term()}
  @type found :: {:data, atom(), binary()} | {:closed, atom()}

  @doc "Returns a set of those pipes that there are."
  @spec new([{atom(), Pipe.t() | nil}]) :: t()
  def new(pipes),
    do: %__MODULE__{pipes: for({name, pipe} <- pipes, pipe != nil, do: {name, pipe, false})}

  @doc "Returns what comes first. A pipe that is closed is not in the set any more."
  @spec read(t(), hearing(), integer() | :infinity) :: {found() | heard() | :timeout, t()}
  def read(%__MODULE__{} = set, hearing, deadline) do
    tag = make_ref()

    with {:nothing, tried} <- try_each(set.pipes, [], tag) do
      case wait(tried, tag, hearing, deadline) do
        {:ready, pipe} -> read(%{set | pipes: heard_of(tried, pipe)}, hearing, deadline)
        other -> {other, %{set | pipes: tried}}
      end
    else
      {found, pipes} -> {found, %{set | pipes: pipes}}
    end
  end

  @doc "Returns what there is in the pipes, without waiting."
  @spec read_now(t()) :: {found() | :nothing, t()}
  def read_now(%__MODULE__{} = set) do
    {found, pipes} = try_each(set.pipes, [], make_ref())
    {found, %{set | pipes: pipes}}
  end

  @doc "Returns what there is to hear beside the pipes, without waiting."
  @spec hear(hearing()) :: heard() | :timeout
  def hear(hearing), do: listen(make_ref(), hearing, 0)

  # The one that had something goes to the end.
  defp try_each([], tried, _tag), do: {:nothing, Enum.reverse(tried)}

  defp try_each([{name, pipe, expected?} | rest], tried, tag) do
    case Pipe.read_now(pipe, tag) do
      :again ->
        try_each(rest, [{name, pipe, true} | tried], tag)

      {:ok, data} ->
        # Order: removed here, or each piece would leave a message behind.
        expected? = expected? and not removed?(pipe)
        {{:data, name, data}, rest ++ Enum.reverse(tried, [{name, pipe, expected?}])}

      :closed ->
        {{:closed, name}, rest ++ Enum.reverse(tried)}
    end
  end

  defp removed?(pipe) do
    receive do
      {:select, ^pipe, _tag, _ready} -> true
    after
      0 -> false
    end
  end

  defp heard_of(pipes, pipe) do
    for {name, one, expected?} <- pipes, do: {name, one, expected? and one != pipe}
  end

  defp wait([], tag, hearing, deadline), do: listen(tag, hearing, left(deadline))

  defp wait(_pipes, tag, hearing, deadline) do
    receive do
      {:select, pipe, ^tag, _ready} -> {:ready, pipe}
    after
      min(@pipes_first_ms, left(deadline)) -> listen(tag, hearing, left(deadline))
    end
  end

  defp listen(tag, %{child: child, tag: word, references: references}, timeout) do
    receive do
      {:select, pipe, ^tag, _ready} ->
        {:ready, pipe}

      {Guardian, ^child, event} ->
        {:heard, :guardian, event}

      {:DOWN, reference, :process, _pid, reason} when is_map_key(references, reference) ->
        {:heard, Map.fetch!(references, reference), {:down, reason}}

      {^word, reference, event} when is_map_key(references, reference) ->
        {:heard, Map.fetch!(references, reference), event}
    after
      timeout -> :timeout
    end
  end

  defp left(:infinity), do: :infinity
  defp left(deadline), do: max(deadline - System.monotonic_time(:millisecond), 0)
end

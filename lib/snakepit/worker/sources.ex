defmodule Snakepit.Worker.Sources do
  @moduledoc false

  # What the options of a worker make of its output streams.

  alias Snakepit.Output.{Framing, Sink, Tail}
  alias Snakepit.Worker.{Options, Source, Terminal}

  # Output that is passed on and answers nobody comes in pieces if its lines are longer.
  @passed_on_bytes 65_536

  @doc "Begins to read standard output."
  @spec output(Options.t(), Snakepit.Pipe.t()) :: Source.t()
  def output(options, pipe) do
    # A pipe is a channel with a format of its own; what is told to people comes over standard error, or in it.
    tail = if options.stdio != :pipe or options.stderr == :merge, do: Tail.new(options.tail_bytes)

    Source.new(pipe,
      sink: sink(options.output, options.id, :output),
      framing: framing(options),
      limit: options.max_packet,
      tail: tail,
      demand: demand(options.active),
      tells_end?: options.active != nil
    )
  end

  @doc "Begins to read standard error, which is apart."
  @spec error(Options.t(), Snakepit.Pipe.t()) :: Source.t()
  def error(options, pipe) do
    sink = sink(options.stderr, options.id, :stderr)

    Source.new(pipe,
      sink: sink,
      framing: if(sink, do: Framing.new(:cut_line, @passed_on_bytes)),
      limit: options.max_packet,
      tail: Tail.new(options.tail_bytes)
    )
  end

  defp sink(:read, _id, _stream), do: nil
  defp sink(to, id, stream), do: Sink.new(to, id, stream)

  defp framing(%{stdio: :pipe} = options), do: Framing.new(options.packet, options.max_packet)
  # A prompt is no line, and neither is what goes to a file.
  defp framing(%{stdio: %Terminal{}}), do: nil
  defp framing(%{stdio: {:passed_file, _path, _truncate?}}), do: nil
  # Bytes can be read as lines, and lines not as bytes.
  defp framing(%{output: :read}), do: nil
  defp framing(_passed_on), do: Framing.new(:cut_line, @passed_on_bytes)

  @doc "How many pieces are asked for."
  @spec demand(true | :once | pos_integer() | nil) :: :all | pos_integer()
  def demand(active) when active in [nil, true], do: :all
  def demand(:once), do: 1
  def demand(count), do: count
end

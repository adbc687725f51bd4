defmodule Snakepit.OutputStream do
  @moduledoc false

  # `Snakepit.stream!/2` and `Snakepit.stream/2`: the output of a program as a lazy stream.

  alias Snakepit.{Error, OneShot, Options}
  alias Snakepit.OneShot.Schema
  alias Snakepit.Output.{Lines, Tail}

  # What an error shows of what was written to standard error.
  @tail_bytes 4_000

  @own [
         packet: [
           type: {:one_of, [:raw, :line]},
           default: :raw,
           doc: "the output as it comes (`:raw`), or a `:line` at a time"
         ],
         max_packet: [
           type: {:integer, 1, :infinity, "bytes"},
           default: 16_777_216,
           shown: "16 MiB",
           doc: "the longest line in bytes; a longer one is an error"
         ]
       ] ++
         Schema.stderr("`:capture` makes every element `{:stdout, data}` or `{:stderr, data}`, ")

  @schema OneShot.schema(@own)
  @raising OneShot.schema(@own ++ Schema.success([0], "`[0]`"))

  # `shot` is missing if nothing could be started. An `error` is told when what came before it has been.
  @enforce_keys [:shot, :own, :raises?, :error, :lines, :errors]
  defstruct @enforce_keys

  @doc false
  @spec schema() :: Options.schema()
  def schema, do: @schema

  @doc false
  @spec raising_schema() :: Options.schema()
  def raising_schema, do: @raising

  @doc false
  def new!(argv, opts), do: build(argv, Options.validate!(opts, @raising), true)

  @doc false
  def new(argv, opts), do: build(argv, Options.validate!(opts, @schema), false)

  defp build(argv, own, raises?) do
    own = %{own | stderr: Schema.error!(own)}
    command = OneShot.command(argv, own)
    Stream.resource(fn -> start(command, own, raises?) end, &next/1, &discard/1)
  end

  defp start(command, own, raises?) do
    {shot, error} =
      case OneShot.start(command, :stream, own) do
        {:ok, shot} -> {shot, nil}
        {:error, error} -> {nil, error}
      end

    lines = Lines.new(own.max_packet)

    %__MODULE__{
      shot: shot,
      own: own,
      raises?: raises?,
      error: error,
      lines: %{stdout: lines, stderr: lines},
      errors: Tail.new(@tail_bytes)
    }
  end

  defp next(:over), do: {:halt, :over}
  defp next(%{error: error} = stream) when error != nil, do: fail(stream, error)

  defp next(stream) do
    case OneShot.next(stream.shot) do
      {:data, name, data, shot} -> data(%{stream | shot: shot}, name, data)
      {:closed, name, shot} -> rest(%{stream | shot: shot}, name)
      {:exited, shot} -> exited(%{stream | shot: shot})
      {:error, error, shot} -> fail(%{stream | shot: shot}, error)
      {limit, shot} -> fail(%{stream | shot: shot}, %Error{operation: :stream, reason: limit})
    end
  end

  defp data(stream, :stderr, data),
    do: packets(%{stream | errors: Tail.add(stream.errors, data)}, :stderr, data)

  defp data(stream, :stdout, data), do: packets(stream, :stdout, data)

  defp packets(%{own: %{packet: :raw}} = stream, name, data),
    do: {tagged(stream, name, [data]), stream}

  # The lines before one that is too long have been asked for, and come first.
  defp packets(stream, name, data) do
    {verdict, complete, lines} = Lines.split(stream.lines[name], data)
    stream = %{stream | lines: %{stream.lines | name => lines}}
    stream = if verdict == :ok, do: stream, else: %{stream | error: too_long()}
    {tagged(stream, name, complete), stream}
  end

  defp too_long do
    detail = "a line is longer than :max_packet"
    %Error{operation: :stream, reason: :max_packet, detail: detail}
  end

  # A last line without a newline.
  defp rest(stream, name) do
    case Lines.rest(stream.lines[name]) do
      "" -> {[], stream}
      rest -> {tagged(stream, name, [rest]), stream}
    end
  end

  defp tagged(%{own: %{stderr: :capture}}, name, packets),
    do: for(one <- packets, do: {name, one})

  defp tagged(_stream, _name, packets), do: packets

  defp exited(%{raises?: true, shot: %{exit: exit}} = stream) do
    if exit.signal == nil and exit.status in stream.own.success,
      do: {:halt, stream},
      else: fail(stream, OneShot.failure(stream.shot))
  end

  defp exited(stream), do: last(stream, ending(stream.shot))

  defp ending(%{exit: %{status: 0}, outcome: :unread}), do: :epipe
  defp ending(%{exit: %{signal: nil, status: status}}), do: {:status, status}
  defp ending(%{exit: %{signal: signal}}), do: {:signal, signal}

  defp fail(%{raises?: true} = stream, error), do: raise(with_output(error, stream))
  defp fail(stream, error), do: last(stream, {:error, with_output(error, stream)})

  # Order: nothing of it is left when it is told.
  defp last(stream, ending) do
    discard(stream)
    {[{:exit, ending}], :over}
  end

  defp with_output(error, %{shot: nil}), do: error

  defp with_output(error, stream) do
    case Tail.content(stream.errors) do
      "" -> %{error | output: stream.shot.tail}
      captured -> %{error | output: captured}
    end
  end

  defp discard(%{shot: shot}) when shot != nil, do: OneShot.discard(shot)
  defp discard(_over), do: :ok
end

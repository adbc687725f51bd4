defmodule Snakepit.OutputStream do
  @moduledoc false

  # `Snakepit.stream!/2`: the output of a program as a lazy stream.

  alias Snakepit.{Error, OneShot, Options}
  alias Snakepit.Output.Lines

  @schema OneShot.schema(
            packet: [
              type: {:one_of, [:raw, :line]},
              default: :raw,
              doc: "the output as it comes (`:raw`), or a `:line` at a time"
            ],
            max_packet: [
              type: {:integer, 1, :infinity, "bytes"},
              default: 16_777_216,
              shown: "16 MiB",
              doc: "the longest line in bytes; a longer one raises"
            ]
          )

  @doc false
  @spec schema() :: Options.schema()
  def schema, do: @schema

  @doc false
  def new!(argv, opts) do
    own = Options.validate!(opts, @schema)
    command = OneShot.command(argv, own)
    chunks = Stream.resource(fn -> start!(command, own) end, &next!/1, &OneShot.discard/1)
    if own.packet == :line, do: lines(chunks, own.max_packet), else: chunks
  end

  defp start!(command, own) do
    case OneShot.start(command, :stream, own) do
      {:ok, shot} -> shot
      {:error, error} -> raise error
    end
  end

  defp next!(shot) do
    case OneShot.read(shot, :infinity) do
      {:ok, data} -> {[data], shot}
      :closed -> {:halt, conclude!(shot)}
    end
  end

  # Order: the process has closed its output, and ends; how is known when it has.
  defp conclude!(shot) do
    case OneShot.await_gone(shot, :infinity) do
      {:exited, %{status: 0}, _stderr} -> %{shot | gone?: true}
      {:exited, exit, stderr} -> raise failure(exit, stderr)
      {:error, error} -> raise error
    end
  end

  defp failure(%{signal: nil, status: status}, stderr),
    do: %Error{operation: :stream, reason: :exit_status, status: status, output: stderr}

  defp failure(%{signal: signal}, stderr),
    do: %Error{operation: :stream, reason: :exit_signal, signal: signal, output: stderr}

  defp lines(chunks, limit) do
    Stream.transform(
      chunks,
      fn -> Lines.new(limit) end,
      &lines!/2,
      &last_line!/1,
      fn _lines -> :ok end
    )
  end

  # The lines before one that is too long have been asked for, and come first.
  defp lines!(_data, :too_long) do
    detail = "a line is longer than :max_packet"
    raise %Error{operation: :stream, reason: :max_packet, detail: detail}
  end

  defp lines!(data, lines) do
    case Lines.split(lines, data) do
      {:ok, complete, lines} -> {complete, lines}
      {:too_long, [], _lines} -> lines!(data, :too_long)
      {:too_long, complete, _lines} -> {complete, :too_long}
    end
  end

  defp last_line!(:too_long), do: lines!("", :too_long)
  defp last_line!(lines), do: {for(rest <- [Lines.rest(lines)], rest != "", do: rest), lines}
end

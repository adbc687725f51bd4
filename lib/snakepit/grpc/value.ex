defmodule Snakepit.GRPC.Value do
  @moduledoc false

  # Terms as the message `snakepit.Value`, and back. What becomes what is a table in the guide of gRPC workers.

  import Bitwise

  alias Snakepit.GRPC.Wire

  # How many lists and maps may be in each other.
  @depth 64

  @least -0x8000000000000000
  @most 0x7FFFFFFFFFFFFFFF

  @infinity <<0::48, 0xF0, 0x7F>>
  @neg_infinity <<0::48, 0xF0, 0xFF>>
  @nan <<0::48, 0xF8, 0x7F>>

  @doc "Returns the message, or says which part of the term cannot be carried. `path` is what the term is called."
  @spec encode(term(), String.t()) :: {:ok, iodata()} | {:error, String.t()}
  def encode(term, path) do
    {:ok, value(term, [path], 0)}
  catch
    {:cannot, path, why} -> {:error, describe(path) <> why}
  end

  @doc "As `encode/2`, for the message `snakepit.Map`."
  @spec encode_map(map(), String.t()) :: {:ok, iodata()} | {:error, String.t()}
  def encode_map(map, path) do
    {:ok, map(map, [path], 0)}
  catch
    {:cannot, path, why} -> {:error, describe(path) <> why}
  end

  # The innermost key is the first.
  defp describe(path), do: path |> Enum.reverse() |> Enum.join()

  defp value(nil, _path, _depth), do: Wire.integer(1, 1)
  defp value(false, _path, _depth), do: Wire.integer(2, 0)
  defp value(true, _path, _depth), do: Wire.integer(2, 1)
  defp value(:infinity, _path, _depth), do: Wire.double(4, @infinity)
  defp value(:neg_infinity, _path, _depth), do: Wire.double(4, @neg_infinity)
  defp value(:nan, _path, _depth), do: Wire.double(4, @nan)
  defp value(atom, path, depth) when is_atom(atom), do: value(Atom.to_string(atom), path, depth)

  # Negative and positive numbers by turns, so that small ones are short.
  defp value(number, _path, _depth) when number in @least..@most,
    do: Wire.integer(3, bxor(number <<< 1, number >>> 63) &&& 0xFFFFFFFFFFFFFFFF)

  defp value(number, path, _depth) when is_integer(number),
    do: cannot(path, " is an integer of more than 64 bits")

  defp value(number, _path, _depth) when is_float(number),
    do: Wire.double(4, <<number::float-little>>)

  defp value(text, _path, _depth) when is_binary(text),
    do: Wire.bytes(if(String.valid?(text), do: 5, else: 6), text)

  defp value({:bytes, bytes}, _path, _depth) when is_binary(bytes), do: Wire.bytes(6, bytes)

  defp value(_deeper, path, depth) when depth >= @depth,
    do: cannot(path, " is nested deeper than #{@depth} lists and maps")

  defp value(tuple, path, depth) when is_tuple(tuple),
    do: value(Tuple.to_list(tuple), path, depth)

  defp value(list, path, depth) when is_list(list) do
    if List.improper?(list), do: cannot(path, " is an improper list")

    items =
      for {item, index} <- Enum.with_index(list),
          do: Wire.bytes(1, value(item, ["[#{index}]" | path], depth + 1))

    Wire.bytes(7, items)
  end

  defp value(%module{}, path, _depth),
    do: cannot(path, " is a struct (#{inspect(module)}), which cannot be carried: make it a map")

  defp value(map, path, depth) when is_map(map), do: Wire.bytes(8, map(map, path, depth))

  defp value(other, path, _depth), do: cannot(path, ", #{inspect(other)}, cannot be carried")

  defp map(map, path, depth) do
    for {key, value} <- map do
      inside = ["[#{inspect(key)}]" | path]
      key = Wire.bytes(1, value(key, [" of a key" | inside], depth + 1))
      Wire.bytes(1, [key, Wire.bytes(2, value(value, inside, depth + 1))])
    end
  end

  defp cannot(path, why), do: throw({:cannot, path, why})

  @doc "Returns the term of a message."
  @spec decode(binary()) :: {:ok, term()} | :error
  def decode(message) do
    {:ok, term(message, 0)}
  catch
    :malformed -> :error
  end

  # Of several fields the last one counts.
  defp term(message, depth),
    do:
      Enum.reduce(Wire.fields!(message), nil, fn field, before -> term(field, before, depth) end)

  defp term({1, _true}, _before, _depth), do: nil
  defp term({2, number}, _before, _depth) when is_integer(number), do: number != 0

  defp term({3, number}, _before, _depth) when is_integer(number),
    do: bxor(number >>> 1, -(number &&& 1))

  defp term({4, <<number::float-little>>}, _before, _depth), do: number
  defp term({4, @infinity}, _before, _depth), do: :infinity
  defp term({4, @neg_infinity}, _before, _depth), do: :neg_infinity
  defp term({4, <<_nan::64>>}, _before, _depth), do: :nan

  defp term({5, text}, _before, _depth) when is_binary(text),
    do: if(String.valid?(text), do: :binary.copy(text), else: throw(:malformed))

  defp term({6, bytes}, _before, _depth) when is_binary(bytes), do: :binary.copy(bytes)

  defp term({field, message}, _before, depth) when field in [7, 8] and is_binary(message) do
    if depth >= @depth, do: throw(:malformed)
    parts = for {1, part} <- Wire.fields!(message), do: part

    if field == 7,
      do: Enum.map(parts, &term(&1, depth + 1)),
      else: Map.new(parts, &entry(&1, depth))
  end

  defp term({field, _other}, _before, _depth) when field in 1..8, do: throw(:malformed)
  defp term(_unknown, before, _depth), do: before

  defp entry(message, depth) do
    Enum.reduce(Wire.fields!(message), {nil, nil}, fn
      {1, key}, {_key, value} -> {term(key, depth + 1), value}
      {2, value}, {key, _value} -> {key, term(value, depth + 1)}
      _unknown, pair -> pair
    end)
  end
end

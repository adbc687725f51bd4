defmodule Snakepit.Ledger.Salvage do
  @moduledoc false

  # Reads a DETS file without DETS.
  #
  # DETS trusts what it reads. Of files with a few wrong bytes it opens most and returns wrong values. It
  # refuses some, it ends the calling process with others, and with some it loops forever, in a process that
  # has no name. None of that may happen at a start. So this module searches the file for the objects of the
  # dead table: each is a tuple in the external term format, whole or not there.
  #
  # Objects that DETS has freed are in the file too until they are overwritten, some of them in parts. Whole
  # ones may be of use: DETS frees a collection and writes it elsewhere when one of its objects changes, and a
  # BEAM that dies in between leaves only the freed one. The seal of a record tells which ones to believe.

  # Two bytes that every tuple of up to 255 elements begins with.
  @tuple <<131, 104>>
  # A file may consist of beginnings of tuples that all end nowhere, each of which is followed to the
  # end of the file. What is found in this time is what there is; a whole table needs none of it.
  @patience_ms 3_000
  @cookie 0x00ABCDEF
  # After the length of a collection of objects that was not freed.
  @active <<0x12345678::32>>
  @version 9

  @type found :: %{objects: [tuple()], leftovers: [tuple()], complete?: boolean()}

  @doc """
  Returns the tuples in a DETS file, whether there are as many as its header says, and the tuples that were freed.
  Returns an error for a file of another kind. Makes no atom.
  """
  @spec read(Path.t()) :: {:ok, found()} | {:error, File.posix() | :not_a_table}
  def read(path) do
    with {:ok, bytes} <- File.read(path), do: parse(bytes)
  end

  @doc "As `read/1`, for the bytes of a file."
  @spec parse(binary()) :: {:ok, found()} | {:error, :not_a_table}
  def parse(bytes) do
    with {:ok, least} <- header(bytes) do
      deadline = System.monotonic_time(:millisecond) + @patience_ms

      {whole?, objects, leftovers} = scan(bytes, 0, collections(bytes), deadline, {[], []})

      complete? = whole? and length(objects) >= least
      {:ok, %{objects: objects, leftovers: leftovers, complete?: complete?}}
    end
  end

  # The count is kept up to date only in a table that was closed or synced.
  defp header(
         <<_free::32, @cookie::32, closed::32, _type::32, @version::32, _m::32, _next::32,
           _keypos::32, count::32, _rest::binary>>
       ),
       do: {:ok, if(closed == 1, do: count, else: 0)}

  defp header(_other), do: {:error, :not_a_table}

  defp scan(bytes, from, collections, deadline, {objects, leftovers} = found) do
    case :binary.match(bytes, @tuple, scope: {from, byte_size(bytes) - from}) do
      :nomatch ->
        {true, Enum.reverse(objects), Enum.reverse(leftovers)}

      {position, _length} ->
        collections = Enum.drop_while(collections, fn {_from, to} -> to <= position end)

        case decode(binary_part(bytes, position, byte_size(bytes) - position)) do
          {:ok, object, used} ->
            {next, found} = sort_in(object, position, position + used, collections, found)
            scan(bytes, next, collections, deadline, found)

          :error ->
            if late?(deadline),
              do: {false, Enum.reverse(objects), Enum.reverse(leftovers)},
              else: scan(bytes, position + 1, collections, deadline, found)
        end
    end
  end

  # And where to go on: not in the object, which may hold terms of its own. One that was freed may end
  # in what was written over it.
  defp sort_in(object, position, stop, [{from, _to} | _], {objects, leftovers})
       when from < position,
       do: {stop, {[object | objects], leftovers}}

  defp sort_in(object, _position, stop, [{from, _to} | _], {objects, leftovers}),
    do: {min(stop, from), {objects, [object | leftovers]}}

  defp sort_in(object, _position, stop, [], {objects, leftovers}),
    do: {stop, {objects, [object | leftovers]}}

  # Where each begins and ends, in the order of the file. Bytes of an object may look like one.
  defp collections(bytes) do
    for {position, _length} <- :binary.matches(bytes, @active), position >= 4 do
      <<length::32>> = binary_part(bytes, position - 4, 4)
      {position, position - 4 + length}
    end
  end

  defp late?(deadline), do: System.monotonic_time(:millisecond) > deadline

  defp decode(bytes) do
    {object, used} = :erlang.binary_to_term(bytes, [:used, :safe])
    {:ok, object, used}
  rescue
    ArgumentError -> :error
  end
end

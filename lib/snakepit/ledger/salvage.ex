defmodule Snakepit.Ledger.Salvage do
  @moduledoc false

  # Reads a DETS file without DETS.
  #
  # DETS trusts what it reads. Of files with a few wrong bytes it opens most and hands out wrong values,
  # refuses some, takes down the process that asks with others, and with some it loops for ever, in a
  # process that nobody can name. None of that may happen at a start. So the objects of a dead table are
  # looked for where they are: each is a tuple in the external term format, whole or not there. What
  # DETS has freed and not overwritten turns up too; what is not to be believed shows by its seal.

  # Two bytes that every tuple of up to 255 elements begins with.
  @tuple <<131, 104>>
  # A file may consist of beginnings of tuples that all end nowhere, each of which is followed to the
  # end of the file. What is found in this time is what there is; a whole table needs none of it.
  @patience_ms 3_000
  @cookie 0x00ABCDEF
  @version 9

  @type found :: %{objects: [tuple()], complete?: boolean()}

  @doc """
  The tuples in a DETS file, and whether there are as many as its header says. An error for what is no
  DETS file. With `:safe` no atom is made.
  """
  @spec read(Path.t(), [:safe]) :: {:ok, found()} | {:error, File.posix() | :not_a_table}
  def read(path, options \\ [:safe]) do
    with {:ok, bytes} <- File.read(path), {:ok, least} <- header(bytes) do
      deadline = System.monotonic_time(:millisecond) + @patience_ms
      {whole?, objects} = scan(bytes, 0, {options, deadline}, [])
      {:ok, %{objects: objects, complete?: whole? and length(objects) >= least}}
    end
  end

  # The count is kept up to date only in a table that was closed or synced.
  defp header(
         <<_free::32, @cookie::32, closed::32, _type::32, @version::32, _m::32, _next::32,
           _keypos::32, count::32, _rest::binary>>
       ),
       do: {:ok, if(closed == 1, do: count, else: 0)}

  defp header(_other), do: {:error, :not_a_table}

  defp scan(bytes, from, {options, deadline} = how, found) do
    case :binary.match(bytes, @tuple, scope: {from, byte_size(bytes) - from}) do
      :nomatch ->
        {true, Enum.reverse(found)}

      {position, _length} ->
        rest = binary_part(bytes, position, byte_size(bytes) - position)

        case decode(rest, options) do
          # Not into the object again: it may hold terms of its own.
          {:ok, object, used} ->
            scan(bytes, position + used, how, [object | found])

          :error ->
            if late?(deadline),
              do: {false, Enum.reverse(found)},
              else: scan(bytes, position + 1, how, found)
        end
    end
  end

  defp late?(deadline), do: System.monotonic_time(:millisecond) > deadline

  defp decode(bytes, options) do
    {object, used} = :erlang.binary_to_term(bytes, [:used | options])
    {:ok, object, used}
  rescue
    ArgumentError -> :error
  end
end

defmodule Snakepit.Test.BadGuardian do
  @moduledoc """
  Guardians that misbehave as told, for what no real one does on demand.
  """

  alias Snakepit.{Config, Run, RunID}
  alias Snakepit.Guardian.Server
  alias Snakepit.Test.Beam

  @fixture Path.expand("../fixtures/guardian.py", __DIR__)

  @doc """
  The executable of one that says, on each message that it gets, what the list has for it: `:welcome`,
  `:deaf`, `:end` (see the fixture), `{"TreeGone", [7, 0, []]}` and so on for an event, or a binary
  for any other message.
  """
  def executable(says) do
    directory = Beam.temporary_directory()
    lines = for words <- says, do: [Enum.map_intersperse(words, " ", &word/1), "\n"]
    File.write!(Path.join(directory, "says"), lines)
    executable = Path.join(directory, "guardian")
    File.cp!(@fixture, executable)
    executable
  end

  @doc "The executable of one that never says anything. It stays where it is, however late it runs."
  def silent, do: @fixture

  @doc """
  Puts one in the place of this BEAM's own: the tree is taken down to the ledger and put up again.
  """
  def replace(says) do
    # The last to start comes first.
    ids =
      for {id, _pid, _type, _modules} <- Supervisor.which_children(Snakepit.Supervisor), do: id

    above = Enum.take_while(ids, &(&1 != Snakepit.Pool.PIDLedger))

    specs =
      for id <- above do
        {:ok, spec} = :supervisor.get_childspec(Snakepit.Supervisor, id)
        :ok = Supervisor.terminate_child(Snakepit.Supervisor, id)
        :ok = Supervisor.delete_child(Snakepit.Supervisor, id)
        spec
      end

    for spec <- Enum.reverse(specs) do
      {:ok, _pid} = Supervisor.start_child(Snakepit.Supervisor, with_guardian(spec, says))
    end

    :ok
  end

  defp with_guardian(%{start: {Server, :start_link, [opts]}} = spec, says),
    do: %{spec | start: {Server, :start_link, [bad(says) ++ opts]}}

  defp with_guardian(spec, _says), do: spec

  defp bad(says), do: [executable: executable(says), watch_ms: :infinity]

  @doc """
  Starts a server that speaks to one, beside this BEAM's own and for a run of its own: it shall sweep
  up nobody else's processes. Its caller may stop it, and hears nothing of its end.
  """
  def start_server(says, opts \\ []) do
    run = %{Run.current!() | id: RunID.generate()}
    config = %{Config.fetch!() | log_level: :debug}
    # Nobody asks it whether it is there: what it says depends on how much it was told.
    defaults = [run: run, config: config, executable: executable(says), watch_ms: :infinity]
    GenServer.start(Server, Keyword.merge(defaults, opts))
  end

  defp word(word) when is_atom(word), do: Atom.to_string(word)
  defp word({name, fields}), do: word(<<0x81, pack(name)::binary, pack(fields)::binary>>)
  defp word(message) when is_binary(message), do: Base.encode16(message)

  # As much MessagePack as events need.
  defp pack(integer) when is_integer(integer), do: <<0xD3, integer::signed-64>>
  defp pack({:bytes, bytes}), do: <<0xC4, byte_size(bytes), bytes::binary>>
  defp pack(text) when is_binary(text), do: <<0xD9, byte_size(text), text::binary>>

  defp pack(list) when is_list(list),
    do: <<0x90 + length(list), Enum.map_join(list, &pack/1)::binary>>
end

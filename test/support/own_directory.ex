defmodule Snakepit.Test.OwnDirectory do
  @moduledoc """
  Tests that may ruin what this BEAM's Snakepit lives from: it is started anew in a directory of its own
  for each, with the `:config` tag of the test, and back where it was afterwards.
  """

  use ExUnit.CaseTemplate

  alias Snakepit.Test.Beam

  using do
    quote do
      import Snakepit.Test.Eventually
      import Snakepit.Test.OwnDirectory
    end
  end

  setup context do
    before = Application.get_all_env(:snakepit)
    directory = Beam.temporary_directory()

    on_exit(fn ->
      Application.stop(:snakepit)

      for {key, _value} <- Application.get_all_env(:snakepit),
          do: Application.delete_env(:snakepit, key)

      Application.put_all_env(snakepit: before)
      {:ok, _} = Application.ensure_all_started(:snakepit)
    end)

    :ok = Application.stop(:snakepit)
    Application.put_all_env(snakepit: [data_dir: directory] ++ Map.get(context, :config, []))
    {:ok, _} = Application.ensure_all_started(:snakepit)
    [data_dir: directory, run: Snakepit.Run.current!()]
  end

  @doc "Takes the ledger away: nothing can be recorded from here on."
  def lose_directory(run), do: lose(run.directory)

  @doc "Deletes a directory in which somebody else is making files."
  def lose(path) do
    # Order: out of the way first, so that nothing is made in it while it is emptied.
    lost = path <> ".lost"
    :ok = File.rename(path, lost)
    {:ok, _files} = File.rm_rf(lost)
  end

  @doc "Kills a process of the tree and returns when the supervisor has put another in its place."
  def crash(name) do
    pid = Process.whereis(name)
    Process.exit(pid, :kill)
    await_tree(name, pid)
  end

  @doc "Returns when the whole tree is there, with another than `pid` under this name."
  def await_tree(name, pid) do
    Snakepit.Test.Eventually.eventually(fn -> Process.whereis(name) not in [nil, pid] end)
    # Answers when it has started all of them.
    Supervisor.which_children(Snakepit.Supervisor)
  end

  @doc "Runs `fun` while the supervisor starts nobody."
  def without_supervisor(fun) do
    :ok = :sys.suspend(Snakepit.Supervisor)
    fun.()
  after
    :ok = :sys.resume(Snakepit.Supervisor)
  end
end

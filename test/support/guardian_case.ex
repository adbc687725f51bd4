defmodule Snakepit.Test.GuardianCase do
  @moduledoc """
  Tests of this BEAM's own guardian: what they run in it, and that nothing of it is left to the next.
  """

  use ExUnit.CaseTemplate

  import Snakepit.Test.Eventually

  alias Snakepit.{Command, Guardian}

  using do
    quote do
      import Snakepit.Test.Eventually
      import Snakepit.Test.GuardianCase
    end
  end

  setup do
    on_exit(fn -> Guardian.stop_all(timeout: 100) end)
  end

  @doc "Spawns and releases. Gives the child and what came of the release."
  def run(cmd, opts) do
    {:ok, child} = Guardian.spawn(Command.new!([cmd: cmd] ++ opts), worker_id: "test")
    {child, Guardian.release(child)}
  end

  @doc "A child that runs."
  def run!(cmd, opts \\ []) do
    {child, :ok} = run(cmd, opts)
    child
  end

  @doc "A shell that runs."
  def shell(script, opts \\ []), do: run!(["sh", "-c", script], opts)

  @doc "How a child ended, and the end of its output."
  def await_exit(%{id: id}) do
    assert_receive {Guardian, ^id, {:exited, exit, tail}}, 20_000
    {exit, tail}
  end

  @doc "How many had to be killed before nothing was left of a child's tree."
  def await_gone(%{id: id}) do
    assert_receive {Guardian, ^id, {:tree_gone, killed}}, 20_000
    killed
  end

  @doc "What a command prints that ends with status 0."
  def output(cmd, opts \\ []) do
    {%{status: 0}, tail} = cmd |> run!(opts) |> await_exit()
    tail
  end

  @doc "Ignores SIGTERM, with this many children that do so too."
  def stubborn(children) do
    script = "trap '' TERM; #{String.duplicate("sleep 600 & ", children)} echo ready; sleep 600"
    child = shell(script)
    eventually(fn -> Guardian.output_tail(child) == {:ok, "ready\n"} end)
    child
  end

  @doc "The path of a badly behaved program."
  def fixture(name), do: Path.expand("../fixtures/#{name}", __DIR__)
end

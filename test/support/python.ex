defmodule Snakepit.Test.Python do
  @moduledoc "Python pools for tests, and terms that Python can have."

  import ExUnit.Callbacks

  # What a loaded machine takes to start some interpreters.
  @patience 60_000

  @doc "Starts a pool that ends with the test, and returns its name."
  def python!(opts \\ []) do
    name = Module.concat(__MODULE__, "Pool#{System.unique_integer([:positive])}")
    start_supervised!({Snakepit.Python, Keyword.merge([name: name, size: 1], opts)}, id: name)
    :ok = Snakepit.Pool.await_ready(name, @patience)
    name
  end

  @uv Path.expand("../../_build/uv/bin/uv", __DIR__)

  @doc "The path of `uv`, if there is one: that of script/bootstrap, or the one in the PATH."
  def uv, do: if(File.exists?(@uv), do: @uv, else: System.find_executable("uv"))

  @doc "Why tests that need `uv` are skipped, or `false`."
  def without_uv, do: if(uv(), do: false, else: "uv is missing: script/bootstrap --all")

  @doc "The OS pids of its workers."
  def os_pids(python), do: for(worker <- Snakepit.Pool.list_workers(python), do: worker.os_pid)

  @doc "A term that comes back from Python as it went there, at most so deep."
  def term(depth) do
    if depth == 0, do: leaf(), else: inner(:rand.uniform(8), depth - 1)
  end

  defp inner(1, depth), do: several(fn -> term(depth) end)
  defp inner(2, depth), do: List.to_tuple(several(fn -> term(depth) end))
  defp inner(3, depth), do: Map.new(several(fn -> {key(depth), term(depth)} end))
  defp inner(_other, _depth), do: leaf()

  # Python takes 1, 1.0 and True for the same key.
  defp key(0), do: text()
  defp key(_depth), do: Enum.random([text(), {text(), integer()}, :key, ~D[2020-02-29]])

  defp several(fun), do: for(_ <- 1..:rand.uniform(20)//1, do: fun.())

  defp leaf do
    Enum.random([
      nil,
      true,
      false,
      :infinity,
      :neg_infinity,
      :nan,
      :an_atom,
      integer(),
      :rand.normal() * :math.pow(10, :rand.uniform(600) - 300),
      text(),
      <<255>> <> :crypto.strong_rand_bytes(:rand.uniform(400)),
      [],
      {},
      %{},
      Date.add(~D[0001-01-01], :rand.uniform(3_000_000)),
      Time.add(~T[00:00:00.000000], :rand.uniform(86_399_999_999), :microsecond),
      NaiveDateTime.add(~N[1970-01-01 00:00:00.000000], :rand.uniform(1_000_000_000)),
      DateTime.add(~U[1970-01-01 00:00:00.000000Z], :rand.uniform(1_000_000_000))
    ])
  end

  defp integer do
    bits = Enum.random([3, 5, 7, 8, 15, 16, 31, 32, 33, 62, 63, 64, 65, 200, 3000])
    Enum.random([1, -1]) * (Integer.pow(2, bits) + Enum.random(-2..2))
  end

  defp text do
    length = Enum.random([0, 1, 31, 32, 255, 256, 300])
    String.duplicate(Enum.random(["a", "ü", "語", "🐍", <<0>>]), length)
  end
end

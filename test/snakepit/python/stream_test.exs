defmodule Snakepit.Python.StreamTest do
  use Snakepit.Test.WorkerCase

  import Snakepit.Test.Python

  alias Snakepit.{Pool, Python}

  @generators """
  import itertools, time
  made, closed = [], []
  def count(n=None):
      try:
          for i in itertools.count() if n is None else range(n):
              made.append(i)
              yield i
      finally:
          closed.append(True)
  def fails(n):
      yield from range(n)
      raise ValueError("enough")
  def slow():
      try:
          yield 1
          time.sleep(600)
      finally:
          closed.append(True)
  async def later(n):
      import asyncio
      for i in range(n):
          await asyncio.sleep(0)
          yield i
  async def nap():
      import asyncio
      yield 1
      await asyncio.sleep(600)
  def state(): return [len(made), len(closed)]
  """

  test "items come in order, and the worker is free afterwards" do
    python = python!(init: @generators)

    for ahead <- [1, 2, 64] do
      items = python |> Python.stream("count", [1000], ahead: ahead) |> Enum.to_list()
      assert items == Enum.to_list(0..999)
    end

    assert python |> Python.stream("later", [10]) |> Enum.to_list() == Enum.to_list(0..9)
    assert python |> Python.stream("count", [0]) |> Enum.to_list() == []
    assert python |> Python.stream("list", [[1, 2]]) |> Enum.to_list() == [1, 2]

    assert [1, 3] =
             Python.call!(python, "state") |> then(fn [_made, closed] -> [1, closed - 1] end)

    assert Pool.info(python).idle == 1
  end

  test "Python makes no more items than it may be ahead" do
    python = python!(init: @generators)
    stream = Python.stream(python, "count", [], ahead: 10)
    {:suspended, [0], continue} = Enumerable.reduce(stream, {:cont, []}, &{:suspend, [&1 | &2]})
    # It is its reader's.
    assert {:error, %Error{reason: :timeout}} = Python.call(python, "state", [], timeout: 50)
    assert {:halted, _} = continue.({:halt, nil})
    assert [made, 1] = Python.call!(python, "state")
    assert made <= 10
  end

  test "a generator that nobody reads any more is closed, wherever it is" do
    python = python!(init: @generators)
    [os_pid] = os_pids(python)
    assert python |> Python.stream("count") |> Enum.take(3) == [0, 1, 2]
    assert [_made, 1] = Python.call!(python, "state")
    # In the middle of something long.
    assert python |> Python.stream("slow") |> Enum.take(1) == [1]
    assert [_made, 2] = Python.call!(python, "state", [], timeout: 60_000)

    # By the death of its reader.
    test = self()
    reader = spawn(fn -> python |> Python.stream("count") |> Enum.each(&send(test, &1)) end)
    assert_receive 100, 20_000
    Process.exit(reader, :kill)
    eventually(fn -> match?([_, 3], Python.call!(python, "state", [], timeout: 60_000)) end)
    assert os_pids(python) == [os_pid]
  end

  test "an exception, and the end of the worker, are raised where it is read" do
    python = python!(init: @generators)
    {:ok, seen} = Agent.start_link(fn -> 0 end)
    count = fn _item -> Agent.update(seen, &(&1 + 1)) end

    assert_raise Python.Error, "ValueError: enough", fn ->
      python |> Python.stream("fails", [5]) |> Enum.each(count)
    end

    assert Agent.get(seen, & &1) == 5
    [os_pid] = os_pids(python)

    assert_raise Python.Error, ~r/^TypeError/, fn ->
      python |> Python.stream("abs", [1]) |> Enum.to_list()
    end

    assert os_pids(python) == [os_pid]

    ExUnit.CaptureLog.capture_log(fn ->
      assert_raise Error, ~r/stream failed/, fn ->
        python
        |> Python.stream("count")
        |> Enum.each(fn item -> if item == 5, do: kill(hd(os_pids(python))) end)
      end
    end)

    assert python |> Python.stream("count", [2], timeout: 60_000) |> Enum.to_list() == [0, 1]
  end

  test "an item that takes too long is a timeout, and the worker is free again" do
    python = python!(init: @generators)

    assert_raise Error, ~r/no item came within its :timeout/, fn ->
      python |> Python.stream("slow", [], timeout: 1_000) |> Enum.to_list()
    end

    assert Python.call(python, "abs", [-1], timeout: 60_000) == {:ok, 1}
  end

  test "streams of one concurrent worker run beside each other" do
    python = python!(init: @generators, concurrency: 4)
    streams = for n <- [10, 20, 30], do: Python.stream(python, "later", [n])
    assert streams |> Stream.zip() |> Enum.count() == 10
    assert python |> Python.stream("count") |> Enum.take(100) |> length() == 100
    # In the middle of something long, while another one goes on.
    [os_pid] = os_pids(python)
    assert python |> Python.stream("nap") |> Enum.take(1) == [1]
    assert os_pids(python) == [os_pid]
    eventually(fn -> match?([_, 1], Python.call!(python, "state")) end)
  end

  test "two streams that are read in turns have a worker each" do
    python = python!(init: @generators, size: 2)
    one = Python.stream(python, "count", [100])
    assert one |> Stream.zip(one) |> Enum.to_list() == for(n <- 0..99, do: {n, n})
  end
end

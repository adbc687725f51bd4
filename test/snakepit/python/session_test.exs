defmodule Snakepit.Python.SessionTest do
  use Snakepit.Test.WorkerCase

  import Snakepit.Test.Python

  alias Snakepit.{Pool, Python}

  @init """
  import gc, os, weakref
  class Counter:
      alive = weakref.WeakSet()
      def __init__(self, start=0, *, step=1):
          self.value, self.step = start, step
          Counter.alive.add(self)
      def next(self):
          self.value += self.step
          return self.value
      def items(self, n):
          for _ in range(n): yield self.next()
      def pid(self): return os.getpid()
      def fail(self): raise ValueError("no")
  def alive():
      gc.collect()
      return len(Counter.alive)
  """

  test "an object stays in its worker, while others use it too" do
    python = python!(init: @init, size: 3)

    sessions =
      for start <- 1..10, do: session!(python, "Counter", [start * 100], kwargs: [step: 2])

    pids = for session <- sessions, do: Python.call!(session, "pid")

    for n <- 1..5, {session, start} <- Enum.zip(sessions, 1..10) do
      assert Python.call!(session, "next") == start * 100 + 2 * n
      assert Python.call!(python, "abs", [-1]) == 1
    end

    assert for(session <- sessions, do: Python.call!(session, "pid")) == pids
    assert sessions |> hd() |> Python.stream("items", [3]) |> Enum.to_list() == [112, 114, 116]
    assert {:error, %Python.Error{message: "no"}} = Python.call(hd(sessions), "fail")
  end

  defp session!(python, target, arguments, opts \\ []) do
    {:ok, session} = Python.session(python, target, arguments, opts)
    session
  end

  test "names stay as in a notebook, and are nobody else's" do
    python = python!(init: "import math")
    {:ok, notebook} = Python.session(python)
    assert Python.eval(notebook, "x = math.floor(y)", %{y: 2.5}) == {:ok, nil}
    assert Python.eval(notebook, "def f(): return x * 21") == {:ok, nil}
    assert Python.eval(notebook, "f()") == {:ok, 42}
    assert Python.call(notebook, "f") == {:ok, 42}
    assert {:error, %Python.Error{type: "NameError"}} = Python.eval(python, "x")
  end

  test "what it keeps is gone when it is closed, or its owner ends" do
    python = python!(init: @init)
    session = session!(python, "Counter", [])

    owner =
      spawn(fn ->
        session!(python, "Counter", [])
        Process.sleep(:infinity)
      end)

    eventually(fn -> Python.call!(python, "alive") == 2 end)
    Process.exit(owner, :kill)
    eventually(fn -> Python.call!(python, "alive") == 1 end)
    Python.close_session(session)
    eventually(fn -> Python.call!(python, "alive") == 0 end)
    assert {:error, %Error{reason: :session_lost}} = Python.call(session, "next")
  end

  test "without its worker it is lost, or made again if it is only a hint" do
    python = python!(init: @init)
    strict = session!(python, "Counter", [7])
    hint = session!(python, "Counter", [7], affinity: :hint)
    assert [Python.call!(strict, "next"), Python.call!(hint, "next")] == [8, 8]

    ExUnit.CaptureLog.capture_log(fn ->
      Python.call(python, "os._exit", [1])

      assert {:error, %Error{reason: :session_lost} = error} =
               Python.call(strict, "next", [], timeout: 60_000)

      assert Exception.message(error) =~ "begin another session"
    end)

    assert Python.call!(hint, "next") == 8
  end

  test "while its worker is in use, a call waits, fails, or goes elsewhere" do
    python = python!(init: @init, size: 2)
    strict = session!(python, "Counter", [])
    fast = session!(python, "Counter", [], affinity: :fail_fast)
    hint = session!(python, "Counter", [], affinity: :hint)

    for session <- [strict, fast, hint] do
      home = Python.call!(session, "pid")
      %{pid: worker} = Enum.find(Pool.list_workers(python), &(&1.os_pid == home))
      # Somebody else has it.
      test = self()

      holder =
        spawn_link(fn ->
          Enum.find(Stream.repeatedly(fn -> hold(python, worker, test) end), & &1)
        end)

      assert_receive :held, 20_000

      case session.affinity do
        :strict ->
          assert {:error, %Error{reason: :timeout}} = Python.call(session, "pid", [], timeout: 50)

        :fail_fast ->
          assert {:error, %Error{reason: :busy}} = Python.call(session, "pid")

        :hint ->
          refute Python.call!(session, "pid") == home
      end

      send(holder, :go)
      assert_receive :released, 20_000
      if session.affinity != :hint, do: assert(Python.call!(session, "pid") == home)
    end
  end

  # Lends workers until it is that one.
  defp hold(python, worker, test) do
    Pool.with_worker(python, fn
      ^worker ->
        send(test, :held)
        receive do: (:go -> :ok)
        send(test, :released)

      _other ->
        nil
    end)
  end

  test "an object that cannot be made is an error, and no session" do
    python = python!(init: @init)

    assert {:error, %Python.Error{type: "TypeError"}} =
             Python.session(python, "Counter", [1, 2, 3])

    assert Python.call!(python, "alive") == 0
  end
end

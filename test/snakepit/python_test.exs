defmodule Snakepit.PythonTest do
  use Snakepit.Test.WorkerCase

  import ExUnit.CaptureLog
  import Snakepit.Test.Python

  alias Snakepit.{Pool, Python}

  doctest Snakepit.Python

  describe "a call" do
    test "is one of what init defines, a builtin, or something in a module" do
      python =
        python!(
          init:
            "import math\nclass A:\n    class B:\n        @staticmethod\n        def c(): return 1"
        )

      assert Python.call!(python, "math.hypot", [3, 4]) == 5.0
      assert Python.call!(python, "A.B.c") == 1
      assert Python.call!(python, "len", [[1, 2]]) == 2
      assert Python.call!(python, "os.path.basename", ["a/b"]) == "b"
      assert Python.call!(python, "xml.etree.ElementTree.iselement", [1]) == false
      assert Python.call!(python, "sorted", [[1, 2]], kwargs: [reverse: true]) == [2, 1]
      assert Python.call!(python, "dict", [], kwargs: %{"a" => 1}) == %{"a" => 1}
    end

    test "that raises is an error with type, message and traceback, and the worker lives on" do
      python = python!(init: "def f(x):\n    return g(x)\ndef g(x):\n    raise KeyError(x)")
      [os_pid] = os_pids(python)

      assert {:error, %Python.Error{type: "KeyError", message: "'x'"} = error} =
               Python.call(python, "f", ["x"])

      assert error.traceback =~ "in g"
      refute error.traceback =~ "serve.py"

      assert {:error, %Python.Error{type: "json.decoder.JSONDecodeError"}} =
               Python.call(python, "json.loads", ["{"])

      assert {:error, %Python.Error{type: "SystemExit"}} = Python.call(python, "sys.exit", [3])

      assert {:error, %Python.Error{type: "ModuleNotFoundError"}} =
               Python.call(python, "no_such_module.f")

      assert {:error, %Python.Error{type: "AttributeError"}} =
               Python.call(python, "os.no_such_function")

      assert_raise Python.Error, ~r/^ValueError: /, fn -> Python.call!(python, "int", ["x"]) end
      assert os_pids(python) == [os_pid]
    end

    test "that takes too long is interrupted, and the worker lives on" do
      python =
        python!(init: "import time\ndef busy():\n    while True: pass", interrupt_timeout: 30_000)

      [os_pid] = os_pids(python)

      for target <- ["busy", "time.sleep", "busy"] do
        arguments = if target == "busy", do: [], else: [600]

        assert {:error, %Error{operation: :call, reason: :timeout}} =
                 Python.call(python, target, arguments, timeout: 100)

        assert Python.call(python, "abs", [-1], timeout: 60_000) == {:ok, 1}
      end

      assert os_pids(python) == [os_pid]
    end

    test "that does not react to its interruption costs the worker" do
      # As C code would.
      init =
        "import signal, time\ndef deaf():\n    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])\n    time.sleep(600)"

      python = python!(init: init, interrupt_timeout: 100)
      [os_pid] = os_pids(python)

      log =
        capture_log(fn ->
          assert {:error, %Error{reason: :timeout}} =
                   Python.call(python, "deaf", [], timeout: 100)

          # It waits behind that, and gets another worker.
          assert Python.call(python, "abs", [-1], timeout: 60_000) == {:ok, 1}
        end)

      assert log =~ "OS process #{os_pid}"
      refute os_pids(python) == [os_pid]
    end

    test "whose caller dies is interrupted" do
      path = temporary_path("begun")
      init = "import time, os\ndef slow(path):\n    open(path, 'w').close()\n    time.sleep(600)"
      python = python!(init: init, interrupt_timeout: 30_000)
      [os_pid] = os_pids(python)
      caller = spawn(fn -> Python.call(python, "slow", [path], timeout: 600_000) end)
      eventually(fn -> File.exists?(path) end)
      Process.exit(caller, :kill)
      assert Python.call(python, "abs", [-1], timeout: 60_000) == {:ok, 1}
      assert os_pids(python) == [os_pid]
    end

    test "whose worker dies is told, and the next one gets another" do
      python = python!()

      capture_log(fn ->
        assert {:error, %Error{operation: :call, reason: :worker_down} = error} =
                 Python.call(python, "os._exit", [3])

        assert Exception.message(error) =~ "the worker ended during it"
        assert Python.call(python, "abs", [-1], timeout: 60_000) == {:ok, 1}
      end)
    end

    test "of an async function returns its result" do
      init = "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x"
      python = python!(init: init, interrupt_timeout: 30_000)
      assert Python.call!(python, "f", [1]) == 1

      assert {:error, %Error{reason: :timeout}} =
               Python.call(python, "asyncio.sleep", [600], timeout: 50)

      assert Python.call!(python, "f", [2], timeout: 60_000) == 2
    end
  end

  test "concurrent calls of async functions are answered when they are done" do
    init =
      "import asyncio\nevent = asyncio.Event()\nasync def wait():\n    await event.wait()\n    return 'waited'\nasync def go():\n    event.set()"

    python = python!(init: init, concurrency: 10, interrupt_timeout: 30_000)

    waiting =
      for _ <- 1..9, do: Task.async(fn -> Python.call(python, "wait", [], timeout: 60_000) end)

    assert Python.call(python, "go", [], timeout: 60_000) == {:ok, nil}
    assert Task.await_many(waiting, 60_000) == for(_ <- 1..9, do: {:ok, "waited"})

    assert {:error, %Error{reason: :timeout}} =
             Python.call(python, "asyncio.sleep", [600], timeout: 50)

    assert Python.call(python, "abs", [-1], timeout: 60_000) == {:ok, 1}
  end

  test "code is evaluated with variables, and keeps nothing" do
    python = python!(init: "import math")
    assert Python.eval(python, "x = 6\nx * y", %{y: 7}) == {:ok, 42}
    assert Python.eval(python, "def f(n): return n and n + f(n - 1)\nf(3)") == {:ok, 6}
    assert Python.eval(python, "z = math.pi") == {:ok, nil}
    assert {:error, %Python.Error{type: "NameError"}} = Python.eval(python, "z")
    assert {:error, %Python.Error{type: "SyntaxError"}} = Python.eval(python, "1 +")
  end

  test "a cast returns at once, and its error is logged" do
    path = temporary_path("cast")
    python = python!()
    assert Python.cast(python, "os.mkdir", [path]) == :ok
    eventually(fn -> File.dir?(path) end)

    log =
      capture_log(fn ->
        Python.cast(python, "os.mkdir", [path])
        eventually(fn -> Pool.info(python).workers |> hd() |> Map.get(:requests) >= 2 end)
        Python.call!(python, "abs", [1])
        eventually(fn -> Task.Supervisor.children(Snakepit.Python.Runtime.Tasks) == [] end)
      end)

    assert log =~ "a cast of os.mkdir has failed: FileExistsError"
    assert {:error, %Error{reason: :einval}} = Python.cast(python, "print", [self()])
  end

  describe "Python calls" do
    def double(number), do: number * 2

    test "functions that are listed, and nothing else" do
      test = self()

      exports = [
        {__MODULE__, [:double]},
        {"tell", &send(test, &1)},
        {"fail", fn -> raise "no" end}
      ]

      python = python!(init: "from snakepit_bridge import call, send", exports: exports)
      assert Python.call!(python, "call", ["Snakepit.PythonTest.double", 21]) == 42
      assert Python.call!(python, "send", ["tell", "sent"]) == nil
      assert_receive "sent", 20_000

      for {name, text} <- [
            {"System.halt", "System.halt is not listed in the :exports"},
            {"fail", "fail: ** (RuntimeError) no"}
          ] do
        assert {:error, %Python.Error{type: "snakepit_bridge.channel.ElixirError"} = error} =
                 Python.call(python, "call", [name])

        assert error.message =~ text
      end

      # A result that cannot be carried.
      assert {:error, %Python.Error{message: message}} =
               Python.call(
                 python!(init: "from snakepit_bridge import call", exports: [{"pid", &self/0}]),
                 "call",
                 ["pid"]
               )

      assert message =~ "a pid cannot be carried"
    end

    test "from several threads at once, each with its own result" do
      init = """
      from concurrent.futures import ThreadPoolExecutor
      from snakepit_bridge import call
      def many(n):
          with ThreadPoolExecutor(8) as threads:
              return list(threads.map(lambda x: call("same", x), range(n)))
      """

      python = python!(init: init, exports: [{"same", & &1}])
      assert Python.call!(python, "many", [200], timeout: 60_000) == Enum.to_list(0..199)
    end

    test "and are interrupted while they wait" do
      init = "from snakepit_bridge import call"

      python =
        python!(
          init: init,
          exports: [{"never", fn -> Process.sleep(:infinity) end}],
          interrupt_timeout: 30_000
        )

      [os_pid] = os_pids(python)

      assert {:error, %Error{reason: :timeout}} =
               Python.call(python, "call", ["never"], timeout: 100)

      assert Python.call(python, "abs", [-1], timeout: 60_000) == {:ok, 1}
      assert os_pids(python) == [os_pid]

      for pid <- Task.Supervisor.children(Snakepit.Python.Runtime.Tasks),
          do: Process.exit(pid, :kill)
    end
  end

  test "logging goes to Logger" do
    python = python!(log_level: :warning)

    log =
      capture_log(fn ->
        Python.eval!(
          python,
          "import logging\nlogging.getLogger('mine').warning('it is %s', 'late')\nlogging.info('no')"
        )
      end)

    assert log =~ "[warning] mine: it is late"
    refute log =~ "no"
  end

  test "what is printed goes to the output, and never gets in the way" do
    test = self()
    python = python!(output: &send(test, {:printed, &1}), init: "import os, sys, subprocess")

    Python.eval!(
      python,
      "print('printed')\nos.write(1, b'by number\\n')\nsubprocess.run(['echo', 'by a child'])\nNone"
    )

    for line <- ["printed\n", "by number\n", "by a child\n"],
        do: assert_receive({:printed, ^line}, 20_000)

    assert Python.eval!(python, "sys.stdin.read()") == ""

    # Megabytes, during calls.
    loud =
      python!(
        init:
          "import sys\ndef loud(x):\n    print('x' * 100000)\n    sys.stderr.write('y' * 100000)\n    return x"
      )

    for n <- 1..30, do: assert(Python.call!(loud, "loud", [n], timeout: 60_000) == n)
  end

  test "multiprocessing works in all of its ways, and belongs to the worker" do
    init = """
    import multiprocessing, os
    def squares(way):
        with multiprocessing.get_context(way).Pool(2) as pool:
            return pool.map(abs, [-1, -2, -3])
    def fork():
        pid = os.fork()
        if pid == 0:
            try:
                import snakepit_bridge
                snakepit_bridge.call("x")
                os._exit(1)
            except RuntimeError:
                os._exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    """

    python = python!(init: init)

    for way <- ["fork", "spawn", "forkserver"],
        do: assert(Python.call!(python, "squares", [way], timeout: 120_000) == [1, 2, 3])

    assert Python.call!(python, "fork", [], timeout: 60_000) == 7
    assert Python.call!(python, "abs", [-1]) == 1
  end

  test "a worker shows its run in its arguments, and has heartbeats" do
    python = python!()
    assert Python.eval!(python, "import sys\nsys.argv[-2:]") == ["--run-id", Snakepit.run_id()]
    [worker] = Pool.list_workers(python)
    assert %{heartbeat: %{}} = Worker.info!(worker.pid)
  end

  test "an init that raises says so" do
    start_supervised!({Python, name: BadInit, size: 1, init: "import no_such_module"})
    {:error, error} = capture(fn -> Python.call(BadInit, "abs", [1], timeout: 3_000) end)
    assert Exception.message(error) =~ "ModuleNotFoundError: No module named 'no_such_module'"
  end

  defp capture(fun) do
    test = self()
    capture_log(fn -> send(test, {:result, fun.()}) end)
    receive do: ({:result, result} -> result)
  end

  # Those that there are besides the system's own, as by pyenv or deadsnakes.
  @versions for minor <- 9..14,
                path = System.find_executable("python3.#{minor}"),
                match?({_, 0}, System.cmd(path, ["-c", ""], stderr_to_stdout: true)),
                do: {minor, path}

  for {minor, path} <- @versions do
    test "Python 3.#{minor} does all of it" do
      init = "import sys, time\nasync def f(x):\n    return x\ndef g(n):\n    yield from range(n)"
      exports = [{"double", &(&1 * 2)}]

      python =
        python!(python: unquote(path), init: init, exports: exports, interrupt_timeout: 30_000)

      assert Python.eval!(python, "list(sys.version_info[:2])") == [3, unquote(minor)]
      term = term(4)
      assert {:ok, ^term} = Python.eval(python, "x", %{x: term}, timeout: 60_000)
      data = :crypto.strong_rand_bytes(1_000_000)
      assert Python.call!(python, "bytes", [data]) == data
      assert Python.call!(python, "f", [1]) == 1
      assert python |> Python.stream("g", [500]) |> Enum.sum() == 124_750
      assert Python.call!(python, "snakepit_bridge.call", ["double", 21]) == 42

      assert {:error, %Error{reason: :timeout}} =
               Python.call(python, "time.sleep", [600], timeout: 100)

      assert {:error, %Python.Error{}} = Python.call(python, "int", ["x"], timeout: 60_000)
    end
  end

  test "wrong options raise before anything starts" do
    for {opts, text} <- [
          {[size: 1], "the option :name is required"},
          {[name: X, size: 1, python: 3], "expected :python to be"},
          {[name: X, size: 1, worker: [cmd: ["x"]]], "options without :cmd"},
          {[name: X, size: 1, exports: [:x]], "expected :exports to be"},
          {[name: X], "a pool needs a :size"}
        ] do
      assert_raise ArgumentError, ~r/#{Regex.escape(text)}/, fn -> Python.start_link(opts) end
    end

    assert {:error, %Error{reason: :enoent}} =
             Python.start_link(name: X, size: 1, python: {:venv, "/none"})

    assert_raise ArgumentError, fn -> Python.call(X, "abs", :not_a_list) end
  end
end

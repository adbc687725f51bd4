defmodule Snakepit.Python.MemoryTest do
  # Bytes that are mapped instead of being sent.
  use Snakepit.Test.WorkerCase

  import ExUnit.CaptureLog
  import Snakepit.Test.Python

  alias Snakepit.Python

  @megabytes 20
  @init """
  import hashlib, os
  kept = []
  def keep(view):
      kept.append(view)
      return len(view)
  def digest(view): return hashlib.sha256(view).hexdigest()
  def make(byte, length): return bytes([byte]) * length
  def read_only(view): return view.readonly
  """

  # How many memory files a process has open or mapped.
  defp files(os_pid) do
    open =
      for fd <- File.ls!("/proc/#{os_pid}/fd"),
          {:ok, target} <- [File.read_link("/proc/#{os_pid}/fd/#{fd}")],
          target =~ "memfd:snakepit",
          do: target

    mapped = Regex.scan(~r/memfd:snakepit/, File.read!("/proc/#{os_pid}/maps"))
    {length(open), length(mapped)}
  end

  defp own, do: files(System.pid())

  # Binaries of the test that are not referred to any more are still there until it is collected.
  defp collected, do: Enum.each(Process.list(), &:erlang.garbage_collect/1)

  test "arrive whole, both ways, and leave nothing open" do
    python = python!(init: @init)
    [os_pid] = os_pids(python)
    data = :crypto.strong_rand_bytes(@megabytes * 1_048_576)
    digest = Base.encode16(:crypto.hash(:sha256, data), case: :lower)
    before = own()

    for _ <- 1..5 do
      assert Python.call!(python, "digest", [data], timeout: 60_000) == digest
      assert Python.call!(python, "read_only", [data]) == true
      assert byte_size(Python.call!(python, "make", [200, 5_000_000])) == 5_000_000
    end

    assert Python.call!(python, "bytes", [data], timeout: 60_000) == data
    # Nested, and several at once.
    half = binary_part(data, 0, 1_000_000)

    assert %{"a" => [^half, {^half}]} =
             Python.eval!(python, "{'a': [bytes(x), (bytes(x),)]}", %{x: half})

    collected()
    eventually(fn -> collected() && own() == before end)
    eventually(fn -> Python.call!(python, "abs", [1]) && files(os_pid) == {0, 0} end)
  end

  test "of a limit's size go the one way or the other" do
    python = python!(init: @init)
    limit = Snakepit.Python.Codec.memory_from()

    for length <- [limit - 1, limit, limit + 1] do
      data = :crypto.strong_rand_bytes(length)
      assert Python.call!(python, "bytes", [data]) == data
    end
  end

  test "are kept by whoever keeps them, and are gone with a worker that is killed" do
    python = python!(init: @init)
    [os_pid] = os_pids(python)
    before = own()
    data = :crypto.strong_rand_bytes(2_000_000)
    assert Python.call!(python, "keep", [data]) == 2_000_000
    assert Python.call!(python, "keep", [data]) == 2_000_000
    # Python keeps a descriptor of what it has mapped.
    assert {_open, 2} = files(os_pid)
    result = Python.call!(python, "make", [200, 3_000_000])

    capture_log(fn ->
      kill(os_pid)
      eventually(fn -> os_pids(python) not in [[os_pid], [nil]] end)
      assert Python.call(python, "abs", [-1], timeout: 60_000) == {:ok, 1}
    end)

    refute File.exists?("/proc/#{os_pid}")
    # It was mapped before.
    assert :binary.at(result, 2_999_999) == 200
    assert byte_size(result) == 3_000_000
    _ = result
    eventually(fn -> collected() && elem(own(), 0) == elem(before, 0) end)
  end

  test "whose callers die, or raise, leave nothing open here" do
    python =
      python!(
        init: @init <> "import time\ndef slow(view):\n    time.sleep(600)\n",
        interrupt_timeout: 30_000
      )

    before = own()
    data = :crypto.strong_rand_bytes(2_000_000)
    assert {:error, %Error{reason: :timeout}} = Python.call(python, "slow", [data], timeout: 100)
    caller = spawn(fn -> Python.call(python, "slow", [data], timeout: 600_000) end)
    eventually(fn -> own() != before end)
    Process.exit(caller, :kill)
    assert {:error, %Python.Error{}} = Python.call(python, "len", [data, 1], timeout: 60_000)
    eventually(fn -> collected() && own() == before end)
  end

  test "are sent where the worker may not open the BEAM's files" do
    # As in a container that hides other processes.
    init =
      @init <>
        "import snakepit_bridge.memory as m\nreal = os.open\ndef refuse(path, *rest, **more):\n    if str(path).startswith('/proc/'): raise PermissionError(13, 'no')\n    return real(path, *rest, **more)\nm.os = type('os', (), {**{k: getattr(os, k) for k in dir(os)}, 'open': staticmethod(refuse)})\n"

    python = python!(init: init)
    data = :crypto.strong_rand_bytes(2_000_000)
    assert Python.eval!(python, "type(x).__name__", %{x: data}) == "bytes"

    assert Python.call!(python, "digest", [data]) ==
             Base.encode16(:crypto.hash(:sha256, data), case: :lower)
  end
end

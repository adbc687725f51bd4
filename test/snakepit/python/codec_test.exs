defmodule Snakepit.Python.CodecTest do
  # What becomes what on its way to Python and back, by a real one.
  use Snakepit.Test.WorkerCase

  import Snakepit.Test.Python

  alias Snakepit.Python

  @identity "identity = lambda value: value"

  test "random terms come back as they went" do
    python = python!(init: @identity)

    for _ <- 1..300 do
      term = term(:rand.uniform(5))
      assert {:ok, ^term} = Python.call(python, "identity", [term], timeout: 60_000)
    end
  end

  test "terms that are long come back too" do
    python = python!(init: @identity)
    list = Enum.to_list(1..100_000)
    assert {:ok, ^list} = Python.call(python, "identity", [list], timeout: 60_000)
    map = Map.new(list, &{&1, "value #{&1}"})
    assert {:ok, ^map} = Python.call(python, "identity", [map], timeout: 60_000)
    text = String.duplicate("ü", 1_000_000)
    assert {:ok, ^text} = Python.call(python, "identity", [text], timeout: 60_000)
  end

  test "each is of the type that the table says" do
    python = python!()

    type = fn term ->
      Python.eval!(python, "f'{type(x).__module__}.{type(x).__name__}'", %{x: term})
    end

    assert type.(nil) == "builtins.NoneType"
    assert type.(2 ** 100) == "builtins.int"
    assert type.(:nan) == "builtins.float"
    assert type.("text") == "builtins.str"
    assert type.(<<255>>) == "builtins.bytes"
    assert type.(Python.bytes("text")) == "builtins.bytes"
    assert type.(Python.bytes(String.duplicate("a", 300_000))) == "builtins.memoryview"
    assert type.({1}) == "builtins.tuple"
    assert type.(:atom) == "snakepit_bridge.codec.Atom"
    assert type.(~D[2020-01-01]) == "datetime.date"
    assert type.(~U[2020-01-01 00:00:00Z]) == "datetime.datetime"
    assert Python.eval!(python, "list(x)", %{x: %{[1, [2]] => 3}}) == [{1, {2}}]
  end

  test "a time with an offset comes back in UTC" do
    python = python!()

    code =
      "import datetime as d\nd.datetime(2020, 1, 1, 12, tzinfo=d.timezone(d.timedelta(hours=2)))"

    assert Python.eval!(python, code) == ~U[2020-01-01 10:00:00.000000Z]

    there = %{~U[2020-01-01 12:00:00Z] | utc_offset: 3600, std_offset: 3600, time_zone: "X"}
    assert Python.eval!(python, "x.isoformat()", %{x: there}) == "2020-01-01T12:00:00+02:00"
  end

  test "a name that is no atom here is a string" do
    python = python!()
    name = "no_atom_#{System.unique_integer([:positive])}"

    assert Python.eval!(python, "import snakepit_bridge\nsnakepit_bridge.Atom(n)", %{n: name}) ==
             name

    assert_raise ArgumentError, fn -> String.to_existing_atom(name) end
  end

  test "what cannot be carried to Python is refused with the way to it" do
    python = python!()

    refused = fn arguments ->
      assert {:error, %Error{reason: :einval} = error} = Python.call(python, "print", arguments)
      Exception.message(error)
    end

    assert refused.([1, 2, %{name: self()}]) =~ "at [2].name: a pid cannot be carried: #PID<"
    assert refused.([{"a", %{"b c" => make_ref()}}]) =~ ~s(at [0][1]["b c"]: a reference)
    assert refused.([[1 | 2]]) =~ "at [0]: an improper list cannot be carried"
    assert refused.([<<1::3>>]) =~ "a bitstring that is not whole bytes"
    assert refused.([%{%{a: 1} => 2}]) =~ "a map cannot be a key in Python"
    assert refused.([1..2]) =~ "a struct of this module cannot be carried"
    # The worker has seen nothing of it.
    assert Python.call(python, "abs", [-1]) == {:ok, 1}
  end

  test "what cannot be carried from Python is an error with the way to it, and the worker lives on" do
    python = python!()
    [os_pid] = os_pids(python)
    assert {:error, %Python.Error{} = error} = Python.eval(python, "[1, {'a': (2, object())}]")

    assert Exception.message(error) =~
             "at [1]['a'][1]: a value of type builtins.object cannot be carried"

    assert {:error, %Python.Error{}} = Python.eval(python, "'\\ud800'")
    assert os_pids(python) == [os_pid]
    assert Python.call(python, "abs", [-1]) == {:ok, 1}
  end

  test "what is too deep is refused, both ways" do
    python = python!()
    nested = &Enum.reduce(1..&1, 0, fn _, inner -> [inner] end)
    assert {:ok, 1} = Python.call(python, "len", [nested.(250)])
    assert {:error, %Error{reason: :einval} = error} = Python.call(python, "len", [nested.(1000)])
    assert Exception.message(error) =~ "it is nested too deeply"
    assert {:error, %Error{reason: :einval}} = Python.call(python, "len", [nested.(1_000_000)])

    deep = "x = []\nfor _ in range(n): x = [x]\nx"
    assert {:ok, [_]} = Python.eval(python, deep, %{n: 250})
    assert {:error, %Python.Error{message: message}} = Python.eval(python, deep, %{n: 100_000})
    assert message =~ "it is nested too deeply"
    assert Python.call(python, "abs", [-1]) == {:ok, 1}
  end

  test "kinds of what can be carried come as that" do
    code = """
    import collections, enum, fractions
    P = collections.namedtuple("P", "x y")
    class E(enum.IntEnum): A = 7
    class A:
        def tolist(self): return [1, [2]]
    [P(1, 2), E.A, collections.OrderedDict(a=1), A(), fractions.Fraction(1, 2), bytearray(b"\\xff")]
    """

    assert Python.eval!(python!(), code) == [{1, 2}, 7, %{"a" => 1}, [1, [2]], 0.5, <<255>>]
  end
end

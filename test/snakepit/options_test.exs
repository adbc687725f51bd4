defmodule Snakepit.OptionsTest do
  use ExUnit.Case, async: true

  alias Snakepit.Options

  doctest Options

  @longest 0x7FFFFFFF

  defp message(given, schema, context \\ "") do
    error = assert_raise ArgumentError, fn -> Options.validate!(given, schema, context) end
    error.message
  end

  defp refusal(value, type), do: message([key: value], key: [type: type])

  defp accepted?(value, type),
    do: Options.validate!([key: value], key: [type: type]) == %{key: value}

  describe "validate!/3" do
    test "fills in defaults, and leaves out what has none" do
      schema = [
        a: [type: :boolean, default: true],
        b: [type: :string, default: nil],
        c: [type: :string]
      ]

      assert Options.validate!([], schema) == %{a: true, b: nil}
      assert Options.validate!([c: "c", a: false], schema) == %{a: false, b: nil, c: "c"}
      # As for any keyword list.
      assert Options.validate!([c: "first", c: "second"], schema).c == "first"
    end

    test "a default is valid where another value of its kind is not" do
      assert Options.validate!([b: nil], b: [type: :string, default: nil]) == %{b: nil}
      assert message([b: nil], b: [type: :string]) =~ "got: nil"
      assert message([b: 5.0], b: [type: :milliseconds, default: 5]) =~ "got: 5.0"
    end

    test "what is required has to be given" do
      schema = [cmd: [type: :string, required: true]]
      assert message([], schema) == "the option :cmd is required"
      assert message([cmd: 1], schema) == "expected :cmd to be a non-empty string, got: 1"
    end

    test "options are a keyword list" do
      for given <- [:oops, %{a: 1}, ["a"], [{"a", 1}], [{:a, 1} | :b]] do
        assert message(given, a: [type: :boolean]) ==
                 "expected options as a keyword list, got: #{inspect(given)}"
      end
    end

    test "an unknown option comes with those that there are, and with the one that is meant" do
      schema = [timeout: [type: :timeout], stop_signal: [type: :signal], id: [type: :text]]
      known = "expected one of [:timeout, :stop_signal, :id]"
      assert message([colour: 1], schema) == "unknown option :colour, #{known}"

      for {typo, meant} <- [timeuot: :timeout, timeout_ms: :timeout, stop_singal: :stop_signal] do
        assert message([{typo, 1}], schema) ==
                 "unknown option #{inspect(typo)}, #{known}; did you mean #{inspect(meant)}?"
      end

      assert message([a: 1], []) == "unknown option :a, expected one of []"
    end

    test "all of the known options are named, however many there are" do
      keys = for number <- 1..120, do: String.to_atom("option_#{number}")
      message = message([nonsense: 1], for(key <- keys, do: {key, [type: :boolean]}))
      assert Enum.all?(keys, &(message =~ inspect(&1)))
    end

    test "options in options are completed, and named from the outside in" do
      inner = [keep: [type: {:integer, 0, 5}, default: 3]]
      schema = [history: [type: {:options, inner}, default: []]]
      assert Options.validate!([], schema) == %{history: %{keep: 3}}
      assert Options.validate!([history: [keep: 1]], schema) == %{history: %{keep: 1}}

      assert message([history: 1], schema, "config :snakepit") ==
               "config :snakepit: expected :history to be a keyword list, got: 1"

      assert message([history: [keep: 6]], schema, "config :snakepit") ==
               "config :snakepit, :history: expected :keep to be an integer from 0 to 5, got: 6"

      assert message([history: [kept: 6]], schema) ==
               ":history: unknown option :kept, expected one of [:keep]; did you mean :keep?"
    end
  end

  describe "types" do
    test "take what they are, and name it where something else is given" do
      for {type, good, bad, phrase} <- [
            {:boolean, [true, false], [nil, 1], "true or false"},
            {:pid, [self()], [:name], "a pid"},
            {:string, ["a", <<255>>], ["", :a, ~c"a"], "a non-empty string"},
            {:text, ["ä"], ["", :a], "a non-empty string"},
            {:path, ["/a", "a"], ["", ~c"/"], "a path"},
            {:name, [:a, {:global, 1}, {:via, Registry, {R, 1}}], ["a", {:via, "R", 1}, {:a}],
             "a name as for GenServer"},
            {:iodata, ["", [], ["a", ?b | "c"]], [:a, [:a], [256], 1], "iodata"},
            {:signal, [:sigterm, :sigusr1, 9], [:sigfoo, :term, 0, "TERM", nil],
             "a signal such as :sigterm or a number"},
            {:milliseconds, [0, @longest], [-1, @longest + 1, 1.0, :infinity, nil],
             "a number of milliseconds from 0 to 2147483647"},
            {{:milliseconds, 1}, [1, @longest], [0, @longest + 1],
             "a number of milliseconds from 1 to 2147483647"},
            {:timeout, [0, @longest, :infinity], [-1, @longest + 1, :soon],
             "a number of milliseconds from 0 to 2147483647 or :infinity"},
            {:keyword, [[], [a: 1]], [%{}, [1], nil], "a keyword list"},
            {{:integer, -2, 3}, [-2, 3], [-3, 4, 0.0, "1"], "an integer from -2 to 3"},
            {{:integer, 1, :infinity}, [1, 1_000_000_000_000], [0, :infinity],
             "an integer of 1 or more"},
            {{:integer, 1, 9, "bytes"}, [1, 9], [0, 10], "a number of bytes from 1 to 9"},
            {{:one_of, [:a]}, [:a], [:b], ":a"},
            {{:one_of, [:a, "b", 4]}, [:a, "b", 4], [:b], ~s(:a, "b" or 4)},
            {{:function, [0]}, [fn -> 1 end], [fn _ -> 1 end, :f],
             "a function without arguments"},
            {{:function, [1]}, [fn _ -> 1 end], [fn -> 1 end], "a function of one argument"},
            {{:function, [0, 1]}, [fn -> 1 end, fn _ -> 1 end], [fn _, _ -> 1 end],
             "a function of no or one argument"},
            {{:tagged, :tcp, {:integer, 1, 9}, "port"}, [{:tcp, 9}],
             [{:tcp, 10}, {:udp, 9}, {:tcp, 1, 1}, :tcp], "{:tcp, port}"},
            {{:or, [:boolean, {:one_of, [:auto]}, {:tagged, :at, :pid, "pid"}]},
             [true, :auto, {:at, self()}], [nil, {:at, 1}], "true, false, :auto or {:at, pid}"},
            {{:custom, &is_map/1, "a map"}, [%{}], [[]], "a map"}
          ] do
        for value <- good, do: assert(accepted?(value, type), "#{inspect({type, value})}")

        for value <- bad do
          assert refusal(value, type) == "expected :key to be #{phrase}, got: #{inspect(value)}"
        end
      end
    end

    test "say what exactly is wrong where they know" do
      assert refusal("a\0b", :path) =~ "expected :key to be text without NUL bytes, got: "
      assert refusal(<<255>>, :text) == "expected :key to be text in UTF-8, got: <<255>>"
      file = {:or, [:boolean, {:tagged, :file, :path, "path"}]}
      assert refusal({:file, "\0"}, file) =~ "text without NUL bytes"
      even = {:custom, &(rem(&1, 2) == 0 or {"even", &1}), "a number"}
      assert accepted?(2, even)
      assert refusal(3, even) == "expected :key to be even, got: 3"
    end

    test "hold for a single value, with its key or without" do
      assert Options.check!(5, :milliseconds) == 5

      for {key, message} <- [
            {[], "expected true or false, got: 1"},
            {[:halt], "expected :halt to be true or false, got: 1"}
          ] do
        assert_raise ArgumentError, message, fn ->
          apply(Options, :check!, [1, :boolean | key])
        end
      end
    end
  end

  describe "docs/1" do
    test "has the default of each option, or how to find it" do
      schema = [
        cmd: [type: :string, required: true, doc: "what to run"],
        id: [type: :text, default: nil, shown: "generated", doc: "its id"],
        cd: [type: :path, default: nil, doc: "where"],
        wait: [type: {:milliseconds, 1}, default: 15_000, doc: "how long"],
        timeout: [type: :timeout, default: :infinity, doc: "how long"],
        inside: [type: :boolean, default: false, doc: false]
      ]

      assert Options.docs(schema) == """
               * `:cmd` (required) - what to run
               * `:id` (generated) - its id
               * `:cd` - where
               * `:wait` (15000 ms) - how long
               * `:timeout` (`:infinity`) - how long\
             """
    end

    test "fits into a terminal, whatever the text was broken at" do
      text = String.duplicate("some words and\n  `{:others, too}` ", 20)
      docs = Options.docs(key: [type: :boolean, default: true, doc: text])
      [first | others] = String.split(docs, "\n")
      assert first =~ "  * `:key` (`true`) - some words and `{:others, too}` some"
      assert length(others) > 3
      assert Enum.all?(others, &(&1 =~ ~r/^    \S/))
      assert Enum.all?([first | others], &(String.length(&1) in 20..98))
      refute docs =~ "{:others,\n"
    end

    test "options in options are a list in the list" do
      inner = [keep: [type: :boolean, default: true, doc: "whether"]]
      schema = [history: [type: {:options, inner}, default: [], doc: "what has ended:"]]

      assert Options.docs(schema) ==
               "  * `:history` - what has ended:\n\n      * `:keep` (`true`) - whether\n"
    end

    test "no line of a module's or function's documentation is a table of options, and all of them are in it" do
      for {module, schema} <- [
            {Snakepit.Command, Snakepit.Command.Schema.schema()},
            {Snakepit.Worker, Snakepit.Worker.Options.schema()},
            {Snakepit.HeartbeatMonitor, Snakepit.HeartbeatMonitor.schema()}
          ] do
        {:docs_v1, _, _, _, %{"en" => text}, _, _} = Code.fetch_docs(module)
        refute text =~ "| option |"

        # What only Snakepit itself passes is hidden.
        for {key, entry} <- schema, entry[:doc] != false do
          assert text =~ "\n  * `#{inspect(key)}`"
          assert entry[:doc], "#{inspect(key)} of #{inspect(module)} is not documented"
        end
      end
    end
  end

  describe "functions with options" do
    test "say what they would take, before they do anything" do
      alias Snakepit.{Command, Guardian, HeartbeatMonitor, Pool, ProcessKiller, Worker}
      child = %{id: 0, os_pid: 1, identity: ""}
      nobody = spawn(fn -> :ok end)
      worker = [cmd: ["sleep", "600"]]
      known = "; did you mean"

      for {call, message} <- [
            {&Snakepit.cleanup/1, "expected one of [:timeout]#{known} :timeout?"},
            {&Snakepit.cmd("true", [], &1),
             "unknown option :timeout_ms, expected one of [:into,"},
            {&Snakepit.run("true", [], &1), "#{known} :timeout?"},
            {&Snakepit.stream!(["true"], &1), "expected one of [:packet, :max_packet, :stderr,"},
            {&Snakepit.stream(["true"], &1), "expected one of [:packet, :max_packet, :stderr,"},
            {&Snakepit.run_as_script(fn -> 1 end, &1), "[:timeout, :shutdown_timeout, :halt]"},
            {&Guardian.stop(child, &1), "expected one of [:signal, :timeout]#{known} :timeout?"},
            {&Guardian.stop_all/1, "expected one of [:timeout, :strict]#{known} :timeout?"},
            {&Guardian.spawn(Command.new!(worker), &1), "expected one of [:worker_id]"},
            {&Worker.stop(nobody, &1), "expected one of [:signal, :timeout]#{known} :timeout?"},
            {&Worker.start_link(worker ++ &1), "expected one of [:cmd, :id, :name,"},
            {&Pool.start_link/1, "expected one of [:size, :min, :max, :worker, :name, :id,"},
            {&Pool.with_worker(nobody, fn _ -> 1 end, &1), "expected one of [:timeout, :key,"},
            {&Pool.restart_worker(nobody, "a", &1), "expected one of [:force]"},
            {&ProcessKiller.kill_by_run_id("k3x9a2p", &1),
             "expected one of [:timeout, :any_user]"},
            {&HeartbeatMonitor.start_link/1, "expected one of [:worker, :worker_id, :ping,"},
            {&Snakepit.Test.assert_no_orphans/1, "expected one of [:timeout]#{known} :timeout?"}
          ] do
        error = assert_raise ArgumentError, fn -> call.(timeout_ms: 1) end
        assert error.message =~ "unknown option :timeout_ms, "
        assert error.message =~ message

        assert_raise ArgumentError, ~r/keyword list/, fn -> call.([:oops]) end
      end
    end

    test "what a caller cannot give is not among the options that are named" do
      for {call, hidden} <- [
            {&Snakepit.cmd("true", [], &1), [:cmd, :stdio, :lifeline]},
            {&Snakepit.stream!(["true"], &1), [:cmd, :stdio, :lifeline, :max_output, :into]},
            {&Snakepit.stream(["true"], &1), [:cmd, :stdio, :lifeline, :into, :success]},
            {&Snakepit.Worker.start_link/1, [:lifeline, :owner]}
          ] do
        error = assert_raise ArgumentError, fn -> call.(nonsense: 1) end
        for key <- hidden, do: refute(error.message =~ ~r/[\[ ]#{inspect(key)}[,\]]/)
      end
    end

    test "the id of a child is the :id, and else the :name, of workers and pools" do
      for module <- [Snakepit.Worker, Snakepit.Pool] do
        assert module.child_spec(id: "i", name: :n).id == "i"
        assert module.child_spec(name: :n).id == :n
        assert module.child_spec([]).id == module
        assert_raise ArgumentError, ~r/keyword list/, fn -> module.child_spec(:oops) end
      end

      assert Snakepit.Worker.child_spec(stop_timeout: 7_000).shutdown == 12_000
      assert Snakepit.Worker.child_spec([]).shutdown == 7_000
      assert Snakepit.Pool.child_spec(worker: [stop_timeout: 7_000]).shutdown == 22_000
    end

    test "a worker's heartbeat has its options' own checks, and the configuration's defaults" do
      new! = &Snakepit.Worker.Options.new!(cmd: ["true"], heartbeat: &1)

      assert new!.(ping_interval: 5).heartbeat ==
               %{ping_interval: 5, timeout_threshold: 10_000, max_missed_heartbeats: 3}

      assert new!.(false).heartbeat == nil

      for {given, message} <- [
            {[ping_intervall: 1],
             ~r/^:heartbeat: unknown option .* did you mean :ping_interval\?/},
            {[ping_interval: 0], ~r/^:heartbeat: expected :ping_interval to be .* from 1 to/},
            {:yes, "expected :heartbeat to be true, false or a keyword list, got: :yes"}
          ] do
        assert_raise ArgumentError, message, fn -> new!.(given) end
      end
    end

    test "a signal, a duration and a size are the same everywhere" do
      alias Snakepit.{Guardian, Pool, ProcessKiller}
      signal = ~r/expected .*a signal such as :sigterm or a number, got: :sigfoo/
      duration = ~r/expected .*a number of milliseconds from 0 to 2147483647.*, got: 2147483648/
      long = 0x80000000

      for {message, call} <- [
            {signal, fn -> Guardian.signal(%{id: 0}, :sigfoo) end},
            {signal, fn -> ProcessKiller.kill_process(0, :sigfoo) end},
            {signal, fn -> ProcessKiller.kill_process_group(0, :sigfoo) end},
            {signal, fn -> Snakepit.Command.new!(cmd: ["true"], stop_signal: :sigfoo) end},
            {duration, fn -> ProcessKiller.kill_with_escalation(0, long) end},
            {duration, fn -> ProcessKiller.kill_process_group_with_escalation(0, long) end},
            {duration, fn -> Pool.await_ready(self(), long) end},
            {duration, fn -> Pool.with_worker(self(), fn _ -> 1 end, timeout: long) end},
            {duration, fn -> Snakepit.cmd("true", [], timeout: long) end},
            {duration, fn -> Snakepit.run_as_script(fn -> 1 end, timeout: long) end},
            {duration, fn -> Snakepit.Config.validate!(cleanup_on_stop_timeout_ms: long) end},
            {~r/expected :size to be an integer from 1 to 65536, got: 0/,
             fn -> Pool.resize(self(), 0) end}
          ] do
        assert_raise ArgumentError, message, call
      end
    end
  end
end

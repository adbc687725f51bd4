defmodule Snakepit.Bench.MachineTest do
  use ExUnit.Case, async: true

  alias Snakepit.Bench.{Machine, Report}

  test "the facts are there, and can be read again" do
    facts = Machine.facts()
    assert facts[:cores] >= 1 and facts[:memory_gib] > 0
    assert [_, _, _] = facts[:load_average]
    for name <- [:cpu, :kernel, :otp, :elixir, :rust], do: assert(facts[name] =~ ~r/\d|\w/)
    assert Report.head(facts) =~ ~r/^elixir +#{System.version()}$/m
  end

  test "figures of another processor, or of more of them, are not the same machine's" do
    then = %{"cpu" => "one", "cores" => 2, "kernel" => "5.3"}
    assert Machine.same?(then, cpu: "one", cores: 2, kernel: "6.14")
    refute Machine.same?(then, cpu: "another", cores: 2)
    refute Machine.same?(then, cpu: "one", cores: 4)
  end

  test "whoever uses a core is noticed" do
    path = System.find_executable("sh")

    port =
      Port.open({:spawn_executable, path}, args: ["-c", "while :; do :; done & read l; kill $!"])

    assert Machine.busy_percent() > 50
    Port.close(port)

    assert Machine.warning(51.2) =~ "51 % of a core"
    assert Machine.warning(0.0) == nil
  end
end

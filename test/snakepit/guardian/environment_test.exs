defmodule Snakepit.Guardian.EnvironmentTest do
  use Snakepit.Test.GuardianCase

  alias Snakepit.{Error, Run}

  test "markers are there and cannot be overridden" do
    run_id = Run.current!().id
    variables = output(["env"], env: [{"SNAKEPIT_RUN_ID", "forged"}, {"FOO", "bär"}])
    lines = String.split(variables, "\n")
    assert "SNAKEPIT_RUN_ID=#{run_id}" in lines
    assert "SNAKEPIT_WORKER_ID=test" in lines
    assert Enum.any?(lines, &String.starts_with?(&1, "SNAKEPIT_OWNER=#{System.pid()}:"))
    assert "FOO=bär" in lines
    assert "HOME=#{System.get_env("HOME")}" in lines
  end

  test "variables are removed by nil and altogether by :clear_env" do
    refute output(["env"], env: [{"HOME", nil}]) =~ "HOME="
    clear = output(["/usr/bin/env"], clear_env: true, env: %{"ONLY" => "this"})
    names = for line <- String.split(clear, "\n", trim: true), do: hd(String.split(line, "="))

    assert Enum.sort(names) ==
             ~w(ONLY SNAKEPIT_CHILD SNAKEPIT_INSTANCE SNAKEPIT_OWNER SNAKEPIT_RUN_ID SNAKEPIT_WORKER_ID)
  end

  test "what System.put_env/2 changed since the start counts" do
    System.put_env("SNAKEPIT_TEST_LATER", "yes")
    on_exit(fn -> System.delete_env("SNAKEPIT_TEST_LATER") end)
    assert output(["sh", "-c", "echo $SNAKEPIT_TEST_LATER"]) == "yes\n"
    System.delete_env("SNAKEPIT_TEST_LATER")
    assert output(["sh", "-c", "echo $SNAKEPIT_TEST_LATER"]) == "\n"
  end

  test "arguments arrive whole, whatever their size" do
    # Below and above what goes through the gate itself.
    for size <- [0, 1, 10_000, 31_000, 33_000, 120_000] do
      argument = :binary.copy("0123456789", div(size, 10)) <> :binary.copy("x", rem(size, 10))
      tail = output(["printf", "%s", argument])
      assert tail == binary_part(argument, size, -min(size, 65_536))
    end

    many = for number <- 1..2_000, do: "argument-#{number}"
    assert output(["printf", "%s\n" | many]) == Enum.join(many, "\n") <> "\n"
  end

  test "directory, mask, priority and limits are as asked" do
    assert output(["pwd"], cd: "/usr/bin") == "/usr/bin\n"
    assert output(["sh", "-c", "umask"], umask: 0o027) == "0027\n"
    assert output(["nice"], nice: 5) == "5\n"
    assert output(["sh", "-c", "ulimit -n"], rlimits: [nofile: 123]) == "123\n"
    assert output(["sh", "-c", "ulimit -c"], rlimits: [core: {0, :infinity}]) == "0\n"
    assert output(["cat", "/proc/self/oom_score_adj"], oom_score_adj: 500) == "500\n"
  end

  test "what the guardian changed for itself is not passed on" do
    script =
      "ulimit -n; cat /proc/self/oom_score_adj; grep SigIgn /proc/self/status; ls /proc/self/fd"

    {own, 0} = System.cmd("sh", ["-c", "ulimit -n; cat /proc/self/oom_score_adj"])

    [descriptors, score, ignored | open] =
      String.split(output(["sh", "-c", script]), "\n", trim: true)

    assert [descriptors, score] == String.split(own, "\n", trim: true)
    assert ignored =~ ~r/SigIgn:\t0+$/
    # 3 is the directory that `ls` reads.
    assert open == ["0", "1", "2", "3"]
    assert output(["nice"]) == elem(System.cmd("nice", []), 0)
  end

  @tag :root
  test "user and groups, by name and by number" do
    nobody = output(["id"], user: "nobody")
    assert nobody =~ ~r/uid=65534\(nobody\) gid=65534\(nogroup\) groups=65534\(nogroup\)/
    assert output(["id", "-u"], user: 12_345) == "12345\n"
    assert output(["id", "-G"], user: "nobody", group: 7, groups: [8, 9]) == "7 8 9\n"
  end

  @tag :root
  test "all groups count, and more than the kernel takes are an error" do
    groups = Enum.to_list(1_000..1_999)
    expected = Enum.map_join([7 | groups], " ", &to_string/1) <> "\n"
    assert output(["id", "-G"], user: "nobody", group: 7, groups: groups) == expected

    assert {_child, {:error, %Error{step: :groups, reason: :einval}}} =
             run(["true"], user: "nobody", groups: Enum.to_list(1..65_537))
  end
end

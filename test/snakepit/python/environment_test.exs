defmodule Snakepit.Python.EnvironmentTest do
  use Snakepit.Test.WorkerCase

  import ExUnit.CaptureLog
  import Snakepit.Test.Python

  alias Snakepit.Python
  alias Snakepit.Python.Environment

  @moduletag timeout: 300_000

  test "a path, a virtual environment and the system's Python are what they are" do
    python = System.find_executable("python3")
    assert Environment.interpreter(:system) == {:ok, python}
    assert Environment.interpreter(python) == {:ok, python}
    directory = temporary_path("venv")
    File.mkdir_p!(Path.join(directory, "bin"))
    assert {:error, %Error{reason: :enoent} = error} = Environment.interpreter({:venv, directory})
    assert Exception.message(error) =~ "is no virtual environment"
    File.ln_s!(python, Path.join(directory, "bin/python"))

    assert Environment.interpreter({:venv, directory}) ==
             {:ok, Path.join(directory, "bin/python")}

    assert {:error, %Error{reason: :enoent}} = Environment.interpreter("/nowhere/python")
  end

  test "options of uv are checked" do
    assert_raise ArgumentError, ~r/unknown option :requirement,/, fn ->
      Python.start_link(name: X, size: 1, python: {:uv, requirement: ["numpy"]})
    end

    assert_raise ArgumentError, ~r/either :requirements or a :project/, fn ->
      Environment.valid?({:uv, requirements: ["a"], project: "b"})
    end
  end

  describe "uv" do
    @describetag skip: without_uv()

    setup do
      System.put_env("SNAKEPIT_UV", uv())
      on_exit(fn -> System.delete_env("SNAKEPIT_UV") end)
      {:ok, dir: temporary_path("environments")}
    end

    test "makes an environment once, which is then used without it", %{dir: dir} do
      given = {:uv, requirements: ["six==1.16.0"], dir: dir}

      log =
        capture_log(fn ->
          # By several at once.
          made =
            1..4
            |> Enum.map(fn _ -> Task.async(fn -> Environment.interpreter(given) end) end)
            |> Task.await_many(250_000)

          assert [{:ok, _path}] = Enum.uniq(made)
        end)

      assert [_begun, _rest] = String.split(log, "makes a Python environment")
      System.put_env("SNAKEPIT_UV", "/nowhere")
      python = python!(python: given, init: "import six, sys")
      assert Python.eval!(python, "six.__version__") == "1.16.0"
      # Two environments at once.
      other = python!(init: "import sys")
      directory = python |> Python.eval!("sys.executable") |> Path.dirname() |> Path.dirname()
      assert Python.eval!(python, "sys.prefix") == directory
      refute Python.eval!(other, "sys.prefix") == directory
    end

    test "fails with the end of what it has said, and leaves nothing", %{dir: dir} do
      given = {:uv, requirements: ["no-such-package-of-snakepit"], dir: dir}

      capture_log(fn ->
        assert {:error, %Error{operation: :python, reason: :exit_status} = error} =
                 Python.start_link(name: X, size: 1, python: given)

        assert Exception.message(error) =~ "no-such-package-of-snakepit"
      end)

      assert File.ls!(dir) == []
    end

    test "begins again where somebody was killed in the middle", %{dir: dir} do
      given = {:uv, requirements: [], dir: dir}

      capture_log(fn ->
        assert {:ok, path} = Environment.interpreter(given)
        directory = path |> Path.dirname() |> Path.dirname()
        File.rm!(Path.join(directory, "snakepit-complete"))
        File.rm!(path)
        assert Environment.interpreter(given) == {:ok, path}
        assert File.exists?(path)
      end)
    end

    test "waits for another BEAM that makes it", %{dir: dir} do
      directory = Path.join(dir, "x")
      test = self()

      spawn_link(fn ->
        Environment.Lock.hold(directory, 1_000, fn ->
          send(test, :held)
          receive do: (:go -> :ok)
        end)
      end)

      assert_receive :held, 20_000
      # As another BEAM would find it, which has no other way to know.
      name = Base.encode16(:crypto.hash(:sha256, directory)) |> binary_part(0, 32)

      assert {:error, :eaddrinuse} =
               :gen_tcp.listen(0, ifaddr: {:local, <<0, "snakepit-", name::binary>>})
    end

    test "that is missing is said to be" do
      System.delete_env("SNAKEPIT_UV")
      path = System.get_env("PATH")
      on_exit(fn -> System.put_env("PATH", path) end)
      System.put_env("PATH", "/nowhere")
      assert {:error, %Error{reason: :enoent} = error} = Environment.executable()
      System.put_env("PATH", path)
      assert Exception.message(error) =~ "pip install uv"
    end
  end
end

defmodule Snakepit.Python.CommandsTest do
  # `Snakepit.execute/3` with a pool of Python workers.
  use ExUnit.Case, async: true

  import Snakepit.Test.Python

  alias Snakepit.Error

  @init """
  import time
  def wait(seconds): time.sleep(seconds)
  def area(width, height): return width * height
  def parts(count):
      for n in range(count): yield n
      if count == 3: raise ValueError("three")
  """

  test "a command is a function, and its arguments have names" do
    pool = python!(init: @init)
    assert Snakepit.execute("area", %{width: 6, height: 7}, pool: pool) == {:ok, 42}
    opts = [pool: pool, session_id: "mine", affinity: :strict]
    assert Snakepit.execute("area", [width: 2, height: 2.5], opts) == {:ok, 5.0}

    assert {:error, %Error{operation: :execute, reason: :exception} = error} =
             Snakepit.execute("area", %{}, pool: pool)

    assert Exception.message(error) =~ ~s("area" raised TypeError: area)

    assert {:error, %Error{operation: :execute, reason: :timeout}} =
             Snakepit.execute("wait", %{seconds: 600}, pool: pool, timeout: 100)
  end

  test "a command that answers in parts gives each of them to a function, whose failures are the caller's" do
    pool = python!(init: @init)
    test = self()
    tell = &send(test, {:part, &1})
    assert Snakepit.execute_stream("parts", %{count: 2}, tell, pool: pool) == :ok
    assert_received {:part, 0}
    assert_received {:part, 1}

    assert {:error, %Error{operation: :execute_stream, reason: :exception} = error} =
             Snakepit.execute_stream("parts", %{count: 3}, tell, pool: pool)

    assert Exception.message(error) =~ ~s("parts" raised ValueError: three)

    assert_raise Error, fn ->
      mine = fn _part -> raise %Error{operation: :mine, reason: :einval} end
      Snakepit.execute_stream("parts", %{count: 2}, mine, pool: pool)
    end

    slow = fn _part -> receive(do: (:never -> :ok), after: (60 -> :ok)) end
    endless = [pool: pool, timeout: 50]

    assert {:error, %Error{reason: :timeout}} =
             Snakepit.execute_stream("parts", %{count: 1_000}, slow, endless)

    # The worker is of use afterwards.
    assert Snakepit.execute("area", %{width: 1, height: 1}, pool: pool) == {:ok, 1}
  end
end

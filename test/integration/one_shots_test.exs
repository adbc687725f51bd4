defmodule Snakepit.OneShotsTest do
  # Many programs at once, and too few descriptors.
  use Snakepit.Test.WorkerCase, async: false

  alias Snakepit.Test.{Beam, Leftovers}

  @moduletag :long
  @moduletag timeout: 300_000

  @floods 100

  setup do
    # Tasks that end would be messages.
    Process.flag(:trap_exit, false)
    {:ok, leftovers: Leftovers.note()}
  end

  test "1000 programs at once, each with input and output, are all right", %{leftovers: before} do
    calls =
      for number <- 1..1_000 do
        Task.async(fn -> Snakepit.cmd("cat", [], input: Stream.map([number], &"#{&1}")) end)
      end

    assert Task.await_many(calls, 200_000) == for(number <- 1..1_000, do: {"#{number}", 0})
    Leftovers.assert_none(before)
  end

  test "#{@floods} floods that are read slowly do not slow down another call", %{
    leftovers: before
  } do
    alone = median_ms()
    test = self()

    readers =
      for _ <- 1..@floods do
        spawn(fn ->
          Snakepit.stream!(["yes"])
          |> Stream.with_index()
          |> Enum.each(fn {_data, index} ->
            if index == 0, do: send(test, {:flooded, self()})
            receive(do: (:never -> :ok), after: (100 -> :ok))
          end)
        end)
      end

    for reader <- readers, do: assert_receive({:flooded, ^reader}, 60_000)
    beside = median_ms()
    for reader <- readers, do: Process.exit(reader, :kill)
    assert beside < max(50, 5 * alone), "alone #{alone} ms, beside #{@floods} floods #{beside} ms"
    Leftovers.assert_none(before)
  end

  defp median_ms do
    times = for _ <- 1..21, do: elem(:timer.tc(fn -> {"", 0} = Snakepit.cmd("true", []) end), 0)
    times |> Enum.sort() |> Enum.at(10) |> div(1_000)
  end

  defp limit(os_pid, soft),
    do: {_output, 0} = System.cmd("prlimit", ~w(--pid #{os_pid} --nofile=#{soft}:))

  # The limit that leaves so many. What it has may have gaps between, and numbers above a limit stay open.
  defp with_room_for(spare, os_pid) do
    numbers = for name <- File.ls!("/proc/#{os_pid}/fd"), do: String.to_integer(name)
    free = fn limit -> limit - Enum.count(numbers, &(&1 < limit)) end
    Enum.find((Enum.max(numbers) + 1 + spare)..0//-1, &(free.(&1) <= spare))
  end

  # How many descriptors it has when those are gone that the guardian keeps for a second after a busy time.
  defp settled(os_pid) do
    eventually(fn ->
      before = File.ls!("/proc/#{os_pid}/fd")
      receive(do: (:never -> :ok), after: (1_300 -> :ok))
      if File.ls!("/proc/#{os_pid}/fd") == before, do: length(before)
    end)
  end

  # One that needs three pipes and an enumerable's feeder; and one that raises where the other one returns.
  @attempt """
  input = Stream.map([1], fn _ -> "x" end)

  run =
    case Snakepit.run("cat", [], input: input, stderr: :capture) do
      {:ok, %{stdout: "x", status: 0}} -> :ok
      {:error, error} -> {error.operation, error.reason}
    end

  stream =
    case Enum.to_list(Snakepit.stream(["cat"], input: input, stderr: :capture)) do
      [{:stdout, "x"}, {:exit, {:status, 0}}] -> :ok
      [{:exit, {:error, error}}] -> {error.operation, error.reason}
    end

  {run, stream, Process.info(self(), :message_queue_len)}
  """

  # So that all of its code is there, for which it needs descriptors too.
  @load """
  for application <- [:elixir, :snakepit] do
    {:ok, modules} = :application.get_key(application, :modules)
    Enum.each(modules, &Code.ensure_loaded/1)
  end

  :ok
  """

  for whose <- [:beam, :guardian] do
    test "too few descriptors of the #{whose}: an error that says so, and nothing is left" do
      beam = Beam.start()
      assert Beam.run(beam, @load) == :ok
      guardian = Beam.run(beam, "Snakepit.Guardian.os_pid()")
      assert {:ok, :ok, {:message_queue_len, queued}} = Beam.run(beam, @attempt)
      os_pid = if unquote(whose) == :beam, do: beam.os_pid, else: guardian
      [_, hard] = Regex.run(~r/open files +\d+ +(\d+)/, File.read!("/proc/#{os_pid}/limits"))
      settled(guardian)
      before = settled(beam.os_pid)

      answers =
        for spare <- 0..14 do
          limit(os_pid, with_room_for(spare, os_pid))
          {run, stream, {:message_queue_len, ^queued}} = Beam.run(beam, @attempt)
          [run, stream]
        end
        |> List.flatten()

      limit(os_pid, hard)
      errors = Enum.uniq(answers) -- [:ok]
      assert errors != []
      assert Enum.all?(errors, fn {_operation, reason} -> reason in [:emfile, :enfile] end)
      assert {:ok, :ok, _queue} = Beam.run(beam, @attempt)

      # The guardian keeps the ends of starts that have failed for a while, and not more than so many.
      assert settled(beam.os_pid) <= before
      assert Beam.run(beam, "Snakepit.Guardian.os_pid()") == guardian
    end
  end
end

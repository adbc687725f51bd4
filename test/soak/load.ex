defmodule Soak.Load do
  @moduledoc """
  What runs in the BEAM of a soak: pools and actors that start, use and stop processes without end, and
  a few commands on standard input. It measures what only a BEAM can know of itself, and judges nothing.
  """

  alias Soak.{Actors, Leaks, Measures}

  # As often as they like: what ends here was made to.
  @restarts [max_restarts: 1_000_000, max_seconds: 1]

  # The BEAM counts as started only when this returns.
  def main, do: spawn(&run/0)

  defp run do
    [file] = :init.get_plain_arguments()
    {:ok, plan} = :file.consult(file)
    for {key, value} <- plan[:config], do: Application.put_env(:snakepit, key, value)
    Application.put_env(:logger, :level, :error)
    plan = plan ++ [counters: Actors.counters()]

    {:ok, _} = Application.ensure_all_started(:snakepit)
    {:ok, pools} = start_pools(plan)
    actors = Actors.start(plan)
    Leaks.start(plan[:leaks], plan[:config][:data_dir])
    say("started")
    obey(%{plan: plan, pools: pools, actors: actors})
  end

  defp obey(state) do
    case IO.read(:stdio, :line) do
      line when is_binary(line) -> line |> String.trim() |> obey(state) |> obey()
      # Whoever gave the orders is gone.
      _end_of_file -> System.halt(1)
    end
  end

  defp obey("sample " <> number, state) do
    values =
      Measures.all()
      |> Map.merge(Actors.read(state.plan[:counters]))
      |> Map.put(:longest_ms, Actors.longest(state.actors))

    say(
      "sample #{number} " <> Enum.map_join(values, " ", fn {key, value} -> "#{key}=#{value}" end)
    )

    state
  end

  defp obey("whereabouts", state) do
    for one <- Actors.whereabouts(state.actors), do: say(inspect(one, pretty: true))
    say("that is all")
    state
  end

  # A run ends and another begins, in the same BEAM.
  defp obey("restart " <> answer, state) do
    Supervisor.stop(state.pools)
    :ok = Application.stop(:snakepit)
    {:ok, _} = Application.ensure_all_started(:snakepit)
    {:ok, pools} = start_pools(state.plan)
    say(answer)
    %{state | pools: pools}
  end

  defp obey("stop", state) do
    Supervisor.stop(state.pools)
    :ok = Application.stop(:snakepit)
    Leaks.stop(state.plan[:leaks], state.plan[:token])
    say("stopped")
    state
  end

  defp start_pools(plan) do
    children =
      for {name, size, worker} <- plan[:pools] do
        worker = worker ++ [ready: fn -> Actors.count(plan[:counters], :starts) == :ok end]

        pool = [name: name, size: size, worker: worker] ++ @restarts
        Supervisor.child_spec({Snakepit.Pool, pool}, id: name)
      end

    Supervisor.start_link(children, [strategy: :one_for_one] ++ @restarts)
  end

  defp say(word), do: IO.puts(word)
end

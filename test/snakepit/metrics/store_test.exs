defmodule Snakepit.Metrics.StoreTest do
  # Nothing is counted in the BEAM of the tests, so these have the one store that there is.
  use ExUnit.Case, async: false

  import ExUnit.CaptureLog

  alias Snakepit.{Metrics, Telemetry}
  alias Snakepit.Metrics.{Catalogue, Store}

  doctest Snakepit.Metrics.Store, import: true

  defp create(options \\ %{}) do
    store = Store.create(Map.merge(%{max_groups: 100, group_by: nil}, options))
    on_exit(fn -> if Store.current() == store, do: :persistent_term.erase(Store) end)
    store
  end

  defp ping(id),
    do: Telemetry.execute([:snakepit, :heartbeat, :ping_sent], %{count: 1}, %{worker_id: id})

  defp pings(store) do
    for {group, row} <- Store.rows(store, :group),
        count = :atomics.get(row, Catalogue.place(:heartbeat_pings)),
        count > 0,
        into: %{},
        do: {group, count}
  end

  defp value(store, name), do: :atomics.get(store.run, Catalogue.place(name))

  test "there are as many groups as were allowed, and all others are one" do
    store = create(%{max_groups: 3})
    for n <- 1..5, _again <- 1..2, do: ping("group#{n}x")
    ping("other")
    assert pings(store) == %{"group1x" => 2, "group2x" => 2, "group3x" => 2, "other" => 5}
    assert value(store, :metrics_overflows) == 4
    # Each worker id that is new every time would be one more.
    ping(String.duplicate("long", 100))
    assert pings(store)["other"] == 6
  end

  test "whoever adds a group at the same time adds it once, and no count is lost" do
    store = create(%{max_groups: 4})
    gate = make_ref()

    tasks =
      for n <- 1..8 do
        Task.async(fn ->
          receive(do: (^gate -> :ok))
          for m <- 1..1_000, do: ping("group#{rem(n + m, 4)}x")
        end)
      end

    for task <- tasks, do: send(task.pid, gate)
    Task.await_many(tasks, 60_000)
    assert pings(store) == Map.new(0..3, &{"group#{&1}x", 2_000})
    assert value(store, :metrics_overflows) == 0
  end

  test "the group is what the user's function says, and a function that fails disturbs nobody" do
    store =
      create(%{
        group_by: fn
          "bad" -> raise "no"
          "odd" -> :odd
          id -> String.first(id)
        end
      })

    for id <- ["abc", "axe", "bad", "odd", "b"], do: ping(id)
    assert pings(store) == %{"a" => 2, "b" => 1, "other" => 2}
  end

  test "a start takes the place of a process that has failed, once" do
    store = create()
    started = fn -> execute(:started, %{startup_duration_ms: 1}, %{}) end
    ended = fn reason -> execute(:terminated, %{uptime_ms: 1}, %{reason: reason}) end
    restarts = fn -> restarts(store) end

    started.()
    assert restarts.() == 0
    ended.(:normal)
    started.()
    assert restarts.() == 0
    ended.({:exit_status, 1})
    ended.(:heartbeat_timeout)
    for _start <- 1..3, do: started.()
    assert restarts.() == 2
  end

  defp execute(event, measurements, metadata) do
    metadata = Map.merge(%{worker_id: "a-1"}, metadata)
    Telemetry.execute([:snakepit, :process, event], measurements, metadata)
  end

  defp restarts(store) do
    {"a", row} = List.keyfind(Store.rows(store, :group), "a", 0)
    :atomics.get(row, Catalogue.place(:process_restarts, :failure))
  end

  test "of an event that cannot be counted the log tells, and whoever emits it goes on" do
    store = create()
    event = [:snakepit, :process, :started]
    log = capture_log(fn -> assert Telemetry.execute(event, %{}, %{worker_id: "a"}) == :ok end)
    refute log =~ "cannot count"

    log =
      capture_log(fn ->
        Telemetry.execute(event, %{startup_duration_ms: :soon}, %{worker_id: "a"})
      end)

    assert log =~ "cannot count [:process, :started]"
    # The table has gone, and nobody has said so yet.
    :ets.delete(store.table)
    assert capture_log(fn -> assert ping("a") == :ok end) =~ "cannot count"
    :persistent_term.erase(Store)
    assert capture_log(fn -> assert ping("a") == :ok end) == ""
  end

  test "each duration is in the bucket that it belongs to" do
    for %{type: :histogram, key: key, buckets: buckets} <- Catalogue.all() do
      assert buckets == Enum.sort(buckets)

      for {bound, n} <- Enum.with_index(buckets) do
        assert Catalogue.bucket(key, round(bound * 1_000_000)) == n
        assert Catalogue.bucket(key, round(bound * 1_000_000) + 1) == n + 1
      end

      assert Catalogue.sum(key) == length(buckets) + 1
    end
  end

  test "no two values have one place" do
    store = create()

    for scope <- [:run, :group, :pool] do
      places =
        for %{scope: ^scope} = family <- Catalogue.all() do
          case family do
            %{type: :histogram} ->
              first = Catalogue.place(family.key)
              Enum.to_list(first..(first + Catalogue.sum(family.key)))

            %{label: nil} ->
              [Catalogue.place(family.key)]

            %{label: {_name, values}} ->
              Enum.map(values, &Catalogue.place(family.key, &1))
          end
        end

      assert Enum.sort([Catalogue.failed() | List.flatten(places)]) ==
               Enum.to_list(1..Catalogue.width(scope))
    end

    assert store == Store.current()
  end

  test "without metrics nothing is counted, and asking for them says what to do" do
    assert Metrics.enabled?() == false
    assert ping("a") == :ok
    assert %Snakepit.Error{reason: :disabled} = error = catch_error(Metrics.text())
    assert Exception.message(error) =~ "config :snakepit, metrics: [enabled: true]"
  end

  test "a child counts as long as it lives, and one at a time" do
    {:ok, owner} = start_supervised({Metrics, max_groups: 2})
    assert Metrics.enabled?()
    assert {:error, {:already_started, ^owner}} = Metrics.start_link()
    :ok = stop_supervised(Metrics)
    refute Metrics.enabled?()
    # The configuration's comes first, and stays.
    store = create()
    assert Metrics.start_link() == :ignore
    assert Store.current() == store
    assert_raise ArgumentError, ~r/max_groups/, fn -> Metrics.start_link(max_groups: 0) end
  end
end

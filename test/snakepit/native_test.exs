defmodule Snakepit.NativeTest do
  use ExUnit.Case, async: true

  alias Snakepit.Native

  @record %{
    worker_id: "w1",
    run_id: "k3x9a2p",
    status: :active,
    os_pid: 4711,
    pgid: 4711,
    identity: <<1, 2, 255>>,
    elixir_pid: "<0.99.0>",
    command: ["sleep", <<255>>],
    spawned_at: 1_700_000_000_000
  }

  defp sealed(record), do: Map.merge(record, Native.record_seal(record))

  describe "a sealed record" do
    test "comes back from DETS as it was" do
      path = Path.join(Snakepit.Test.Beam.temporary_directory(), "record")
      {:ok, table} = :dets.open_file(make_ref(), file: String.to_charlist(path))

      reserved = %{
        @record
        | status: :reserved,
          os_pid: nil,
          pgid: nil,
          identity: nil,
          elixir_pid: nil
      }

      for record <- [@record, reserved] do
        :ok = :dets.insert(table, {record.worker_id, sealed(record)})
        [{"w1", stored}] = :dets.lookup(table, "w1")
        assert Native.record_check(stored) == {:ok, record}
      end

      :ok = :dets.close(table)
    end

    test "is not believed after any field has changed" do
      changes = %{
        worker_id: "w2",
        run_id: "k3x9a2q",
        status: :reserved,
        os_pid: 4712,
        pgid: nil,
        identity: <<1, 2, 254>>,
        elixir_pid: nil,
        command: ["sleep"],
        spawned_at: 0,
        checksum: 1
      }

      for {key, value} <- changes do
        assert Native.record_check(%{sealed(@record) | key => value}) == {:error, :checksum},
               "#{key}"
      end
    end

    test "of another version is not understood" do
      assert Native.record_check(%{sealed(@record) | version: 2}) == {:error, :version}
    end

    test "is not any other term, an improper list among them" do
      damaged = for key <- Map.keys(sealed(@record)), do: Map.delete(sealed(@record), key)

      wrong_types = for key <- Map.keys(sealed(@record)), do: %{sealed(@record) | key => {:x}}

      for term <-
            [nil, 1, "x", [], {}, %{}, self(), @record, %{sealed(@record) | command: ["a" | "b"]}] ++
              damaged ++ wrong_types do
        assert Native.record_check(term) == {:error, :malformed}, inspect(term)
      end
    end
  end

  test "markers say who started a process" do
    {:ok, environment} = Native.marker_environment("k3x9a2p", "w1", "i1")
    markers = Map.new(environment)
    assert markers["SNAKEPIT_RUN_ID"] == "k3x9a2p"
    assert markers["SNAKEPIT_WORKER_ID"] == "w1"
    assert markers["SNAKEPIT_INSTANCE"] == "i1"

    [os_pid, start, _namespace, _boot] = String.split(markers["SNAKEPIT_OWNER"], ":")
    assert os_pid == System.pid()
    own = Snakepit.Test.ProcScan.stat(String.to_integer(System.pid()))
    assert start == Integer.to_string(own.start)
  end

  test "what is no argument of a NIF raises and harms nothing" do
    for call <- [
          fn -> Native.process_lookup(:self) end,
          fn -> Native.process_signal(1, :sigterm) end,
          fn -> Native.process_stop([1], :sigterm, 0, 0) end,
          fn -> Native.process_stop(["x"], :sigfoo, 0, 0) end,
          fn -> Native.process_stop([], :sigterm, -1, 0) end,
          fn -> Native.run_find(:k3x9a2p, false) end,
          fn -> Native.run_id_extract(["a" | "b"]) end,
          fn -> Native.record_seal(%{}) end
        ] do
      assert_raise ArgumentError, call
    end
  end
end

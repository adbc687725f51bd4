defmodule Snakepit.Worker.AlarmTest do
  use ExUnit.Case, async: true

  alias Snakepit.Worker.Alarm

  defp now, do: :erlang.monotonic_time(:millisecond)

  test "goes off at the earliest that it was set to, once" do
    later = Alarm.set(nil, now() + 600_000)
    assert Alarm.set(later, now() + 900_000) == later
    assert Alarm.set(later, :infinity) == later
    assert {timer, _due} = sooner = Alarm.set(later, now() + 10)
    assert_receive {:timeout, ^timer, Alarm}, 20_000
    assert Alarm.went_off(sooner, timer) == {:ok, nil}
    # The other was stopped.
    assert :erlang.read_timer(elem(later, 0)) == false
  end

  test "does not take the message of another for its own" do
    alarm = Alarm.set(nil, now() + 600_000)
    assert Alarm.went_off(alarm, make_ref()) == :other
    assert Alarm.went_off(nil, make_ref()) == :other
    assert is_integer(Alarm.cancel(alarm))
    assert Alarm.cancel(nil) == false
    refute_received {:timeout, _timer, Alarm}
  end
end

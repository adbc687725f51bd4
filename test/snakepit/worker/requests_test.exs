defmodule Snakepit.Worker.RequestsTest do
  use ExUnit.Case, async: true

  alias Snakepit.Worker.Requests

  # A process that answers each request with itself, and callers who know their own.
  defp step(:ask, state) do
    number = state.next
    {sent, requests} = Requests.add(state.requests, number, {self(), number}, "#{number}")
    sent(%{state | requests: requests, next: number + 1, open: [number | state.open]}, sent)
  end

  defp step(:answer, %{process: []} = state), do: state

  defp step(:answer, state) do
    packet = if state.tag, do: Enum.random(state.process), else: hd(state.process)
    state = %{state | process: List.delete(state.process, packet)}
    {{ref, from}, answer, sent, requests} = Requests.answered(state.requests, packet)
    # To whom it belongs, or to nobody if that one has gone.
    assert answer == "#{ref}"
    assert from in [nil, {self(), ref}]
    assert is_nil(from) == Enum.member?(state.late, ref)
    sent(%{state | requests: requests, open: state.open -- [ref]}, sent)
  end

  defp step(:expire, %{open: []} = state), do: state

  defp step(:expire, state) do
    number = Enum.random(state.open)
    {how, requests} = Requests.expired(state.requests, number)
    state = %{state | requests: requests}

    case how do
      :late -> %{state | late: Enum.uniq([number | state.late])}
      :dropped -> %{state | open: state.open -- [number]}
    end
  end

  defp sent(state, packets) do
    process = state.process ++ Enum.map(packets, &IO.iodata_to_binary/1)
    assert length(process) <= state.in_flight
    assert process == Enum.uniq(process)
    %{state | process: process}
  end

  defp check(state) do
    {asked, waiting} = Requests.callers(state.requests)
    callers = asked ++ waiting
    assert Enum.sort(callers) == Enum.sort(for n <- state.open -- state.late, do: {self(), n})
    assert Enum.sort(Requests.refs(state.requests)) == Enum.sort(state.open)
    # With room in flight nobody waits.
    if length(state.process) < state.in_flight,
      do: assert(length(state.open) == length(state.process))

    for n <- state.late -- state.open, do: refute(Requests.owes?(state.requests, n))
    state
  end

  defp run(in_flight, tag, steps) do
    state = %{
      requests: Requests.new(in_flight, tag),
      in_flight: in_flight,
      tag: tag,
      next: 0,
      open: [],
      late: [],
      process: []
    }

    Enum.reduce(1..steps, state, fn _step, state ->
      [:ask, :ask, :answer, :answer, :expire] |> Enum.random() |> step(state) |> check()
    end)
  end

  test "an answer goes to its own caller or to nobody, whatever comes in between" do
    :rand.seed(:exsss, {1, 2, ExUnit.configuration()[:seed]})

    for tag <- [nil, 1, 2], in_flight <- [1, 2, 16], _ <- 1..10, do: run(in_flight, tag, 200)
    # Every tag in use, and each of them again and again.
    run(256, 1, 3_000)
  end

  test "what has the tag of no request, or none at all, is unexpected" do
    requests = Requests.new(2, 2)
    assert Requests.answered(requests, <<0, 0, "early">>) == :unexpected
    {[first], requests} = Requests.add(requests, :a, {self(), :a}, "a")
    assert first == <<0, 0, "a">>
    assert Requests.answered(requests, <<0>>) == :unexpected
    assert Requests.answered(requests, <<0, 1, "wrong">>) == :unexpected
    assert {{:a, _from}, "", [], requests} = Requests.answered(requests, <<0, 0>>)
    assert Requests.answered(requests, <<0, 0>>) == :unexpected
    # Another one has another tag, so that a second answer to the first is not believed.
    assert {[<<0, 1, "b">>], _requests} = Requests.add(requests, :b, {self(), :b}, "b")
  end

  test "a tag that is in use is passed over" do
    # All of them; then whichever is free, twice around.
    requests = Requests.new(256, 1)

    requests =
      Enum.reduce(0..255, requests, fn n, requests ->
        {[<<^n>>], requests} = Requests.add(requests, n, {self(), n}, "")
        requests
      end)

    Enum.reduce(256..768, requests, fn n, requests ->
      {_answered, "", [], requests} = Requests.answered(requests, <<77>>)
      {[<<77>>], requests} = Requests.add(requests, n, {self(), n}, "")
      assert Enum.count(Requests.refs(requests)) == 256
      requests
    end)
  end

  test "a late one keeps its place until its answer has come" do
    for tag <- [nil, 1] do
      {[packet], requests} = Requests.add(Requests.new(1, tag), :a, {self(), :a}, "a")
      {:late, requests} = Requests.expired(requests, :a)
      assert Requests.owes?(requests, :a)
      {[], requests} = Requests.add(requests, :b, {self(), :b}, "b")
      assert {{:a, nil}, "a", [_b], requests} = Requests.answered(requests, packet)
      refute Requests.owes?(requests, :a)
      assert {[{_self, :b}], []} = Requests.callers(requests)
    end
  end
end

defmodule Snakepit.HeartbeatMonitor.FailureDetector do
  @moduledoc false

  # Decides from pings, pongs and the time whether a process is alive. It has no process, socket or clock of
  # its own: each function takes what has happened and returns the detector and the actions that follow. The
  # caller performs the actions in their order, and calls `tick/2` at `due`.

  alias Snakepit.AlignedTimer
  alias Snakepit.HeartbeatMonitor.Health

  # A tick that is this much late shows that the BEAM did not run, or did not get around to it.
  @late_ms 50

  # Pings go out together at multiples of this. With wider steps, more processes answer at the same time,
  # and the last of them wait for a core.
  @max_alignment_ms 100

  # When to look for the pong of a process that does not say when it answered. It is also the least
  # latency that can be measured then.
  @look_ms 3

  @enforce_keys [
    :transport,
    :ping_interval,
    :timeout_threshold,
    :max_missed_heartbeats,
    :patient,
    :alignment
  ]
  defstruct [
    :transport,
    :ping_interval,
    :timeout_threshold,
    :max_missed_heartbeats,
    # Whether somebody else limits how long the first pong may take.
    :patient,
    :alignment,
    # The timestamp of the ping that waits for its pong, and when that becomes a miss.
    :in_flight,
    :deadline,
    :pinged_at,
    :due,
    :last_pong_at,
    :last_latency,
    # Whether the last pong said when it was sent.
    tells_time?: false,
    # Whether a `:ping` function has said no, and is to be called again before the deadline.
    declined?: false,
    missed: 0,
    pings: 0,
    pongs: 0
  ]

  @typedoc "Milliseconds of monotonic time, which the detector reckons in, and since the epoch."
  @type clock :: {now :: integer(), timestamp :: integer()}

  @typedoc """
    * `{:ping, timestamp}` - send a ping; what is still under way for an earlier one can be dropped
    * `{:retry, timestamp}` - ask again for the ping that is in flight
    * `{:pong, latency_ms}`, `{:missed, in_a_row}`, `:first_pong` - say so
    * `:dead` - end the worker; the detector has nothing to do after that
  """
  @type action ::
          {:ping, integer()}
          | {:retry, integer()}
          | {:pong, non_neg_integer()}
          | {:missed, pos_integer()}
          | :first_pong
          | :dead

  @type t :: %__MODULE__{}

  @doc "Returns the detector of a worker with these options, over a `:lifeline` or by a `:function`."
  @spec new(:lifeline | :function, map()) :: t()
  def new(transport, opts) do
    %__MODULE__{
      transport: transport,
      ping_interval: opts.ping_interval,
      timeout_threshold: opts.timeout_threshold,
      max_missed_heartbeats: opts.max_missed_heartbeats,
      patient: opts.patient,
      alignment: opts.ping_interval |> div(20) |> max(1) |> min(@max_alignment_ms)
    }
  end

  @doc "Pings now. If another ping is in flight, nobody waits for its pong any more."
  @spec ping(t(), clock()) :: {t(), [action()]}
  def ping(detector, {now, timestamp}) do
    detector = %{
      detector
      | in_flight: timestamp,
        deadline: now + detector.timeout_threshold,
        pinged_at: now,
        declined?: false,
        pings: detector.pings + 1
    }

    {%{detector | due: min(detector.deadline, look_at(detector))}, [{:ping, timestamp}]}
  end

  @doc "Pings now, unless a ping is in flight."
  @spec force_ping(t(), clock()) :: {t(), [action()]}
  def force_ping(%{in_flight: nil} = detector, clock), do: ping(detector, clock)
  def force_ping(detector, _clock), do: {detector, []}

  @doc "Acts on the time: it is `due`, or later. Order: pongs that have arrived go to `pong/3` first."
  @spec tick(t(), clock()) :: {t(), [action()]}
  def tick(%{in_flight: nil} = detector, {now, _timestamp} = clock) do
    next = next_ping(detector)
    if next > now, do: {%{detector | due: next}, []}, else: ping(detector, clock)
  end

  def tick(%{deadline: deadline} = detector, {now, _timestamp}) when now < deadline,
    do: retry(%{detector | due: deadline})

  # A process that has not begun to read would find all pings at once. A function that hangs is called anew.
  def tick(%{patient: true, pongs: 0, transport: :lifeline} = detector, {now, _timestamp}),
    do: {extend(detector, now), []}

  def tick(%{patient: true, pongs: 0} = detector, clock), do: ping(detector, clock)

  # The process may have been paused with the BEAM.
  def tick(detector, {now, _timestamp}) when now - detector.due > @late_ms,
    do: detector |> extend(now) |> retry()

  def tick(detector, clock), do: miss(%{detector | missed: detector.missed + 1}, clock)

  defp extend(detector, now) do
    deadline = now + detector.timeout_threshold
    %{detector | deadline: deadline, due: deadline}
  end

  defp retry(%{declined?: true} = detector),
    do: {%{detector | declined?: false}, [{:retry, detector.in_flight}]}

  defp retry(detector), do: {detector, []}

  defp miss(%{missed: missed, max_missed_heartbeats: max} = detector, _clock) when missed >= max,
    do: {%{detector | due: nil}, [{:missed, missed}, :dead]}

  defp miss(detector, clock) do
    {detector, actions} = ping(detector, clock)
    {detector, [{:missed, detector.missed} | actions]}
  end

  @doc """
  Notes a pong. It has the timestamp of its ping and the time at which the process answered, by its own clock, in
  milliseconds since the epoch. Either may be `nil`.
  """
  @spec pong(t(), {integer() | nil, integer() | nil}, integer()) :: {t(), [action()]}
  def pong(%{in_flight: timestamp} = detector, {timestamp, answered_at}, now)
      when timestamp != nil do
    {how, latency} = latency(answered_at, timestamp, now - detector.pinged_at)
    detector = %{detector | in_flight: nil, last_latency: latency, tells_time?: how == :told}
    # The tick may have been set to the deadline, and the time for the next ping has passed.
    detector = %{detector | due: max(next_ping(detector), now)}
    {detector, actions} = alive(detector, detector.pinged_at + latency)
    {detector, [{:pong, latency} | actions]}
  end

  # One to an earlier ping is a sign of life, but no answer to the one in flight.
  def pong(detector, _pong, now), do: alive(detector, now)

  # By the clock of the process if it can be this machine's. The last millisecond may have begun for one
  # reader of the clock and not for the other.
  defp latency(answered_at, timestamp, elapsed)
       when is_integer(answered_at) and answered_at >= timestamp and
              answered_at - timestamp <= elapsed + 1,
       do: {:told, min(answered_at - timestamp, elapsed)}

  defp latency(_answered_at, _timestamp, elapsed), do: {:measured, elapsed}

  defp alive(detector, at) do
    actions = if detector.pongs == 0, do: [:first_pong], else: []
    {%{detector | missed: 0, pongs: detector.pongs + 1, last_pong_at: at}, actions}
  end

  @doc "A `:ping` function has said no. It is called again, within the same threshold."
  @spec declined(t(), integer(), integer()) :: t()
  def declined(%{in_flight: timestamp} = detector, timestamp, now) do
    due = min(now + detector.ping_interval, detector.deadline)
    %{detector | declined?: true, due: due}
  end

  def declined(detector, _earlier, _now), do: detector

  @doc "Returns the health of the process."
  @spec health(t(), integer()) :: Health.t()
  def health(detector, now) do
    %Health{
      status: status(detector),
      missed_heartbeats: detector.missed,
      pings_sent: detector.pings,
      pongs_received: detector.pongs,
      last_pong_ms_ago: detector.last_pong_at && now - detector.last_pong_at,
      last_latency_ms: detector.last_latency
    }
  end

  defp status(%{missed: missed}) when missed > 0, do: :unhealthy
  defp status(%{pongs: 0}), do: :unknown
  defp status(_detector), do: :healthy

  # When the pong of a ping that was just sent is looked for. The first one at once, which asks to be told
  # when it comes, because others wait for it. One that says when it was sent can wait for the next ping.
  # The others are looked for after a moment, with those of everybody who was pinged at the same time: most
  # are there then, and only for the rest does a message have to wake the BEAM.
  defp look_at(%{transport: :function, deadline: deadline}), do: deadline
  defp look_at(%{pongs: 0, pinged_at: pinged_at}), do: pinged_at
  defp look_at(%{tells_time?: false, pinged_at: pinged_at}), do: pinged_at + @look_ms
  defp look_at(detector), do: next_ping(detector)

  # Up to a twentieth of the interval early.
  defp next_ping(detector),
    do: AlignedTimer.at_or_before(detector.pinged_at + detector.ping_interval, detector.alignment)
end

defmodule Snakepit.Worker.Expiry do
  @moduledoc false

  # The end of a request that is not answered: its time is up, or its caller is gone. What has become of it then is
  # told by `Snakepit.Worker.Requests`.

  alias Snakepit.Worker.{Alarm, Deadline, Output, Requests}

  @typedoc """
  What a request is known by, and given up for: its time, or if it has all the time there is, the end of its caller.
  """
  @type ref :: {:due, integer(), term()} | {:monitor, reference()}

  @doc """
  Returns the reference of a new request. Its deadline is to be set as the alarm as well. With `both?` the end of its
  caller counts in any case.
  """
  @spec watch(GenServer.from(), Deadline.t(), boolean()) :: ref()
  def watch({pid, _tag}, :infinity, _both?), do: {:monitor, Process.monitor(pid)}

  def watch({pid, _tag}, deadline, true),
    do: {:due, deadline, {:monitor, Process.monitor(pid)}}

  def watch({_pid, tag}, deadline, false), do: {:due, deadline, tag}

  @doc "It has been answered."
  @spec release(ref()) :: true
  def release({:due, _deadline, {:monitor, monitor}}), do: Process.demonitor(monitor)
  def release({:due, _deadline, _tag}), do: true
  def release({:monitor, monitor}), do: Process.demonitor(monitor)

  @doc "The caller behind this monitor is gone. Returns the requests whose answers are late."
  @spec caller_gone(Output.t() | nil, reference()) :: {[ref()], Output.t() | nil}
  def caller_gone(nil, _monitor), do: {[], nil}

  def caller_gone(output, monitor) do
    ref = {:monitor, monitor}
    known = if output.on_late, do: Requests.awaited(output.requests), else: []
    expire(Enum.find(known, ref, &match?({:due, _deadline, ^ref}, &1)), output)
  end

  @doc "This alarm has gone off. Returns the requests whose time is up and whose answers are late."
  @spec alarm(Output.t() | nil, reference()) :: {[ref()], Output.t() | nil}
  def alarm(nil, _timer), do: {[], nil}

  def alarm(output, timer) do
    case Alarm.went_off(output.alarm, timer) do
      {:ok, alarm} -> expire_due(%{output | alarm: alarm})
      # It was set again, or is of a process that there was before.
      :other -> {[], output}
    end
  end

  defp expire_due(output) do
    due = for {:due, _deadline, _tag} = ref <- Requests.awaited(output.requests), do: ref

    {past, later} =
      Enum.split_with(due, fn {:due, deadline, _tag} -> Deadline.past?(deadline) end)

    next = later |> Enum.map(&elem(&1, 1)) |> Enum.min(fn -> :infinity end)
    Enum.flat_map_reduce(past, %{output | alarm: Alarm.set(output.alarm, next)}, &expire/2)
  end

  defp expire(ref, output) do
    {how, requests} = Requests.expired(output.requests, ref)
    {if(how == :late, do: [ref], else: []), %{output | requests: requests}}
  end

  @doc "Whether the process still owes the answer to that request."
  @spec owes?(Output.t() | nil, ref()) :: boolean()
  def owes?(nil, _ref), do: false
  def owes?(output, ref), do: Requests.owes?(output.requests, ref)
end

defmodule Snakepit.Test.Insides do
  @moduledoc """
  What tests have to know of a worker and nobody can ask it: how far it has come with what others have asked of it. All
  that they know of its state is here.
  """

  alias Snakepit.Worker.Requests

  @doc "How many writes its process has not taken yet."
  def pending_writes(worker), do: output(worker).input.pending

  @doc "The process that writes what the pipe does not take at once."
  def writer(worker), do: output(worker).input.writer

  @doc "How many callers wait for output."
  def waiting_readers(worker), do: :queue.len(output(worker).source.readers.waiting)

  @doc "The timers of callers that wait for output."
  def reading_timers(worker), do: output(worker).source.timers

  @doc "How many requests its process has."
  def in_flight(worker), do: map_size(output(worker).requests.sent)

  @doc "How many requests there are, with those that its process does not have yet."
  def requests(worker), do: length(Requests.refs(output(worker).requests))

  @doc "The timer until its process has to say that it is alive."
  def watchdog_timer(worker), do: :sys.get_state(:sys.get_state(worker).notify).timer

  defp output(worker), do: :sys.get_state(worker).output
end

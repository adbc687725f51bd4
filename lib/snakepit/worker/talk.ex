defmodule Snakepit.Worker.Talk do
  @moduledoc false

  # What callers ask of the streams of a worker's process, and the messages that its streams cause.

  alias Snakepit.Pipe
  alias Snakepit.Worker.{Alarm, Deadline, Expiry, Input, Options, Output, Requests}

  @type request ::
          {:write, binary()}
          | {:request, binary()}
          | {:read, :source | :error, Snakepit.Output.Buffer.what()}
          | {:activate, true | :once | pos_integer()}
          | :close_input

  @typedoc "`:fault` if the worker has to end, because nobody can be sure of its answers."
  @type answer :: {:ok, Output.t() | nil} | {:fault, atom(), Output.t()}

  @doc "Does what `from` has asked for, who is answered now or later."
  @spec call(request(), GenServer.from(), Deadline.sent(), Output.t() | nil) :: answer()
  def call(request, from, deadline, output) do
    deadline = Deadline.received(deadline)

    # Its caller has gone on, while the process was started again: it is to lose nothing by that.
    if Deadline.stale?(deadline),
      do: {:ok, output},
      else: request |> do_call(from, deadline, output) |> answer()
  end

  defp answer(%Output{fault: fault} = output) when fault != nil, do: {:fault, fault, output}
  defp answer(output), do: {:ok, output}

  defp do_call({:write, data}, from, deadline, output),
    do: Output.write(output, from, data, deadline)

  defp do_call({:request, data}, from, deadline, output),
    do: Output.request(output, from, data, deadline)

  defp do_call({:read, stream, what}, from, deadline, output),
    do: Output.ask(output, from, stream, what, deadline)

  defp do_call({:activate, count}, from, _deadline, output),
    do: Output.activate(output, from, count)

  defp do_call(:close_input, from, _deadline, output), do: Output.close_input(output, from)

  @doc "Deals with a message."
  @spec info(term(), Output.t() | nil, Options.t()) :: answer()
  def info({:answer_due, request}, output, _options) do
    if Expiry.owes?(output, request), do: {:fault, :unanswered, output}, else: {:ok, output}
  end

  def info(message, output, options), do: message |> do_info(output, options) |> answer()

  defp do_info(_message, nil, _options), do: nil

  defp do_info({:select, pipe, _tag, :ready_input}, output, _options),
    do: Output.ready_to_read(output, pipe)

  defp do_info({Pipe, :moment_over, pipe}, output, _options),
    do: Output.moment_over(output, pipe)

  defp do_info({Input, :flush}, output, _options), do: Output.flush(output)
  defp do_info({Input, writer, :written}, output, _options), do: Output.written(output, writer)

  defp do_info({:timeout, timer, Alarm}, output, options),
    do: output |> Expiry.alarm(timer) |> expired(options)

  defp do_info({:timeout, _timer, {:read_timeout, reader}}, output, _options),
    do: Output.reader_gone(output, reader)

  # A caller who waited for an answer, or for output.
  defp do_info({:DOWN, monitor, :process, _caller, _reason}, output, options) do
    output
    |> Output.reader_gone(monitor)
    |> Expiry.caller_gone(monitor)
    |> expired(options)
  end

  defp do_info(_other, output, _options), do: output

  defp expired({late, output}, options) do
    for request <- late do
      Process.send_after(self(), {:answer_due, request}, options.answer_timeout)
      if options.on_late, do: options.on_late.(Requests.number(output.requests, request))
    end

    output
  end
end

defmodule Snakepit.Worker.Input.Writer do
  @moduledoc false

  # The process that writes what a pipe does not take at once. It never waits for one thing alone: while there is no
  # room in the pipe, the time of those who wait for their turn is up, or the worker closes.

  alias Snakepit.Pipe
  alias Snakepit.Worker.Input

  @enforce_keys [:pipe, :owner, :monitor]
  defstruct [:pipe, :owner, :monitor, :job, queue: :queue.new()]

  @doc "Its owner, which it ends with, hears `{Snakepit.Worker.Input, writer, :written}` of each job that is done."
  @spec start_link(Pipe.t()) :: pid()
  def start_link(pipe) do
    owner = self()

    spawn_link(fn ->
      loop(%__MODULE__{pipe: pipe, owner: owner, monitor: Process.monitor(owner)})
    end)
  end

  defp loop(%{pipe: pipe, monitor: monitor} = writer) do
    receive do
      {:write, job} -> writer |> enqueue(with_timer(job)) |> next() |> loop()
      {:shutdown, from} -> writer |> enqueue({:shutdown, from}) |> next() |> loop()
      {:select, ^pipe, _tag, _ready} -> writer |> go_on() |> loop()
      {:timeout, timer, :write} -> writer |> expired(timer) |> next() |> loop()
      :close -> close(writer)
      {:DOWN, ^monitor, :process, _owner, _reason} -> :ok
    end
  end

  defp with_timer(%{deadline: :infinity} = job), do: job

  defp with_timer(job),
    do: %{job | timer: :erlang.start_timer(job.deadline, self(), :write, abs: true)}

  defp enqueue(writer, job), do: %{writer | queue: :queue.in(job, writer.queue)}

  defp next(%{job: nil} = writer) do
    case :queue.out(writer.queue) do
      {:empty, _none} -> writer
      {{:value, {:shutdown, from}}, queue} -> shutdown(%{writer | queue: queue}, from)
      {{:value, job}, queue} -> go_on(%{writer | queue: queue, job: job})
    end
  end

  defp next(writer), do: writer

  defp shutdown(writer, from) do
    GenServer.reply(from, Pipe.close(writer.pipe))
    writer |> done() |> next()
  end

  # Room is told once, also for a job that has been given up meanwhile.
  defp go_on(%{job: nil} = writer), do: writer

  defp go_on(%{job: %{parts: []} = job} = writer), do: finish(writer, job, :ok)

  defp go_on(%{job: %{parts: [part | parts]} = job} = writer) do
    case Pipe.write_now(writer.pipe, part) do
      {:ok, written} ->
        left = byte_size(part) - written
        parts = if left == 0, do: parts, else: [binary_part(part, written, left) | parts]
        go_on(%{writer | job: %{job | parts: parts, written: job.written + written}})

      :again ->
        writer

      {:error, reason} ->
        finish(writer, job, {:error, reason})
    end
  end

  defp finish(writer, job, result) do
    answer(job, result)
    next(done(%{writer | job: nil}))
  end

  defp answer(job, result) do
    if job.timer, do: :erlang.cancel_timer(job.timer)
    Input.answer(job, result)
  end

  defp done(writer) do
    send(writer.owner, {Input, self(), :written})
    writer
  end

  defp expired(%{job: %{timer: timer} = job} = writer, timer) do
    Input.answer(job, {:error, :timeout})

    if job.whole? and job.written > 0,
      do: %{writer | job: %{job | from: nil, timer: nil}},
      else: done(%{writer | job: nil})
  end

  defp expired(writer, timer) do
    {late, others} = writer.queue |> :queue.to_list() |> Enum.split_with(&timed?(&1, timer))
    for job <- late, do: Input.answer(job, {:error, :timeout})
    Enum.reduce(late, %{writer | queue: :queue.from_list(others)}, fn _job, w -> done(w) end)
  end

  defp timed?(%{timer: timer}, timer), do: true
  defp timed?(_other_or_shutdown, _timer), do: false

  # The worker closes: nothing of all this will be written.
  defp close(writer) do
    for job <- [writer.job | :queue.to_list(writer.queue)] do
      case job do
        nil -> :ok
        {:shutdown, from} -> GenServer.reply(from, :ok)
        job -> answer(job, {:error, :closed})
      end
    end
  end
end

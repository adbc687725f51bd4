defmodule Snakepit.Worker.Readiness do
  @moduledoc false

  # Waits until a process that runs is of use: a line of its output, a port that accepts, its first
  # pong, or whatever a function says.
  #
  # The worker waits in here, in a `receive`, and not in its loop: until it is ready there is nothing
  # else for it to do but to notice that its process has ended, or that its supervisor wants it gone.

  alias Snakepit.{Guardian, HeartbeatMonitor}
  alias Snakepit.Worker.{Client, Notify, Output, Terminal}

  # How often to try a connection that is not accepted yet: nothing tells when it is.
  @probe_interval_ms 20
  # Output without lines that is searched for a pattern.
  @window_bytes 65_536

  @doc """
  `:ok` with the worker's output as it is then, or what came first: `{:exited, exit, tail}`,
  `:guardian_down`, `:timeout` or, if its client knows more, `{:timeout, what_it_waits_for}`, `{:crashed, reason}` for a
  function that did, `{:monitor, reason}` or `{:client, reason}` for the end of the heartbeat monitor or of the client,
  `{:fault, reason}` for output that it must not write, or `{:parent, reason}`.
  """
  def await(%{options: %{ready: nil}} = worker, _parent), do: {:ok, worker.output}

  def await(worker, parent) do
    deadline = System.monotonic_time(:millisecond) + worker.options.ready_timeout
    probe = start_probe(worker.options.ready, worker)
    answer = loop(%{worker: worker, parent: parent, probe: probe, deadline: deadline, seen: ""})
    end_probe(probe)
    answer
  end

  defp loop(%{worker: worker, parent: parent, probe: probe} = wait) do
    child_id = worker.child.id
    guardian = worker.guardian
    monitor = worker.monitor
    owner = worker.options.owner
    notify = worker.notify
    client = worker.client
    left = max(wait.deadline - System.monotonic_time(:millisecond), 0)

    receive do
      {:select, pipe, _tag, :ready_input} -> heard(wait, pipe)
      {HeartbeatMonitor, ^monitor, :first_pong} -> first_pong(wait)
      {Client, ^client, :ready} -> {:ok, worker.output}
      {:EXIT, ^client, reason} -> failed(wait, {:client, reason})
      {Notify, ^notify, :ready} -> notified(wait)
      {Notify, ^notify, {:extend, timeout}} -> loop(extend(wait, timeout))
      {:EXIT, ^notify, reason} -> failed(wait, {:monitor, reason})
      {:EXIT, ^probe, {:shutdown, :ready}} -> {:ok, worker.output}
      {:EXIT, ^probe, reason} -> failed(wait, {:crashed, reason})
      {:EXIT, ^monitor, reason} -> failed(wait, {:monitor, reason})
      {:EXIT, ^parent, reason} -> failed(wait, {:parent, reason})
      {:EXIT, ^owner, reason} -> failed(wait, {:parent, reason})
      {Guardian, ^child_id, {:exited, exit, tail}} -> failed(wait, {:exited, exit, tail})
      {Guardian, ^child_id, :guardian_down} -> failed(wait, :guardian_down)
      {:DOWN, ^guardian, :process, _server, _reason} -> failed(wait, :guardian_down)
    after
      left -> failed(wait, timeout(worker))
    end
  end

  defp timeout(worker) do
    case Client.pending(worker.options, worker.client) do
      nil -> :timeout
      pending -> {:timeout, pending}
    end
  end

  defp failed(wait, reason), do: {:error, reason, wait.worker.output}

  # It satisfies those who asked for it, and says nothing of a port or of a line of output.
  defp first_pong(%{worker: %{options: %{ready: :heartbeat}} = worker}), do: {:ok, worker.output}
  defp first_pong(wait), do: loop(wait)

  defp notified(%{worker: %{options: %{ready: :notify}} = worker}), do: {:ok, worker.output}
  defp notified(wait), do: loop(wait)

  defp extend(wait, timeout_ms) do
    needed = System.monotonic_time(:millisecond) + timeout_ms
    %{wait | deadline: max(wait.deadline, needed)}
  end

  # One that has closed its output may be ready all the same.
  defp heard(wait, pipe) do
    {packets, output} = Output.listen(wait.worker.output, pipe)
    unless_at_fault(put_in(wait.worker.output, output), &decide(&1, packets))
  end

  defp unless_at_fault(%{worker: %{output: %{fault: nil}}} = wait, go_on), do: go_on.(wait)
  defp unless_at_fault(wait, _go_on), do: failed(wait, {:fault, wait.worker.output.fault})

  defp decide(%{worker: %{options: %{ready: {:output, pattern}}} = worker} = wait, packets) do
    packets = if raw?(worker.options), do: [wait.seen <> Enum.join(packets)], else: packets

    if Enum.any?(packets, &(&1 =~ pattern)),
      do: {:ok, worker.output},
      else: loop(%{wait | seen: last(Enum.join(packets))})
  end

  defp decide(wait, _packets), do: loop(wait)

  # What is not cut into packets may come in any pieces.
  defp raw?(%{stdio: %Terminal{}}), do: true
  defp raw?(options), do: options.stdio == :pipe and options.packet in [nil, :raw]

  defp last(text) when byte_size(text) <= @window_bytes, do: text
  defp last(text), do: binary_part(text, byte_size(text) - @window_bytes, @window_bytes)

  # A process of its own knocks, so that a function that hangs does not keep the worker from its
  # deadline. Linked: it ends with the worker.
  defp start_probe({:tcp, port}, _worker), do: probe(fn -> connects?({127, 0, 0, 1}, port) end)
  defp start_probe({:unix, path}, _worker), do: probe(fn -> connects?({:local, path}, 0) end)
  defp start_probe(fun, _worker) when is_function(fun, 0), do: probe(fn -> ready?(fun.()) end)

  defp start_probe(fun, worker) when is_function(fun, 1) do
    info = %{id: worker.options.id, os_pid: worker.child.os_pid}
    probe(fn -> ready?(fun.(info)) end)
  end

  defp start_probe(_it_tells_by_itself, _worker), do: nil

  defp probe(fun), do: spawn_link(fn -> knock(fun) end)

  defp knock(fun) do
    if fun.() do
      exit({:shutdown, :ready})
    else
      receive do
      after
        @probe_interval_ms -> knock(fun)
      end
    end
  end

  defp ready?(answer), do: answer in [true, :ok] or match?({:ok, _}, answer)

  defp connects?(address, port) do
    case :gen_tcp.connect(address, port, [], 1_000) do
      {:ok, socket} -> :gen_tcp.close(socket) == :ok
      {:error, _not_yet} -> false
    end
  end

  defp end_probe(nil), do: :ok

  defp end_probe(probe) do
    Process.unlink(probe)
    Process.exit(probe, :kill)

    receive do
      {:EXIT, ^probe, _reason} -> :ok
    after
      0 -> :ok
    end
  end
end

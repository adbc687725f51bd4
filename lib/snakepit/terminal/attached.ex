defmodule Snakepit.Terminal.Attached do
  @moduledoc false

  # A person's terminal in front of a worker's: what is typed at the one goes to the other, and what the other shows is
  # shown here. It is a process of its own, which holds the terminal: whatever ends it, or ends its caller, the terminal
  # is closed and set to what it was, and whoever else reads it continues. If this BEAM is killed, the guardian sets it
  # to what it was.

  alias Snakepit.{Error, Guardian, Native, Pipe, Worker}
  alias Snakepit.Terminal.{DetachKey, Shell}
  alias Snakepit.Worker.Viewer

  # How often it is looked whether the window has another size.
  @look_ms 1_000

  # What a program may have left behind: another screen, colours, no cursor, marks around what is pasted, the mouse,
  # and another keypad.
  @calm "\e[?1047l\e[m\e[?25h\e[?2004l\e[?1000l\e[?1002l\e[?1003l\e[?1006l\e[?1l\e>"

  @enforce_keys [:tty, :worker, :watched, :caller, :typist, :key, :size]
  defstruct [:tty, :worker, :watched, :caller, :typist, :key, :size]

  @doc "Runs until the person leaves or the worker's process ends. Returns when the terminal is as it was."
  @spec run(pid(), Path.t(), binary()) :: {:ok, :detached | :ended} | {:error, Error.t()}
  def run(worker, path, key) do
    caller = self()
    {pid, monitor} = spawn_monitor(fn -> exit({:shutdown, hold(worker, path, key, caller)}) end)

    receive do
      {:DOWN, ^monitor, :process, ^pid, {:shutdown, answer}} -> answer
      {:DOWN, ^monitor, :process, ^pid, reason} -> {:error, Error.from_exit(reason)}
    end
  end

  # Order: the others stop reading before the terminal is raw, and read again when it is as it was.
  defp hold(worker, path, key, caller) do
    with {:ok, reader} <- Shell.suspend() do
      answer = with {:ok, tty} <- open(path), do: show(tty, worker, key, caller)
      Shell.continue(reader)
      answer
    end
  end

  defp open(path) do
    with {:ok, guard} <- Guardian.open_guard(), do: open(path, guard)
  end

  defp open(path, guard) do
    case Native.terminal_open(path, guard) do
      {:ok, tty} -> {:ok, tty}
      {:error, {:eperm, nil}} -> refuse(:eperm, "this BEAM does not run in the foreground of it")
      {:error, {reason, nil}} -> refuse(reason, "there is no terminal: #{Error.posix(reason)}")
    end
  end

  defp refuse(reason, detail),
    do: {:error, %Error{operation: :attach, reason: reason, detail: detail}}

  defp show(tty, worker, key, caller) do
    attached = %__MODULE__{
      tty: tty,
      worker: worker,
      watched: Process.monitor(worker),
      caller: Process.monitor(caller),
      typist: spawn_link(fn -> type(worker) end),
      key: DetachKey.new(key),
      size: nil
    }

    answer =
      with :ok <- Worker.terminal(worker, {:attach, self()}) do
        Pipe.read_later(tty)
        answer = attached |> fit() |> loop()
        Pipe.write(tty, @calm <> "\r\n", attached.caller)
        answer
      end

    Pipe.close(tty)
    answer
  end

  # A program that does not read keeps this one waiting, and not the person, who can still leave.
  defp type(worker) do
    receive do
      {:keys, keys} -> Worker.write(worker, keys)
    end

    type(worker)
  end

  defp loop(%{tty: tty, worker: worker, watched: watched, caller: caller} = attached) do
    receive do
      {:select, ^tty, _tag, :ready_input} -> typed(attached)
      {Viewer, ^worker, {:output, data}} -> written(attached, data)
      {Viewer, ^worker, :closed} -> {:ok, :ended}
      {:DOWN, ^watched, :process, _worker, _reason} -> {:ok, :ended}
      {:DOWN, ^caller, :process, _caller, _reason} -> {:ok, :detached}
      :look -> attached |> fit() |> loop()
    end
  end

  defp typed(attached) do
    case Pipe.read_now(attached.tty) do
      {:ok, data} -> attached |> pass(data)
      :again -> loop(attached)
      # Somebody has closed the window.
      :closed -> {:ok, :detached}
    end
  end

  defp pass(attached, data) do
    case DetachKey.filter(attached.key, data) do
      {:detach, _before} ->
        {:ok, :detached}

      {keys, key} ->
        if keys != "", do: send(attached.typist, {:keys, keys})
        # Order: behind what the worker has written meanwhile.
        Pipe.read_later(attached.tty)
        loop(%{attached | key: key})
    end
  end

  defp written(attached, data) do
    Pipe.write(attached.tty, data, attached.caller)
    send(attached.worker, {Snakepit.Worker.Terminal, {:seen, self(), byte_size(data)}})
    loop(attached)
  end

  # The worker's terminal gets the size of this one. Nothing tells of another size in all versions of OTP.
  defp fit(attached) do
    Process.send_after(self(), :look, @look_ms)

    case Native.terminal_modes(attached.tty) do
      {:ok, %{rows: rows, cols: cols}}
      when rows > 0 and cols > 0 and {rows, cols} != attached.size ->
        # Order: another size first. A program draws its screen anew only when the size has changed.
        if attached.size == nil, do: Worker.resize(attached.worker, rows + 1, cols)
        Worker.resize(attached.worker, rows, cols)
        %{attached | size: {rows, cols}}

      _the_same_or_unknown ->
        attached
    end
  end
end

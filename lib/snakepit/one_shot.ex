defmodule Snakepit.OneShot do
  @moduledoc false

  # `Snakepit.cmd/3` and `Snakepit.stream!/2`: a process that the caller itself owns, from start to end.
  #
  # There is no BEAM process in between. The caller's death closes the connection and ends the tree, as
  # for any owner; and the socket is read by the caller, so who does not read makes the process wait.

  alias Snakepit.{Command, Error, Guardian}
  alias Snakepit.Worker.{Launch, Lines, Tail}

  # Linux numbers, from 1: what a shell adds to 128.
  @signals ~w(sighup sigint sigquit sigill sigtrap sigabrt sigbus sigfpe sigkill sigusr1 sigsegv
              sigusr2 sigpipe sigalrm sigterm sigstkflt sigchld sigcont sigstop sigtstp sigttin
              sigttou sigurg sigxcpu sigxfsz sigvtalrm sigprof sigwinch sigio sigpwr sigsys)a

  # What an error shows of the output.
  @tail_bytes 4_000

  # What the tree of a program that has ended, or is interrupted, gets to end by itself.
  @stop_timeout 2_000

  @common [:input, stderr_to_stdout: false]

  @enforce_keys [:id, :child, :guardian, :socket]
  defstruct [:id, :child, :guardian, :socket, gone?: false]

  @doc false
  def cmd(program, args, opts) do
    {own, command_opts} = split!(opts, @common ++ [into: "", timeout: :infinity, max_output: nil])
    check!(own)

    unless is_binary(program) and is_list(args) do
      raise ArgumentError,
            "expected a program and a list of arguments, got: #{inspect(program)}, #{inspect(args)}"
    end

    command = Command.new!([cmd: [program | args]] ++ command_opts)

    # Before there is a process: opening it may fail.
    {acc, collector} = Collectable.into(own[:into])
    state = %{acc: acc, collector: collector, size: 0, tail: Tail.new(@tail_bytes)}

    case start(command, "cmd", own) do
      {:ok, shot} -> collect(shot, state, own)
      {:error, error} -> give_up(state, error)
    end
  end

  @doc false
  def stream!(argv, opts) do
    {own, command_opts} = split!(opts, @common ++ [packet: :raw])
    check!(own)
    command = Command.new!([cmd: argv] ++ command_opts)
    chunks = Stream.resource(fn -> start!(command, own) end, &next!/1, &discard/1)
    if own[:packet] == :line, do: lines(chunks), else: chunks
  end

  defp lines(chunks) do
    Stream.transform(
      chunks,
      fn -> "" end,
      fn data, rest -> Lines.split(rest, data) end,
      fn rest -> {if(rest == "", do: [], else: [rest]), ""} end,
      fn _rest -> :ok end
    )
  end

  defp start!(command, own) do
    case start(command, "stream", own) do
      {:ok, shot} -> shot
      {:error, error} -> raise error
    end
  end

  defp next!(shot) do
    case receive_packet(shot, :infinity) do
      {:ok, data} -> {[data], shot}
      {:error, :closed} -> {:halt, conclude!(shot)}
    end
  end

  # Order: the process has closed its output, and ends; how is known when it has.
  defp conclude!(shot) do
    case await_gone(shot, :infinity) do
      {:ok, 0} -> %{shot | gone?: true}
      {:ok, status} -> raise failure(:exit_status, status)
      {:error, error} -> raise error
    end
  end

  defp failure(reason, status),
    do: %Error{operation: :stream, reason: reason, detail: "ended with status #{status}"}

  defp start(command, prefix, own) do
    kind = if own[:stderr_to_stdout], do: :stream, else: :pipe
    id = Launch.unique_id(prefix)
    plan = %{id: id, command: command, stdio: {kind, :socket}, lifeline: false}

    with {:ok, launched} <- Launch.run(plan) do
      feed(launched.stdio, own[:input])
      %{child: child, guardian: guardian, stdio: socket} = launched
      {:ok, %__MODULE__{id: id, child: child, guardian: guardian, socket: socket}}
    end
  end

  # By a process of its own: whoever writes to a process that waits for its output to be read would
  # wait for ever. It ends with the connection, whoever closes that.
  defp feed(socket, nil), do: :socket.shutdown(socket, :write)

  defp feed(socket, input) do
    spawn(fn ->
      :socket.send(socket, input)
      :socket.shutdown(socket, :write)
    end)
  end

  defp collect(shot, state, own) do
    deadline = deadline(own[:timeout])

    try do
      {ended, state} = read(shot, state, deadline, own[:max_output] || :infinity)
      ended = if ended == :ok, do: await_gone(shot, left(deadline)), else: ended
      # Order: first, because collecting may take long or fail.
      discard(%{shot | gone?: match?({:ok, _status}, ended)})
      conclude(ended, state)
    catch
      kind, reason ->
        discard(shot)
        state.collector.(state.acc, :halt)
        :erlang.raise(kind, reason, __STACKTRACE__)
    end
  end

  defp read(shot, state, deadline, max) do
    case receive_packet(shot, left(deadline)) do
      {:ok, data} when state.size + byte_size(data) > max ->
        {{:error, %Error{operation: :cmd, reason: :max_output}}, state}

      {:ok, data} ->
        acc = state.collector.(state.acc, {:cont, data})
        size = state.size + byte_size(data)
        state = %{state | acc: acc, size: size, tail: Tail.add(state.tail, data)}
        read(shot, state, deadline, max)

      {:error, :closed} ->
        {:ok, state}

      {:error, :timeout} ->
        {{:error, %Error{operation: :cmd, reason: :timeout}}, state}
    end
  end

  defp conclude({:ok, status}, state), do: {state.collector.(state.acc, :done), status}

  defp conclude({:error, error}, state),
    do: give_up(state, %{error | output: Tail.content(state.tail)})

  defp give_up(state, error) do
    state.collector.(state.acc, :halt)
    {:error, error}
  end

  # A process that has not read all of its input leaves its connection reset, once all is read.
  defp receive_packet(%{socket: socket}, timeout) do
    case :socket.recv(socket, 0, [], timeout) do
      {:ok, data} -> {:ok, data}
      {:error, {:timeout, data}} when byte_size(data) > 0 -> {:ok, data}
      {:error, reason} when reason in [:timeout, {:timeout, ""}] -> {:error, :timeout}
      {:error, _closed} -> {:error, :closed}
    end
  end

  # How the process ended, once its whole tree has.
  defp await_gone(%{child: %{id: id}, guardian: guardian} = shot, timeout) do
    receive do
      {Guardian, ^id, {:exited, exit, _tail}} -> await_tree_gone(shot, exit, timeout)
      {Guardian, ^id, {:survivors, os_pids}} -> {:error, survivors(os_pids)}
      {Guardian, ^id, :guardian_down} -> {:error, guardian_down()}
      {:DOWN, ^guardian, :process, _server, _reason} -> {:error, guardian_down()}
    after
      timeout -> {:error, %Error{operation: :cmd, reason: :timeout}}
    end
  end

  # The guardian may be killed while it ends the rest: then nobody says that it is gone. What is left
  # when the time is up is killed; the program itself was in time.
  defp await_tree_gone(%{child: %{id: id}, guardian: guardian} = shot, exit, timeout) do
    receive do
      {Guardian, ^id, {:tree_gone, _killed}} -> {:ok, status(exit)}
      {Guardian, ^id, {:survivors, os_pids}} -> {:error, survivors(os_pids)}
      {Guardian, ^id, :guardian_down} -> {:error, guardian_down()}
      {:DOWN, ^guardian, :process, _server, _reason} -> {:error, guardian_down()}
    after
      timeout -> with :ok <- Launch.kill(shot.child), do: {:ok, status(exit)}
    end
  end

  defp survivors(os_pids), do: %Error{operation: :cmd, reason: :survivors, os_pids: os_pids}

  defp guardian_down, do: %Error{operation: :cmd, reason: :guardian_down}

  defp status(%{status: status}) when status != nil, do: status

  defp status(%{signal: signal}) do
    case Enum.find_index(@signals, &(&1 == signal)) do
      nil when is_integer(signal) -> 128 + signal
      index -> 128 + index + 1
    end
  end

  # Whether it has ended or not. One whose tree is gone needs no end, and no message of it is left.
  defp discard(shot) do
    unless shot.gone?, do: Launch.kill(shot.child)
    Process.demonitor(shot.guardian, [:flush])

    # By a process of its own: to close it waits for a thread of the BEAM's that does what may block, and
    # nobody waits for what comes of it.
    spawn(:socket, :close, [shot.socket])
    Launch.forget(shot.id, shot.child)
  end

  defp deadline(:infinity), do: :infinity
  defp deadline(timeout), do: System.monotonic_time(:millisecond) + timeout

  defp left(:infinity), do: :infinity
  defp left(deadline), do: max(deadline - System.monotonic_time(:millisecond), 0)

  defp split!(opts, own) do
    unless Keyword.keyword?(opts) do
      raise ArgumentError, "expected options as a keyword list, got: #{inspect(opts)}"
    end

    keys = for key <- own, do: if(is_atom(key), do: key, else: elem(key, 0))
    {given, rest} = Keyword.split(opts, keys)

    # These are what makes it a one-shot.
    with [key | _] <- for({key, _} <- rest, key in [:stdio, :lifeline], do: key) do
      raise ArgumentError, "unknown option #{inspect(key)}"
    end

    {Keyword.validate!(given, own), Keyword.put_new(rest, :stop_timeout, @stop_timeout)}
  end

  defp check!(own) do
    check!(own, :timeout, &(&1 == :infinity or (is_integer(&1) and &1 >= 0)), "milliseconds")
    check!(own, :max_output, &(is_nil(&1) or (is_integer(&1) and &1 >= 0)), "a number of bytes")
    check!(own, :stderr_to_stdout, &is_boolean/1, "true or false")
    check!(own, :packet, &(&1 in [:raw, :line]), ":raw or :line")
    check!(own, :input, &(is_nil(&1) or is_binary(&1) or is_list(&1)), "iodata")
  end

  defp check!(own, key, valid?, expected) do
    with {:ok, value} <- Keyword.fetch(own, key), false <- valid?.(value) do
      raise ArgumentError, "expected #{inspect(key)} to be #{expected}, got: #{inspect(value)}"
    end
  end
end

defmodule Snakepit.OneShot do
  @moduledoc false

  # A process that the caller itself owns, from start to end: what `Snakepit.Cmd` and
  # `Snakepit.OutputStream` are made of.
  #
  # There is no BEAM process in between. The caller's death closes the connection and ends the tree, as
  # for any owner; and the socket is read by the caller, so who does not read makes the process wait.

  alias Snakepit.{Command, Error, Guardian}
  alias Snakepit.Worker.Launch

  # What the tree of a program that has ended, or is interrupted, gets to end by itself.
  @stop_timeout 2_000

  @common [:input, stderr_to_stdout: false]

  @enforce_keys [:id, :operation, :child, :guardian, :socket]
  defstruct [:id, :operation, :child, :guardian, :socket, gone?: false]

  @type t :: %__MODULE__{
          id: String.t(),
          operation: atom(),
          child: Guardian.child(),
          guardian: reference(),
          socket: :socket.socket(),
          gone?: boolean()
        }

  @doc """
  Returns the options among `own`, with their defaults, and those of the command. Raises `ArgumentError`
  for what cannot be meant.
  """
  @spec split!(keyword(), keyword()) :: {keyword(), keyword()}
  def split!(opts, own) do
    own = @common ++ own

    unless Keyword.keyword?(opts) do
      raise ArgumentError, "expected options as a keyword list, got: #{inspect(opts)}"
    end

    own_keys = for key <- own, do: if(is_atom(key), do: key, else: elem(key, 0))
    # The streams and the program are the one-shot's own business.
    known = own_keys ++ (Map.keys(%Command{cmd: []}) -- [:__struct__, :cmd, :stdio, :lifeline])

    with [key | _] <- Keyword.keys(opts) -- known do
      raise ArgumentError,
            "unknown option #{inspect(key)}, expected one of #{inspect(Enum.sort(known))}"
    end

    {given, rest} = Keyword.split(opts, own_keys)
    own = Keyword.validate!(given, own)
    check!(own)
    {own, Keyword.put_new(rest, :stop_timeout, @stop_timeout)}
  end

  @doc "Starts a command for `operation`, which errors name."
  @spec start(Command.t(), atom(), keyword()) :: {:ok, t()} | {:error, Error.t()}
  def start(command, operation, own) do
    kind = if own[:stderr_to_stdout], do: :stream, else: :pipe
    id = Launch.unique_id(operation)
    plan = %{id: id, command: command, stdio: {kind, :socket}, lifeline: false}

    with {:ok, launched} <- Launch.run(plan) do
      feed(launched.stdio, own[:input])
      %{child: child, guardian: guardian, stdio: socket} = launched

      {:ok,
       %__MODULE__{
         id: id,
         operation: operation,
         child: child,
         guardian: guardian,
         socket: socket
       }}
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

  @doc "Returns the next piece of output, `:closed` when there is none any more, or `:timeout`."
  @spec read(t(), timeout()) :: {:ok, binary()} | :closed | :timeout
  def read(%{socket: socket}, timeout) do
    case :socket.recv(socket, 0, [], timeout) do
      {:ok, data} -> {:ok, data}
      {:error, {:timeout, data}} when byte_size(data) > 0 -> {:ok, data}
      {:error, reason} when reason in [:timeout, {:timeout, ""}] -> :timeout
      # A process that has not read all of its input leaves its connection reset, once all is read.
      {:error, _closed} -> :closed
    end
  end

  @doc """
  Returns how the process ended and the end of its standard error, once its whole tree is gone; `:timeout`
  if it has not ended by then.
  """
  @spec await_gone(t(), timeout()) ::
          {:exited, map(), binary()} | :timeout | {:error, Error.t()}
  def await_gone(%{child: %{id: id}, guardian: guardian} = shot, timeout) do
    receive do
      {Guardian, ^id, {:exited, exit, tail}} ->
        await_tree_gone(shot, {:exited, exit, tail}, timeout)

      {Guardian, ^id, {:survivors, os_pids}} ->
        {:error, survivors(shot, os_pids)}

      {Guardian, ^id, :guardian_down} ->
        {:error, guardian_down(shot)}

      {:DOWN, ^guardian, :process, _server, _reason} ->
        {:error, guardian_down(shot)}
    after
      timeout -> :timeout
    end
  end

  # The guardian may be killed while it ends the rest: then nobody says that it is gone. What is left
  # when the time is up is killed; the program itself was in time.
  defp await_tree_gone(%{child: %{id: id}, guardian: guardian} = shot, exited, timeout) do
    receive do
      {Guardian, ^id, {:tree_gone, _killed}} -> exited
      {Guardian, ^id, {:survivors, os_pids}} -> {:error, survivors(shot, os_pids)}
      {Guardian, ^id, :guardian_down} -> {:error, guardian_down(shot)}
      {:DOWN, ^guardian, :process, _server, _reason} -> {:error, guardian_down(shot)}
    after
      timeout -> with :ok <- Launch.kill(shot.child), do: exited
    end
  end

  defp survivors(shot, os_pids),
    do: %Error{operation: shot.operation, reason: :survivors, os_pids: os_pids}

  defp guardian_down(shot), do: %Error{operation: shot.operation, reason: :guardian_down}

  @doc """
  Lets go of a process, which is killed if it has not ended. One whose tree is gone needs no end, and no
  message of it is left.
  """
  @spec discard(t()) :: :ok | {:error, Error.t()}
  def discard(shot) do
    unless shot.gone?, do: Launch.kill(shot.child)
    Process.demonitor(shot.guardian, [:flush])

    # By a process of its own: to close it waits for a thread of the BEAM's that does what may block, and
    # nobody waits for what comes of it.
    spawn(:socket, :close, [shot.socket])
    Launch.forget(shot.id, shot.child)
  end

  defp check!(own) do
    check!(own, :timeout, &(&1 == :infinity or (is_integer(&1) and &1 >= 0)), "milliseconds")
    check!(own, :max_output, &(is_nil(&1) or (is_integer(&1) and &1 >= 0)), "a number of bytes")
    check!(own, :stderr_to_stdout, &is_boolean/1, "true or false")
    check!(own, :max_packet, &(is_integer(&1) and &1 > 0), "a number of bytes from 1")
    check!(own, :packet, &(&1 in [:raw, :line]), ":raw or :line")
    check!(own, :input, &(is_nil(&1) or is_binary(&1) or is_list(&1)), "iodata")
  end

  defp check!(own, key, valid?, expected) do
    with {:ok, value} <- Keyword.fetch(own, key), false <- valid?.(value) do
      raise ArgumentError, "expected #{inspect(key)} to be #{expected}, got: #{inspect(value)}"
    end
  end
end

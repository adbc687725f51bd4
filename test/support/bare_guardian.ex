defmodule Snakepit.Test.BareGuardian do
  @moduledoc """
  A guardian of its own, without `Snakepit.Guardian` in between: the caller is its BEAM, and may say
  anything to it.
  """

  import ExUnit.Assertions

  alias Snakepit.{Command, Native, RunID}
  alias Snakepit.Test.{Beam, Eventually, Family, ProcScan}

  defstruct [:port, :os_pid, :run_id, :directory, :token, buffer: ""]

  # The largest frame that it takes, and the largest that it leaves out: a longer one is none.
  @max_frame 16 * 1024 * 1024
  @max_skipped 4 * @max_frame

  @doc "Where the executable is."
  def executable, do: Application.app_dir(:snakepit, "priv/native/snakepit_guardian")

  @doc """
  Starts one, through `wrapper` if given: a program and the arguments that come before the
  guardian's own path. It has been told nothing yet.
  """
  def start(wrapper \\ []) do
    token = Family.token()
    # It ignores its arguments; what waits at its gate has the same.
    [program | arguments] = wrapper ++ [executable(), token]
    path = System.find_executable(program)
    options = [:binary, :exit_status, :nouse_stdio, args: arguments]
    port = Port.open({:spawn_executable, path}, options)
    # Gone already if it had nothing to wait for.
    os_pid = with {:os_pid, os_pid} <- Port.info(port, :os_pid), do: os_pid
    directory = Beam.temporary_directory()
    run_id = RunID.generate()
    %__MODULE__{port: port, os_pid: os_pid, run_id: run_id, directory: directory, token: token}
  end

  @doc "The greeting that it expects, as a message."
  def hello(guardian, changes \\ %{}) do
    hello = %{
      beam_pid: String.to_integer(System.pid()),
      run_id: guardian.run_id,
      run_directory: guardian.directory,
      grace_ms: 100,
      log_level: :debug,
      tail_bytes: 1_000,
      ahead: 1,
      first_id: 0
    }

    Native.wire_encode({:hello, Map.merge(hello, changes)})
  end

  @doc "What it is to do for a child that waits, as a message."
  def spawn_message(guardian, id, cmd, options \\ []) do
    {:ok, markers} = Native.marker_environment(guardian.run_id, "bare", "bare")
    {:ok, request} = Command.to_request(Command.new!([cmd: cmd] ++ options), markers)
    Native.wire_encode({:spawn, Map.merge(request, %{id: id, worker_id: "bare"})})
  end

  @doc "A message behind its length."
  def frame(message), do: <<byte_size(message)::32, message::binary>>

  @doc """
  Whether these bytes leave it waiting for the rest of a frame. If not, it has had all it needs to
  judge them.
  """
  def incomplete?(<<length::32, rest::binary>>) when length <= @max_skipped do
    left = byte_size(rest) - length
    left < 0 or incomplete?(binary_part(rest, length, left))
  end

  def incomplete?(bytes), do: bytes != "" and byte_size(bytes) < 4

  @doc "Writes bytes as they are. False if it has gone away before."
  def write(guardian, bytes) do
    Port.command(guardian.port, bytes)
  rescue
    ArgumentError -> false
  end

  @doc "Sends a message."
  def tell(guardian, request) when not is_binary(request),
    do: tell(guardian, Native.wire_encode(request))

  def tell(guardian, message), do: write(guardian, frame(message))

  @doc "Greets it, and runs a command in the child that it has ready. Gives the child's pid too."
  def run(guardian, cmd, options \\ []) do
    tell(guardian, hello(guardian))
    {{:welcome, _version, os_pid, _identity, _socket}, guardian} = event(guardian, :welcome)
    {{:ready, id, child, _identity}, guardian} = event(guardian, :ready)
    tell(guardian, spawn_message(guardian, id, cmd, options))
    tell(guardian, {:release, id})
    {{:started, ^id}, guardian} = event(guardian, :started)
    {%{guardian | os_pid: os_pid}, child}
  end

  @doc "The next event of this kind, others dropped; `{:exit_status, status}` if it ends instead."
  def event(guardian, kind) do
    case next(guardian) do
      {event, guardian} when elem(event, 0) in [kind, :exit_status] -> {event, guardian}
      {_other, guardian} -> event(guardian, kind)
    end
  end

  @doc "All events until it ends, and its exit status."
  def events_until_end(guardian, events \\ []) do
    case next(guardian) do
      {{:exit_status, status}, _guardian} -> {Enum.reverse(events), status}
      {event, guardian} -> events_until_end(guardian, [event | events])
    end
  end

  @doc "Goes away, as a BEAM does that dies, and waits for the guardian to end."
  def abandon(guardian) do
    # Order: who it is, as long as it is there.
    process = guardian.os_pid && ProcScan.stat(guardian.os_pid)
    close(guardian.port)
    Eventually.eventually(fn -> not ProcScan.running?(process) end)
  end

  # A guardian that ends closes the port from its side, at any moment.
  defp close(port) do
    Port.close(port)
  rescue
    ArgumentError -> true
  end

  @doc "The guardian and what waits at its gate, as far as they run."
  def remains(guardian), do: ProcScan.with_argument(guardian.token)

  @doc "Whether it ended in its own order, everything that it ran ended before it."
  def obituary?(guardian), do: File.exists?(Path.join(guardian.directory, "obituary"))

  defp next(%{buffer: <<length::32, frame::binary-size(length), rest::binary>>} = guardian) do
    {:ok, event} = Native.wire_decode(frame)
    {event, %{guardian | buffer: rest}}
  end

  defp next(%{port: port} = guardian) do
    receive do
      {^port, {:data, data}} -> next(%{guardian | buffer: guardian.buffer <> data})
      {^port, {:exit_status, status}} -> {{:exit_status, status}, guardian}
      # A write found it dead before the port could say how it died. To whoever traps exits.
      {:EXIT, ^port, :epipe} -> {{:exit_status, :epipe}, guardian}
    after
      20_000 -> flunk("the guardian neither answers nor ends")
    end
  end
end

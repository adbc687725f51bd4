defmodule Snakepit.Test.Beam do
  @moduledoc """
  A second BEAM with Snakepit in it, to be killed.

  It has a data directory of its own, and obeys as `Snakepit.Test.BeamPort` says. When its test is over
  it is killed, and the next test begins when it and its guardian are gone.
  """

  import ExUnit.Callbacks, only: [on_exit: 1]

  alias Snakepit.Test.{BeamPort, Eventually, ProcScan}

  defstruct [:port, :os_pid, :start, :data_dir, :mark]

  # How the judge knows the guardian of a BEAM that has died before it.
  @variable "BEAM_UNDER_TEST"

  @doc """
  Starts a BEAM and Snakepit in it; `config` is that of the application, `options` are those of
  `Snakepit.Test.BeamPort.open/2`.
  """
  def start(config \\ [], options \\ []), do: config |> launch(options) |> await_start()

  @doc """
  As `start/2`, without waiting for it to have started: it may not live that long.
  """
  def launch(config \\ [], options \\ []) do
    data_dir = Keyword.get_lazy(config, :data_dir, &temporary_directory/0)
    mark = {@variable, "#{System.pid()}.#{System.unique_integer([:positive])}"}
    options = Keyword.update(options, :env, [mark], &[mark | &1])
    port = BeamPort.open(Keyword.put(config, :data_dir, data_dir), options)
    {:os_pid, os_pid} = Port.info(port, :os_pid)
    outer = beam(%__MODULE__{port: port, data_dir: data_dir, mark: mark}, os_pid)
    on_exit(fn -> finish([outer], mark) end)
    outer
  end

  @doc "Waits until Snakepit has started in a BEAM that was launched."
  def await_start(outer) do
    :started = BeamPort.value(outer.port)
    # A wrapper may stay in front of what it has started.
    beam = beam(outer, Eventually.eventually(fn -> beam_below(outer.os_pid) end))
    on_exit(fn -> finish([beam, outer], outer.mark) end)
    beam
  end

  defp beam(beam, os_pid) do
    start = with %{start: start} <- ProcScan.stat(os_pid), do: start
    %{beam | os_pid: os_pid, start: start}
  end

  @doc "Evaluates code there and returns its value. For one expression; what is longer is a function, see `call/4`."
  def run(beam, code) do
    tell(beam, code)
    BeamPort.value(beam.port)
  end

  @doc """
  Calls a function there and returns its value. All modules of `test/support` are there, for example
  `Snakepit.Test.Programs`, and none of those in test files.
  """
  def call(beam, module, function, arguments \\ []) do
    tell(beam, {module, function, arguments})
    BeamPort.value(beam.port)
  end

  @doc "Evaluates code there, or calls `{module, function, arguments}`, without waiting for the value."
  def tell(beam, code_or_call), do: BeamPort.tell(beam.port, code_or_call)

  @doc "Sends a signal to the BEAM, by its own pid."
  def kill(beam, signal \\ "KILL") do
    # Until it is reaped the pid is its own, and after that the start time tells.
    case ProcScan.stat(beam.os_pid) do
      %{start: start} when start == beam.start ->
        System.cmd("kill", ["-#{signal}", "#{beam.os_pid}"], stderr_to_stdout: true)

      _gone ->
        :ok
    end
  end

  @doc "Kills the BEAM and its guardian at one instant, so that nobody is left to clean up."
  def kill_with_guardian(beam) do
    guardian = ProcScan.stat(run(beam, "Snakepit.Guardian.os_pid()"))
    # Stopped first: between two signals it would have the time to sweep up after the guardian.
    kill(beam, "STOP")
    Eventually.eventually(fn -> ProcScan.stat(beam.os_pid).state == "T" end)
    {_output, 0} = System.cmd("kill", ["-KILL", "#{guardian.os_pid}", "#{beam.os_pid}"])
    await_end(beam)
    Eventually.eventually(fn -> not ProcScan.running?(guardian) end)
  end

  @doc "Waits until the BEAM is gone, and its locks with it: they are there until its last thread has ended."
  def await_end(beam, timeout_ms \\ 30_000) do
    process = Map.take(beam, [:os_pid, :start])
    ended? = fn -> not ProcScan.running?(process) and ProcScan.threads(process) <= 1 end
    Eventually.eventually(ended?, timeout_ms)
  end

  @doc "The runs that are recorded in a data directory."
  def run_ids(data_dir) do
    for name <- Enum.sort(File.ls!(data_dir)), name =~ ~r/\A[0-9a-z]{7}\z/, do: name
  end

  def temporary_directory do
    path =
      Path.join(
        System.tmp_dir!(),
        "snakepit_test_#{System.unique_integer([:positive])}_#{System.pid()}"
      )

    File.mkdir_p!(path)
    # Whatever the umask is: a data directory that others may write to is not used itself.
    File.chmod!(path, 0o755)
    # Whoever is on its way out may still write a last file there.
    on_exit(fn -> Eventually.eventually(fn -> match?({:ok, _}, File.rm_rf(path)) end) end)
    path
  end

  # Whoever ended it: the guardian may still be at its work, or a child just told to go.
  defp finish(beams, {name, value}) do
    for beam <- beams, do: kill(beam)
    left = fn -> ProcScan.with_variable(name, value, ["beam.smp", "snakepit_guardi"]) end
    Eventually.eventually(fn -> left.() == [] end, 20_000)
  end

  defp beam_below(os_pid) do
    if ProcScan.name(os_pid) == "beam.smp" do
      os_pid
    else
      below = for %{os_pid: child, parent: ^os_pid} <- ProcScan.all(), do: child
      Enum.find_value(below, &beam_below/1)
    end
  end
end

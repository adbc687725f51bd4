defmodule Snakepit.Bench.SecondBeam do
  @moduledoc """
  Another BEAM, with Snakepit and a data directory of its own, that does what it is told.

  It ends when its standard input does, so it cannot outlive this one.
  """

  @enforce_keys [:port, :os_pid]
  defstruct [:port, :os_pid]

  @type t :: %__MODULE__{}

  @patience_ms 60_000
  @libraries ~w(bench spawning)

  @doc "Runs `fun` while it is there."
  @spec with_beam((t() -> value)) :: value when value: term()
  def with_beam(fun) do
    directory = Path.join(System.tmp_dir!(), "snakepit_bench_#{System.pid()}_#{unique()}")
    File.mkdir_p!(directory)
    beam = start(directory)

    try do
      fun.(beam)
    after
      stop(beam)
      File.rm_rf!(directory)
    end
  end

  @doc "Evaluates code there. Gives its value, which must be one that can be written down."
  @spec run(t(), String.t()) :: term()
  def run(beam, code) do
    Port.command(beam.port, Base.encode64(code) <> "\n")
    value(beam.port)
  end

  defp start(directory) do
    code = """
    Application.put_env(:snakepit, :data_dir, #{inspect(directory)})
    {:ok, _} = Application.ensure_all_started(:snakepit)
    IO.puts("value :started")
    for line <- IO.stream(:stdio, :line) do
      {value, _} = line |> String.trim() |> Base.decode64!() |> Code.eval_string()
      IO.puts("value " <> inspect(value, limit: :infinity))
    end
    """

    libraries = Enum.flat_map(@libraries, &["-r", Path.join(__DIR__, "#{&1}.ex")])
    arguments = ["-pa", Application.app_dir(:snakepit, "ebin")] ++ libraries ++ ["-e", code]
    elixir = System.find_executable("elixir")
    options = [:binary, :exit_status, line: 1_000_000, args: arguments]
    port = Port.open({:spawn_executable, elixir}, options)
    {:os_pid, os_pid} = Port.info(port, :os_pid)
    :started = value(port)
    %__MODULE__{port: port, os_pid: os_pid}
  end

  # Whether it was killed or not: its end of file and its exit status come from the same place.
  defp stop(%{port: port} = beam) do
    if Port.info(port), do: Port.command(port, Base.encode64("System.stop()") <> "\n")

    receive do
      {^port, {:exit_status, _status}} -> :ok
      {^port, {:data, _value}} -> stop(beam)
    after
      @patience_ms -> raise "the second BEAM does not end"
    end
  end

  defp value(port) do
    receive do
      {^port, {:data, {:eol, "value " <> value}}} -> value |> Code.eval_string() |> elem(0)
      {^port, {:data, _log}} -> value(port)
      {^port, {:exit_status, status}} -> raise "the second BEAM ended with status #{status}"
    after
      @patience_ms -> raise "the second BEAM does not answer"
    end
  end

  defp unique, do: System.unique_integer([:positive])
end

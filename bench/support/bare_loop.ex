defmodule Snakepit.Bench.BareLoop do
  @moduledoc """
  The least that starting and ending processes can cost: a Rust program that does nothing else.
  `native/snakepit_guardian/examples/bare_loop.rs` says what it does.
  """

  alias Snakepit.Bench.Spawning

  @patience_ms 60_000

  @doc "Has cargo build it, or takes what was built where there is no cargo. Gives the path."
  @spec build() :: Path.t()
  def build do
    # Where the compiler task has built everything that it needs already.
    target = Path.join(Path.dirname(Mix.Project.build_path()), "snakepit_native")
    arguments = ~w(build --release --locked --quiet --example bare_loop --target-dir #{target})
    path = Path.join(target, "release/examples/bare_loop")

    if System.find_executable("cargo") do
      {_output, 0} = System.cmd("cargo", arguments, into: IO.stream(:stderr, :line))
    end

    if File.exists?(path), do: path, else: raise("there is no #{path}, and no cargo to build it")
  end

  @doc """
  Starts that many processes one after the other, with `fork` and `exec` or with `posix_spawn`, and
  ends them. Gives how long each start took and how long killing and reaping all, in µs.
  """
  @spec start(Path.t(), :fork | :spawn, pos_integer()) :: %{started: [float()], killed: float()}
  def start(path, way, count) do
    [program, argument] = Spawning.command()
    {output, 0} = System.cmd(path, ["#{way}", "#{count}", program, argument])
    lines = for line <- String.split(output, "\n", trim: true), do: String.split(line)
    [killed] = for ["killed", ns] <- lines, do: us(ns)
    %{started: for(["started", ns] <- lines, do: us(ns)), killed: killed}
  end

  @doc "Kills `victim` with SIGKILL. Gives the µs until the last of `others` is gone and reaped."
  @spec kill_and_watch(Path.t(), pos_integer(), [pos_integer()]) :: float()
  def kill_and_watch(path, victim, others) do
    options = [:binary, :exit_status, line: 80, args: ["watch"]]
    port = Port.open({:spawn_executable, path}, options)
    Port.command(port, Enum.join([victim | others], " ") <> "\n")
    "watching" = answer(port)
    Port.command(port, "now\n")
    "gone " <> ns = answer(port)
    us(ns)
  end

  defp answer(port) do
    receive do
      {^port, {:data, {:eol, line}}} -> line
      {^port, {:exit_status, status}} -> raise "bare_loop ended with status #{status}"
    after
      @patience_ms -> raise "bare_loop does not answer"
    end
  end

  defp us(ns), do: String.to_integer(ns) / 1000
end

defmodule Snakepit.Test.Family do
  @moduledoc """
  A worker with descendants of every kind, and how the judge knows them again.
  """

  alias Snakepit.{Command, Guardian}
  alias Snakepit.Test.{Beam, Eventually, Program, ProcScan, Workers}

  @doc "A duration that nobody else sleeps for."
  def token, do: "86400.#{System.unique_integer([:positive])}#{System.pid()}"

  @doc """
  A shell script: a leader, a child in its group, a child in a session of its own, and a daemon that
  forked twice and has an empty environment. Four of them sleep for `token`.
  """
  def script(token) do
    sleep = "sleep #{token}"
    "#{sleep} & setsid #{sleep} & (env -i setsid #{sleep} &) ; #{sleep}"
  end

  @doc "What of a family runs, by its token alone."
  def members(token), do: ProcScan.with_argument(token)

  @doc "The same program, started by somebody else. To be alive at the end of every test."
  def bystanders do
    token = token()
    for _ <- 1..3, do: Program.start("sleep", [token])
  end

  @doc "Starts one as a registered worker of a second BEAM. Returns its token when all of it runs."
  def start(beam, id \\ "family") do
    token = token()

    {:ok, _child} = Beam.call(beam, Workers, :start, [id, ["sh", "-c", script(token)]])
    await(token)
    token
  end

  @doc """
  Waits until all of a family sleep. One that has yet to execute `sleep` shows no arguments for a moment
  while it does.
  """
  def await(token) do
    sleeps? = fn os_pid ->
      match?({:ok, "sleep" <> _}, File.read("/proc/#{os_pid}/cmdline"))
    end

    Eventually.eventually(fn -> Enum.count(members(token), sleeps?) == 4 end)
  end

  @doc "For the second BEAM: starts a family below an owner that lives on. Returns the child."
  def launch(token) do
    command = Command.new!(cmd: ["sh", "-c", script(token)])
    asker = self()
    spawn(fn -> own(asker, command) end)

    receive do
      {:family, child} -> child
    after
      30_000 -> :no_family
    end
  end

  defp own(asker, command) do
    {:ok, child} = Guardian.spawn(command, worker_id: "family")
    :ok = Guardian.release(child)
    send(asker, {:family, child})
    receive(do: (:never -> :ok))
  end
end

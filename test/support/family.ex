defmodule Snakepit.Test.Family do
  @moduledoc """
  A worker with descendants of every kind, and how the judge knows them again.
  """

  alias Snakepit.Test.{Beam, Eventually, Program, ProcScan}

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

  @doc "Starts one as a registered worker of a second BEAM. Gives its token when all of it runs."
  def start(beam, id \\ "family") do
    token = token()

    {:ok, _os_pid} =
      Beam.run(beam, """
      with {:ok, child} <- Snakepit.Test.Workers.start(#{inspect(id)}, ["sh", "-c", #{inspect(script(token))}]),
           do: {:ok, child.os_pid}
      """)

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

  @doc """
  Code for a second BEAM: starts a family below an owner that lives on, and gives the child.
  """
  def start_code(token, options \\ []) do
    """
    command = Snakepit.Command.new!([cmd: ["sh", "-c", #{inspect(script(token))}]] ++ #{inspect(options)})
    asker = self()

    spawn(fn ->
      {:ok, child} = Snakepit.Guardian.spawn(command, worker_id: "family")
      :ok = Snakepit.Guardian.release(child)
      send(asker, {:family, child})
      receive do :never -> :ok end
    end)

    receive do {:family, child} -> child after 30_000 -> :no_family end
    """
  end
end

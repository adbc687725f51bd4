# Starts workers that carry a run id and two that only look like it, finds the workers among all
# processes of this machine, ends them, and asks /proc who is left.

alias Snakepit.{Native, OSProcess, ProcessKiller, RunID}

defmodule Demo do
  def start(environment, arguments) do
    environment = for {name, value} <- environment, do: {to_charlist(name), to_charlist(value)}
    script = "sleep 600 & echo started; wait"
    options = [:binary, args: ["-c", script, "worker" | arguments], env: environment]
    port = Port.open({:spawn_executable, "/bin/sh"}, options)
    receive(do: ({^port, {:data, "started\n"}} -> :ok))
    {:os_pid, os_pid} = Port.info(port, :os_pid)
    os_pid
  end

  def running?(os_pid) do
    case File.read("/proc/#{os_pid}/stat") do
      {:ok, line} -> not (line =~ ") Z ")
      {:error, _gone} -> false
    end
  end

  def milliseconds(fun) do
    {microseconds, result} = :timer.tc(fun)
    {Float.round(microseconds / 1000, 1), result}
  end
end

run_id = RunID.generate()
IO.puts("This run is #{run_id}.\n")

workers =
  for number <- 1..4 do
    {:ok, markers} = Native.marker_environment(run_id, "worker-#{number}", "demo")
    Demo.start(markers, [])
  end

workers = [Demo.start([], ["--run-id", run_id]) | workers]

strangers = [
  Demo.start([{"SNAKEPIT_RUN_ID", run_id <> "x"}], []),
  Demo.start([], ["--note=about --run-id #{run_id}"])
]

IO.puts("Started 5 workers, each with a child:    #{inspect(workers)}")
IO.puts("Started 2 strangers that look like them: #{inspect(strangers)}\n")

{time, {:ok, found}} = Demo.milliseconds(fn -> ProcessKiller.find_by_run_id(run_id) end)
IO.puts("Found #{length(found)} processes of this run in #{time} ms:")

for process <- found do
  {:ok, command} = ProcessKiller.get_process_command(process)
  IO.puts("  #{String.pad_leading(to_string(process.os_pid), 8)}  #{command}")
end

{time, {:ok, ended}} = Demo.milliseconds(fn -> ProcessKiller.kill_by_run_id(run_id) end)
IO.puts("\nEnded #{ended} processes, workers and their children, in #{time} ms.")

survivors = Enum.count(found, &Demo.running?(&1.os_pid)) + Enum.count(workers, &Demo.running?/1)
untouched = Enum.count(strangers, &Demo.running?/1)
IO.puts("Strangers still running: #{untouched} of #{length(strangers)}")
IO.puts("survivors=#{survivors}")

for os_pid <- strangers, {:ok, stranger} <- [OSProcess.lookup(os_pid)] do
  :ok = ProcessKiller.kill_process_group_with_escalation(stranger)
end

unless survivors == 0 and untouched == length(strangers), do: System.halt(1)

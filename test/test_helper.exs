# What needs root, and says so where it is not to be had.
excluded =
  if File.stat!("/proc/self").uid == 0 do
    []
  else
    IO.puts("Not root: tests tagged :root (other users, forced pids) are skipped.")
    [:root]
  end

# Nothing that the suite started may outlive it. The judge reads /proc itself. What the last test
# has killed may still be on its way out, so it has a moment.
ExUnit.after_suite(fn _result ->
  alias Snakepit.Test.{Eventually, ProcScan}
  left = fn -> ProcScan.descendants(String.to_integer(System.pid())) end

  unless Eventually.eventually?(fn -> left.() == [] end, 5_000) do
    IO.puts(:stderr, "The suite left processes behind:")
    for os_pid <- left.(), do: IO.puts(:stderr, "  #{os_pid} #{ProcScan.command(os_pid)}")
    System.halt(1)
  end
end)

ExUnit.start(exclude: excluded, capture_log: true)

# What needs root, and says so where it is not to be had.
root =
  if File.stat!("/proc/self").uid == 0 do
    []
  else
    IO.puts("Not root: tests tagged :root (other users, forced pids) are left out.")
    [:root]
  end

# What takes long is for `script/test`, and for whoever names a file.
long =
  if Enum.any?(System.argv(), &(&1 =~ "_test.exs")) or "long" in System.argv() do
    []
  else
    IO.puts("Tests tagged :long are left out: script/test runs them, and so does --include long.")
    [:long]
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

# A message that comes late is not one that does not come: the default, 100 ms, is less than what a
# machine with other work takes for a process to start.
ExUnit.start(
  exclude: root ++ long,
  capture_log: true,
  assert_receive_timeout: 20_000,
  formatters: [ExUnit.CLIFormatter, Snakepit.Test.Skips]
)

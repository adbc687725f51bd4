# What needs root, and says so where it is not to be had.
excluded =
  if File.stat!("/proc/self").uid == 0 do
    []
  else
    IO.puts("Not root: tests tagged :root (other users, forced pids) are skipped.")
    [:root]
  end

# Nothing that the suite started may outlive it. The judge reads /proc itself.
ExUnit.after_suite(fn _result ->
  case Snakepit.Test.ProcScan.descendants(String.to_integer(System.pid())) do
    [] ->
      :ok

    survivors ->
      IO.puts(:stderr, "The suite left processes behind: #{inspect(survivors)}")
      System.halt(1)
  end
end)

ExUnit.start(exclude: excluded, capture_log: true)

for name <- ~w(bench herd report runner), do: Code.require_file("#{name}.ex", __DIR__)

[caller | arguments] = System.argv()
exit({:shutdown, Snakepit.Bench.Runner.main(arguments, caller)})

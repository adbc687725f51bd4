Code.require_file("../../test/support/beam_port.ex", __DIR__)

for name <-
      ~w(verdict bench turns operations usage spawning bare_loop herd second_beam nodes ports dead_runs json machine
         report baseline plots runner) do
  Code.require_file("#{name}.ex", __DIR__)
end

[caller | arguments] = System.argv()
exit({:shutdown, Snakepit.Bench.Runner.main(arguments, caller)})

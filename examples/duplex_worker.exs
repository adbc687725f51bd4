# Many requests at a time with one Python process, which answers them in any order: each packet begins with a tag of
# four bytes, which Snakepit adds and takes away again.
# Run it with: mix run examples/duplex_worker.exs

{:ok, worker} =
  Snakepit.Worker.start_link(
    cmd: ["python3", Path.join(__DIR__, "duplex_worker.py")],
    stdio: :pipe,
    packet: 4,
    tag: {:bytes, 4},
    in_flight: 16
  )

ask = fn milliseconds ->
  {:ok, answer} = Snakepit.Worker.request(worker, "#{milliseconds}")
  IO.puts(answer)
end

# The slowest first; all of them together take as long as that one.
[900, 500, 100] |> Task.async_stream(ask, max_concurrency: 3) |> Stream.run()
:ok = Snakepit.Worker.stop(worker)
IO.puts("left behind: #{length(Snakepit.workers())}")

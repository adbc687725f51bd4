# Programs that read what others write, with files at both ends: gigabytes pass in constant memory, because each
# program waits for the next one.
# Run it with: mix run examples/pipeline.exs

directory = Path.join(System.tmp_dir!(), "snakepit-pipeline-#{System.os_time()}")
File.mkdir_p!(directory)
plain = Path.join(directory, "numbers")
packed = Path.join(directory, "numbers.gz")

["seq", "1000000"] |> Snakepit.stream!() |> Stream.into(File.stream!(plain)) |> Stream.run()

["gzip"]
|> Snakepit.stream!(input: File.stream!(plain, [], 65_536))
|> Stream.into(File.stream!(packed))
|> Stream.run()

unpacked = Snakepit.stream!(["gzip", "-dc"], input: File.stream!(packed, [], 65_536))
nines = Snakepit.stream!(["grep", "99"], input: unpacked, packet: :line)

IO.inspect(Enum.take(nines, 3), label: "the first numbers with two nines")
{count, 0} = Snakepit.cmd("wc", ["-l"], input: nines)
IO.puts("how many there are: #{String.trim(count)}")
IO.puts("left behind: #{length(Snakepit.workers())}")
File.rm_rf!(directory)

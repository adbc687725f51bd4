# What guides/recipes.md shows of ffmpeg: the progress of a conversion, and a recording that is whole when it is stopped.
# Run it with: mix run examples/recipes/ffmpeg.exs

if System.find_executable("ffmpeg") do
  directory = Path.join(System.tmp_dir!(), "ffmpeg-#{System.pid()}")
  File.mkdir_p!(directory)
  source = ["-f", "lavfi", "-i", "testsrc=size=160x120:rate=10"]
  clip = Path.join(directory, "clip.mp4")

  convert =
    ["ffmpeg", "-nostdin", "-loglevel", "error", "-progress", "pipe:1"] ++
      source ++ ["-t", "2", clip]

  times =
    for "out_time_us=" <> time <- Snakepit.stream!(convert, packet: :line, timeout: 120_000),
        {microseconds, "\n"} <- [Integer.parse(time)],
        do: microseconds

  IO.puts("converted: #{List.last(times) > 1_000_000}")

  recording = Path.join(directory, "recording.mp4")

  {:ok, recorder} =
    Snakepit.Worker.start_link(
      cmd: ["ffmpeg", "-nostdin", "-loglevel", "error", "-re"] ++ source ++ [recording],
      ready: fn -> match?({:ok, %{size: size}} when size > 0, File.stat(recording)) end,
      ready_timeout: 60_000,
      stop_signal: :sigint,
      stop_timeout: 30_000,
      kill_mode: :leader
    )

  :ok = Snakepit.Worker.stop(recorder)
  show = ["-v", "error", "-show_entries", "format=format_name", "-of", "csv=p=0", recording]
  {:ok, probe} = Snakepit.run("ffprobe", show, timeout: 60_000)
  IO.puts("recorded: #{String.trim(probe.stdout)}")
  File.rm_rf!(directory)
  IO.puts("left behind: #{length(Snakepit.workers())}")
else
  IO.puts("skipped: there is no ffmpeg")
end

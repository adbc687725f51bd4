# What guides/recipes.md shows of Chrome: a page as PDF, and a browser that stays, for programs that drive it.
# Run it with: mix run examples/recipes/chrome.exs

chrome = Enum.find_value(~w(chromium google-chrome chrome), &System.find_executable/1)

if chrome do
  directory = Path.join(System.tmp_dir!(), "chrome-#{System.pid()}")
  page = "data:text/html,<h1>Hello</h1>"

  # Chrome refuses to run as root with its sandbox. Do not run it as root where it sees pages of others.
  root? = File.stat!("/proc/self").uid == 0

  flags =
    ["--headless", "--disable-gpu", "--no-first-run"] ++ if(root?, do: ["--no-sandbox"], else: [])

  pdf = Path.join(directory, "page.pdf")
  profile = "--user-data-dir=#{Path.join(directory, "once")}"

  {:ok, _result} =
    Snakepit.run(chrome, flags ++ [profile, "--print-to-pdf=#{pdf}", page],
      timeout: 120_000,
      success: [0]
    )

  IO.puts("a PDF: #{File.open!(pdf, [:read], &IO.binread(&1, 5)) == "%PDF-"}")

  profile = Path.join(directory, "browser")

  # Chrome writes there where it listens. What an earlier one has left there leads to nobody.
  connect = fn ->
    with {:ok, text} <- File.read(Path.join(profile, "DevToolsActivePort")),
         [port, "/devtools/" <> _path] <- String.split(text, "\n"),
         do: :gen_tcp.connect({127, 0, 0, 1}, String.to_integer(port), active: false)
  end

  {:ok, browser} =
    Snakepit.Worker.start_link(
      cmd: [chrome | flags] ++ ["--user-data-dir=#{profile}", "--remote-debugging-port=0"],
      ready: fn -> with {:ok, socket} <- connect.(), do: :gen_tcp.close(socket) end,
      ready_timeout: 120_000,
      kill_mode: :mixed,
      stop_timeout: 10_000
    )

  {:ok, usage} = Snakepit.Worker.usage(browser)
  IO.puts("several processes: #{usage.processes > 2}")
  :ok = Snakepit.Worker.stop(browser)
  File.rm_rf!(directory)
  IO.puts("left behind: #{length(Snakepit.workers())}")
else
  IO.puts("skipped: there is no Chrome")
end

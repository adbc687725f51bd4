# The pictures of the dashboard: of an application in a BEAM of its own, whose last run was killed.

defmodule Screenshots do
  alias Snakepit.Test.{BeamPort, Browser, Eventually}

  @scene Path.expand("lib/dashboard_scene.ex", __DIR__)
  @fixtures Path.expand("../test/fixtures", __DIR__)
  # More than a PNG beside a text should have.
  @most_bytes 200_000
  # So that the charts have something to show.
  @past_ms 60_000

  # Name, size, colour scheme, what is shown, pixels per point.
  @pictures [
    {"dashboard-light", {1280, 800}, "light", "now", 1},
    {"dashboard-dark", {1280, 800}, "dark", "now", 1},
    {"dashboard-worker", {1180, 740}, "light", "worker=transcoder", 1},
    {"dashboard-history", {1280, 640}, "light", "history", 1},
    {"dashboard-phone", {390, 760}, "dark", "now", 1.5}
  ]

  def run(directory) do
    if missing = Browser.missing(), do: stop("screenshots: it #{missing}")
    place = Path.join(System.tmp_dir!(), "shop-#{System.pid()}")
    File.mkdir_p!(Path.join(place, "data"))

    try do
      crash(place)
      scene = open(place)
      url = call(scene, :start, [@fixtures])
      browser = Browser.start(place)
      Browser.open(browser, url)
      wait(@past_ms)
      for picture <- @pictures, do: take(browser, picture, directory)
      Browser.stop(browser)
      Port.close(scene)
    after
      File.rm_rf!(place)
    end
  end

  # The run before: five workers, and a BEAM that gets `kill -9`.
  defp crash(place) do
    beam = open(place)
    call(beam, :start_doomed, [])
    {:os_pid, os_pid} = Port.info(beam, :os_pid)
    {_output, 0} = System.cmd("kill", ["-KILL", "#{os_pid}"])
    Eventually.eventually(fn -> Path.wildcard(place <> "/data/*/obituary") != [] end)
  end

  defp open(place) do
    config = [data_dir: Path.join(place, "data"), watchdog: [grace_period_ms: 1_500]]
    beam = BeamPort.open(config, libraries: [@scene], cd: place)
    :started = BeamPort.value(beam)
    beam
  end

  # The module is there, and not here.
  defp call(beam, function, arguments) do
    BeamPort.tell(beam, {:"Elixir.DashboardScene", function, arguments})
    BeamPort.value(beam)
  end

  defp take(browser, {name, {width, height}, scheme, view, scale}, directory) do
    Browser.look(browser, width, height, scheme, scale)
    Browser.run(browser, "location.hash = arguments[0]; scrollTo(0, 0)", [view])
    if view == "history", do: open_newest(browser)
    # Two looks of the page, so that nothing is drawn half.
    wait(2_500)
    path = Path.join(directory, name <> ".png")
    picture = Browser.picture(browser)
    File.write!(path, picture)
    size = byte_size(picture)
    IO.puts("#{path}: #{div(size, 1000)} kB")
    if size > @most_bytes, do: stop("screenshots: that is more than #{div(@most_bytes, 1000)} kB")
  end

  defp open_newest(browser) do
    Browser.await(browser, "document.querySelector('.run-entry summary') !== null")
    Browser.run(browser, "document.querySelector('.run-entry').open = true")
    Browser.await(browser, "document.querySelector('.timeline') !== null")
  end

  defp wait(ms), do: receive(do: (:never -> :ok), after: (ms -> :ok))

  defp stop(sentence) do
    IO.puts(:stderr, sentence)
    System.halt(1)
  end
end

[directory] = System.argv()
{:ok, _started} = Application.ensure_all_started(:snakepit)
Screenshots.run(directory)

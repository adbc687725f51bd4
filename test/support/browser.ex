defmodule Snakepit.Test.Browser do
  @moduledoc """
  A real Chromium without a screen, and what a person can do with it. It is driven by ChromeDriver, over the protocol of
  WebDriver.

  ChromeDriver is a worker: it ends with the process that has started it, and takes along all that Chromium consists of.
  """

  alias Snakepit.Bench.JSON
  alias Snakepit.Test.Eventually
  alias Snakepit.Worker

  # A browser takes long to start where there is other work.
  @patience_ms 120_000
  @element "element-6066-11e4-a52e-4f735466cecf"
  # By the browser itself, without a word of the user's.
  @quiet ~w(--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking) ++
           ~w(--disable-dev-shm-usage --hide-scrollbars --force-color-profile=srgb)

  @doc "Says why there is no browser here; `nil` if there is one."
  def missing do
    lacking = for name <- ~w(chromium chromedriver), System.find_executable(name) == nil, do: name
    if lacking != [], do: "needs #{Enum.join(lacking, " and ")}"
  end

  @doc "Starts a browser with its files in a directory. Returns its session."
  def start(directory) do
    {:ok, _started} = Application.ensure_all_started(:inets)

    {:ok, driver} =
      Worker.start_link(
        id: "chromedriver-#{System.unique_integer([:positive])}",
        cmd: [System.find_executable("chromedriver"), "--port=0"],
        env: %{"HOME" => directory, "TMPDIR" => directory},
        output: {:send, self()},
        ready: {:output, "started successfully"},
        ready_timeout: @patience_ms,
        stop_timeout: 0
      )

    base = "http://127.0.0.1:#{port()}"

    options = %{
      "args" => @quiet ++ ["--user-data-dir=#{directory}/profile"],
      "binary" => System.find_executable("chromium")
    }

    capabilities = %{
      "browserName" => "chrome",
      "goog:chromeOptions" => options,
      "goog:loggingPrefs" => %{"browser" => "ALL"}
    }

    asked = %{"capabilities" => %{"alwaysMatch" => capabilities}}
    %{"sessionId" => id} = ask(:post, base <> "/session", asked)
    %{url: "#{base}/session/#{id}", driver: driver}
  end

  defp port do
    receive do
      {Worker, _id, {:output, line}} ->
        case Regex.run(~r/started successfully on port (\d+)/, line) do
          [_all, port] -> port
          nil -> port()
        end
    after
      @patience_ms -> raise "ChromeDriver has not said its port"
    end
  end

  @doc "Ends a browser."
  def stop(browser), do: Worker.stop(browser.driver)

  @doc "Opens a URL, and returns when the page is loaded."
  def open(browser, url), do: ask(:post, browser.url <> "/url", %{"url" => url})

  @doc "The URL that is in the address bar."
  def url(browser), do: ask(:get, browser.url <> "/url")

  @doc "Runs JavaScript in the page, the body of a function, and returns what that returns."
  def run(browser, script, arguments \\ []),
    do: ask(:post, browser.url <> "/execute/sync", %{"script" => script, "args" => arguments})

  @doc "Waits until an expression of JavaScript is true in the page, and returns its value."
  def await(browser, expression, timeout_ms \\ 30_000),
    do: Eventually.eventually(fn -> run(browser, "return #{expression}") end, timeout_ms)

  @doc "The text that a person sees of an element."
  def text(browser, selector),
    do: ask(:get, "#{browser.url}/element/#{element(browser, selector)}/text")

  @doc "Clicks at an element as a person does: it has to be in sight, with nothing in front of it."
  def click(browser, selector),
    do: ask(:post, "#{browser.url}/element/#{element(browser, selector)}/click", %{})

  @doc "Types into an element."
  def type(browser, selector, text),
    do:
      ask(:post, "#{browser.url}/element/#{element(browser, selector)}/value", %{"text" => text})

  @doc "What the browser has written to its console since the last time: errors, and what it has refused to load."
  def console(browser), do: ask(:post, browser.url <> "/se/log", %{"type" => "browser"})

  @doc "Takes on a width and height in pixels, and a colour scheme."
  def look(browser, width, height, scheme, scale \\ 1) do
    devtools(browser, "Emulation.setDeviceMetricsOverride", %{
      "width" => width,
      "height" => height,
      "deviceScaleFactor" => scale,
      "mobile" => width < 600
    })

    feature = %{"name" => "prefers-color-scheme", "value" => scheme}
    devtools(browser, "Emulation.setEmulatedMedia", %{"features" => [feature]})
  end

  @doc "A picture of what is in sight, as PNG."
  def picture(browser), do: Base.decode64!(ask(:get, browser.url <> "/screenshot"))

  defp devtools(browser, command, parameters) do
    ask(:post, browser.url <> "/goog/cdp/execute", %{"cmd" => command, "params" => parameters})
  end

  defp element(browser, selector) do
    asked = %{"using" => "css selector", "value" => selector}
    %{@element => id} = ask(:post, browser.url <> "/element", asked)
    id
  end

  defp ask(method, url, body \\ nil) do
    url = String.to_charlist(url)
    json = body && body |> Snakepit.JSON.encode() |> IO.iodata_to_binary()
    request = if body, do: {url, [], ~c"application/json", json}, else: {url, []}
    options = [timeout: @patience_ms]

    # Not by name: the application does not depend on inets.
    {:ok, {{_version, status, _phrase}, _headers, answer}} =
      apply(:httpc, :request, [method, request, options, [body_format: :binary]])

    case JSON.decode!(answer) do
      %{"value" => value} when status == 200 -> value
      %{"value" => error} -> raise "the browser refused: #{error["error"]}: #{error["message"]}"
    end
  end
end

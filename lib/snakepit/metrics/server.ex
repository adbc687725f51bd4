defmodule Snakepit.Metrics.Server do
  alias Snakepit.{Options, WebServer}
  alias Snakepit.Metrics.Endpoint

  @schema [
    port: [
      type: {:integer, 0, 65_535},
      default: 9568,
      doc: "where to listen; 0 for any port that is free, see `port/1`"
    ],
    ip: [
      type: {:custom, &WebServer.address?/1, "an IP address as a tuple"},
      default: {127, 0, 0, 1},
      doc: "the address to listen at; `{0, 0, 0, 0}` for all that this host has"
    ],
    path: [
      type: {:custom, &__MODULE__.path?/1, "a path that begins with a slash"},
      default: "/metrics",
      doc: "where the metrics are; everything else is not found"
    ],
    name: [type: :name, default: nil, doc: "a name, as for `GenServer`"]
  ]

  @moduledoc """
  Serves `Snakepit.Metrics.text/1` to Prometheus, with the web server of OTP.

      children = [{Snakepit.Metrics.Server, port: 9568}]

  It listens on the loopback address unless told otherwise. Whoever can reach the address can read the metrics: names of
  groups and pools are in them, but no arguments, environment or output. Start `Snakepit.Metrics` too, or set it in the
  configuration; until then the answer is status 503.

  Prometheus gets OpenMetrics, and whoever does not ask for that gets the older text format.

  ## Options

  #{Options.docs(@schema)}

  ## What it needs

  The application `:inets` of OTP. It has to be in the `:extra_applications` of your application, since releases and Mix
  since Elixir 1.15 leave out what nobody lists. Debian has it in a package of its own, `erlang-inets`. The start of the
  server fails with a `Snakepit.Error` if it is missing, and if the address or port cannot be had.
  """

  @doc "Returns a child specification."
  @spec child_spec(keyword()) :: Supervisor.child_spec()
  def child_spec(opts) do
    Options.keyword!(opts)
    %{id: opts[:name] || __MODULE__, start: {__MODULE__, :start_link, [opts]}}
  end

  @doc "Starts the server. Raises `ArgumentError` on invalid options."
  @spec start_link(keyword()) :: GenServer.on_start()
  def start_link(opts \\ []) do
    options = Options.validate!(opts, @schema)
    handler = {Endpoint, options.path}
    name = if options.name, do: [name: options.name], else: []
    WebServer.start_link(Map.put(options, :handler, handler), name)
  end

  @doc "Returns the port that a server listens on."
  @spec port(GenServer.server()) :: :inet.port_number()
  defdelegate port(server), to: WebServer

  @doc false
  def path?(path), do: is_binary(path) and match?("/" <> _rest, path) and String.printable?(path)
end

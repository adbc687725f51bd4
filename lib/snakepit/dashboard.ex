defmodule Snakepit.Dashboard do
  alias Snakepit.Dashboard.{Actions, API, Collector, Feed}
  alias Snakepit.{Config, Options, WebServer}
  alias Snakepit.DataDir.Place

  @schema [
    port: [
      type: {:integer, 0, 65_535},
      default: 4040,
      doc: "where to listen; 0 for any port that is free, see `url/0`"
    ],
    ip: [
      type: {:custom, &WebServer.address?/1, "an IP address as a tuple"},
      default: {127, 0, 0, 1},
      doc: "the address to listen at; `{0, 0, 0, 0}` for all that this host has"
    ],
    token: [
      type: {:custom, &__MODULE__.token?/1, "a text of at least 16 letters, digits, - and _"},
      default: nil,
      shown: "none on loopback without actions, else a random one",
      doc: "what the URL has to contain"
    ],
    hosts: [
      type: {:custom, &__MODULE__.hosts?/1, "a list of names"},
      default: [],
      doc: "names by which browsers reach it, beside `localhost` and addresses"
    ],
    actions: [
      type:
        {:custom, &__MODULE__.actions?/1, "true, false or a list of #{inspect(Actions.all())}"},
      default: false,
      doc:
        "what people can do there: a list of `:stop`, `:restart`, `:signal` and `:resize`, or `true` for all"
    ],
    data_dir: [
      type: :path,
      default: nil,
      shown: "the application's",
      doc: "whose history to show where Snakepit is not started"
    ]
  ]

  @moduledoc """
  A web page that shows what Snakepit does: this run and its guardian, the workers and the trees of their processes, what
  they use, their heartbeats and output, pools, and how earlier runs have ended.

      children = [{Snakepit.Dashboard, port: 4040}]

  or `mix snakepit.dashboard`. It is one page without anything from elsewhere, served by OTP's own web server, and works
  without a network. What it shows comes from a JSON API, which is described in the
  [guide](dashboard.html).

  ## Options

  #{Options.docs(@schema)}

  ## Who can see it

  It listens on the loopback address unless told otherwise. There everybody on this host can read it, which includes
  command lines and the output of workers. At another address, and where there are actions, the URL has to contain a
  token. If you do not choose one, the log has the URL with a random one. There is no encryption: across a network put
  it behind a proxy with TLS, or use an SSH tunnel to the loopback address.

  ## Actions

  None unless you allow them with `:actions`. The page asks for a confirmation before each, and each is logged.

  ## What it costs

  Nothing where it is not started. Otherwise all workers are looked at once per second while somebody looks at the page,
  and every ten seconds while nobody does.

  One dashboard runs in a BEAM. Snakepit may be stopped and started beside it. A dashboard that fails again and again
  stays down, and the application goes on without it.

  ## What it needs

  The application `:inets` of OTP. It has to be in the `:extra_applications` of your application, since releases and Mix
  since Elixir 1.15 leave out what nobody lists. Debian has it in a package of its own, `erlang-inets`.
  """

  # If it fails again and again it stays down: what people look at must not take along what they look after.
  use Supervisor, restart: :temporary

  require Logger

  @server Module.concat(__MODULE__, Server)

  @doc "Starts the dashboard. Raises `ArgumentError` on invalid options."
  @spec start_link(keyword()) :: Supervisor.on_start()
  def start_link(opts \\ []) do
    options = Options.validate!(opts, @schema)
    actions = actions(options.actions)
    given = options.token
    token = given || if(actions != [] or not loopback?(options.ip), do: random())
    options = %{options | actions: actions, token: token}

    with {:ok, _pid} = started <- Supervisor.start_link(__MODULE__, options, name: __MODULE__) do
      # Whoever has chosen a token knows it.
      shown = if given, do: %{options | token: nil}, else: options
      Logger.info("Snakepit dashboard: #{url(shown)}")
      started
    end
  end

  @doc """
  Returns the URL of the dashboard that runs, with its token; `nil` if none does. One that listens at all addresses is
  reached by any name or address of its host.
  """
  @spec url() :: String.t() | nil
  def url, do: with(%{} = options <- Feed.dashboard(), do: url(options))

  @impl true
  def init(options) do
    # By the supervisor, so that it is there as long as anything of the dashboard is.
    Feed.create_table(options)

    handler =
      {API, %{actions: options.actions, access: access(options), data_dir: data_dir(options)}}

    server = Map.put(options, :handler, handler)
    start = {WebServer, :start_link, [server, [name: @server]]}
    children = [Collector, %{id: @server, start: start}]
    Supervisor.init(children, strategy: :one_for_one)
  end

  defp url(options) do
    token = if options.token, do: "?token=" <> options.token, else: ""
    "http://#{host(options.ip)}:#{WebServer.port(@server)}/#{token}"
  end

  defp host(ip) when ip in [{0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 0}] do
    {:ok, name} = :inet.gethostname()
    to_string(name)
  end

  defp host(ip) when tuple_size(ip) == 8, do: "[#{:inet.ntoa(ip)}]"
  defp host(ip), do: to_string(:inet.ntoa(ip))

  defp access(options) do
    {:ok, own} = :inet.gethostname()
    hosts = for name <- [to_string(own) | options.hosts], do: String.downcase(name)
    # Several dashboards of one host must not take away each other's cookie, which has no port.
    suffix = :sha256 |> :crypto.hash(options.token || "") |> Base.encode16() |> binary_part(0, 8)
    %{token: options.token, hosts: hosts, cookie: "snakepit_" <> suffix}
  end

  defp data_dir(%{data_dir: nil}), do: fn -> Place.choose!(Config.fetch!()) end
  defp data_dir(%{data_dir: path}), do: fn -> Path.expand(path) end

  defp loopback?({127, _, _, _}), do: true
  defp loopback?(ip), do: ip == {0, 0, 0, 0, 0, 0, 0, 1}

  defp random, do: 18 |> :crypto.strong_rand_bytes() |> Base.url_encode64()

  defp actions(true), do: Actions.all()
  defp actions(false), do: []
  defp actions(list), do: list

  @doc false
  def token?(token), do: is_binary(token) and token =~ ~r/\A[A-Za-z0-9_-]{16,}\z/

  @doc false
  def actions?(actions),
    do: is_boolean(actions) or (is_list(actions) and actions -- Actions.all() == [])

  @doc false
  def hosts?(hosts), do: is_list(hosts) and Enum.all?(hosts, &(is_binary(&1) and &1 != ""))
end

defmodule Snakepit.Metrics do
  alias Snakepit.{Error, Options, Telemetry}
  alias Snakepit.Metrics.{Catalogue, Definitions, Exposition, Sample, Store}

  @schema [
    max_groups: [
      type: {:integer, 1, 10_000},
      default: 100,
      doc: "how many groups, and how many pools, are counted apart; see below"
    ],
    group_by: [
      type: {:function, [1]},
      default: nil,
      shown: "the id without the number at its end",
      doc: "a function that returns the group of a worker, as a string, for its id"
    ]
  ]

  @text [
    format: [
      type: {:one_of, [:openmetrics, :prometheus]},
      default: :openmetrics,
      doc: "`:openmetrics`, or `:prometheus` for the text format that is older than it"
    ]
  ]

  list = fn families ->
    Enum.map_join(families, "\n", fn family ->
      suffix = %{counter: "_total", info: "_info"}[family.type]
      labels = if family.labels == [], do: "", else: "`#{Enum.join(family.labels, "`, `")}`"
      "| `#{family.name}#{suffix}` | #{family.type} | #{labels} | #{family.help} |"
    end)
  end

  @moduledoc """
  Counts what happens, for Prometheus and others: starts and ends, restarts, heartbeats, clean-ups, pools, orphans, and
  what workers use.

      config :snakepit, metrics: [enabled: true]

  Everything is counted from the start on then, also what that start finds of earlier runs. `Snakepit.Metrics` may be
  a child of your supervision tree instead, and counts from there on:

      children = [Snakepit.Metrics, {Snakepit.Metrics.Server, port: 9568}]

  Nothing is counted otherwise, and nothing has to be installed. `text/1` returns the metrics, and
  `Snakepit.Metrics.Server` serves them to Prometheus. The guide "Monitoring" has a dashboard and alerts.

  ## Options

  These are those of the child, and of the configuration beside `:enabled`.

  #{Options.docs(@schema)}

  ## Groups

  A worker is counted in its group. That is its id without the number at its end: workers of the pool `MyApp.Python` have
  the ids `MyApp.Python-1`, `MyApp.Python-2` and so on, and are the group `MyApp.Python`. Workers that have neither an id
  nor a name are the group `worker`; programs run by `Snakepit.cmd/3` are `cmd`, by `Snakepit.run/3` are `run`, and by
  `Snakepit.stream!/2` are `stream!`. A pool without a name is `pool`.

  There are at most `:max_groups` groups. Workers of any further group are counted in the group `other`, and
  `snakepit_metrics_overflows_total` says how often that was. So ids that are different each time cannot fill the memory of
  this BEAM or of Prometheus. A `:group_by` puts such workers into groups that mean something.

  ## Metrics

  A start is a restart if a process of its group has failed since the last restart. `crash` is the reason of a worker whose
  BEAM process crashed. Memory and CPU time are looked up when somebody asks.

  | metric | type | labels | |
  |---|---|---|---|
  #{list.(Catalogue.all())}

  Counting an event takes less than a microsecond, in the process in which it happens (`script/bench metrics`).
  """

  @doc false
  def schema, do: @schema

  @doc "Returns a child specification."
  @spec child_spec(keyword()) :: Supervisor.child_spec()
  def child_spec(opts), do: %{id: __MODULE__, start: {__MODULE__, :start_link, [opts]}}

  @doc """
  Starts to count, until the process ends that is started. Returns `:ignore` if the configuration has started it
  already. Raises `ArgumentError` on invalid options.
  """
  @spec start_link(keyword()) :: GenServer.on_start() | :ignore
  def start_link(opts \\ []) do
    options = Options.validate!(opts, @schema)
    GenServer.start_link(Snakepit.Metrics.Owner, options, name: Snakepit.Metrics.Owner)
  end

  @doc "Returns whether anything is counted."
  @spec enabled?() :: boolean()
  def enabled?, do: Store.current() != nil

  @doc """
  Returns the metrics as text, for a web server of your own. Without metrics it raises `Snakepit.Error`.

  `content_type/1` returns the type of such a text. In a plug:

      conn
      |> put_resp_header("content-type", Snakepit.Metrics.content_type())
      |> send_resp(200, Snakepit.Metrics.text())

  ## Options

  #{Options.docs(@text)}

  """
  @spec text(keyword()) :: String.t()
  def text(opts \\ []) do
    %{format: format} = Options.validate!(opts, @text)
    store!() |> Exposition.text(format) |> IO.iodata_to_binary()
  end

  @doc """
  Returns the content type of a text.

      iex> Snakepit.Metrics.content_type()
      "application/openmetrics-text; version=1.0.0; charset=utf-8"
      iex> Snakepit.Metrics.content_type(format: :prometheus)
      "text/plain; version=0.0.4; charset=utf-8"

  """
  @spec content_type(keyword()) :: String.t()
  def content_type(opts \\ []) do
    case Options.validate!(opts, @text) do
      %{format: :openmetrics} -> "application/openmetrics-text; version=1.0.0; charset=utf-8"
      %{format: :prometheus} -> "text/plain; version=0.0.4; charset=utf-8"
    end
  end

  @doc """
  Returns the metrics as definitions of `Telemetry.Metrics`, for reporters of your own, such as those of StatsD or
  `Phoenix.LiveDashboard`. The host application needs `:telemetry_metrics` for it; without that it raises
  `Snakepit.Error`.

  They have the names and labels of `text/1`. Gauges are values that `poll/0` emits. What only a start finds out, before a
  reporter can listen, has no definition, and neither has a restart after a failure, which no single event shows.
  """
  @spec definitions() :: [struct()]
  def definitions, do: Definitions.all()

  @doc """
  Emits what is looked up and not counted, as events for the gauges of `definitions/0`. For `:telemetry_poller`:

      {:telemetry_poller, measurements: [{Snakepit.Metrics, :poll, []}], period: 10_000}

  Without metrics it raises `Snakepit.Error`.
  """
  @spec poll() :: :ok
  def poll do
    for {event, measurements, metadata} <- Sample.events(store!()),
        do: Telemetry.execute([:snakepit | event], measurements, metadata)

    :ok
  end

  defp store! do
    Store.current() ||
      raise Error,
        operation: :metrics,
        reason: :disabled,
        detail:
          "nothing is counted; set `config :snakepit, metrics: [enabled: true]`, or start Snakepit.Metrics under a supervisor"
  end
end

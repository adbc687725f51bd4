defmodule Snakepit.LiveDashboard do
  @moduledoc """
  A page for Phoenix LiveDashboard, as a module of your own application:

      defmodule MyAppWeb.SnakepitPage do
        use Snakepit.LiveDashboard
      end

  It is listed where the router has the dashboard:

      live_dashboard "/dashboard", additional_pages: [snakepit: MyAppWeb.SnakepitPage]

  The page shows this run, and the workers of the node that was chosen: OS pid, state, uptime, and what their processes
  use. The metrics of `Snakepit.Metrics.definitions/0` are for the page "Metrics" of LiveDashboard.

  Nothing of LiveDashboard is compiled here: `use` expands in your module. Without LiveDashboard your module does not
  compile, and the error says what to add.
  """

  alias Snakepit.{Macros, Run, RunState}
  alias Snakepit.Metrics.Usage
  alias Snakepit.Pool.ProcessRegistry

  # What a node may take to answer.
  @answer_ms 5_000

  @doc false
  defmacro __using__(_opts) do
    dependency = ~s({:phoenix_live_dashboard, "~> 0.8"})
    Macros.require!(Phoenix.LiveDashboard.PageBuilder, __CALLER__, __MODULE__, dependency)

    quote do
      use Phoenix.LiveDashboard.PageBuilder

      @impl true
      def init(_opts), do: {:ok, %{}, process: Snakepit.Supervisor}

      @impl true
      def menu_link(_session, %{processes: processes}) do
        if Snakepit.Supervisor in processes, do: {:ok, "Snakepit"}, else: {:disabled, "Snakepit"}
      end

      # The variable is the user's: templates look for it by its plain name.
      @impl true
      def render(var!(assigns)) do
        ~H"""
        <.row>
          <:col>
            <.fields_card title="This run" fields={Snakepit.LiveDashboard.summary(@page.node)} />
          </:col>
        </.row>
        <.live_table
          id="snakepit-workers"
          dom_id="snakepit-workers"
          page={@page}
          title="Workers"
          rows_name="workers"
          row_fetcher={&Snakepit.LiveDashboard.workers/2}
          row_attrs={&snakepit_row_attrs/1}
        >
          <:col field={:id} header="Worker" sortable={:asc} />
          <:col field={:os_pid} header="OS pid" sortable={:asc} text_align="right" />
          <:col field={:state} />
          <:col :let={worker} field={:uptime_ms} header="Uptime" sortable={:desc} text_align="right">
            <%= Snakepit.LiveDashboard.seconds(worker.uptime_ms) %>
          </:col>
          <:col :let={worker} field={:memory_bytes} header="Memory" sortable={:desc} text_align="right">
            <%= Snakepit.LiveDashboard.mebibytes(worker.memory_bytes) %>
          </:col>
          <:col :let={worker} field={:cpu_us} header="CPU time" sortable={:desc} text_align="right">
            <%= Snakepit.LiveDashboard.seconds(div(worker.cpu_us, 1_000)) %>
          </:col>
        </.live_table>
        """
      end

      defp snakepit_row_attrs(worker) do
        [
          {"phx-click", "show_info"},
          {"phx-value-info", encode_pid(worker.pid)},
          {"phx-page-loading", true}
        ]
      end
    end
  end

  @doc false
  def summary(node), do: :erpc.call(node, __MODULE__, :local_summary, [], @answer_ms)

  @doc false
  def local_summary do
    case Run.current() do
      nil ->
        [Run: "not started"]

      run ->
        [
          Run: run.id,
          State: Atom.to_string(RunState.current()),
          "Data directory": run.data_dir,
          "Guardian (OS pid)": guardian(),
          Workers: length(Snakepit.workers())
        ]
    end
  end

  defp guardian do
    Snakepit.Guardian.os_pid()
  catch
    :exit, _down -> "none"
  end

  @doc false
  def workers(params, node) do
    all = :erpc.call(node, __MODULE__, :local_workers, [], @answer_ms)
    found = Enum.filter(all, &String.contains?(&1.id, params.search || ""))
    sorted = Enum.sort_by(found, &Map.fetch!(&1, params.sort_by), params.sort_dir)
    {Enum.take(sorted, params.limit), length(found)}
  end

  @doc false
  def local_workers do
    active =
      for {_id, %{status: :active}} = worker <- ProcessRegistry.list_all_workers(), do: worker

    usages = for {id, _info, usage} <- Usage.of_workers(active), into: %{}, do: {id, usage}

    for worker <- Snakepit.workers(), usage = usages[worker.id] do
      worker |> Map.from_struct() |> Map.merge(usage)
    end
  end

  @doc false
  def seconds(ms), do: "#{Float.round(ms / 1_000, 1)} s"

  @doc false
  def mebibytes(bytes), do: "#{Float.round(bytes / 1_048_576, 1)} MiB"
end

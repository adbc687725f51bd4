defmodule Snakepit.PromEx do
  @moduledoc """
  A plugin for PromEx, as a module of your own application:

      defmodule MyApp.PromEx.Snakepit do
        use Snakepit.PromEx
      end

  It is listed with the other plugins in your `PromEx` module:

      def plugins, do: [PromEx.Plugins.Beam, MyApp.PromEx.Snakepit]

  It has the metrics of `Snakepit.Metrics.definitions/0`. Gauges need `config :snakepit, metrics: [enabled: true]`; they are
  looked up every `:poll_rate` milliseconds, which is an option of the plugin (`{MyApp.PromEx.Snakepit, poll_rate: 10_000}`)
  and 5000 otherwise.

  Nothing of PromEx is compiled here: `use` expands in your module. Without PromEx your module does not compile, and
  the error says what to add.
  """

  alias Snakepit.Macros

  @poll_rate_ms 5_000

  @doc false
  defmacro __using__(_opts) do
    Macros.require!(PromEx.Plugin, __CALLER__, __MODULE__, ~s({:prom_ex, "~> 1.9"}))

    quote do
      use PromEx.Plugin

      @impl true
      def event_metrics(_opts) do
        {metrics, _sampled} = Snakepit.PromEx.metrics()
        PromEx.MetricTypes.Event.build(:snakepit_event_metrics, metrics)
      end

      @impl true
      def polling_metrics(opts) do
        {_counted, metrics} = Snakepit.PromEx.metrics()
        poll_rate = Keyword.get(opts, :poll_rate, unquote(@poll_rate_ms))
        poll = {Snakepit.Metrics, :poll, []}
        PromEx.MetricTypes.Polling.build(:snakepit_polling_metrics, poll_rate, poll, metrics)
      end
    end
  end

  @doc false
  def metrics, do: Enum.split_with(Snakepit.Metrics.definitions(), &(not sampled?(&1)))

  defp sampled?(%{event_name: [:snakepit, :sampled | _]}), do: true
  defp sampled?(_definition), do: false
end

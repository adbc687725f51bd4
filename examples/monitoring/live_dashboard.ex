defmodule MyAppWeb.SnakepitPage do
  use Snakepit.LiveDashboard
end

defmodule MyAppWeb.Router do
  use Phoenix.Router
  import Phoenix.LiveDashboard.Router

  scope "/" do
    live_dashboard "/dashboard",
      metrics: MyApp.Telemetry,
      additional_pages: [snakepit: MyAppWeb.SnakepitPage]
  end
end

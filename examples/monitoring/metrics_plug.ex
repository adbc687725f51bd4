defmodule MyApp.MetricsPlug do
  import Plug.Conn

  def init(opts), do: opts

  def call(conn, _opts) do
    conn
    |> put_resp_header("content-type", Snakepit.Metrics.content_type())
    |> send_resp(200, Snakepit.Metrics.text())
  end
end

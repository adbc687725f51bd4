defmodule Snakepit.Metrics.Endpoint do
  @moduledoc false

  # What `Snakepit.Metrics.Server` answers.

  @behaviour Snakepit.WebServer

  alias Snakepit.{Error, Metrics, WebServer}

  @impl true
  def answer(%{path: path, method: method} = request, path) when method in ["GET", "HEAD"] do
    {_name, accepted} = List.keyfind(request.headers, "accept", 0, {"accept", ""})

    format = if accepted =~ "application/openmetrics-text", do: :openmetrics, else: :prometheus

    metrics(format)
  end

  def answer(%{path: path}, path), do: WebServer.text(405, "GET it")
  def answer(_request, _path), do: WebServer.text(404, "not found")

  defp metrics(format) do
    headers = [
      {"content-type", Metrics.content_type(format: format)},
      {"cache-control", "no-store"}
    ]

    {200, headers, Metrics.text(format: format)}
  rescue
    error in [Error] -> WebServer.text(503, Exception.message(error))
  end
end

defmodule Snakepit.Dashboard.API do
  @moduledoc false

  # What the dashboard answers: the page, and the JSON that it shows. `guides/dashboard.md` documents the latter.

  @behaviour Snakepit.WebServer

  alias Snakepit.Dashboard.{Access, Actions, Collector, Detail, Page, Runs}
  alias Snakepit.{Doctor, JSON, Run, WebServer}

  @impl true
  def answer(request, dashboard) do
    {status, headers, body} =
      case Access.check(request, dashboard.access) do
        {:ok, :in_url} -> with_cookie(request, dashboard)
        {:ok, _known} -> route(request, dashboard)
        {:refuse, status, sentence} -> WebServer.text(status, sentence)
      end

    {status, Page.security() ++ headers, body}
  end

  defp with_cookie(request, dashboard) do
    {status, headers, body} = route(request, dashboard)
    {status, [{"set-cookie", Access.cookie(dashboard.access)} | headers], body}
  end

  defp route(request, dashboard) do
    route(request.method, request.path, request, dashboard)
  catch
    # Whoever was asked has ended, as Snakepit does beside the dashboard, or is not done in time.
    :exit, _reason -> WebServer.text(503, "no answer now; try again")
  end

  defp route("HEAD", path, request, dashboard), do: route("GET", path, request, dashboard)

  defp route("GET", "/api/overview", request, _dashboard) do
    past? = Map.has_key?(Access.parameters(request.query), "past")
    {200, json_headers(), Collector.overview(past?)}
  end

  defp route("GET", "/api/worker", request, _dashboard) do
    id = id(request)

    # Gone is a state of what a page shows, and no mistake of who asks: a browser would report each answer as one.
    json((Run.current() && Detail.fetch(id)) || %{id: id, state: "gone"})
  end

  defp route("GET", "/api/runs", _request, dashboard), do: json(Runs.list(data_dir(dashboard)))

  defp route("GET", "/api/run", request, dashboard) do
    case Runs.fetch(data_dir(dashboard), id(request)) do
      nil -> json(%{error: "there is no run of that id"}, 404)
      run -> json(run)
    end
  end

  defp route("GET", "/api/place", _request, _dashboard), do: json(%{checks: Doctor.report()})

  defp route("GET", path, request, _dashboard) do
    case Page.fetch(path) do
      nil -> WebServer.text(404, "not found")
      {type, etag, content} -> page(request, type, etag, content)
    end
  end

  defp route("POST", "/api/actions/" <> name, request, dashboard) do
    parameters = Access.parameters(request.body)

    case Actions.run(name, parameters, dashboard.actions, request.peer) do
      {:ok, text} -> json(%{done: text})
      {:error, status, text} -> json(%{error: text}, status)
    end
  end

  defp route(_method, _path, _request, _dashboard), do: WebServer.text(404, "not found")

  # It may change with the next version, so a browser asks each time.
  defp page(request, type, etag, content) do
    headers = [{"content-type", type}, {"etag", etag}, {"cache-control", "no-cache"}]

    if List.keyfind(request.headers, "if-none-match", 0) == {"if-none-match", etag},
      do: {304, headers, ""},
      else: {200, headers, content}
  end

  defp id(request), do: Map.get(Access.parameters(request.query), "id", "")

  # That of the run, if there is one: the application may be started later.
  defp data_dir(dashboard) do
    case Run.current() do
      %Run{data_dir: data_dir} -> data_dir
      nil -> dashboard.data_dir.()
    end
  end

  defp json(value, status \\ 200), do: {status, json_headers(), JSON.encode(value)}

  defp json_headers,
    do: [{"content-type", "application/json; charset=utf-8"}, {"cache-control", "no-store"}]
end

# A dashboard beside workers, and its JSON API as a program asks it.
# Run it with: mix run examples/dashboard.exs

children = [
  {Snakepit.Worker, id: "ticker", cmd: ["sh", "-c", "while echo tick; do sleep 1; done"]},
  {Snakepit.Dashboard, port: 0, actions: [:stop], token: "only-for-this-example"}
]

{:ok, supervisor} = Supervisor.start_link(children, strategy: :one_for_one)
url = Snakepit.Dashboard.url()
IO.puts("open #{url}")

# For this script's own requests.
{:ok, _started} = Application.ensure_all_started(:inets)
base = String.replace(url, ~r/\?.*/, "")

get = fn path ->
  headers = [{~c"authorization", ~c"Bearer only-for-this-example"}]
  request = {String.to_charlist(base <> path), headers}

  {:ok, {{_version, 200, _phrase}, _headers, body}} =
    :httpc.request(:get, request, [], body_format: :binary)

  body
end

IO.puts("has the worker: #{get.("api/overview") =~ ~s("id":"ticker")}")
IO.puts("has its tree: #{get.("api/worker?id=ticker") =~ ~s("tree":[{)}")

# An action names what it is done to, and again to confirm it.
request = {
  String.to_charlist(base <> "api/actions/stop"),
  [{~c"authorization", ~c"Bearer only-for-this-example"}, {~c"x-snakepit-dashboard", ~c"1"}],
  ~c"application/x-www-form-urlencoded",
  "id=ticker&confirm=ticker"
}

{:ok, {_status, _headers, body}} = :httpc.request(:post, request, [], body_format: :binary)
IO.puts(body)

Supervisor.stop(supervisor)

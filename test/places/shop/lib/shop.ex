defmodule Shop do
  @moduledoc false

  # Workers that are hard to end. Each of their processes is a `sleep` of a length that nobody else sleeps:
  # that is how it is found in the process table of the host, where it has another pid.

  use Application

  @impl true
  def start(_type, _args) do
    token = System.fetch_env!("SHOP_TOKEN")
    kinds = String.split(System.get_env("SHOP_WORKERS", "plain,stubborn,daemons"), ",")
    children = for kind <- kinds, do: {Snakepit.Worker, worker(kind, token) ++ [name: name(kind)]}
    Supervisor.start_link(children, strategy: :one_for_one, name: Shop.Supervisor)
  end

  defp name(kind), do: Module.concat(__MODULE__, kind)

  defp worker("plain", token), do: [cmd: ["sleep", "#{token}.1"]]

  # The ignored signal is inherited. There may be several: stubborn1, stubborn2.
  defp worker("stubborn" <> _number, token) do
    stubborn = "trap '' TERM; sleep #{token}.2 & exec sleep #{token}.3"
    [cmd: shell(stubborn), stop_timeout: String.to_integer(System.get_env("SHOP_GRACE", "1000"))]
  end

  # Two daemons without a parent, in sessions of their own; one of them has no environment either.
  defp worker("daemons", token) do
    daemons = "(setsid env -i sleep #{token}.4 &); (setsid sleep #{token}.5 &)"
    [cmd: shell("#{daemons}; exec sleep #{token}.6")]
  end

  # Has a minute to save something, and takes as long as the judge wants.
  defp worker("saves", token) do
    directory = System.fetch_env!("SHOP_SAVES")
    wait = "until [ -e #{directory}/go ]; do sleep 0.1; done"
    trap = "trap '#{wait}; echo done > #{directory}/saved; exit' TERM"
    [cmd: shell("#{trap}; sleep #{token}.7 & wait"), stop_timeout: 60_000]
  end

  defp shell(script), do: ["sh", "-c", script]
end

defmodule Wordy.Application do
  use Application

  @impl true
  def start(_type, _args) do
    bridge = Application.app_dir(:snakepit, "priv/python")

    children = [
      {Snakepit.Worker,
       name: Wordy.Collector,
       cmd: ["python3", script("collector.py")],
       env: [{"PYTHONPATH", bridge}],
       heartbeat: true,
       ready: :heartbeat},
      {Snakepit.Pool,
       name: Wordy.Counters,
       size: 2,
       worker: [cmd: ["python3", script("count_words.py")], stdio: :pipe, packet: :line]}
    ]

    Supervisor.start_link(children, strategy: :one_for_one, name: Wordy.Supervisor)
  end

  defp script(name), do: Application.app_dir(:wordy, "priv/python/#{name}")
end

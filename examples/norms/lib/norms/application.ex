defmodule Norms.Application do
  use Application

  @impl true
  def start(_type, _args) do
    children = [
      {Snakepit.Python,
       name: Norms.Python,
       size: 2,
       python: Application.fetch_env!(:norms, :python),
       path: [Application.app_dir(:norms, "priv/python")],
       init: "import vectors",
       exports: [{Norms, [:scale]}]}
    ]

    Supervisor.start_link(children, strategy: :one_for_one, name: Norms.Supervisor)
  end
end

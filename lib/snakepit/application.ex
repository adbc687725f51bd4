defmodule Snakepit.Application do
  @moduledoc false

  use Application

  alias Snakepit.{Config, Guardian, Run}

  @impl true
  def start(_type, _args) do
    config = Config.fetch!()
    run = Run.create!(config)

    # Started in this order, so that shutdown runs it backwards.
    children = [{Guardian, run: run, config: config}]
    Supervisor.start_link(children, strategy: :rest_for_one, name: Snakepit.Supervisor)
  end

  @impl true
  def stop(_state), do: Run.forget()
end

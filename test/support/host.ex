defmodule Snakepit.Test.Host do
  @moduledoc """
  An application as users have it, with workers below a plain supervisor. For whichever BEAM calls it:
  second ones have this module too.
  """

  use Application

  @doc """
  Starts it as `name`, with these children. Options: those of its supervisor, and `prep_stop: true` if it
  tells Snakepit that it stops.
  """
  def run(name, children, options \\ []) do
    specification = [mod: {__MODULE__, {name, children, options}}, applications: [:snakepit]]
    :ok = :application.load({:application, name, specification})
    Application.start(name)
  end

  @doc "A worker with its own time to end, whose process ignores SIGTERM."
  def stubborn(id, token, options \\ []) do
    cmd = ["sh", "-c", "trap '' TERM; exec sleep #{token}"]
    {Snakepit.Worker, Keyword.merge([id: id, cmd: cmd, stop_timeout: 2_000], options)}
  end

  @impl true
  def start(_type, {name, children, options}) do
    options = Keyword.put(options, :name, supervisor(name))
    {prep_stop?, options} = Keyword.pop(options, :prep_stop, false)

    with {:ok, pid} <-
           Supervisor.start_link(children, Keyword.put_new(options, :strategy, :one_for_one)),
         do: {:ok, pid, prep_stop?}
  end

  @impl true
  def prep_stop(true), do: Snakepit.prep_stop(true)
  def prep_stop(false), do: false

  @doc "The name of the supervisor of an application."
  def supervisor(name), do: Module.concat(__MODULE__, name)
end

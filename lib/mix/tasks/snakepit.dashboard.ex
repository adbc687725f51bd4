defmodule Mix.Tasks.Snakepit.Dashboard do
  @shortdoc "Starts the project with Snakepit's dashboard"

  @moduledoc """
  Starts the project, and `Snakepit.Dashboard` beside it.

      mix snakepit.dashboard
      mix snakepit.dashboard --port 5000 --actions stop,restart
      mix snakepit.dashboard --data-dir /var/lib/my_app/snakepit

  It ends with Ctrl-C, and the project with it.

  ## Options

    * `--port` - where to listen (4040); 0 for any port that is free
    * `--ip` - the address to listen at (127.0.0.1)
    * `--token` - what the URL has to contain
    * `--actions` - what people can do there: names with commas between them, or `all`
    * `--data-dir` - shows the history in this directory, and starts nothing

  """

  use Mix.Task

  alias Snakepit.Dashboard

  @switches [
    port: :integer,
    ip: :string,
    token: :string,
    actions: :string,
    data_dir: :string
  ]

  @impl true
  def run(arguments) do
    given = parse!(arguments)
    # Newer versions of mix take away the paths of applications that the project does not name.
    if function_exported?(Mix, :ensure_application!, 1),
      do: apply(Mix, :ensure_application!, [:inets])

    Mix.Task.run(if given[:data_dir], do: "app.config", else: "app.start")
    {:ok, _pid} = start!(Enum.map(given, &option!/1))
    Mix.shell().info("Snakepit's dashboard: #{Dashboard.url()}")
    unless iex?(), do: Process.sleep(:infinity)
  end

  defp parse!(arguments) do
    case OptionParser.parse(arguments, strict: @switches) do
      {given, [], []} ->
        given

      {_given, rest, invalid} ->
        wrong = rest ++ for {name, _value} <- invalid, do: name
        Mix.raise("mix snakepit.dashboard does not know #{Enum.join(wrong, " ")}; see mix help")
    end
  end

  defp start!(options) do
    case Dashboard.start_link(options) do
      {:ok, pid} -> {:ok, pid}
      {:error, {:shutdown, {:failed_to_start_child, _server, reason}}} -> refuse!(reason)
      {:error, reason} -> refuse!(reason)
    end
  rescue
    error in [ArgumentError] -> Mix.raise(Exception.message(error))
  end

  defp refuse!(%Snakepit.Error{} = error), do: Mix.raise(Exception.message(error))
  defp refuse!({:already_started, _pid}), do: Mix.raise("the project has a dashboard already")
  defp refuse!(reason), do: Mix.raise("the dashboard cannot start: #{inspect(reason)}")

  defp option!({:ip, text}) do
    case :inet.parse_strict_address(String.to_charlist(text)) do
      {:ok, address} -> {:ip, address}
      {:error, :einval} -> Mix.raise("--ip has to be an IP address, got: #{text}")
    end
  end

  defp option!({:actions, "all"}), do: {:actions, true}

  defp option!({:actions, text}) do
    names = Map.new(Dashboard.Actions.all(), &{Atom.to_string(&1), &1})
    {:actions, for(name <- String.split(text, ","), do: Map.get(names, name, name))}
  end

  defp option!(option), do: option

  defp iex?, do: Code.ensure_loaded?(IEx) and IEx.started?()
end

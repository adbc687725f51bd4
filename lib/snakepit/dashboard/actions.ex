defmodule Snakepit.Dashboard.Actions do
  @moduledoc false

  # What people can do by the dashboard, if it allows that. Whoever asks repeats the name of what it is done to: the page
  # asks for that, and nothing is done without it.

  require Logger

  alias Snakepit.Dashboard.{Detail, Feed}
  alias Snakepit.{Error, Pool, Worker}
  alias Snakepit.Pool.{Directory, ProcessRegistry}

  @all [:stop, :restart, :signal, :resize]
  @signals %{
    "SIGHUP" => :sighup,
    "SIGINT" => :sigint,
    "SIGQUIT" => :sigquit,
    "SIGTERM" => :sigterm,
    "SIGUSR1" => :sigusr1,
    "SIGUSR2" => :sigusr2,
    "SIGSTOP" => :sigstop,
    "SIGCONT" => :sigcont,
    "SIGKILL" => :sigkill
  }
  @most_workers 10_000

  @doc "Returns all actions that there are."
  @spec all() :: [atom()]
  def all, do: @all

  @doc "Does what was asked for, if it is among the allowed actions. Returns a sentence about it."
  @spec run(String.t(), %{String.t() => String.t()}, [atom()], String.t()) ::
          {:ok, String.t()} | {:error, 400..599, String.t()}
  def run(name, parameters, allowed, peer) do
    id = parameters["id"] || ""

    with {:ok, action} <- allowed(name, allowed),
         :ok <- confirmed(id, parameters),
         {:ok, text} <- act(action, id, parameters) do
      Logger.notice("Snakepit dashboard, for #{peer}: #{id} #{text}")
      Feed.record_action(id, "#{text}, by the dashboard for #{peer}", action == :resize)
      {:ok, text}
    else
      {:error, status, text} ->
        Logger.warning("Snakepit dashboard, for #{peer}: #{name} of #{inspect(id)}: #{text}")
        {:error, status, text}
    end
  end

  defp allowed(name, allowed) do
    action = Enum.find(@all, &(Atom.to_string(&1) == name))

    cond do
      action == nil -> {:error, 404, "there is no such action"}
      action in allowed -> {:ok, action}
      true -> {:error, 403, "this dashboard does not allow it; start it with :actions"}
    end
  end

  defp confirmed(id, %{"confirm" => id}) when id != "", do: :ok
  defp confirmed(_id, _parameters), do: {:error, 400, "it was not confirmed by the same name"}

  defp act(:resize, id, parameters) do
    with {:ok, pool} <- pool(id), {:ok, size} <- size(parameters) do
      :ok = Pool.resize(pool, size)
      {:ok, "resized to #{shown(size)}"}
    end
  end

  defp act(:signal, id, parameters) do
    with {:ok, pid} <- worker(id), {:ok, name, signal} <- signal(parameters) do
      answer(Worker.signal(pid, signal), "got #{name}")
    end
  end

  defp act(action, id, _parameters) do
    with {:ok, pid} <- worker(id), do: end_worker(action, id, pid, supervisor(pid))
  end

  defp end_worker(:restart, id, _pid, {:pool, pool}),
    do: answer(Pool.restart_worker(pool, id), "is replaced as soon as nobody uses it")

  defp end_worker(:stop, _id, _pid, {:pool, _pool}),
    do: {:error, 409, "its pool would start another one: restart it, or resize the pool"}

  defp end_worker(:stop, _id, _pid, {:supervisor, supervisor, child}),
    do: answer(Supervisor.terminate_child(supervisor, child), "stopped")

  defp end_worker(:restart, _id, _pid, {:supervisor, supervisor, child}) do
    with :ok <- Supervisor.terminate_child(supervisor, child),
         {:ok, _pid} <- Supervisor.restart_child(supervisor, child) do
      {:ok, "restarted"}
    else
      # A temporary child is forgotten when it has ended.
      {:error, :not_found} -> {:ok, "stopped, and its supervisor does not start it again"}
      {:error, reason} -> failed(reason)
    end
  end

  defp end_worker(:stop, _id, pid, {:dynamic, supervisor}),
    do: answer(DynamicSupervisor.terminate_child(supervisor, pid), "stopped")

  # A permanent child of a dynamic supervisor is started again when it has ended.
  defp end_worker(:restart, _id, pid, {:dynamic, _supervisor}),
    do: answer(Worker.stop(pid), "stopped, for its supervisor to start it again")

  defp end_worker(:stop, _id, pid, :none), do: answer(Worker.stop(pid), "stopped")

  defp end_worker(:restart, _id, _pid, :none),
    do: {:error, 409, "nobody supervises it, so nobody would start it again"}

  defp answer(:ok, text), do: {:ok, text}
  defp answer({:error, reason}, _text), do: failed(reason)

  defp failed(%Error{} = error), do: {:error, 409, Exception.message(error)}
  defp failed(reason), do: {:error, 409, "it failed: #{inspect(reason)}"}

  defp worker(id) do
    with {:ok, %{status: :active, owner: owner}} <- ProcessRegistry.get_worker_info(id),
         true <- Detail.worker?(owner) do
      {:ok, owner}
    else
      _none -> {:error, 404, "there is no such worker"}
    end
  end

  defp pool(id) do
    case List.keyfind(Directory.all(), id, 1) do
      {pid, _prefix} -> {:ok, pid}
      nil -> {:error, 404, "there is no such pool"}
    end
  end

  defp signal(parameters) do
    name = parameters["signal"]

    case @signals do
      %{^name => signal} -> {:ok, name, signal}
      _other -> {:error, 400, "expected one of #{Enum.join(Map.keys(@signals), ", ")}"}
    end
  end

  defp size(parameters) do
    with {min, ""} <- Integer.parse(parameters["min"] || ""),
         {max, ""} <- Integer.parse(parameters["max"] || ""),
         true <- min in 0..max and max in 1..@most_workers do
      {:ok, if(min == max, do: max, else: min..max)}
    else
      _invalid -> {:error, 400, "expected numbers of workers, :min no more than :max"}
    end
  end

  defp shown(%Range{first: min, last: max}), do: "#{min} to #{max} workers"
  defp shown(size), do: "#{size} workers"

  # Who has started it, and what it is called there. The workers of a pool have a supervisor that restarts none.
  defp supervisor(pid) do
    {:dictionary, dictionary} = Process.info(pid, :dictionary)
    above = for name <- dictionary[:"$ancestors"] || [], do: GenServer.whereis(name)
    pool = above |> Enum.take(2) |> Enum.find(&(is_pid(&1) and Directory.prefix(&1)))

    cond do
      pool -> {:pool, pool}
      supervisor?(List.first(above)) -> child(hd(above), pid)
      true -> :none
    end
  end

  defp supervisor?(pid) when is_pid(pid) and node(pid) == node() do
    match?({:supervisor, _module, 1}, :proc_lib.translate_initial_call(pid))
  end

  defp supervisor?(_none), do: false

  defp child(supervisor, pid) do
    case List.keyfind(Supervisor.which_children(supervisor), pid, 1) do
      {:undefined, _pid, _type, _modules} -> {:dynamic, supervisor}
      {id, _pid, _type, _modules} -> {:supervisor, supervisor, id}
      nil -> :none
    end
  end
end

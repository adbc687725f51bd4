defmodule Snakepit.Command.Request do
  @moduledoc false

  # What the guardian is told of a `Snakepit.Command`, and whether it can be told at all.

  alias Snakepit.{Accounts, Command, Error, Stdio}
  alias Snakepit.Command.Schema

  # Where the guardian puts it.
  @lifeline_fd "3"

  # How a service manager is told things, and what it passes on. They are for the BEAM alone: its manager would take what
  # a worker says for the BEAM's word.
  @service_manager for name <- ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"], do: {name, nil}

  @unlimited 18_446_744_073_709_551_615

  # No kernel takes more than 6 MiB of arguments and environment, whatever its limits. A frame to the
  # guardian takes 16 MiB, so what passes here fits, with room for what has changed in the environment.
  @most_bytes 6 * 1024 * 1024
  # What each of them takes beside its bytes: the pointer to it, and the NUL at its end.
  @bytes_each 9

  @spec new(Command.t(), [{String.t(), String.t()}]) :: {:ok, map()} | {:error, Error.t()}
  def new(command, markers) do
    with :ok <- check_length(command, markers), {:ok, identity} <- identity(command) do
      # Without one, not the number of a lifeline that the BEAM itself may have.
      lifeline = [{"SNAKEPIT_LIFELINE_FD", command.lifeline && @lifeline_fd}]

      env =
        for pairs <- [@service_manager, command.env, markers, lifeline],
            pair <- pairs,
            into: %{},
            do: pair

      {set, unset} = Enum.split_with(env, fn {_name, value} -> value != nil end)

      {:ok,
       Map.merge(identity, %{
         arguments: command.cmd,
         arg0: command.arg0,
         inherit: not command.clear_env,
         set: for({name, value} <- set, do: "#{name}=#{value}"),
         unset: for({name, nil} <- unset, do: name),
         directory: command.cd,
         umask: command.umask,
         stdio: Stdio.to_request(command.stdio),
         lifeline: command.lifeline,
         nice: command.nice,
         limits: for({name, value} <- command.rlimits, do: limit(name, value)),
         oom_score_adj: command.oom_score_adj,
         stop: {command.stop_signal, command.stop_timeout, command.kill_mode, abort(command)},
         lease: command.lease,
         release: false
       })}
    end
  end

  defp abort(%{abort_signal: nil}), do: nil
  defp abort(command), do: {command.abort_signal, command.abort_timeout}

  defp identity(%{user: user, group: group, groups: groups}) do
    with {:ok, account} <- account(user),
         {:ok, gid} <- gid(group),
         {:ok, gids} <- gids(groups) do
      {:ok, %{uid: account.uid, gid: gid || account.gid, groups: gids || account.groups}}
    end
  end

  defp account(nil), do: {:ok, %{uid: nil, gid: nil, groups: nil}}

  defp account(user) do
    case Accounts.lookup({:user, user}) do
      {:ok, {uid, gid, groups}} -> {:ok, %{uid: uid, gid: gid, groups: groups}}
      {:ok, nil} -> {:ok, %{uid: user, gid: nil, groups: nil}}
      {:error, {reason, nil}} -> {:error, unknown(:user, user, reason)}
    end
  end

  defp gid(group) when is_integer(group) or is_nil(group), do: {:ok, group}

  defp gid(name) do
    case Accounts.lookup({:group, name}) do
      {:ok, gid} -> {:ok, gid}
      {:error, {reason, nil}} -> {:error, unknown(:group, name, reason)}
    end
  end

  defp gids(nil), do: {:ok, nil}

  # In any order: the kernel sorts them.
  defp gids(groups) do
    Enum.reduce_while(groups, {:ok, []}, fn group, {:ok, gids} ->
      case gid(group) do
        {:ok, gid} -> {:cont, {:ok, [gid | gids]}}
        error -> {:halt, error}
      end
    end)
  end

  defp unknown(kind, name, reason) do
    detail = "no #{kind} #{inspect(name)} (#{reason})"
    %Error{operation: :spawn, reason: reason, step: kind, detail: detail}
  end

  defp limit(name, {soft, hard}), do: {Schema.resource(name), number(soft), number(hard)}
  defp limit(name, both), do: limit(name, {both, both})

  defp number(:infinity), do: @unlimited
  defp number(number), do: number

  @doc "Refuses what is too long for any kernel, before anything is done for it."
  @spec check_length(Command.t(), [{String.t(), String.t()}]) :: :ok | {:error, Error.t()}
  def check_length(%Command{} = command, markers \\ []) do
    paths = for path <- [command.cd, path(command.stdio)], path != nil, do: path
    pairs = for {name, value} <- command.env, do: [name, value || ""]
    markers = for {name, value} <- markers, do: [name, value]
    arguments = if command.arg0, do: [command.arg0 | command.cmd], else: command.cmd
    length = Enum.sum(for texts <- [arguments, paths, pairs, markers], do: length_of(texts))
    if length > @most_bytes, do: {:error, too_long(length)}, else: :ok
  end

  defp path({:file, path}), do: path
  defp path({:file, path, _mode}), do: path
  defp path(_stdio), do: nil

  defp length_of(texts), do: Enum.reduce(texts, 0, &(IO.iodata_length(&1) + @bytes_each + &2))

  defp too_long(length) do
    detail = "arguments and environment take #{length} bytes, and no kernel takes more than 6 MiB"
    %Error{operation: :spawn, reason: :e2big, step: :execve, detail: detail}
  end
end

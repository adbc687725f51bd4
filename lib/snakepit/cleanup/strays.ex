defmodule Snakepit.Cleanup.Strays do
  @moduledoc false

  # Processes with this run's markers that are not below the guardian, where all of them belong. In normal
  # operation there are none. They come from a guardian that died, or from another program that starts
  # processes with the same markers.

  alias Snakepit.{Guardian, Native, Run}
  alias Snakepit.Pool.ProcessRegistry

  @type stray :: {os_pid :: pos_integer(), Native.identity()}

  # One that ends may leave children behind that carry marks too.
  @rounds 5

  @doc """
  Returns every process that this run's registry and guardian have recorded. They are ended when there is no guardian,
  whether or not the process table shows them.
  """
  @spec noted(Run.t()) :: [Native.identity()]
  def noted(run), do: registered() ++ adopted(run)

  # It may be on its way down as well.
  defp registered do
    case ProcessRegistry.Table.all() do
      :registry_down -> []
      infos -> for %{identity: identity} when is_binary(identity) <- infos, do: identity
    end
  end

  defp adopted(run) do
    case Native.adopted_read(run.directory) do
      {:ok, adopted} -> for {_os_pid, identity} <- adopted, do: identity
      {:error, _reason} -> []
    end
  end

  @doc "Returns the strays that are there now."
  @spec find(Run.t()) :: [stray()]
  def find(run) do
    # The process table is not read at one instant. A process whose parent came and went meanwhile seems to be below no
    # guardian, but not in two passes.
    with [_ | _] = found <- look(run) do
      again = look(run)
      for {os_pid, _identity} = stray <- found, List.keymember?(again, os_pid, 0), do: stray
    end
  end

  defp look(run) do
    # One and the same before and after: below another, which was started meanwhile, are no strays. And
    # what an earlier one left behind was swept before this one could be asked.
    with guardian when is_integer(guardian) <- guardian(),
         {:ok, strays} <- Native.run_strays(run.id, guardian),
         ^guardian <- guardian() do
      strays
    else
      _nobody_to_ask -> []
    end
  end

  @doc "Ends the strays. Returns how many ended when asked, how many were killed, and which are still there."
  @spec stop(Run.t(), non_neg_integer(), non_neg_integer()) ::
          %{stopped: non_neg_integer(), killed: non_neg_integer(), survivors: [pos_integer()]}
  def stop(run, grace_ms, kill_wait_ms) do
    stop(run, grace_ms, kill_wait_ms, %{stopped: 0, killed: 0, survivors: []}, @rounds)
  end

  defp stop(run, grace_ms, kill_wait_ms, counts, rounds) do
    case find(run) do
      [] ->
        counts

      strays when rounds == 0 ->
        %{counts | survivors: Enum.map(strays, &elem(&1, 0))}

      strays ->
        identities = Enum.map(strays, &elem(&1, 1))

        answer = Native.process_stop(identities, :sigterm, grace_ms, kill_wait_ms)

        with {:again, counts} <- outcome(counts, strays, answer),
             do: stop(run, grace_ms, kill_wait_ms, counts, rounds - 1)
    end
  end

  # For tests: no signal is impossible because one asks.
  @doc false
  def outcome(counts, _strays, {:ok, outcomes}) do
    outcomes = Enum.frequencies(outcomes)
    stopped = counts.stopped + Map.get(outcomes, :stopped, 0)
    killed = counts.killed + Map.get(outcomes, :killed, 0)
    {:again, %{counts | stopped: stopped, killed: killed}}
  end

  # For example for lack of descriptors. The strays are reported as survivors, and the auditor tries again.
  def outcome(counts, strays, {:error, _reason}),
    do: %{counts | survivors: Enum.map(strays, &elem(&1, 0))}

  # Without one there is nothing to compare with: it is being started again.
  defp guardian do
    Guardian.os_pid()
  catch
    :exit, _reason -> nil
  end
end

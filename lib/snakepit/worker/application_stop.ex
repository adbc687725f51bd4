defmodule Snakepit.Worker.ApplicationStop do
  @moduledoc false

  # One grace period for all workers of an application that stops, whatever its supervision tree.
  #
  # A supervisor ends its children one after the other, and each may use its `:stop_timeout`. So when the BEAM
  # stops (`System.stop/0`, SIGTERM), the first worker that its supervisor ends notifies all others of its
  # application. Each of them asks its process to end at once, and waits for its supervisor.
  #
  # A worker may be notified only if it certainly ends. The stop of the BEAM is such a sign:
  # `:init.get_status/0` returns it to everybody, and it is never taken back. The stop of a single application
  # cannot be told from a supervisor that ends one child. For that there is `Snakepit.prep_stop/1`.
  #
  # Workers of other applications are not notified. Applications that depend on this one have stopped before
  # it.

  alias Snakepit.Pool.ProcessRegistry
  alias Snakepit.{Run, ServiceManager, Worker}

  @doc "Returns whether the BEAM stops in good order. `:init` answers also while it does."
  @spec system_stops?() :: boolean()
  def system_stops?, do: match?({:stopping, _progress}, :init.get_status())

  @doc "Notifies the other workers of the caller's application if the BEAM stops. A worker that ends calls it."
  @spec begin() :: :ok
  def begin do
    application = :application.get_application(self())
    told = {__MODULE__, run_id(), application}

    # Order: what costs a message comes last. Two that end at one instant may both tell, which does no harm.
    if not :persistent_term.get(told, false) and system_stops?() do
      :persistent_term.put(told, true)
      ServiceManager.stopping()
      tell(application)
    end

    :ok
  end

  @doc "Notifies all workers of an application that it stops."
  @spec tell({:ok, atom()} | :undefined) :: :ok
  def tell(application) do
    for owner <- owners(), owner != self(), worker?(owner) do
      if :application.get_application(owner) == application,
        do: send(owner, {Worker, :application_stops})
    end

    :ok
  end

  # A registry that is being started again has no table: then each is asked when its supervisor comes by.
  defp owners do
    case ProcessRegistry.Table.all() do
      :registry_down -> []
      infos -> for %{status: :active, owner: owner} <- infos, uniq: true, do: owner
    end
  end

  # Owners of other kinds, such as callers of `Snakepit.cmd/3`, do not expect messages.
  defp worker?(pid), do: :proc_lib.translate_initial_call(pid) == {Worker.Server, :init, 1}

  defp run_id, do: with(%{id: id} <- Run.current(), do: id)
end

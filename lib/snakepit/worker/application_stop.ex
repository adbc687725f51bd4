defmodule Snakepit.Worker.ApplicationStop do
  @moduledoc false

  # One grace period for all workers of an application that stops, whatever its supervision tree.
  #
  # A supervisor ends its children one after the other, and each may use its `:stop_timeout`. So when the
  # BEAM stops (`System.stop/0`, SIGTERM), the first worker that its supervisor ends tells all others of its
  # application. They ask their processes to end at once, and wait for their supervisors to come by.
  #
  # Only whoever certainly ends may be told. That the BEAM stops is such a sign: `init` says so to
  # everyone, and nobody can take it back. That one application stops is none that anybody could read: it
  # looks as if one supervisor ended one child. There `Snakepit.prep_stop/1` tells.
  #
  # Workers of other applications are not told. What depends on them stops before they do.

  alias Snakepit.Pool.ProcessRegistry
  alias Snakepit.{Run, Worker}

  @doc "Whether the BEAM stops in good order. `init` answers also while it does."
  @spec system_stops?() :: boolean()
  def system_stops?, do: match?({:stopping, _progress}, :init.get_status())

  @doc "Called by a worker that ends: if the BEAM stops, the others of its application are told."
  @spec begin() :: :ok
  def begin do
    application = :application.get_application(self())
    told = {__MODULE__, run_id(), application}

    # Order: what costs a message comes last. Two that end at one instant may both tell, which does no harm.
    if not :persistent_term.get(told, false) and system_stops?() do
      :persistent_term.put(told, true)
      tell(application)
    end

    :ok
  end

  @doc "Tells all workers of an application that it stops."
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
    for %{status: :active, owner: owner} <- ProcessRegistry.Table.all(), uniq: true, do: owner
  rescue
    ArgumentError -> []
  end

  # Owners of other kinds, such as callers of `Snakepit.cmd/3`, do not expect messages.
  defp worker?(pid), do: :proc_lib.translate_initial_call(pid) == {Worker.Server, :init, 1}

  defp run_id, do: with(%{id: id} <- Run.current(), do: id)
end

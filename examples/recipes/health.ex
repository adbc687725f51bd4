defmodule MyApp.Health do
  @moduledoc "What the probes of Kubernetes ask, for the web server of the application: a status for each path."

  # If this fails the container is started again. Guardians and workers are repaired without that, so all that it says is
  # that the BEAM answers.
  def status("/alive"), do: 200

  # If this fails no requests come for a while.
  def status("/ready"), do: if(ready?(), do: 200, else: 503)

  defp ready? do
    %{idle: idle, busy: busy} = Snakepit.Pool.info(MyApp.Pool)
    idle + busy > 0
  catch
    :exit, _not_there -> false
  end
end

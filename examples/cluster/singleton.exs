# A process that exists once in a cluster: the same on each node.

program = ["sh", "-c", "echo fenced by $SNAKEPIT_FENCING_TOKEN; exec sleep 3600"]

children = [
  {Snakepit.Cluster.Singleton, id: "scheduler", name: Scheduler, cmd: program}
]

{:ok, supervisor} = Supervisor.start_link(children, strategy: :one_for_one)
Process.unlink(supervisor)

case Snakepit.Cluster.Singleton.info(Scheduler) do
  {:running, %{token: token, worker: worker}} ->
    IO.puts("here, with token #{token}, as #{Snakepit.Worker.os_pid!(worker)}")

  :waiting ->
    IO.puts("on another node, or nowhere yet")
end

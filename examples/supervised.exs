# A Python script under supervision: it ends with its supervisor, and is started again when it dies or stops
# answering its heartbeats.
# Run it with: mix run examples/supervised.exs

script = Path.join(__DIR__, "supervised.py")
bridge = Application.app_dir(:snakepit, "priv/python")

children = [
  {Snakepit.Worker,
   name: Script, cmd: ["python3", script], env: [{"PYTHONPATH", bridge}], heartbeat: true}
]

{:ok, supervisor} = Supervisor.start_link(children, strategy: :one_for_one)

os_pid = Snakepit.Worker.os_pid!(Script)
IO.puts("alive: #{Snakepit.ProcessKiller.process_alive?(os_pid)}")

Supervisor.stop(supervisor)
IO.puts("alive: #{Snakepit.ProcessKiller.process_alive?(os_pid)}")

import Config

python = System.get_env("SNAKEPIT_EXAMPLE_PYTHON", "python3")

config :snakepit,
  data_dir: System.get_env("SNAKEPIT_DATA_DIR", "/var/lib/my_app/snakepit"),
  heartbeat: [enabled: true, ping_interval_ms: 2_000, timeout_threshold_ms: 10_000],
  pools: [
    [
      name: :default,
      size: 2,
      max_queue: 1_000,
      max_requests: 5_000,
      max_age: 3_600_000,
      worker:
        {Snakepit.GRPCWorker,
         cmd: [python, Path.join(__DIR__, "adapter.py")],
         env: [{"OMP_NUM_THREADS", "1"}],
         ready_timeout: 60_000,
         stop_timeout: 6_000}
    ]
  ]

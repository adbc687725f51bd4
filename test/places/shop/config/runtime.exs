import Config

# Without it the release has the default, which is a row of its own.
if directory = System.get_env("SHOP_DATA"), do: config(:snakepit, data_dir: directory)

config :snakepit, watchdog: [grace_period_ms: 1_000], graceful_shutdown_timeout_ms: 1_000

import Config

# Of this project alone: a host application's own configuration does not read it. Suites that run beside
# each other have each a directory of their own.
data = "../tmp/data#{System.get_env("MIX_TEST_PARTITION")}"
config :snakepit, data_dir: Path.expand(data, __DIR__)

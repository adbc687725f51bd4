import Config

# Of this project alone: a host application's own configuration does not read it.
config :snakepit, data_dir: Path.expand("../tmp/data", __DIR__)

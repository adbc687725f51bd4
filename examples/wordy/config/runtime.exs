import Config

if config_env() == :prod do
  config :snakepit, data_dir: "/var/lib/wordy/snakepit"
end

import Config

config :snakepit, metrics: [enabled: true, group_by: &MyApp.Metrics.group/1]

import Config

config :snakepit, metrics: [enabled: true]

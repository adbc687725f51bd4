# The config/runtime.exs of an application in a cluster.
import Config

config :snakepit,
  cluster: [members: [:"app@10.0.0.1", :"app@10.0.0.2", :"app@10.0.0.3"], lease: 5_000]

import Config

config :norms, :python, {:uv, requirements: ["numpy>=1.26,<3"]}

config :snakepit, python_environments: [{:norms, :python}]

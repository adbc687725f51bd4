# NumPy, from PyPI, in a pool of Python workers.
# Run it with: mix run examples/python_numpy.exs

numpy = {:uv, requirements: ["numpy>=1.26,<3"]}

children = [
  {Snakepit.Python, name: Py, size: 2, python: numpy, init: "import numpy as np"}
]

{:ok, supervisor} = Supervisor.start_link(children, strategy: :one_for_one)

{:ok, 5.0} = Snakepit.Python.call(Py, "np.linalg.norm", [[3.0, 4.0]], timeout: 60_000)

{:error, error} = Snakepit.Python.call(Py, "np.linalg.inv", [[[1, 1], [1, 1]]])
IO.puts("an exception: #{Exception.message(error)}")

# A million numbers go there without being sent: Python maps the memory in which they are.
numbers = for n <- 1..1_000_000, into: <<>>, do: <<n::float-native>>
sum = Snakepit.Python.eval!(Py, "np.frombuffer(data).sum()", %{data: numbers})
IO.puts("the sum of a million numbers: #{trunc(sum)}")

# And come back in the same way.
<<first::float-native, _others::binary>> =
  Snakepit.Python.eval!(Py, "np.sqrt(np.frombuffer(data)).data", %{data: numbers})

IO.puts("the first root: #{first}")
Supervisor.stop(supervisor)

# Python that computes something, as a pool that answers requests.
# Run it with: mix run examples/python_worker.exs

python = [cmd: ["python3", Path.join(__DIR__, "python_worker.py")], stdio: :pipe, packet: :line]

children = [{Snakepit.Pool, name: Factors, size: 4, worker: python}]
{:ok, supervisor} = Supervisor.start_link(children, strategy: :one_for_one)

factorise = fn number ->
  {:ok, line} = Snakepit.Pool.with_worker(Factors, &Snakepit.Worker.request(&1, "#{number}\n"))
  String.split(line)
end

2024..2031
|> Task.async_stream(&{&1, factorise.(&1)}, max_concurrency: 8)
|> Enum.each(fn {:ok, {number, factors}} ->
  IO.puts("#{number} = #{Enum.join(factors, " * ")}")
end)

Supervisor.stop(supervisor)

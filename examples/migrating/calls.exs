# The calls of an application of the earlier Snakepit. Its configuration is config.exs, beside this file.

:ok = Snakepit.Pool.await_ready(:default, 60_000)

# Snakepit.execute("predict", %{text: "hello"})
{:ok, %{"length" => 5}} = Snakepit.execute("predict", %{text: "hello"})

# Snakepit.execute_in_session("user-1", "load_model", %{name: "small"})
session = [session_id: "user-1", affinity: :strict]
{:ok, %{"loaded" => "small"}} = Snakepit.execute("load_model", %{name: "small"}, session)
{:ok, %{"model" => "small"}} = Snakepit.execute("predict", %{text: "hello"}, session)

# Snakepit.execute_stream("train", %{epochs: 2}, callback)
:ok = Snakepit.execute_stream("train", %{epochs: 2}, &IO.puts("epoch #{&1["epoch"]}"))

# Snakepit.list_workers()
ids = for worker <- Snakepit.Pool.list_workers(:default), do: worker.id
IO.puts("workers: #{Enum.join(ids, ", ")}")

# {:error, %Snakepit.Error{category: :pool, details: %{reason: :worker_busy}}}
case Snakepit.execute("predict", %{text: "hello"}, session_id: "user-1", affinity: :fail_fast) do
  {:ok, result} -> IO.puts("length: #{result["length"]}")
  {:error, %Snakepit.Error{reason: :busy}} -> IO.puts("busy")
end

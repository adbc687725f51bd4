# A generator of Python as a stream, and a function of the application that Python calls.
# Run it with: mix run examples/python_tokenizer.exs

worth = fn token -> String.length(token) end

children = [
  {Snakepit.Python,
   name: Tokenizer,
   size: 1,
   path: [__DIR__],
   init: "from python_tokenizer import tokens",
   exports: [{"worth", worth}]}
]

{:ok, supervisor} = Supervisor.start_link(children, strategy: :one_for_one)

text = "Snakes, in a pit."

Tokenizer
|> Snakepit.Python.stream("tokens", [text], timeout: 60_000)
|> Enum.each(fn %{"token" => token, "worth" => worth} -> IO.puts("#{token} #{worth}") end)

# Python makes as much of an endless text as is read, and the generator is closed then.
endless = String.duplicate("la ", 1_000_000)
first = Tokenizer |> Snakepit.Python.stream("tokens", [endless]) |> Enum.take(3)
IO.puts("sung: #{Enum.map_join(first, " ", & &1["token"])}")

Supervisor.stop(supervisor)

defmodule Snakepit.Test.BeamPort do
  @moduledoc """
  A port to a second BEAM with Snakepit in it.

  That BEAM reads requests from its standard input, a line for each: code to evaluate, or a function to call. It
  prints the value of each, and ends when its standard input ends. Benchmarks use this too, so it needs nothing but
  Elixir.
  """

  @patience_ms 60_000

  @doc """
  Starts one; `config` is that of the application. It runs once `value/1` has given `:started`.

    * `:wrapper` - program and arguments that come before `elixir`
    * `:ebin` - where Snakepit is, if not where this BEAM has it
    * `:libraries` - files to load there
    * `:env` - variables for it
    * `:cd` - where it runs

  """
  def open(config, options \\ []) do
    elixir = System.find_executable("elixir")
    [program | arguments] = Keyword.get(options, :wrapper, []) ++ [elixir]
    ebin = Keyword.get_lazy(options, :ebin, fn -> Application.app_dir(:snakepit, "ebin") end)
    libraries = Enum.flat_map(Keyword.get(options, :libraries, []), &["-r", &1])
    arguments = arguments ++ ["-pa", ebin] ++ libraries ++ ["-e", code(config)]
    # One that is made to crash has nothing to say.
    env = [{"ERL_CRASH_DUMP_SECONDS", "0"} | Keyword.get(options, :env, [])]
    env = for {name, value} <- env, do: {String.to_charlist(name), String.to_charlist(value)}
    options = [args: arguments, env: env] ++ Keyword.take(options, [:cd])
    common = [:binary, :stderr_to_stdout, :exit_status, line: 1_000_000]
    Port.open({:spawn_executable, System.find_executable(program)}, common ++ options)
  end

  @doc "Evaluates code, or calls `{module, function, arguments}`, without waiting for the value."
  def tell(port, code_or_call), do: Port.command(port, encode(code_or_call) <> "\n")

  @doc "Returns the next value."
  def value(port), do: value(port, [])

  defp value(port, said) do
    receive do
      {^port, {:data, {:eol, "started"}}} -> :started
      {^port, {:data, {:eol, "value " <> value}}} -> decode(value)
      {^port, {:data, {_, line}}} -> value(port, [said, log(line), "\n"])
      {^port, {:exit_status, status}} -> raise "the second BEAM ended with #{status}: #{said}"
    after
      @patience_ms -> raise "the second BEAM does not answer: #{said}"
    end
  end

  defp log(line) do
    if System.get_env("SNAKEPIT_TEST_VERBOSE"), do: IO.puts("  second BEAM: #{line}")
    line
  end

  defp encode(term), do: term |> :erlang.term_to_binary() |> Base.encode64()
  defp decode(text), do: text |> Base.decode64!() |> :erlang.binary_to_term()

  defp code(config) do
    """
    for {key, value} <- #{inspect(config, limit: :infinity)}, do: Application.put_env(:snakepit, key, value)
    {:ok, _} = Application.ensure_all_started(:snakepit)
    IO.puts("started")
    for line <- IO.stream(:stdio, :line) do
      value =
        case line |> String.trim() |> Base.decode64!() |> :erlang.binary_to_term() do
          {module, function, arguments} -> apply(module, function, arguments)
          code -> code |> Code.eval_string() |> elem(0)
        end
      IO.puts("value " <> Base.encode64(:erlang.term_to_binary(value)))
    end
    """
  end
end

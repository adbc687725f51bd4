defmodule Snakepit.ConfigTest do
  use ExUnit.Case, async: true

  alias Snakepit.Config
  alias Snakepit.Test.Beam

  doctest Config

  test "has a default for everything" do
    config = Config.validate!([])
    assert config.output_tail_bytes == 65_536
    assert config.watchdog.grace_period_ms == 3_000
    assert config.log_level == :warning
    assert config.data_dir == nil
    refute config.allow_network_data_dir
  end

  test "names the key, what was expected and what was given" do
    for {given, message} <- [
          {[nonsense: 1], ~r/unknown key :nonsense, expected one of \[:data_dir/},
          {[data_dir: :here], ~r/:data_dir: expected a path, got: :here/},
          {[data_dir: ""], ~r/:data_dir: expected a path, got: ""/},
          {[output_tail_bytes: -1],
           ~r/:output_tail_bytes: expected an integer of 0 or more, got: -1/},
          {[watchdog: 3000], ~r/:watchdog: expected a keyword list, got: 3000/},
          {[watchdog: [grace_period_ms: "3"]],
           ~r/:watchdog, :grace_period_ms: expected an integer/},
          {[log_level: :loud], ~r/:log_level: expected one of/}
        ] do
      assert_raise ArgumentError, message, fn -> Config.validate!(given) end
    end
  end

  describe "an application that cannot start says why" do
    defp failure(environment) do
      ebin = Application.app_dir(:snakepit, "ebin")

      code = """
      for {key, value} <- #{inspect(environment)}, do: Application.put_env(:snakepit, key, value)
      {:error, reason} = Application.ensure_all_started(:snakepit)
      IO.puts(inspect(reason))
      """

      {output, 0} = System.cmd("elixir", ["-pa", ebin, "-e", code], stderr_to_stdout: true)
      output
    end

    test "for an unknown key" do
      assert failure(nonsense: 1) =~ "unknown key :nonsense"
    end

    test "for a data directory that is a file, or below one" do
      path = Path.join(Beam.temporary_directory(), "file")
      File.write!(path, "")
      assert failure(data_dir: path) =~ "config :snakepit, :data_dir: #{path} cannot be made"
      below = path <> "/below"
      assert failure(data_dir: below) =~ "config :snakepit, :data_dir: #{below} cannot be made"
    end
  end
end

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
          {[nonsense: 1],
           ~r/^config :snakepit: unknown option :nonsense, expected one of \[:data_dir/},
          {[data_dir: :here], ~r/^config :snakepit: expected :data_dir to be a path, got: :here/},
          {[data_dir: ""], ~r/expected :data_dir to be a path, got: ""/},
          {[output_tail_bytes: -1],
           ~r/expected :output_tail_bytes to be a number of bytes of 0 or more, got: -1/},
          {[watchdog: 3000], ~r/expected :watchdog to be a keyword list, got: 3000/},
          {[watchdog: [grace_period_ms: "3"]],
           ~r/^config :snakepit, :watchdog: expected :grace_period_ms to be a number of milliseconds/},
          {[audit_interval_ms: 0x80000000], ~r/:audit_interval_ms to be .* from 1 to 2147483647/},
          {[instance: "a b"], ~r/expected :instance to be 1 to 64 letters/},
          {[cluster: [lease: 500]],
           ~r/:lease to be a number of milliseconds from 1000 to 600000/},
          # Of two, none is a majority.
          {[cluster: [members: [:a@b, :c@d]]], ~r/:members to be .* three or more nodes/},
          {[cluster: [members: [:a@b, :a@b, :c@d]]], ~r/:members to be/},
          {[cluster: [members: ["a@b", "c@d", "e@f"]]], ~r/:members to be/},
          {[log_level: :loud], ~r/:log_level to be :debug, :info, :warning, :error or :none/}
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
      assert failure(nonsense: 1) =~ "unknown option :nonsense"
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

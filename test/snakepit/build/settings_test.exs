defmodule Snakepit.Build.SettingsTest do
  use ExUnit.Case, async: true

  alias Snakepit.Build.Settings

  @given %{
    env: %{},
    config: [],
    root: "/src/snakepit",
    version: "1.2.3",
    manifest: ~s(rustler = { version = "0.37", features = ["nif_version_2_16"] }),
    host: "x86_64-pc-linux-gnu"
  }

  defp settings(env, config \\ []) do
    {:ok, settings} = Settings.new(%{@given | env: env, config: config})
    settings
  end

  test "nothing is set: cargo builds for this machine" do
    settings = settings(%{"SNAKEPIT_NATIVE_DIR" => "", "SNAKEPIT_PRECOMPILED" => ""})
    assert %{directory: nil, precompiled: nil, target: nil, foreign?: false} = settings
    assert settings.checksums == "/src/snakepit/native-checksums"
    assert settings.archive.name == "snakepit-1.2.3-nif-2.16-x86_64-unknown-linux-gnu.tar.gz"
  end

  test "the environment goes before the configuration" do
    config = [precompiled: "https://a.example", checksums: "/a"]
    assert %{precompiled: "https://a.example", checksums: "/a"} = settings(%{}, config)
    env = %{"SNAKEPIT_PRECOMPILED" => "/b", "SNAKEPIT_CHECKSUMS" => "/c"}
    assert %{precompiled: "/b", checksums: "/c"} = settings(env, config)
  end

  test "another system is another archive" do
    settings = settings(%{"CARGO_BUILD_TARGET" => "aarch64-unknown-linux-musl"})
    assert settings.foreign?
    assert settings.archive.name =~ "-aarch64-unknown-linux-musl.tar.gz"
    refute settings(%{"CARGO_BUILD_TARGET" => "x86_64-unknown-linux-gnu"}).foreign?
  end

  test "the cache is the user's, or where SNAKEPIT_CACHE says" do
    assert settings(%{"SNAKEPIT_CACHE" => "/cache"}).cache == "/cache/archives"
    assert Path.basename(Path.dirname(settings(%{}).cache)) == "snakepit"
  end

  test "relative paths are refused, for mix changes its directory" do
    for name <- ~w(SNAKEPIT_NATIVE_DIR SNAKEPIT_PRECOMPILED SNAKEPIT_CHECKSUMS) do
      assert {:error, message} = Settings.new(%{@given | env: %{name => "../archives"}})
      assert message =~ ~s(#{name}, or what is configured for it, has to be an absolute path)
      assert message =~ ~s("../archives")
    end
  end

  test "an unknown key of the configuration is named" do
    assert_raise ArgumentError, ~r/config :snakepit, :native: unknown option :url/, fn ->
      settings(%{}, url: "https://a.example")
    end
  end
end

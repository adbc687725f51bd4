defmodule Snakepit.Build.PrecompiledTest do
  use ExUnit.Case, async: true

  alias Snakepit.Build.{Precompiled, Settings}
  alias Snakepit.Test.{Archives, Beam}

  setup do
    directory = Beam.temporary_directory()
    {:ok, archives: Archives.make(directory), cache: Path.join(directory, "cache")}
  end

  defp settings(context, source, more \\ []) do
    {:ok, settings} =
      Settings.new(%{
        env: %{
          "SNAKEPIT_PRECOMPILED" => source,
          "SNAKEPIT_CHECKSUMS" => more[:checksums] || Path.join(context.archives, "SHA256SUMS"),
          "SNAKEPIT_CACHE" => context.cache
        },
        config: [],
        root: "/",
        version: more[:version] || Archives.version(),
        manifest: ~s("nif_version_2_16"),
        host: more[:host] || :erlang.system_info(:system_architecture)
      })

    settings
  end

  defp assert_taken(settings) do
    assert {:ok, files} = Precompiled.take(settings)
    assert Enum.sort(files) == Archives.content()
  end

  defp damage(path, fun), do: File.write!(path, path |> File.read!() |> fun.())
  defp half(bytes), do: binary_part(bytes, 0, div(byte_size(bytes), 2))

  test "from a directory, which no copy is made of", context do
    assert_taken(settings(context, context.archives))
    refute File.exists?(context.cache)
  end

  test "by HTTP, and from the cache when there is no network", context do
    {server, url} = Archives.serve(context.archives)
    settings = settings(context, url <> "/")
    assert_taken(settings)
    :ok = Archives.stop(server)
    assert_taken(settings)

    # A copy that was damaged is not one.
    cached = Path.join(settings.cache, settings.archive.name)
    damage(cached, &half/1)
    assert {:unavailable, message} = Precompiled.take(settings)

    assert message =~
             "#{url}/#{settings.archive.name} cannot be had: no connection: connection refused"
  end

  test "a copy in the cache that was damaged is fetched anew", context do
    {_server, url} = Archives.serve(context.archives)
    settings = settings(context, url)
    cached = Path.join(settings.cache, settings.archive.name)
    File.mkdir_p!(settings.cache)
    File.write!(cached, "damaged")
    assert_taken(settings)
    assert File.read!(cached) == File.read!(Path.join(context.archives, settings.archive.name))
    assert File.ls!(settings.cache) == [settings.archive.name]
  end

  test "a cache that cannot be written is done without", context do
    {_server, url} = Archives.serve(context.archives)
    File.write!(context.cache, "a file")
    assert_taken(settings(context, url))
  end

  test "a wrong checksum and a truncated archive are refused, and not kept", context do
    {_server, url} = Archives.serve(context.archives)

    for source <- [context.archives, url] do
      settings = settings(context, source)
      path = Path.join(context.archives, settings.archive.name)
      whole = File.read!(path)

      for change <- [&(&1 <> " "), &half/1, fn _bytes -> "" end] do
        File.write!(path, change.(whole))
        assert {:error, message} = Precompiled.take(settings)

        assert message =~
                 "#{source}/#{settings.archive.name} is refused: its checksum is not the one"
      end

      File.write!(path, whole)
      assert_taken(settings)
      File.rm_rf!(context.cache)
    end
  end

  test "what is pinned and no archive of ours is refused", context do
    settings = settings(context, context.archives)
    path = Path.join(context.archives, settings.archive.name)
    damage(path, &half/1)
    Archives.pin(context.archives)
    assert {:error, message} = Precompiled.take(settings)
    assert message =~ "#{path} is refused: it is not compressed by gzip, or not whole"
  end

  test "another version, and checksums of nothing, are refused with the remedy", context do
    settings = settings(context, context.archives, version: "99.0.0")
    assert {:error, message} = Precompiled.take(settings)
    assert message =~ "snakepit-99.0.0-nif-2.16-"
    assert message =~ "(it has snakepit-#{Archives.version()}-nif-2.16-"
    assert message =~ "Set SNAKEPIT_CHECKSUMS to a file that has it"

    empty = Path.join(context.archives, "empty")
    File.write!(empty, "# none\n")
    settings = settings(context, context.archives, checksums: empty)
    assert {:error, message} = Precompiled.take(settings)
    assert message =~ "#{empty} does not have its checksum, nor any other"
  end

  # An archive that nobody pinned is not even asked for.
  test "another system is built for", context do
    settings = settings(context, "http://127.0.0.1:1", host: "riscv64-unknown-linux-gnu")
    assert {:unavailable, message} = Precompiled.take(settings)
    assert message =~ "has archives for other systems and not snakepit-"
  end

  test "what is not there is not there", context do
    {_server, url} = Archives.serve(context.archives)
    settings = settings(context, context.archives)
    File.rm!(Path.join(context.archives, settings.archive.name))
    assert {:unavailable, message} = Precompiled.take(settings)
    assert message =~ "cannot be read: no such file or directory"
    assert {:unavailable, message} = Precompiled.take(settings(context, url))
    assert message =~ "the server answered 404"
  end

  test "a server without TLS is no server with TLS", context do
    {_server, "http:" <> rest} = Archives.serve(context.archives)
    assert {:unavailable, message} = Precompiled.take(settings(context, "https:" <> rest))
    assert message =~ "cannot be had: "
  end
end

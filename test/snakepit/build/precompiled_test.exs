defmodule Snakepit.Build.PrecompiledTest do
  use ExUnit.Case, async: true

  alias Snakepit.Build.{Precompiled, Settings}
  alias Snakepit.Test.{Archives, Beam}

  setup_all do
    {:ok, made: Archives.make(Beam.temporary_directory())}
  end

  setup %{made: made} do
    directory = Beam.temporary_directory()
    archives = Path.join(directory, "archives")
    File.cp_r!(made, archives)
    {:ok, archives: archives, cache: Path.join(directory, "cache")}
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

  test "by HTTPS, from a server whom the system's certificates vouch for, and from no other",
       context do
    {listener, url, authorities} = secure_server()
    settings = settings(context, url)

    answer =
      Task.async(fn ->
        answer(listener, File.read!(Path.join(context.archives, settings.archive.name)))
      end)

    assert {:unavailable, message} = Precompiled.take(settings)
    assert message =~ "cannot be had: the connection is not secure: "
    assert {:error, {:tls_alert, {:unknown_ca, _text}}} = Task.await(answer)

    path = Path.join(context.archives, "authority.pem")
    entries = for authority <- authorities, do: {:Certificate, authority, :not_encrypted}
    File.write!(path, :public_key.pem_encode(entries))
    :ok = :public_key.cacerts_load(String.to_charlist(path))
    on_exit(fn -> :public_key.cacerts_clear() end)

    answer =
      Task.async(fn ->
        answer(listener, File.read!(Path.join(context.archives, settings.archive.name)))
      end)

    assert_taken(settings)
    assert Task.await(answer) == :ok

    # Vouched for, but somebody else.
    answer = Task.async(fn -> answer(listener, "") end)

    elsewhere =
      settings(
        %{context | cache: context.cache <> "2"},
        String.replace(url, "localhost", "127.0.0.1")
      )

    assert {:unavailable, message} = Precompiled.take(elsewhere)
    assert message =~ "the connection is not secure: "
    assert {:error, {:tls_alert, _alert}} = Task.await(answer)
  end

  defp secure_server do
    {:ok, _started} = Application.ensure_all_started(:ssl)
    key = [digest: :sha256, key: {:namedCurve, :secp256r1}]
    chain = fn peer -> %{root: key, intermediates: [], peer: key ++ peer} end
    # The name that it is for.
    name = {:Extension, {2, 5, 29, 17}, false, [dNSName: ~c"localhost"]}
    data = %{server_chain: chain.(extensions: [name]), client_chain: chain.([])}
    %{server_config: server, client_config: client} = :public_key.pkix_test_data(data)
    server = [:binary, ip: {127, 0, 0, 1}, active: false, log_level: :none] ++ server
    {:ok, listener} = :ssl.listen(0, server)
    on_exit(fn -> :ssl.close(listener) end)
    {:ok, {_ip, port}} = :ssl.sockname(listener)
    {listener, "https://localhost:#{port}", client[:cacerts]}
  end

  defp answer(listener, body) do
    {:ok, socket} = :ssl.transport_accept(listener)

    with {:ok, socket} <- :ssl.handshake(socket) do
      {:ok, _request} = :ssl.recv(socket, 0)
      head = "HTTP/1.1 200 OK\r\ncontent-length: #{byte_size(body)}\r\nconnection: close\r\n\r\n"
      :ssl.send(socket, [head, body])
    end
  end
end

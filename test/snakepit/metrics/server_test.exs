defmodule Snakepit.Metrics.ServerTest do
  use ExUnit.Case, async: false

  import Snakepit.Test.Eventually

  alias Snakepit.{Error, Metrics}
  alias Snakepit.Metrics.Server
  alias Snakepit.Test.Prometheus

  setup do
    Process.flag(:trap_exit, true)
    :ok
  end

  defp serve(options \\ []) do
    server = start_supervised!({Server, [port: 0] ++ options})
    {server, Server.port(server)}
  end

  test "serves the format that it is asked for, at its path alone" do
    {_server, port} = serve()

    assert {503, _headers, "metrics failed" <> _} = Prometheus.get(port, "/metrics")
    start_supervised!(Metrics)

    assert {200, headers, text} = Prometheus.get(port, "/metrics")
    assert "Content-Type: text/plain; version=0.0.4; charset=utf-8" in headers
    assert text =~ "# TYPE snakepit_heartbeat_pings_total counter\n"
    refute text =~ "# EOF"

    accept = [{"Accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}]
    assert {200, headers, text} = Prometheus.get(port, "/metrics?x=1", accept)
    assert "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8" in headers
    assert text =~ "# TYPE snakepit_heartbeat_pings counter\n"
    assert String.ends_with?(text, "# EOF\n")

    assert {404, _headers, "not found\n"} = Prometheus.get(port, "/")
    assert {404, _headers, "not found\n"} = Prometheus.get(port, "/metrics/../../etc/passwd")

    # What this version of HTTP has for 405.
    assert {403, _headers, _text} =
             Prometheus.get(port, "/metrics", [{"Content-Length", "0"}], "POST")

    assert {200, _headers, ""} = Prometheus.get(port, "/metrics", [], "HEAD")
  end

  test "listens on loopback alone, and on another address if told" do
    {_server, port} = serve(path: "/other")
    assert {404, _headers, _text} = Prometheus.get(port, "/metrics")
    assert {503, _headers, _text} = Prometheus.get(port, "/other")
    # All of 127/8 is this host, and another address of it.
    assert :gen_tcp.connect({127, 0, 0, 2}, port, []) == {:error, :econnrefused}
    {:ok, other} = Server.start_link(port: 0, ip: {127, 0, 0, 2})
    {:ok, socket} = :gen_tcp.connect({127, 0, 0, 2}, Server.port(other), [])
    :gen_tcp.close(socket)
    GenServer.stop(other)
  end

  test "says what is wrong with an address" do
    {_server, port} = serve()
    assert {:error, %Error{reason: :eaddrinuse} = error} = Server.start_link(port: port)

    assert Exception.message(error) ==
             "listen failed: cannot listen at 127.0.0.1, port #{port}: something else does; choose another :port"

    # An address that is nobody's.
    assert {:error, %Error{reason: :eaddrnotavail} = error} =
             Server.start_link(port: 0, ip: {192, 0, 2, 1})

    assert Exception.message(error) =~ "192.0.2.1"

    assert_raise ArgumentError, ~r/expected :ip to be an IP address/, fn ->
      Server.start_link(ip: "::1")
    end

    assert_raise ArgumentError, ~r/expected :path to be a path that begins/, fn ->
      Server.start_link(path: "m")
    end
  end

  test "its port is free when it has ended, however it does" do
    {server, port} = serve()
    :ok = stop_supervised(Server)
    refute Process.alive?(server)
    # A connection that was still waiting to be accepted is reset.
    eventually(fn -> :gen_tcp.connect({127, 0, 0, 1}, port, []) == {:error, :econnrefused} end)

    {:ok, killed} = Server.start_link(port: port)
    {:links, links} = Process.info(killed, :links)
    [httpd] = links -- [self()]
    monitor = Process.monitor(httpd)
    Process.exit(killed, :kill)
    assert_receive {:DOWN, ^monitor, :process, ^httpd, _reason}
    {:ok, again} = Server.start_link(port: port)
    GenServer.stop(again)
  end
end

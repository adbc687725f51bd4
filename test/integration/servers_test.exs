defmodule Snakepit.ServersTest do
  # Servers that people run, with the options that guides/operation.md has for them.
  use Snakepit.Test.WorkerCase, async: false

  alias Snakepit.Usage

  @nginx System.find_executable("nginx") || Enum.find(["/usr/sbin/nginx"], &File.exists?/1)
  @postgres Path.wildcard("/usr/lib/postgresql/*/bin/postgres") |> List.last()
  @initdb @postgres && Path.join(Path.dirname(@postgres), "initdb")
  # It refuses to run as root.
  @account if File.stat!("/proc/self").uid == 0, do: [user: "nobody"], else: []
  # That of script/test-python, or the system's.
  @gunicorn System.find_executable("gunicorn")

  @moduletag :long
  @moduletag timeout: 120_000

  # Another may take it meanwhile; the server then says so, and the test fails.
  defp free_port do
    {:ok, socket} = :gen_tcp.listen(0, ip: {127, 0, 0, 1})
    {:ok, port} = :inet.port(socket)
    :ok = :gen_tcp.close(socket)
    port
  end

  defp answer(port, request) do
    {:ok, socket} = :gen_tcp.connect({127, 0, 0, 1}, port, [:binary, active: false])
    :ok = :gen_tcp.send(socket, request)
    {:ok, answer} = :gen_tcp.recv(socket, 0, 20_000)
    :gen_tcp.close(socket)
    answer
  end

  defp directory(name) do
    path = temporary_path(name)
    File.mkdir_p!(path)
    File.chmod!(path, 0o777)
    path
  end

  defp assert_stops(worker) do
    {:ok, rows} = Worker.processes(worker)
    assert length(rows) > 1
    assert {:ok, %Usage{processes: processes}} = Worker.usage(worker)
    assert processes >= 1
    assert Worker.stop(worker) == :ok
    for row <- rows, do: refute(ProcScan.running?(row.os_pid))
  end

  @tag skip: if(@nginx, do: false, else: "there is no nginx (script/bootstrap --all)")
  test "nginx, by nginx -s quit" do
    directory = directory("nginx")
    port = free_port()
    path = Path.join(directory, "nginx.conf")

    File.write!(path, """
    daemon off;
    pid #{directory}/pid;
    error_log stderr notice;
    worker_processes 2;
    events {}
    http {
      access_log off;
      client_body_temp_path #{directory}/body;
      proxy_temp_path #{directory}/proxy;
      fastcgi_temp_path #{directory}/fastcgi;
      uwsgi_temp_path #{directory}/uwsgi;
      scgi_temp_path #{directory}/scgi;
      server {
        listen 127.0.0.1:#{port};
        return 204;
      }
    }
    """)

    nginx = [@nginx, "-p", directory, "-c", path, "-e", "stderr"]

    options = [
      cmd: nginx,
      ready: {:tcp, port},
      stop_command: nginx ++ ["-s", "quit"],
      stop_timeout: 60_000,
      kill_mode: :mixed
    ]

    {:ok, worker} = Worker.start_link(options)

    assert answer(port, "GET / HTTP/1.0\r\n\r\n") =~ "204"
    {:ok, {child, _scope}} = GenServer.call(worker, :child)
    assert_stops(worker)
    # It ended by itself, with status 0, and has removed its file.
    refute File.exists?(Path.join(directory, "pid"))
    refute ProcScan.running?(child.os_pid)
  end

  @tag skip: if(@postgres, do: false, else: "there is no PostgreSQL (script/bootstrap --all)")
  test "PostgreSQL, ready when it says so" do
    directory = directory("postgres")
    data = Path.join(directory, "data")

    {:ok, %{status: 0}} =
      Snakepit.run(@initdb, ["-D", data, "-A", "trust", "--no-sync"], @account)

    port = free_port()
    settings = ["-D", data, "-p", "#{port}", "-k", directory, "-c", "listen_addresses=127.0.0.1"]

    options = [
      cmd: [@postgres | settings],
      ready: :notify,
      ready_timeout: 60_000,
      stop_signal: :sigint,
      stop_timeout: 60_000,
      kill_mode: :mixed
    ]

    {:ok, worker} = Worker.start_link(options ++ @account)
    assert %{state: :ready} = Worker.info!(worker).notify
    # It answers with R, for authentication, and all that it has to say of itself.
    start_up = <<196_608::32, "user", 0, "nobody", 0, "database", 0, "postgres", 0, 0>>

    assert <<_kind, _length::32, _rest::binary>> =
             answer(port, <<byte_size(start_up) + 4::32>> <> start_up)

    assert_stops(worker)
    # A clean shutdown leaves no lock file.
    refute File.exists?(Path.join(data, "postmaster.pid"))
  end

  @tag skip: if(@gunicorn, do: false, else: "there is no gunicorn (script/bootstrap --all)")
  test "gunicorn, ready when it says so" do
    directory = directory("gunicorn")

    File.write!(Path.join(directory, "app.py"), """
    def application(environ, start_response):
        start_response("204 No Content", [])
        return []
    """)

    port = free_port()

    options = [
      cmd: [@gunicorn, "--bind", "127.0.0.1:#{port}", "--workers", "2", "app:application"],
      cd: directory,
      ready: :notify,
      ready_timeout: 60_000,
      stop_timeout: 60_000,
      kill_mode: :mixed
    ]

    {:ok, worker} = Worker.start_link(options)
    assert %{state: :ready, text: "Gunicorn" <> _} = Worker.info!(worker).notify
    assert answer(port, "GET / HTTP/1.0\r\n\r\n") =~ "204"
    assert_stops(worker)
  end
end

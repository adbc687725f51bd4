defmodule Snakepit.NginxTest do
  # The classic of programs that open their streams by name.
  use Snakepit.Test.WorkerCase, async: false

  # Debian has it where only root looks for programs.
  @nginx System.find_executable("nginx") || Enum.find(["/usr/sbin/nginx"], &File.exists?/1)

  @moduletag :long
  @moduletag skip: if(@nginx, do: false, else: "there is no nginx (script/bootstrap --all)")

  defp configuration(directory, port) do
    """
    daemon off;
    pid #{directory}/pid;
    error_log /dev/stderr notice;
    worker_processes 1;
    events {}
    http {
      access_log /dev/stdout;
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
    """
  end

  # Another may take it meanwhile; nginx then says so, and the test fails.
  defp free_port do
    {:ok, socket} = :gen_tcp.listen(0, ip: {127, 0, 0, 1})
    {:ok, port} = :inet.port(socket)
    :ok = :gen_tcp.close(socket)
    port
  end

  for stdio <- [:tail, :pipe, :pty] do
    test "logs to its standard streams by their names, with stdio: #{inspect(stdio)}" do
      directory = temporary_path("nginx")
      File.mkdir_p!(directory)
      # nginx drops root.
      File.chmod!(directory, 0o777)
      port = free_port()
      path = Path.join(directory, "conf")
      File.write!(path, configuration(directory, port))

      {:ok, worker} =
        Worker.start_link(
          id: "nginx-#{port}",
          cmd: [@nginx, "-p", directory, "-c", path, "-e", "stderr"],
          stdio: unquote(stdio),
          output: {:send, self()},
          ready: {:tcp, port}
        )

      {:ok, socket} = :gen_tcp.connect({127, 0, 0, 1}, port, [:binary, active: false])
      :ok = :gen_tcp.send(socket, "GET /asked HTTP/1.0\r\n\r\n")
      assert {:ok, "HTTP/1.1 204" <> _} = :gen_tcp.recv(socket, 0)
      :gen_tcp.close(socket)

      id = "nginx-#{port}"
      assert eventually(fn -> heard(id) =~ "GET /asked" end)
      {:ok, tail} = Worker.output_tail(worker)
      assert tail =~ "start worker process"
      assert Worker.stop(worker, signal: :sigquit) == :ok
    end
  end

  # Keeps what has been heard so far.
  defp heard(id) do
    receive do
      {Worker, ^id, {:output, data}} ->
        Process.put(:heard, Process.get(:heard, "") <> data)
        heard(id)
    after
      0 -> Process.get(:heard, "")
    end
  end
end

defmodule Snakepit.Test.Prometheus do
  @moduledoc """
  A real Prometheus, as a worker, and what it says. It reads one application, five times a second, and knows the
  alerts of the project.
  """

  alias Snakepit.Bench.JSON
  alias Snakepit.Test.Eventually
  alias Snakepit.Worker

  @alerts Path.expand("../../priv/prometheus/alerts.yml", __DIR__)

  @doc "Starts one that reads from a port, with its files in a directory. Returns its own port."
  def start(directory, target) do
    port = free_port()
    path = Path.join(directory, "prometheus.yml")
    File.write!(path, configuration(target))

    {:ok, _worker} =
      Worker.start_link(
        id: "prometheus-#{port}",
        cmd: [
          System.find_executable("prometheus"),
          "--config.file=#{path}",
          "--storage.tsdb.path=#{directory}/data",
          "--web.listen-address=127.0.0.1:#{port}"
        ],
        ready: {:tcp, port},
        ready_timeout: 60_000
      )

    # It accepts before it answers.
    Eventually.eventually(fn -> match?({200, _headers, _body}, get(port, "/-/ready")) end)
    port
  end

  defp configuration(target) do
    """
    global:
      scrape_interval: 200ms
      scrape_timeout: 200ms
      evaluation_interval: 200ms
    rule_files: [#{inspect(@alerts)}]
    scrape_configs:
      - job_name: app
        scrape_interval: 1s
        scrape_timeout: 1s
        static_configs: [{targets: ["127.0.0.1:#{target}"]}]
    """
  end

  @doc "The series that a query returns: the labels of each, and its value. Without those that are no number."
  def query(port, expression) do
    %{"result" => result} = ask(port, "/api/v1/query?" <> URI.encode_query(query: expression))

    for %{"metric" => labels, "value" => [_time, value]} <- result,
        {number, ""} <- [Float.parse(value)],
        do: {labels, number}
  end

  @doc "Waits until a query returns something, and returns that."
  def await(port, expression) do
    Eventually.eventually(fn -> with [] <- query(port, expression), do: nil end)
  end

  @doc "What the API says at a path."
  def ask(port, path) do
    {200, _headers, body} = get(port, path)

    case JSON.decode!(body) do
      %{"status" => "success", "data" => data} -> data
      other -> raise "Prometheus said #{inspect(other)}"
    end
  end

  @doc "Gets a path from a port of this host. Returns the status, the header lines and the body."
  def get(port, path, headers \\ [], method \\ "GET") do
    lines = for {name, value} <- headers, do: "#{name}: #{value}\r\n"
    {:ok, socket} = :gen_tcp.connect({127, 0, 0, 1}, port, [:binary, active: false])
    :ok = :gen_tcp.send(socket, "#{method} #{path} HTTP/1.0\r\n#{lines}\r\n")
    said = read(socket, "")
    [head, body] = String.split(said, "\r\n\r\n", parts: 2)

    ["HTTP/1." <> <<_minor, " ", status::binary-size(3), _phrase::binary>> | headers] =
      String.split(head, "\r\n")

    {String.to_integer(status), headers, body}
  end

  defp read(socket, said) do
    case :gen_tcp.recv(socket, 0, 20_000) do
      {:ok, data} -> read(socket, said <> data)
      {:error, :closed} -> said
    end
  end

  # Another may take it meanwhile; Prometheus then says so, and the test fails.
  defp free_port do
    {:ok, socket} = :gen_tcp.listen(0, ip: {127, 0, 0, 1})
    {:ok, port} = :inet.port(socket)
    :ok = :gen_tcp.close(socket)
    port
  end
end

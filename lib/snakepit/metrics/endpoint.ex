defmodule Snakepit.Metrics.Endpoint do
  @moduledoc false

  # The web server behind `Snakepit.Metrics.Server`, from OTP's inets, and the answers to its requests. Not called by
  # name: it is a package of its own in some distributions.

  alias Snakepit.{Error, Metrics}

  # Enough for several Prometheis, and for a person who looks.
  @most_clients 20
  # Prometheus keeps its connection between scrapes.
  @keep_alive_s 120

  @doc "Starts a web server that is linked to the caller."
  @spec start(%{port: :inet.port_number(), ip: :inet.ip_address(), path: String.t()}) ::
          {:ok, pid(), :inet.port_number()} | {:error, Error.t()}
  def start(options) do
    # Nothing is read from these: the one module that answers reads no files.
    directory = String.to_charlist(System.tmp_dir!())

    settings = [
      port: options.port,
      bind_address: options.ip,
      ipfamily: if(tuple_size(options.ip) == 8, do: :inet6, else: :inet),
      server_name: ~c"snakepit",
      server_tokens: :none,
      server_root: directory,
      document_root: directory,
      modules: [__MODULE__],
      max_clients: @most_clients,
      keep_alive_timeout: @keep_alive_s,
      snakepit_path: String.to_charlist(options.path)
    ]

    # Order: the address first. What the web server says of one that it cannot have is no sentence, and for port 0 it
    # says nothing.
    with true <- Code.ensure_loaded?(:httpd),
         :ok <- free(options),
         {:ok, httpd} <- apply(:inets, :start, [:httpd, settings, :stand_alone]) do
      {:ok, httpd, port(httpd)}
    else
      false ->
        {:error, error(:enoinets, missing())}

      {:error, reason} when is_atom(reason) ->
        {:error, refused(reason, options)}

      {:error, reason} ->
        {:error, error(:failed, "cannot start a web server: #{inspect(reason)}")}
    end
  end

  defp free(%{ip: ip, port: port}) do
    family = if tuple_size(ip) == 8, do: :inet6, else: :inet

    with {:ok, socket} <- :gen_tcp.listen(port, [family, ip: ip, reuseaddr: true]),
         do: :gen_tcp.close(socket)
  end

  @doc "Stops a web server."
  @spec stop(pid()) :: :ok
  def stop(httpd) do
    monitor = Process.monitor(httpd)
    Process.exit(httpd, :shutdown)
    receive(do: ({:DOWN, ^monitor, :process, _pid, _reason} -> :ok))
  end

  # Its one child is named after it.
  defp port(httpd) do
    [{name, _pid, _type, _modules}] = Supervisor.which_children(httpd)
    elem(name, 2)
  end

  # The callback of a module of the web server. The request is a record, in which these are the places of what is
  # asked for; they have been the same in all versions of it.
  @config 5
  @method 6
  @uri 8
  @headers 11

  @doc false
  def unquote(:do)(request) do
    path = apply(:httpd_util, :lookup, [elem(request, @config), :snakepit_path])

    answer =
      case {elem(request, @method), path_of(elem(request, @uri)) == path} do
        {_method, false} -> text(404, "not found")
        {method, true} when method in [~c"GET", ~c"HEAD"] -> metrics(elem(request, @headers))
        {_method, true} -> text(405, "GET it")
      end

    {:proceed, [{:response, respond(answer, elem(request, @method))}]}
  end

  defp path_of(uri), do: uri |> :string.split(~c"?") |> hd()

  defp metrics(headers) do
    {_name, accepted} = List.keyfind(headers, ~c"accept", 0, {~c"accept", ~c""})

    format =
      if to_string(accepted) =~ "application/openmetrics-text",
        do: :openmetrics,
        else: :prometheus

    {200, Metrics.content_type(format: format), Metrics.text(format: format)}
  rescue
    error in [Error] -> text(503, Exception.message(error))
  end

  defp text(code, sentence), do: {code, "text/plain; charset=utf-8", sentence <> "\n"}

  defp respond({code, type, body}, method) do
    head = [
      code: code,
      content_type: String.to_charlist(type),
      content_length: body |> byte_size() |> Integer.to_charlist(),
      cache_control: ~c"no-store"
    ]

    {:response, head, if(method == ~c"HEAD", do: :nobody, else: [body])}
  end

  defp missing do
    "the application :inets of OTP is not there; list it in the :extra_applications of your application, and " <>
      "install it if it is missing (Debian: erlang-inets)"
  end

  defp refused(reason, options) do
    address = "#{:inet.ntoa(options.ip)}, port #{options.port}"
    error(reason, "cannot listen at #{address}: #{advice(reason)}")
  end

  defp advice(:eaddrinuse), do: "something else does; choose another :port"
  defp advice(:eaddrnotavail), do: "this host does not have the address; choose another :ip"
  defp advice(:eacces), do: "ports below 1024 are for root; choose another :port"
  defp advice(posix), do: Error.posix(posix)

  defp error(reason, detail), do: %Error{operation: :listen, reason: reason, detail: detail}
end

defmodule Snakepit.WebServer do
  @moduledoc false

  # A web server from OTP's inets, as a process of its own. `Snakepit.Metrics.Server` and `Snakepit.Dashboard` are served
  # by it. Inets is not called by name: it is a package of its own in some distributions.
  #
  # Each request is answered by the `handler`, `{module, term}`: `module.answer(request, term)` returns
  # `{status, headers, body}`.

  use GenServer

  alias Snakepit.Error

  # Enough for several browsers, which keep six connections each, and for programs.
  @most_clients 60
  # Browsers and Prometheus keep a connection between requests.
  @keep_alive_s 120
  # More than any request here has.
  @max_body_bytes 16_384

  @typedoc "`headers` have names in lower case. `peer` is the address that the connection comes from."
  @type request :: %{
          method: String.t(),
          path: String.t(),
          query: String.t(),
          headers: [{String.t(), binary()}],
          body: binary(),
          peer: String.t()
        }
  @type answer :: {100..599, [{String.t(), String.t()}], iodata()}

  @callback answer(request(), term()) :: answer()

  @type options :: %{
          port: :inet.port_number(),
          ip: :inet.ip_address(),
          handler: {module(), term()}
        }

  @doc "Starts a server. It fails with a `Snakepit.Error` without inets, or if the address or port cannot be had."
  @spec start_link(options(), GenServer.options()) :: GenServer.on_start()
  def start_link(options, server_options \\ []),
    do: GenServer.start_link(__MODULE__, options, server_options)

  @doc "Returns the port that a server listens on."
  @spec port(GenServer.server()) :: :inet.port_number()
  def port(server), do: GenServer.call(server, :port)

  @doc "Returns whether a term is an address to listen at, for the options of servers."
  @spec address?(term()) :: boolean()
  def address?(address), do: is_tuple(address) and :inet.ntoa(address) != {:error, :einval}

  @impl true
  def init(options) do
    Process.flag(:trap_exit, true)

    case start(options) do
      {:ok, httpd} -> {:ok, %{httpd: httpd, port: listens_on(httpd)}}
      {:error, %Error{} = error} -> {:stop, error}
    end
  end

  @impl true
  def handle_call(:port, _from, state), do: {:reply, state.port, state}

  @impl true
  def handle_info({:EXIT, httpd, reason}, %{httpd: httpd} = state), do: {:stop, reason, state}
  def handle_info(_other, state), do: {:noreply, state}

  @impl true
  def terminate(_reason, %{httpd: httpd}) do
    monitor = Process.monitor(httpd)
    Process.exit(httpd, :shutdown)
    receive(do: ({:DOWN, ^monitor, :process, _pid, _reason} -> :ok))
  end

  defp start(options) do
    # Nothing is read from these: the one module that answers reads no files.
    directory = String.to_charlist(System.tmp_dir!())

    settings = [
      port: options.port,
      bind_address: options.ip,
      ipfamily: family(options.ip),
      server_name: ~c"snakepit",
      server_tokens: :none,
      server_root: directory,
      document_root: directory,
      modules: [__MODULE__],
      max_clients: @most_clients,
      max_body_size: @max_body_bytes,
      keep_alive_timeout: @keep_alive_s,
      snakepit_handler: options.handler
    ]

    # Order: the address first. What the web server says of one that it cannot have is no sentence, and for port 0 it
    # says nothing.
    with true <- Code.ensure_loaded?(:httpd),
         :ok <- free(options),
         {:ok, httpd} <- apply(:inets, :start, [:httpd, settings, :stand_alone]) do
      {:ok, httpd}
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
    with {:ok, socket} <- :gen_tcp.listen(port, [family(ip), ip: ip, reuseaddr: true]),
         do: :gen_tcp.close(socket)
  end

  defp family(ip), do: if(tuple_size(ip) == 8, do: :inet6, else: :inet)

  # Its one child is named after it.
  defp listens_on(httpd) do
    [{name, _pid, _type, _modules}] = Supervisor.which_children(httpd)
    elem(name, 2)
  end

  # The callback of a module of the web server. The request is a record, in which these are the places of what is
  # asked for; they have been the same in all versions of it.
  @config 5
  @method 6
  @uri 8
  @headers 11
  @body 12
  @init_data 1

  @doc false
  def unquote(:do)(record) do
    {module, term} = apply(:httpd_util, :lookup, [elem(record, @config), :snakepit_handler])
    request = request(record)
    {status, headers, body} = module.answer(request, term)
    body = IO.iodata_to_binary(body)

    head = [
      {:code, status},
      {:content_length, body |> byte_size() |> Integer.to_charlist()}
      | for({name, value} <- headers, do: {name(name), String.to_charlist(value)})
    ]

    body = if request.method == "HEAD", do: :nobody, else: [body]
    {:proceed, [{:response, {:response, head, body}}]}
  end

  # The web server knows these by their own names, and others as text.
  defp name("content-type"), do: :content_type
  defp name("cache-control"), do: :cache_control
  defp name(name), do: String.to_charlist(name)

  defp request(record) do
    {path, query} =
      case record |> elem(@uri) |> text() |> String.split("?", parts: 2) do
        [path, query] -> {path, query}
        [path] -> {path, ""}
      end

    %{
      method: record |> elem(@method) |> text(),
      path: path,
      query: query,
      headers: for({name, value} <- elem(record, @headers), do: {text(name), text(value)}),
      body: record |> elem(@body) |> text(),
      peer: record |> elem(@init_data) |> peer()
    }
  end

  # Bytes, each of them a character of the list.
  defp text(characters), do: :erlang.iolist_to_binary(characters)

  defp peer(init_data) do
    case elem(init_data, 1) do
      {_port, address} when is_list(address) -> text(address)
      _unknown -> "an unknown address"
    end
  end

  @doc "Returns an answer that is a sentence."
  @spec text(100..599, String.t()) :: answer()
  def text(status, sentence) do
    headers = [{"content-type", "text/plain; charset=utf-8"}, {"cache-control", "no-store"}]
    {status, headers, sentence <> "\n"}
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

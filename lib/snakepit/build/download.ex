defmodule Snakepit.Build.Download do
  @moduledoc false

  # A file by HTTP, with the client and the certificates of OTP. The caller knows its checksum, so `http` will do as
  # well as `https`: what somebody has changed on the way is refused.

  # Only mix needs these, and an application that runs does not. They are not called by name, or every project would have
  # to list them.
  @applications [:inets, :ssl, :public_key]
  @connect_ms 15_000
  @whole_ms 300_000

  @doc "Returns the bytes, or a sentence that says why there are none."
  @spec get(String.t()) :: {:ok, binary()} | {:error, String.t()}
  def get(url) do
    with :ok <- start(),
         {:ok, client} <- apply(:inets, :start, [:httpc, [profile: __MODULE__], :stand_alone]) do
      try do
        set_proxy(client, url)
        request(client, url)
      after
        # It ends with an exit signal that would end this process as well.
        Process.unlink(client)
        apply(:inets, :stop, [:stand_alone, client])
      end
    else
      {:error, reason} -> {:error, "OTP's web client cannot be started: #{inspect(reason)}"}
    end
  end

  # Newer versions of mix hide the applications that a project does not list.
  defp start do
    if function_exported?(Mix, :ensure_application!, 1),
      do: for(name <- @applications, do: apply(Mix, :ensure_application!, [name]))

    Enum.reduce_while(@applications, :ok, fn name, :ok ->
      case Application.ensure_all_started(name) do
        {:ok, _started} -> {:cont, :ok}
        {:error, reason} -> {:halt, {:error, reason}}
      end
    end)
  end

  defp request(client, url) do
    with {:ok, tls} <- tls(url) do
      options = [timeout: @whole_ms, connect_timeout: @connect_ms] ++ tls
      request = {String.to_charlist(url), []}

      case apply(:httpc, :request, [:get, request, options, [body_format: :binary], client]) do
        {:ok, {{_version, 200, _phrase}, _headers, body}} ->
          {:ok, body}

        {:ok, {{_version, status, phrase}, _headers, _body}} ->
          {:error, "the server answered #{status} #{phrase}"}

        {:error, reason} ->
          {:error, said(reason)}
      end
    end
  end

  defp tls("https:" <> _rest) do
    {:ok,
     [
       ssl: [
         verify: :verify_peer,
         # The error says it.
         log_level: :none,
         cacerts: apply(:public_key, :cacerts_get, []),
         depth: 5,
         customize_hostname_check: [
           match_fun: apply(:public_key, :pkix_verify_hostname_match_fun, [:https])
         ]
       ]
     ]}
  rescue
    _none_found ->
      {:error,
       "this system has no certificates to check servers by; the package is often called ca-certificates"}
  end

  defp tls(_url), do: {:ok, []}

  # As most programs find it.
  defp set_proxy(client, url) do
    scheme = URI.parse(url).scheme
    option = if scheme == "https", do: :https_proxy, else: :proxy

    with %URI{host: host, port: port} when host not in [nil, ""] <-
           scheme |> variable("proxy") |> URI.parse() do
      exceptions = nil |> variable("no_proxy") |> String.split([",", " "], trim: true)
      exceptions = for name <- exceptions, do: String.to_charlist(name)
      options = [{option, {{String.to_charlist(host), port}, exceptions}}]
      :ok = apply(:httpc, :set_options, [options, client])
    end
  end

  defp variable(scheme, name) do
    name = if scheme, do: "#{scheme}_#{name}", else: name
    System.get_env(name) || System.get_env(String.upcase(name)) || ""
  end

  defp said({:failed_connect, details}) do
    case List.keyfind(details, :inet, 0) do
      {:inet, _options, {:tls_alert, {_alert, text}}} ->
        "the connection is not secure: #{text}"

      {:inet, _options, reason} when is_atom(reason) ->
        "no connection: #{:inet.format_error(reason)}"

      _other ->
        "no connection: #{inspect(details)}"
    end
  end

  defp said(reason), do: "no answer: #{inspect(reason)}"
end

defmodule Snakepit.Dashboard.Access do
  @moduledoc false

  # Who may see the dashboard, and who may act. Decides by the request alone.
  #
  # A name in `Host:` that is not this server's comes from a page of somebody else whose name leads here (DNS rebinding):
  # then the browser takes both for one. An address is nobody's name, so it is allowed.
  #
  # The token is in the URL that people open. The page gets it as a cookie that scripts cannot read and that no other
  # site's requests carry, and takes it out of the address bar. Programs send it as `Authorization: Bearer`.
  #
  # A post has a header that other sites' forms cannot send, and that makes a browser ask this server before other sites'
  # scripts may send it. It never agrees.

  @header "x-snakepit-dashboard"
  @loopback ["localhost", "127.0.0.1", "[::1]"]

  @type t :: %{token: String.t() | nil, hosts: [String.t()], cookie: String.t()}
  @type refusal :: {:refuse, 401 | 403, String.t()}

  @doc "Returns whether the token was shown `:in_url`, is `:known` otherwise, or is not needed (`:none`); or a refusal."
  @spec check(Snakepit.WebServer.request(), t()) :: {:ok, :in_url | :known | :none} | refusal()
  def check(request, access) do
    with :ok <- host(request, access),
         {:ok, shown} <- token(request, access),
         :ok <- origin(request),
         do: {:ok, shown}
  end

  @doc "Returns the cookie that a browser is given."
  @spec cookie(t()) :: String.t()
  def cookie(access), do: "#{access.cookie}=#{access.token}; Path=/; HttpOnly; SameSite=Strict"

  @doc "Returns whether two texts are the same, in a time that does not depend on where they differ."
  @spec same?(binary(), binary()) :: boolean()
  def same?(one, other), do: :crypto.hash_equals(digest(one), digest(other))

  # Of one length, whatever was sent.
  defp digest(text), do: :crypto.hash(:sha256, text)

  defp host(request, access) do
    name = request |> header("host") |> String.downcase() |> without_port()

    if name in @loopback or name in access.hosts or address?(name),
      do: :ok,
      else:
        {:refuse, 403,
         "this dashboard does not answer to the name #{inspect(name)}; add it to :hosts"}
  end

  defp without_port("[" <> _rest = host), do: host |> String.split("]") |> hd() |> Kernel.<>("]")
  defp without_port(host), do: host |> String.split(":") |> hd()

  defp address?(name) do
    name = name |> String.trim_leading("[") |> String.trim_trailing("]")
    match?({:ok, _address}, :inet.parse_strict_address(String.to_charlist(name)))
  end

  defp token(_request, %{token: nil}), do: {:ok, :none}

  defp token(request, %{token: token} = access) do
    cond do
      Enum.any?([in_cookie(request, access), in_header(request)], &same?(&1, token)) ->
        {:ok, :known}

      same?(in_url(request), token) ->
        {:ok, :in_url}

      true ->
        {:refuse, 401, "the token is missing or wrong: open the URL that has it"}
    end
  end

  defp in_url(request), do: Map.get(parameters(request.query), "token", "")

  defp in_header(request) do
    case header(request, "authorization") do
      "Bearer " <> token -> token
      _other -> ""
    end
  end

  defp in_cookie(request, access) do
    cookies = request |> header("cookie") |> String.split("; ")
    Enum.find_value(cookies, "", &value(&1, access.cookie <> "="))
  end

  defp value(cookie, name) do
    if String.starts_with?(cookie, name), do: String.replace_prefix(cookie, name, "")
  end

  defp origin(%{method: method}) when method in ["GET", "HEAD"], do: :ok

  defp origin(request) do
    origin = header(request, "origin")
    own = "://" <> header(request, "host")
    site = header(request, "sec-fetch-site")

    if header(request, @header) != "" and (origin == "" or String.ends_with?(origin, own)) and
         site in ["", "same-origin"],
       do: :ok,
       else: {:refuse, 403, "this post does not come from the dashboard (header #{@header})"}
  end

  defp header(request, name) do
    {_name, value} = List.keyfind(request.headers, name, 0, {name, ""})
    value
  end

  @doc "Returns the parameters of a query, or of a body that is one."
  @spec parameters(binary()) :: %{String.t() => String.t()}
  def parameters(text) do
    URI.decode_query(text)
  rescue
    # Not encoded as it has to be.
    ArgumentError -> %{}
  end
end

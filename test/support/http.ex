defmodule Snakepit.Test.HTTP do
  @moduledoc "Requests as a program makes them, by OTP's own client."

  alias Snakepit.Bench.JSON

  # Not by name: the application does not depend on inets.
  @patience_ms 60_000

  @doc "Gets a URL. Returns the status, the headers and the body."
  def get(url, headers \\ [], method \\ :get), do: request(method, {encode(url), encode(headers)})

  @doc "Posts a form."
  def post(url, body, headers \\ []) do
    type = ~c"application/x-www-form-urlencoded"
    request(:post, {encode(url), encode(headers), type, URI.encode_query(body)})
  end

  @doc "Gets JSON, and returns what it says."
  def json(url, headers \\ []) do
    {200, _headers, body} = get(url, headers)
    JSON.decode!(body)
  end

  defp request(method, request) do
    {:ok, _started} = Application.ensure_all_started(:inets)
    options = [timeout: @patience_ms, autoredirect: false]

    {:ok, {{_version, status, _phrase}, headers, body}} =
      apply(:httpc, :request, [method, request, options, [body_format: :binary]])

    headers = for {name, value} <- headers, into: %{}, do: {to_string(name), to_string(value)}
    {status, headers, body}
  end

  defp encode(text) when is_binary(text), do: String.to_charlist(text)
  defp encode(headers), do: for({name, value} <- headers, do: {encode(name), encode(value)})
end

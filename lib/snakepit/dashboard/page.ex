defmodule Snakepit.Dashboard.Page do
  @moduledoc false

  # The page and what belongs to it. It is compiled into this module: nothing is read when it is served, a release needs no
  # file for it, and the page always fits the code that answers it.

  @directory Path.expand("../../../priv/dashboard", __DIR__)
  @html "text/html; charset=utf-8"
  @script "text/javascript; charset=utf-8"
  @files [
           {"/", "index.html", @html},
           {"/app.css", "app.css", "text/css; charset=utf-8"},
           {"/icon.svg", "icon.svg", "image/svg+xml"}
         ] ++
           for(
             name <- ~w(app actions charts detail dom history workers),
             do: {"/#{name}.js", "#{name}.js", @script}
           )

  for {_path, name, _type} <- @files, do: @external_resource(Path.join(@directory, name))

  @served for {path, name, type} <- @files,
              content = File.read!(Path.join(@directory, name)),
              etag = :sha256 |> :crypto.hash(content) |> Base.url_encode64(padding: false),
              into: %{},
              do: {path, {type, ~s("#{binary_part(etag, 0, 16)}"), content}}

  # Nothing from elsewhere, nothing in a frame, no script in the text of the page.
  @policy Enum.join(
            [
              "default-src 'none'",
              "script-src 'self'",
              "style-src 'self'",
              "img-src 'self'",
              "connect-src 'self'",
              "base-uri 'none'",
              "form-action 'none'",
              "frame-ancestors 'none'"
            ],
            "; "
          )

  @doc "Returns what is served at a path, with its type and its ETag; `nil` if nothing is."
  @spec fetch(String.t()) :: {String.t(), String.t(), binary()} | nil
  def fetch(path), do: @served[path]

  @doc "Returns the headers of all answers of the dashboard."
  @spec security() :: [{String.t(), String.t()}]
  def security do
    [
      {"content-security-policy", @policy},
      {"x-content-type-options", "nosniff"},
      {"x-frame-options", "DENY"},
      {"referrer-policy", "no-referrer"},
      {"cross-origin-opener-policy", "same-origin"},
      {"cross-origin-resource-policy", "same-origin"}
    ]
  end
end

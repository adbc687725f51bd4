defmodule Snakepit.Test.Archives do
  @moduledoc """
  Archives of the library and the guardian of this build, made by `script/package`, and a web server for them.
  """

  import ExUnit.Callbacks, only: [on_exit: 1]

  alias Snakepit.Build.Target

  @root Path.expand("../..", __DIR__)
  @members ~w(snakepit_guardian snakepit_nif.so)

  @doc "Makes the archive for this system in a directory below `directory`, and returns that."
  def make(directory) do
    archives = Path.join(directory, "archives")
    pack(archives, artefacts(), Target.host(:erlang.system_info(:system_architecture)))
    archives
  end

  @doc "Adds one for another system, in which each file has this content."
  def make_for(archives, triple, content) do
    directory = Path.join(archives, triple)
    File.mkdir!(directory)
    for name <- @members, do: File.write!(Path.join(directory, name), content)
    pack(archives, directory, triple)
  end

  defp pack(archives, directory, triple) do
    script = Path.join(@root, "script/package")
    options = [env: [{"SNAKEPIT_PACKAGES", archives}], stderr_to_stdout: true]
    {_said, 0} = System.cmd(script, ["--pack", directory, triple], options)
  end

  @doc "Writes the checksums of what is there now."
  def pin(archives) do
    lines =
      for path <- Path.wildcard(Path.join(archives, "*.tar.gz")) do
        sha256 = :crypto.hash(:sha256, File.read!(path))
        "#{Base.encode16(sha256, case: :lower)}  #{Path.basename(path)}\n"
      end

    File.write!(Path.join(archives, "SHA256SUMS"), lines)
  end

  @doc "The version of the archives."
  def version, do: to_string(Application.spec(:snakepit, :vsn))

  @doc "What is in an archive."
  def content, do: for(name <- @members, do: {name, File.read!(Path.join(artefacts(), name))})

  defp artefacts, do: Application.app_dir(:snakepit, "priv/native")

  @doc "Serves a directory on loopback until the test is over; returns the server and its address."
  def serve(directory) do
    {:ok, _started} = Application.ensure_all_started(:inets)

    {:ok, server} =
      :inets.start(:httpd,
        port: 0,
        bind_address: {127, 0, 0, 1},
        server_name: ~c"archives",
        server_root: String.to_charlist(directory),
        document_root: String.to_charlist(directory)
      )

    on_exit(fn -> :inets.stop(:httpd, server) end)
    [port: port] = :httpd.info(server, [:port])
    {server, "http://127.0.0.1:#{port}"}
  end

  @doc "Ends a server."
  def stop(server), do: :inets.stop(:httpd, server)
end

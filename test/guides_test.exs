defmodule Snakepit.GuidesTest do
  use ExUnit.Case, async: true

  import Snakepit.Test.Snippets

  alias Snakepit.Test.HTTP

  @root Path.expand("..", __DIR__)

  test "every snippet is taken from the project, and no other page has one that is not" do
    paths = assert_taken_from_files(page("guides/getting-started.md"))
    assert length(paths) > 8
    for path <- paths, do: assert(path =~ ~r"^examples/wordy/")

    for guide <- Path.wildcard(Path.join(@root, "guides/*.md")),
        do: assert(languages_without_file(File.read!(guide)) -- ~w(console text) == [], guide)
  end

  test "the snippets on operation are taken from an example and a test" do
    paths = assert_taken_from_files(page("guides/operation.md"))
    assert "examples/operation.exs" in paths and "test/integration/servers_test.exs" in paths
    assert "test/integration/operation_guide_test.exs" in paths
  end

  test "the guide of the dashboard describes every field of its API, and takes its snippet from an example" do
    guide = page("guides/dashboard.md")
    assert assert_taken_from_files(guide) == ["examples/dashboard.exs"]
    {:ok, worker} = Snakepit.Worker.start_link(id: "documented", cmd: ["sleep", "600"])
    start_supervised!({Snakepit.Dashboard, port: 0})
    base = Snakepit.Dashboard.url()
    overview = HTTP.json(base <> "api/overview?past=1")
    [row | _] = overview["workers"]
    detail = HTTP.json(base <> "api/worker?id=documented")
    place = HTTP.json(base <> "api/place")
    Snakepit.Worker.stop(worker)

    for map <-
          [overview, overview["run"], overview["guardian"], overview["beam"]] ++
            [overview["total"], row, detail, hd(detail["tree"]), hd(place["checks"])],
        {field, _value} <- map,
        do: assert(guide =~ "`#{field}`", "#{field} is not described")
  end

  test "the snippets on gRPC workers and on migrating are taken from examples" do
    for {guide, least} <- [{"grpc", 3}, {"migrating", 3}] do
      paths = assert_taken_from_files(page("guides/#{guide}.md"))
      assert length(paths) >= least
      for path <- paths, do: assert(path =~ ~r"^examples/(grpc_service|migrating/)")
    end
  end

  test "every file that a guide points to is there" do
    for guide <- Path.wildcard(Path.join(@root, "guides/*.md")),
        do: assert_links(File.read!(guide), "guides")
  end
end

defmodule Snakepit.Build.ChecksumsTest do
  use ExUnit.Case, async: true

  alias Snakepit.Build.{Archive, Checksums}

  @one String.duplicate("0a", 32)
  @two String.duplicate("1b", 32)

  test "lines of sha256sum, comments and empty lines" do
    text = "# comment\n\n#{@one}  one.tar.gz\n#{String.upcase(@two)} *two.tar.gz\r\n"
    assert Checksums.parse(text) == {:ok, %{"one.tar.gz" => @one, "two.tar.gz" => @two}}
  end

  test "a line that is none is named, not passed over" do
    for line <- ["#{@one}", "#{@one}a  one", "short  one", "#{@one}  one two", "<html>"],
        do: assert(Checksums.parse("# first\n#{line}\n") == {:error, 2})
  end

  @tag :tmp_dir
  test "errors name the file and the line", %{tmp_dir: directory} do
    path = Path.join(directory, "SHA256SUMS")
    assert {:error, message} = Checksums.read(path)
    assert message == "the checksums in #{path} cannot be read: no such file or directory"
    File.write!(path, "oops\n")
    assert {:error, message} = Checksums.read(path)
    assert message =~ "line 1 of #{path} is no checksum"
  end

  test "an archive, one for another system, and one of another version" do
    archive = Archive.new("0.2.0", "2.16", "aarch64-unknown-linux-gnu")
    assert archive.name == "snakepit-0.2.0-nif-2.16-aarch64-unknown-linux-gnu.tar.gz"
    sibling = Archive.new("0.2.0", "2.16", "x86_64-unknown-linux-gnu").name
    assert Checksums.fetch(%{archive.name => @one, sibling => @two}, archive) == {:ok, @one}
    assert Checksums.fetch(%{sibling => @two}, archive) == :other_targets

    for {version, nif} <- [{"0.1.0", "2.16"}, {"0.2.0-rc.1", "2.16"}, {"0.2.0", "2.17"}] do
      other = Archive.new(version, nif, "aarch64-unknown-linux-gnu").name
      assert Checksums.fetch(%{other => @one}, archive) == :none
    end
  end
end

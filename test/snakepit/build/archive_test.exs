defmodule Snakepit.Build.ArchiveTest do
  use ExUnit.Case, async: true

  alias Snakepit.Build.Archive

  @moduletag :tmp_dir
  @good [{"snakepit_guardian", "program"}, {"snakepit_nif.so", "library"}]

  # By the tar of the system, as script/package does it.
  defp tar(directory, members, options \\ []) do
    for {name, content} <- members do
      path = Path.join(directory, name)
      File.mkdir_p!(Path.dirname(path))
      File.write!(path, content)
    end

    names = Keyword.get(options, :names, for({name, _content} <- members, do: name))
    archive = Path.join(directory, "archive.tar.gz")
    given = ["-czf", archive, "-P", "-C", directory] ++ Keyword.get(options, :more, []) ++ names
    {_said, 0} = System.cmd("tar", given, stderr_to_stdout: true)
    File.read!(archive)
  end

  test "library and guardian", %{tmp_dir: directory} do
    assert {:ok, files} = directory |> tar(@good) |> Archive.unpack()
    assert Enum.sort(files) == @good
  end

  test "names that lead elsewhere are refused", %{tmp_dir: directory} do
    for name <- ["../snakepit_nif.so", "/tmp/snakepit_nif.so", "x/../../snakepit_nif.so"] do
      archive = tar(directory, @good, more: ["--transform", "s|^snakepit_nif.so$|#{name}|"])
      assert {:error, message} = Archive.unpack(archive)
      assert message =~ "expected snakepit_guardian and snakepit_nif.so in it"
      assert message =~ inspect(name)
    end
  end

  test "links, directories, doubles and more files are refused", %{tmp_dir: directory} do
    more = tar(directory, [{"extra", "x"} | @good])

    twice =
      tar(directory, @good, names: ["snakepit_guardian", "snakepit_nif.so", "./snakepit_nif.so"])

    one = tar(directory, @good, names: ["snakepit_nif.so"])
    File.rm!(Path.join(directory, "snakepit_nif.so"))
    File.ln_s!("/etc/passwd", Path.join(directory, "snakepit_nif.so"))
    link = tar(directory, [], names: ["snakepit_guardian", "snakepit_nif.so"])
    File.rm!(Path.join(directory, "snakepit_nif.so"))
    File.mkdir!(Path.join(directory, "snakepit_nif.so"))
    folder = tar(directory, [], names: ["snakepit_guardian", "snakepit_nif.so"])

    for archive <- [more, twice, one, link, folder] do
      assert {:error, message} = Archive.unpack(archive)
      assert message =~ "and found"
    end
  end

  test "at every length it is whole or refused", %{tmp_dir: directory} do
    archive = tar(directory, @good)

    for size <- 0..(byte_size(archive) - 1) do
      assert {:error, message} = archive |> binary_part(0, size) |> Archive.unpack()
      assert message =~ "not whole" or message =~ "found nothing"
    end

    tar = :zlib.gunzip(archive)

    for size <- 0..1535//64,
        do:
          assert(
            {:error, _message} = tar |> binary_part(0, size) |> :zlib.gzip() |> Archive.unpack()
          )
  end
end

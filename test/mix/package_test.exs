defmodule Snakepit.PackageTest do
  # What is given to others.
  use ExUnit.Case, async: true

  alias Snakepit.Test.Archives

  @moduletag :tmp_dir
  @root Path.expand("../..", __DIR__)
  @triple "x86_64-unknown-linux-gnu"

  defp pack(files, packages) do
    env = [{"SNAKEPIT_PACKAGES", packages}]
    arguments = ["--pack", files, @triple]

    {_said, 0} =
      System.cmd(Path.join(@root, "script/package"), arguments, env: env, stderr_to_stdout: true)

    for name <- File.ls!(packages), into: %{}, do: {name, File.read!(Path.join(packages, name))}
  end

  test "the same files are the same archive, whoever made them and when", %{tmp_dir: directory} do
    [one, two] = for name <- ["one", "the other"], do: Path.join(directory, name)

    for {path, mode, time} <- [{one, 0o755, 1_000_000_000}, {two, 0o600, 1_700_000_000}] do
      File.mkdir_p!(path)

      for {name, content} <- Enum.reverse(Archives.content()) do
        file = Path.join(path, name)
        File.write!(file, content)
        File.chmod!(file, mode)
        File.touch!(file, time)
      end
    end

    archives = pack(one, Path.join(directory, "archives"))
    assert pack(two, Path.join(directory, "others")) == archives
    assert [sums, name] = archives |> Map.keys() |> Enum.sort()

    assert {sums, name} ==
             {"SHA256SUMS", "snakepit-#{Archives.version()}-nif-2.16-#{@triple}.tar.gz"}

    sha256 = Base.encode16(:crypto.hash(:sha256, archives[name]), case: :lower)
    assert archives[sums] == "#{sha256}  #{name}\n"
  end

  test "the version of the archives is that of mix and of cargo" do
    assert Regex.run(~r/^version = "(.*)"/m, File.read!(Path.join(@root, "Cargo.toml")))
           |> List.last() ==
             Mix.Project.config()[:version]
  end

  test "every page of the docs is in the package, and every file of the package is there" do
    package = Mix.Project.config()[:package][:files]

    for file <- package, do: assert(File.exists?(Path.join(@root, file)), file)

    for extra <- Mix.Project.config()[:docs][:extras] do
      path = if is_tuple(extra), do: elem(extra, 0), else: extra
      assert File.exists?(Path.join(@root, path)), path
      assert Enum.any?(package, &(path == &1 or String.starts_with?(path, &1 <> "/"))), path
    end
  end

  test "the checksums that are shipped can be read" do
    assert {:ok, _known} = Snakepit.Build.Checksums.read(Path.join(@root, "native-checksums"))
  end
end

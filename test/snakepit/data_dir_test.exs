defmodule Snakepit.DataDirTest do
  use ExUnit.Case, async: true

  alias Snakepit.{Config, DataDir, Error}
  alias Snakepit.Test.Beam

  defp prepare!(path), do: DataDir.prepare!(Config.validate!(data_dir: path))
  defp mode(path), do: Bitwise.band(File.stat!(path).mode, 0o777)

  test "one that is made is its user's alone; one that was there stays as it is" do
    path = Path.join(Beam.temporary_directory(), "a/b")
    assert {^path, instance} = prepare!(path)
    assert mode(path) == 0o700
    assert mode(Path.dirname(path)) == 0o700
    File.chmod!(path, 0o755)
    assert prepare!(path) == {path, instance}
    assert mode(path) == 0o755

    for mode <- [0o775, 0o757, 0o777] do
      File.chmod!(path, mode)

      assert_raise ArgumentError, ~r/:data_dir: #{path} can by now be written to by others/, fn ->
        prepare!(path)
      end
    end
  end

  test "in one that others may write to there is a private one, also when they no longer may" do
    path = Beam.temporary_directory()
    File.chmod!(path, 0o775)
    assert {private, instance} = prepare!(path)
    assert Path.dirname(private) == path
    assert mode(private) == 0o700
    File.chmod!(path, 0o755)
    assert prepare!(path) == {private, instance}
    File.chmod!(private, 0o770)
    assert prepare!(path) == {private, instance}
    assert mode(private) == 0o700
  end

  test "the same directory is the same instance, another is another" do
    path = Beam.temporary_directory()
    assert {^path, instance} = prepare!(path)
    assert prepare!(path) == {path, instance}
    assert instance =~ ~r/\A[0-9]+-[0-9a-f]{32}\z/
    assert {_other, another} = prepare!(Beam.temporary_directory())
    assert another != instance
    config = Config.validate!(data_dir: path, instance: "mine")
    assert DataDir.prepare!(config) == {path, "mine"}
  end

  test "an instance that others may have written is refused" do
    path = Beam.temporary_directory()
    prepare!(path)
    File.chmod!(Path.join(path, "instance"), 0o666)
    assert_raise ArgumentError, ~r/others may write to it/, fn -> prepare!(path) end
  end

  test "whatever could not be written, the error says where and why" do
    assert DataDir.written!(:ok, "/a") == :ok

    for {reason, text} <- [
          {:enospc, "no space left on device"},
          {%Error{operation: :journal, reason: :erofs}, "read-only file system"},
          {{:file_error, ~c"/a/x", :eacces}, "permission denied"},
          {{:other, 1}, "{:other, 1}"}
        ] do
      message = "config :snakepit, :data_dir: /a cannot be written to: #{text}"
      assert_raise ArgumentError, message, fn -> DataDir.written!({:error, reason}, "/a") end
    end
  end
end

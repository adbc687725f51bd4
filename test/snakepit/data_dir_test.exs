defmodule Snakepit.DataDirTest do
  use ExUnit.Case, async: true

  alias Snakepit.{DataDir, Error}
  alias Snakepit.Test.Beam

  test "one that is made is its user's alone; one that was there stays as it is" do
    path = Path.join(Beam.temporary_directory(), "a/b")
    assert DataDir.prepare!(path) == :ok
    assert Bitwise.band(File.stat!(path).mode, 0o777) == 0o700
    File.chmod!(path, 0o775)
    assert DataDir.prepare!(path) == :ok
    assert Bitwise.band(File.stat!(path).mode, 0o777) == 0o775
    File.chmod!(path, 0o777)

    assert_raise ArgumentError, ~r/:data_dir: #{path} can be written to by everybody/, fn ->
      DataDir.prepare!(path)
    end
  end

  test "the same directory is the same instance, another is another" do
    assert DataDir.instance("/a") == DataDir.instance("/a")
    assert DataDir.instance("/a") != DataDir.instance("/b")
    assert DataDir.instance("/a") =~ ~r/\A[0-9a-f]{16}\z/
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

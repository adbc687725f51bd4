defmodule Snakepit.NetworkDataDirTest do
  use ExUnit.Case, async: true

  alias Snakepit.Test.{Beam, BeamPort, Shim}

  @moduletag :long
  @moduletag timeout: 120_000

  @on_fuse Path.expand("../fixtures/on_fuse.py", __DIR__)
  @advice "name a directory on a local disk, or say config :snakepit, allow_network_data_dir: true"

  defp refusal(config, options) do
    beam = Beam.launch(config, options)
    assert_raise(RuntimeError, fn -> BeamPort.value(beam.port) end).message
  end

  # What the kernel calls each of them; the shim says so of every directory.
  for {name, magic} <- [
        {"nfs", "6969"},
        {"cifs", "FF534D42"},
        {"smb3", "FE534D42"},
        {"9p", "1021997"},
        {"ceph", "C36400"},
        {"lustre", "BD00BD0"},
        {"gpfs", "47504653"},
        {"afs", "5346414F"}
      ] do
    test "#{name} is refused with advice, and nothing is made there" do
      directory = Path.join(Beam.temporary_directory(), "data")
      env = [Shim.variable("says_nfs"), {"NETWORK_MAGIC", unquote(magic)}]
      message = refusal([data_dir: directory], env: env)

      assert message =~
               "config :snakepit, :data_dir: #{directory} is on a file system (#{unquote(name)})"

      assert message =~ @advice
      refute File.exists?(directory)
    end
  end

  test "it is used if somebody says so, and a local one without asking" do
    env = [Shim.variable("says_nfs")]
    assert %Beam{} = Beam.start([allow_network_data_dir: true], env: env)

    # ext4, tmpfs, overlayfs, xfs, btrfs, zfs
    for magic <- ~w(EF53 1021994 794C7630 58465342 9123683E 2FC12FC1) do
      assert %Beam{} = Beam.start([], env: [{"NETWORK_MAGIC", magic} | env])
    end
  end

  unless File.exists?("/dev/fuse"), do: @tag(skip: "needs /dev/fuse")
  @tag :root
  test "so is a real FUSE" do
    directory = Beam.temporary_directory()
    wrapper = ["unshare", "--mount", "python3", @on_fuse, directory]
    message = refusal([data_dir: directory], wrapper: wrapper)
    assert message =~ "#{directory} is on a file system (fuse or virtiofs)"
  end
end

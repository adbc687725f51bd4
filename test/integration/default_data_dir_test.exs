defmodule Snakepit.DefaultDataDirTest do
  use ExUnit.Case, async: true

  alias Snakepit.Test.{Beam, BeamPort, Family, WrappedBeam}

  @moduletag :long
  @moduletag timeout: 120_000

  # Nobody has configured anything, and nothing of this machine's own state is seen.
  @unset for name <- ~w(SNAKEPIT_DATA_DIR STATE_DIRECTORY XDG_STATE_HOME HOME RELEASE_NAME),
             do: {name, ""}
  @nobody ~w(setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set -all)

  defp launch(env, options) do
    {config, options} = Keyword.pop(options, :config, data_dir: nil)
    config = config ++ [graceful_shutdown_timeout_ms: 300]
    given = for {name, _value} <- env, do: name
    unset = for {name, value} <- @unset, name not in given, do: {name, value}
    Beam.launch(config, [env: env ++ unset] ++ options)
  end

  defp start(env, options \\ []), do: env |> launch(options) |> Beam.await_start()
  defp data_dir(beam), do: Beam.run(beam, "Snakepit.Run.current!().data_dir")

  defp refusal(env, options) do
    beam = launch(env, options)
    assert_raise(RuntimeError, fn -> BeamPort.value(beam.port) end).message
  end

  test "the configuration goes before SNAKEPIT_DATA_DIR, and that before systemd's STATE_DIRECTORY" do
    [configured, named, state, other] = for _ <- 1..4, do: Beam.temporary_directory()
    systemd = {"STATE_DIRECTORY", "#{state}:#{other}"}
    all = [{"SNAKEPIT_DATA_DIR", named}, {"HOME", other}, systemd]

    assert data_dir(start(all, config: [data_dir: configured])) == configured
    assert data_dir(start(all)) == named
    assert data_dir(start(tl(all))) == Path.join(state, "snakepit")
    assert Bitwise.band(File.stat!(Path.join(state, "snakepit")).mode, 0o777) == 0o700
  end

  test "one that is named and will not do is refused by its name, and no other is used" do
    home = Beam.temporary_directory()
    file = Path.join(Beam.temporary_directory(), "file")
    File.write!(file, "")

    for {name, path} <- [
          {"SNAKEPIT_DATA_DIR", file},
          {"STATE_DIRECTORY", Path.join(file, "snakepit")}
        ] do
      message = refusal([{name, file}, {"HOME", home}], [])
      assert message =~ "#{name}: #{path} cannot be made: not a directory"
    end

    assert File.ls!(home) == []
  end

  test "it is in the state directory of the user, or below the home" do
    [home, state] = for _ <- 1..2, do: Beam.temporary_directory()
    below_home = Path.join(home, ".local/state/snakepit/scripts")
    assert data_dir(start([{"HOME", home}])) == below_home
    assert Bitwise.band(File.stat!(below_home).mode, 0o777) == 0o700

    # The one that was used stays the one.
    both = [{"HOME", home}, {"XDG_STATE_HOME", state}]
    assert data_dir(start(both)) == below_home
    File.rm_rf!(Path.join(home, ".local"))
    assert data_dir(start(both)) == Path.join(state, "snakepit/scripts")
  end

  # A `/var/tmp` of its own, which two of them can share.
  defp with_var_tmp(directory, more \\ "true") do
    script = "mount --bind #{directory} /var/tmp && #{more} && exec \"$@\""
    ["unshare", "--mount", "sh", "-c", script, "sh"]
  end

  defp var_tmp do
    directory = Beam.temporary_directory()
    File.chmod!(directory, 0o1777)
    directory
  end

  defp readable, do: [ebin: Path.join(WrappedBeam.copy(), "ebin"), cd: "/"]

  for home <- ["", "/", "/nonexistent"] do
    @tag :root
    test "a user without a home that could be written to (#{inspect(home)}) has it in /var/tmp" do
      var_tmp = var_tmp()
      options = [wrapper: with_var_tmp(var_tmp) ++ @nobody] ++ readable()
      one = start([{"HOME", unquote(home)}], options)
      assert data_dir(one) == "/var/tmp/snakepit-65534/scripts"
      family = Family.start(one)
      Beam.kill_with_guardian(one)

      # And later too, whatever home there is then.
      home = Beam.temporary_directory()
      File.chown!(home, 65_534)
      two = start([{"HOME", home}], options)
      assert data_dir(two) == "/var/tmp/snakepit-65534/scripts"
      assert Family.members(family) == []
    end
  end

  @tag :root
  test "a home of somebody else is not used" do
    home = Beam.temporary_directory()
    File.chown!(home, 65_534)
    beam = start([{"HOME", home}], wrapper: with_var_tmp(var_tmp()))
    assert data_dir(beam) == "/var/tmp/snakepit-0/scripts"
    assert File.ls!(home) == []
  end

  @tag :root
  test "where nothing can be written the error says what was tried, why not, and what to do" do
    read_only =
      "mount -o remount,ro,bind /var/tmp && mount --bind /tmp /tmp && mount -o remount,ro,bind /tmp"

    wrapper = with_var_tmp(var_tmp(), read_only) ++ @nobody
    message = refusal([{"HOME", "/nonexistent"}], [wrapper: wrapper] ++ readable())
    assert message =~ "no directory was named, and none of the usual ones will do"
    assert message =~ "$HOME: /nonexistent cannot be used: no such file or directory"

    assert message =~
             "/var/tmp: /var/tmp/snakepit-65534 cannot be made: read-only file system"

    assert message =~ "config :snakepit, data_dir: or SNAKEPIT_DATA_DIR"
  end

  @tag :root
  test "a directory that somebody else has made in /var/tmp is refused" do
    [var_tmp, tmp] = for _ <- 1..2, do: var_tmp()

    for directory <- [var_tmp, tmp] do
      File.mkdir_p!(Path.join(directory, "snakepit-0/scripts"))
      File.chown!(Path.join(directory, "snakepit-0"), 65_534)
    end

    message = refusal([{"TMPDIR", tmp}], wrapper: with_var_tmp(var_tmp))
    assert message =~ "/var/tmp/snakepit-0 belongs to another user (65534)"
    assert message =~ "#{tmp}/snakepit-0 belongs to another user (65534)"
  end
end

defmodule Snakepit.ScriptsTest do
  use ExUnit.Case, async: true

  @root Path.expand("..", __DIR__)
  @scripts for path <- Path.wildcard(Path.join(@root, "script/*")),
               match?({:ok, <<"#!/bin/sh", _::binary>>}, File.read(path)),
               do: path

  @tag :tmp_dir
  test "each script explains itself and does nothing else", %{tmp_dir: commands} do
    # With these commands a script can print, and build, install or run nothing.
    for name <- ~w(sed dirname),
        do: File.ln_s!(System.find_executable(name), Path.join(commands, name))

    assert length(@scripts) > 10

    for script <- @scripts do
      # Not the project's directory: the caller's may be any.
      options = [cd: commands, env: [{"PATH", commands}], stderr_to_stdout: true]
      assert {text, 0} = System.cmd("/bin/sh", [script, "--help"], options)
      assert String.length(text) > 40, "#{script} --help says #{inspect(text)}"
      refute text =~ "not found"
    end
  end

  test "no script names a mirror: this machine's settings say where packages come from" do
    for path <- Path.wildcard(Path.join(@root, "script/**")), File.regular?(path) do
      refute File.read!(path) =~
               ~r/(deb|security|ftp)\.debian\.org|static\.rust-lang\.org|crates\.io/,
             path
    end
  end
end

defmodule Snakepit.Build.TargetTest do
  use ExUnit.Case, async: true

  alias Snakepit.Build.Target

  @nerves %{
    "TARGET_ARCH" => "aarch64",
    "TARGET_OS" => "linux",
    "TARGET_ABI" => "gnu",
    "TARGET_CPU" => "cortex_a53",
    "CROSSCOMPILE" => "/opt/toolchain/bin/aarch64-nerves-linux-gnu"
  }

  test "architectures of BEAMs, as Rust calls them" do
    for {architecture, triple} <- [
          {"x86_64-pc-linux-gnu", "x86_64-unknown-linux-gnu"},
          {~c"aarch64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"},
          {"x86_64-alpine-linux-musl", "x86_64-unknown-linux-musl"},
          {"armv7l-unknown-linux-gnueabihf", "armv7-unknown-linux-gnueabihf"},
          {"riscv64-unknown-linux-gnu", "riscv64gc-unknown-linux-gnu"},
          {"aarch64-apple-darwin23.1.0", "aarch64-apple-darwin"},
          {"amd64-portbld-freebsd14.1", "x86_64-unknown-freebsd"},
          {"win32", "win32"}
        ],
        do: assert(Target.host(architecture) == triple)
  end

  test "nobody asks for another system" do
    assert Target.wanted(%{}) == nil
    assert Target.wanted(%{"CARGO_BUILD_TARGET" => "", "CROSSCOMPILE" => ""}) == nil
    # Of the shell that somebody sets up for something else.
    assert Target.wanted(%{"TARGET_ARCH" => "x86_64"}) == nil
  end

  test "cargo's variable names the target, and cargo knows its linker" do
    env = %{"CARGO_BUILD_TARGET" => "x86_64-unknown-linux-musl"}
    assert Target.wanted(env) == %Target{triple: "x86_64-unknown-linux-musl", linker: nil}
    assert %{triple: "x86_64-unknown-linux-musl"} = Target.wanted(Map.merge(@nerves, env))
  end

  test "Nerves' variables name target and linker" do
    assert Target.wanted(@nerves) == %Target{
             triple: "aarch64-unknown-linux-gnu",
             linker: "/opt/toolchain/bin/aarch64-nerves-linux-gnu-gcc"
           }

    arm = %{@nerves | "TARGET_ARCH" => "arm", "TARGET_ABI" => "gnueabihf"}
    assert Target.wanted(arm).triple == "armv7-unknown-linux-gnueabihf"
    oldest = %{arm | "TARGET_CPU" => "arm1176jzf_s"}
    assert Target.wanted(oldest).triple == "arm-unknown-linux-gnueabihf"
    riscv = %{@nerves | "TARGET_ARCH" => "riscv64"}
    assert Target.wanted(riscv).triple == "riscv64gc-unknown-linux-gnu"
    musl = %{@nerves | "TARGET_ARCH" => "x86_64", "TARGET_ABI" => "musl"}
    assert Target.wanted(musl).triple == "x86_64-unknown-linux-musl"
  end

  test "the beginning of the compilers' names is enough" do
    assert Target.wanted(%{"CROSSCOMPILE" => "aarch64-linux-gnu-"}) == %Target{
             triple: "aarch64-unknown-linux-gnu",
             linker: "aarch64-linux-gnu-gcc"
           }
  end

  test "a linker that cargo was told of stays" do
    own = Map.put(@nerves, "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "lld")
    assert Target.wanted(own).linker == nil
  end
end

#!/bin/sh
# What script/kernels does in each virtual machine. A line with `@@` for each step: its name, whether it was well,
# and the guest's seconds that it took. Settings come from /tmp/settings.
# shellcheck disable=SC1091
. /tmp/settings

cd /snakepit || exit 1
export MIX_ENV=test SNAKEPIT_NATIVE_DIR=/native
# Waiting in a loop costs instructions, and those are the guest's time.
export ERL_FLAGS="+sbwt none +sbwtdcpu none +sbwtdio none"

now() { cut -d. -f1 /proc/uptime; }

step() { # name, command
  name=$1
  shift
  begun=$(now)
  result=ok
  "$@" >/tmp/output 2>&1 </dev/null || result=failed
  # What went well needs no words, and the console is slow.
  if [ "$result" = ok ]; then tail -n 3 /tmp/output; else tail -n 60 /tmp/output; fi
  echo "@@ $name $result $(($(now) - begun))"
}

rust() ( # directory of the package, test program
  cd "$1" && exec "$2" --quiet
)

if [ -n "${CGROUP2-}" ]; then mount -t cgroup2 cgroup2 /sys/fs/cgroup || echo "@@ cgroup2 failed 0"; fi
if [ -n "${HIDEPID-}" ]; then mount -o remount,hidepid=2 /proc || echo "@@ hidepid failed 0"; fi
if [ -n "${YAMA-}" ]; then echo "$YAMA" >/proc/sys/kernel/yama/ptrace_scope || echo "@@ yama failed 0"; fi

echo "@@ kernel $(uname -r) $(now)"
while read -r package program; do
  step "rust/$(basename "$program" | sed 's/-[0-9a-f]*$//')" rust "$package" "$program"
done </rust-tests
for name in $ELIXIR; do step "elixir/$(basename "$name")" mix test "test/${name}_test.exs"; done
step demo mix run --no-start script/demo.exs
step chaos python3 -B test/chaos/chaos.py --build _build/test --rounds "$ROUNDS" --seed 1

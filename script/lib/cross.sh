# shellcheck shell=sh
# Building for other systems. Sourced from the project's root, after chroot.sh; nothing here runs by itself.
# `target_dir` is cargo's, and has the logs.

# What cargo's own configuration says for musl is lost where RUSTFLAGS is set.
shared_flags="-C target-feature=-crt-static"
# As the compiler task of mix does it.
static_flags="-C target-feature=+crt-static -C relocation-model=static"

# Ends the target's own process, which `for_each` has started.
skip() { # reason
  printf '%s' "$*" >"$target_dir/reason"
  exit 3
}

is_there() { # command, or path of a file
  case "$1" in
    /*) [ -e "$1" ] ;;
    *) command -v "$1" >/dev/null 2>&1 ;;
  esac
}

need() { # target, then pairs of a command or file and the Debian package that brings it
  command -v rustup >/dev/null 2>&1 || skip "rustup is not there"
  rustup target add "$1" || skip "rustup cannot get it"
  shift
  while [ $# -gt 0 ]; do
    is_there "$1" || install_packages "$2" || skip "$2 cannot be installed"
    shift 2
  done
}

artefact() { # target, name
  echo "$target_dir/$1/release/$2"
}

# Whether it comes as far as to say that it was not Snakepit who started it.
runs() { # guardian, behind what runs it
  "$@" 2>&1 </dev/null | grep -F "it cannot be started by hand"
}

needs_library() { # file, name of the library
  readelf --dynamic "$1" | grep -F "(NEEDED)" | grep -qF "[$2]"
}

# Calls a function for each target, each with a log of its own, and prints a row for each. The status is 1 if one
# failed.
for_each() { # function, targets
  function=$1 status=0 rows=""
  shift
  mkdir -p "$target_dir"
  for target in "$@"; do
    log=$target_dir/$target.log
    say "$target: building, log in $log"
    result=ok
    # In a process of its own, for the sake of its variables. `set -e` is off inside.
    ("$function" "$target") >"$log" 2>&1 || case $? in
      3) result="skipped: $(cat "$target_dir/reason")" ;;
      *) result=FAILED; status=1; show_log "$log" ;;
    esac
    rows="$rows$(printf '%-28s %s' "$target" "$result")
"
  done
  printf '%-28s %s\n%s' target result "$rows"
  return "$status"
}

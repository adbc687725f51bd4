# shellcheck shell=sh
# Debian folders to run the project in. Sourced from the project's root; nothing here runs by itself.
#
# A folder is made once by debootstrap, is kept in the cache and holds a copy of the project
# under /snakepit. Remove a folder to have it made anew, for example when forky has moved on.

cache=${SNAKEPIT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/snakepit}

say() { printf '%s\n' "$*" >&2; }

# What script/bootstrap asks for, plus Debian's own Rust; check-foreign builds `std` from source.
packages_of() { # suite
  echo elixir erlang-dev erlang-eunit erlang-tools gcc git cargo rustc python3 strace
  case "$1" in forky) echo rust-src ;; esac
}

# Root, debootstrap and the cache, for one run at a time: two would mix their copies of the project.
chroot_setup() {
  if [ "$(id -u)" -ne 0 ]; then
    say "$0 needs root: it makes Debian folders with debootstrap and runs in them with chroot."
    exit 1
  fi

  mkdir -p "$cache"
  command -v debootstrap >/dev/null 2>&1 || install_packages debootstrap debian-archive-keyring
  exec 9>"$cache/lock"
  flock -n 9 || { say "Waiting for another run to finish with $cache"; flock 9; }
}

# Onto this machine; says so.
install_packages() { # packages
  say "Installing $*, log in $cache/packages.log"
  { apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"; } \
    >"$cache/packages.log" 2>&1 || { show_log "$cache/packages.log"; return 1; }
}

# Where this machine's apt gets Debian, or its security updates, from.
mirror() { # label: Debian or Debian-Security
  uri=$(repository "$1")
  # Its label is known only once apt has asked for it.
  [ -n "$uri" ] || { apt-get update -qq >&2 && uri=$(repository "$1"); }
  [ -n "$uri" ] || { say "This machine's apt has no repository whose label is $1. Please add one to its sources."; return 1; }
  echo "$uri"
}

repository() { # label
  # shellcheck disable=SC2016  # apt's own variable
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' "Label: $1" | head -n 1
}

# Prints the log's path and its end.
show_log() { # log
  say "--- the end of $1"
  tail -n 40 "$1" >&2
  say "---"
}

# Makes the folder unless it is there whole. The stamp is written last and names the packages,
# so a folder that was interrupted, or made for another list of packages, is made again.
prepare() { # suite
  stamp="$(packages_of "$1" | tr '\n' ' ')"
  if [ "$(cat "$cache/$1/.stamp" 2>/dev/null)" != "$stamp" ]; then
    say "$1: making $cache/$1, a few minutes"
    if ! make_folder "$1" >"$cache/$1.log" 2>&1; then
      show_log "$cache/$1.log"
      return 1
    fi
    printf '%s\n' "$stamp" >"$cache/$1/.stamp"
  fi
  copy_settings "$1"
}

# The steps are chained because `set -e` is off inside an `if`.
make_folder() { # suite
  script=/usr/share/debootstrap/scripts/$1
  [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid # a suite younger than debootstrap

  # debootstrap mounts /proc; in its own namespace that cannot outlive it.
  # shellcheck disable=SC2046  # a list of package names
  rm -rf --one-file-system "${cache:?}/$1" &&
    debian=$(mirror Debian) &&
    unshare --mount debootstrap --variant=minbase "$1" "$cache/$1" "$debian" "$script" 9>&- &&
    copy_settings "$1" &&
    inside "$1" apt-get update -q &&
    inside "$1" apt-get install -q -y --no-install-recommends $(packages_of "$1") &&
    inside "$1" apt-get clean
}

# What lets apt, cargo and the resolver reach the network inside as they do outside.
copy_settings() { # suite
  root=$cache/$1
  mkdir -p "$root/etc/ssl/certs" "$root/root/.cargo"
  for file in /etc/resolv.conf /etc/hosts /etc/hostname; do
    [ ! -e "$file" ] || cp -L "$file" "$root$file"
  done
  ca=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
  [ ! -e "$ca" ] || cp -L "$ca" "$root/etc/ssl/certs/ca-certificates.crt"
  for file in config config.toml; do
    [ ! -e "${CARGO_HOME:-$HOME/.cargo}/$file" ] ||
      cp -L "${CARGO_HOME:-$HOME/.cargo}/$file" "$root/root/.cargo/$file"
  done
  # As every system has that was installed; debootstrap's smallest variant makes none.
  [ -s "$root/etc/machine-id" ] || tr -d - </proc/sys/kernel/random/uuid >"$root/etc/machine-id"
  # Not the whole of apt's configuration: its hooks name programs that only the host has.
  apt-config dump --no-empty | grep -E '^Acquire::(https?::|Check-)' | grep -v Auto-Detect \
    >"$root/etc/apt/apt.conf.d/90host" || true
}

# Makes /snakepit the project as it is in the working tree: uncommitted files included, ignored and deleted ones
# not. Build results stay. Files get the time of the copy: with its own, one that was saved after this copy but
# before the compiler started would look already compiled to the next run.
copy_project() { # suite
  tar=$cache/project.tar
  # A deleted file is listed by both commands, and so left out.
  { git ls-files -z --cached --others --exclude-standard; git ls-files -z --deleted; } |
    sort -z | uniq -z -u |
    tar --create --file="$tar" --null --verbatim-files-from --files-from=- &&
    mkdir -p "$cache/$1/snakepit" &&
    find "$cache/$1/snakepit" -mindepth 1 -maxdepth 1 ! -name _build ! -name target -exec rm -rf {} + &&
    tar --extract --file="$tar" --touch --no-same-owner --directory="$cache/$1/snakepit"
}

# Runs a command in the folder, as root, with nothing of the caller's environment but its proxies. /proc, /sys and
# /dev are bound in a mount namespace of the command's own: they vanish with its last process, however it ends.
inside() { # suite, command and arguments
  root=$cache/$1
  shift
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY CARGO_HTTP_PROXY; do
    eval "value=\${$name:-}"
    [ -z "$value" ] || set -- "$name=$value" "$@"
  done
  # shellcheck disable=SC2016  # expanded by the inner shell
  unshare --mount sh -euc '
    root=$1
    shift
    # A mount of its own, so that tests can make mount namespaces below it.
    mount --bind "$root" "$root"
    for dir in proc sys dev; do mount --rbind "/$dir" "$root/$dir"; done
    exec chroot "$root" "$@"
  ' sh "$root" \
    env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt "$@" </dev/null 9>&-
}

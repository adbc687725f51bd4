# shellcheck shell=sh
# Debian's cloud kernels, unpacked and not installed. Sourced by script/kernels after script/lib/chroot.sh.

# The repository that has a kernel of that version, as a line of sources.list.
sources_of() { # version
  case "$1" in
    5.10) label=Debian-Security suite=bullseye-security ;;
    6.1) label=Debian suite=bookworm ;;
    6.12) label=Debian suite=trixie ;;
    *) return 1 ;;
  esac
  uri=$(mirror "$label") && echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main"
}

# apt with sources and lists of its own, and this machine's proxies.
own_apt() { # directory, command of apt and arguments
  own=$1
  program=$2
  shift 2
  "$program" -q -o "Dir::Etc::SourceList=$own/sources.list" -o Dir::Etc::SourceParts=/dev/null \
    -o "Dir::State=$own/state" -o "Dir::State::status=$own/status" -o "Dir::Cache=$own/cache" \
    -o APT::Architecture=amd64 -o APT::Sandbox::User=root -o Acquire::Check-Valid-Until=false "$@"
}

# Puts the kernel of that version into $cache/kernels/VERSION/boot. What is there is used again.
fetch_kernel() { # version
  place=${cache:?}/kernels/$1
  [ ! -e "$place/.whole" ] || return 0
  rm -rf "$place" &&
    mkdir -p "$place/apt/state/lists/partial" "$place/apt/cache/archives/partial" &&
    : >"$place/apt/status" &&
    sources_of "$1" >"$place/apt/sources.list" &&
    own_apt "$place/apt" apt-get update &&
    # The package without a version in its name depends on the newest.
    package=$(own_apt "$place/apt" apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[^ ]*\)/\1/p') &&
    (cd "$place" && own_apt "$place/apt" apt-get download "${package:?}") &&
    dpkg-deb -x "$place"/linux-image-*.deb "$place" &&
    rm -rf "$place/apt" "$place"/linux-image-*.deb "${place:?}/lib" "${place:?}/usr" &&
    ls "$place"/boot/vmlinuz-* &&
    : >"$place/.whole"
}

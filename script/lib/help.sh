# shellcheck shell=sh
# Sourced by scripts as their first step: with `--help` a script prints the comment at its top and does nothing else.

# Order: read before the script changes its directory, after which $0 may name nothing.
help_text=$(sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0")

help() { printf '%s\n' "$help_text"; }

case "${1-}" in --help | -h) help; exit 0 ;; esac

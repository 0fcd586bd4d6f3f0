# SPDX-License-Identifier: Apache-2.0
# Shell helpers of the scripts; sourced, never run. Bash 5.
# shellcheck shell=bash

repo_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=${program:-$(basename "$0")}

say() { printf '%s: %s\n' "$program" "$*" >&2; }
die() {
  say "$*"
  exit 1
}
# An error of usage, as getopt's: 2.
usage_error() {
  say "$*; try --help"
  exit 2
}
have() { command -v "$1" >/dev/null 2>&1; }
# The comment block at the head of the calling script, without the licence and the leading '# '.
show_help() { sed -n '3,/^[^#]/{/^#/!q;s/^# \{0,1\}//p}' "$0"; }

# Seconds since the epoch with milliseconds, and the difference to an earlier reading.
now() { printf '%s' "$EPOCHREALTIME" | tr , .; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f", b - a }'; }

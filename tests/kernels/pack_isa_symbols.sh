#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The files compiled for AVX2 and AVX-512 may define their table and nothing else that a linker could
# choose for everybody: an inline function emitted there would crash an older CPU far from here.
# Usage: pack_isa_symbols.sh ARCHIVE...
status=0
for archive in "$@"; do
  symbols=$(nm -C --defined-only "$archive") || exit 1
  case $symbols in
    *'prunex::host::kAvx'*) ;;
    *) echo "$archive: no table found"; status=1 ;;
  esac
  others=$(printf '%s\n' "$symbols" |
    awk '$2 ~ /^[A-Zuvw]$/ && $0 !~ / prunex::host::kAvx[A-Za-z0-9]*Table$/')
  if [ -n "$others" ]; then
    printf '%s defines more than its table:\n%s\n' "$archive" "$others"
    status=1
  fi
done
exit $status

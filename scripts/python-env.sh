#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the Python environment of the tests and examples, .venv-torch/, and prints its interpreter.
#
#   scripts/python-env.sh [--check] [--system] [--examples]
#
#   --check      installs nothing: prints an interpreter that has torch, numpy and pytest, or fails
#   --system     Debian's python3-torch, in an environment that sees the system's packages
#   --examples   scikit-learn, matplotlib and tqdm are a must; otherwise they are installed if they can be
#
# torch is pinned (CPU build). Without PyPI, or where it has no such torch, Debian's python3-torch is used.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
program='python-env'

readonly torch_version=2.13.0
readonly venv=$repo_root/.venv-torch
readonly needed='import torch, numpy, pytest'
readonly examples_need='import sklearn, matplotlib, tqdm'
check=false system=false examples=false
while (($#)); do
  case $1 in
    --check) check=true && shift ;;
    --system) system=true && shift ;;
    --examples) examples=true && shift ;;
    -h | --help) show_help && exit 0 ;;
    *) usage_error "unknown option '$1'" ;;
  esac
done

works() { [[ -x $1 ]] && "$1" -c "$needed" >/dev/null 2>&1; }
has_examples() { "$1" -c "$examples_need" >/dev/null 2>&1; }

if [[ $check == true ]]; then
  for candidate in "${TEST_PYTHON:-}" "$venv/bin/python" "$(command -v python3 || true)"; do
    if [[ -n $candidate ]] && works "$candidate" && { [[ $examples == false ]] || has_examples "$candidate"; }; then
      echo "$candidate"
      exit 0
    fi
  done
  extra=''
  [[ $examples == false ]] || extra=', scikit-learn, matplotlib, tqdm'
  die "no Python with torch, numpy, pytest$extra: scripts/python-env.sh makes one"
fi

if [[ $system == false ]] && ! works "$venv/bin/python"; then
  install_packages python3-venv
  log=$(mktemp "${TMPDIR:-/tmp}/prunex-pip.XXXXXX")
  say "installing torch $torch_version, numpy and pytest into $venv"
  if /usr/bin/env python3 -m venv "$venv" >"$log" 2>&1 &&
    { "$venv/bin/pip" install --disable-pip-version-check --retries 1 --timeout 60 \
      --extra-index-url https://download.pytorch.org/whl/cpu "torch==$torch_version+cpu" numpy pytest \
      >>"$log" 2>&1 ||
      "$venv/bin/pip" install --disable-pip-version-check --retries 1 --timeout 60 \
        "torch==$torch_version" numpy pytest >>"$log" 2>&1; }; then
    rm -f "$log"
  else
    say "torch $torch_version is not to be had from PyPI (log: $log); using Debian's python3-torch"
    system=true
  fi
fi
if [[ $system == true ]]; then
  install_packages python3-torch python3-numpy python3-pytest python3-venv
  /usr/bin/env python3 -m venv --clear --system-site-packages "$venv"
fi
works "$venv/bin/python" || die "$venv/bin/python has no torch, numpy or pytest"
if ! has_examples "$venv/bin/python"; then
  log=$(mktemp "${TMPDIR:-/tmp}/prunex-pip.XXXXXX")
  if "$venv/bin/pip" install --disable-pip-version-check --retries 1 --timeout 60 \
    scikit-learn matplotlib tqdm >"$log" 2>&1; then
    rm -f "$log"
  elif [[ $system == true ]]; then
    install_packages python3-sklearn python3-matplotlib python3-tqdm
  fi
  if ! has_examples "$venv/bin/python"; then
    [[ $examples == false ]] || die "scikit-learn, matplotlib and tqdm are not to be had (log: $log)"
    say "no scikit-learn, matplotlib or tqdm: the training example will not run (log: $log)"
  fi
fi
echo "$venv/bin/python"

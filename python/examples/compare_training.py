# SPDX-License-Identifier: Apache-2.0
"""Runs train_cnn.py on an emulated cluster: two nodes of two ranks, a limited link between them.

python3 compare_training.py                 one seed, 100 Mbit/s, under five minutes
python3 compare_training.py --full          three seeds on 1 Gbit/s and 100 Mbit/s, about an hour

Writes training.json, a plot (PNG) per rate and training.md, and prints the tables. Without --full every
method trains for the same time; with it for the same number of iterations, so that their final
accuracies can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from importlib import metadata
from typing import Any, Dict, List

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
METHODS = "dense,dense-prunex,topk,topk-0.01,powersgd-1,powersgd-4,powersgd-16,prunex"
# The node's own part of the rendezvous is in its environment (scripts/netlab.sh).
NODE = (
    'exec "$0" -m torch.distributed.run --nnodes "$NNODES" --node_rank "$NODE_RANK" '
    '--nproc_per_node "$RANKS_PER_NODE" --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" '
    '$TORCHRUN_OPTIONS "$@"'
)
# torchrun before 2.0 fails on Python 3.11 where no rank's output is sent elsewhere; there is no rank 9.
OLD_TORCHRUN = "-r 9:3 -t 9:3"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--full", action="store_true", help="three seeds, two rates, equal iterations")
    add("--rates", help="comma-separated, such as 100mbit; none: as fast as it goes")
    add("--seeds", help="comma-separated numbers")
    add("--methods", help=f"comma-separated ({METHODS})")
    add("--seconds", type=float, help="of training per method")
    add("--iterations", type=int, help="of training per method instead")
    add("--nodes", type=int, default=2)
    add("--ranks-per-node", type=int, default=2)
    add("--loopback", action="store_true", help="nodes without network namespaces of their own")
    add("--out", default=os.path.join(ROOT, "build", "training"), help="folder of the results")
    add("rest", nargs="*", metavar="-- OPTION", help="more options of train_cnn.py")
    options = parser.parse_args()
    full = options.full
    options.rates = (options.rates or ("1gbit,100mbit" if full else "100mbit")).split(",")
    seeds = (options.seeds or ("0,1,2" if full else "0")).split(",")
    options.seeds = [int(seed) for seed in seeds]
    # Half of the channels too: for it the accuracy is stated.
    options.methods = options.methods or (METHODS + ("-0.4,prunex-0.5" if full else ""))
    if options.seconds is None and options.iterations is None:
        options.seconds, options.iterations = (None, 144) if full else (24.0, None)
    return options


def one(options: argparse.Namespace, rate: str, seed: int, path: str) -> Dict[str, Any]:
    """One seed on one rate: all methods in one job."""
    lab = [os.path.join(ROOT, "scripts", "netlab.sh"), "--nodes", str(options.nodes)]
    lab += [] if rate == "none" else ["--rate", rate]
    lab += ["--loopback"] if options.loopback else []
    job = [sys.executable, os.path.join(HERE, "train_cnn.py"), "--json", path]
    job += ["--methods", options.methods, "--seed", str(seed)]
    if options.seconds is not None:
        job += ["--seconds", str(options.seconds)]
    else:
        job += ["--iterations", str(options.iterations)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "RANKS_PER_NODE": str(options.ranks_per_node),
        "TORCHRUN_OPTIONS": OLD_TORCHRUN if metadata.version("torch").startswith("1.") else "",
        # Without names for addresses torch warns at every connection.
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
    }
    library = os.path.join(ROOT, "build", "plugin", "libprunex.so")
    if "PRUNEX_LIBRARY" not in environment and os.path.exists(library):
        environment["PRUNEX_LIBRARY"] = library
    job += ["--local-steps", "8"] if options.full else []
    command = lab + ["--", "sh", "-c", NODE] + job + options.rest
    if subprocess.run(command, env=environment, check=False).returncode:
        sys.exit(f"compare_training: the job with seed {seed} on {rate} failed")
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def joined(documents: List[Dict[str, Any]]) -> Dict[str, Any]:
    """One document of all jobs: every run knows its rate."""
    first = documents[0]
    keys = ("schema", "version", "world", "nodes", "network", "torch")
    settings = ("seconds", "iterations", "batch_per_rank", "local_steps")
    return {
        **{key: first[key] for key in keys},
        "settings": {key: first[key] for key in settings},
        "wall_s": sum(d["wall_s"] for d in documents),
        "runs": [{**run, "rate": d["asked_rate"]} for d in documents for run in d["runs"]],
    }


def main() -> None:
    options = arguments()
    os.makedirs(options.out, exist_ok=True)
    sys.path.insert(0, HERE)
    import train_report

    documents = []
    for rate in options.rates:
        for seed in options.seeds:
            print(f"compare_training: {rate}, seed {seed}", file=sys.stderr, flush=True)
            path = os.path.join(options.out, f"{rate}-seed{seed}.json")
            documents.append({**one(options, rate, seed, path), "asked_rate": rate})
    document = joined(documents)
    path = os.path.join(options.out, "training.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file)
        file.write("\n")
    text = train_report.text_of(document)
    with open(os.path.join(options.out, "training.md"), "w", encoding="utf-8") as file:
        file.write(text)
    print(text)
    print(path)
    for plot in train_report.plot_all(document, options.out):
        print(plot)


if __name__ == "__main__":
    main()

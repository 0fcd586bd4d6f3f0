# SPDX-License-Identifier: Apache-2.0
"""Tables and plots of what compare_training.py measured.

python3 train_report.py training.json [--plot FOLDER]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from collections import defaultdict
from typing import Any, Dict, Iterable, List, Optional, Tuple

Run = Dict[str, Any]
PACED = (
    "The nodes share the loopback interface: only PruneX's own connections are paced to the rate, "
    "gloo's (dense, PowerSGD) are not limited, and times cannot be compared with theirs."
)


def main_phase(run: Run) -> Dict[str, Any]:
    """The phase that lasts: fine-tuning for PruneX, all of it for the others."""
    phases = run["phases"]
    return phases.get("finetune") or phases.get("ddp") or next(iter(phases.values()))


def label(run: Run) -> str:
    """The method with PruneX's share of kept channels."""
    name = run["method"]
    return f"prunex-{run['keep']:g}" if name == "prunex" else name


def sent(phase: Dict[str, Any], which: str = "median") -> float:
    """Bytes a node sent per iteration: by its interface, else by PruneX's counters."""
    return phase["link_bytes"][which] or phase["wire_bytes"][which]


def by_method(runs: Iterable[Run]) -> Dict[str, List[Run]]:
    found: Dict[str, List[Run]] = defaultdict(list)
    for run in runs:
        found[label(run)].append(run)
    return found


def mean_and_error(values: List[float]) -> Tuple[float, Optional[float]]:
    """Mean and its standard error (None of one value)."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None
    return mean, statistics.stdev(values) / math.sqrt(len(values))


def middle(runs: List[Run], key: str) -> float:
    """Median over runs of a key's median in the lasting phase."""
    return statistics.median(main_phase(run)[key]["median"] for run in runs)


def table(methods: Dict[str, List[Run]]) -> List[str]:
    dense = methods.get("dense")
    base = statistics.median(sent(main_phase(r)) for r in dense) if dense else None
    lines = [
        "| method | iterations | iteration ms | exchange ms | inter-node ms | MB sent per node and "
        "iteration | bytes / dense | accuracy % |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, runs in methods.items():
        number = statistics.median(sent(main_phase(r)) for r in runs)
        inter = middle(runs, "inter_s")
        right, error = mean_and_error([100 * r["accuracy"] for r in runs])
        shown = f"{right:.2f}{f' +- {error:.2f}' if error is not None else ''}"
        lines.append(
            f"| {name} | {statistics.median(r['iterations'] for r in runs):.0f} "
            f"| {1e3 * middle(runs, 'time_s'):.0f} | {1e3 * middle(runs, 'exchange_s'):.0f} "
            f"| {f'{1e3 * inter:.0f}' if inter else '-'} | {number / 1e6:.3f} "
            f"| {f'{number / base:.3f}' if base else '-'} "
            f"| {'(cut short)' if name == 'dense-prunex' else shown} |"
        )
    return lines


def about_prunex(methods: Dict[str, List[Run]]) -> List[str]:
    """PruneX against the others, in sentences."""
    lines = []
    for name, runs in methods.items():
        if not name.startswith("prunex"):
            continue
        if not all("finetune" in r["phases"] for r in runs):
            lines.append(
                f"{name}: too few iterations for the mask to be frozen; nothing to compare"
            )
            continue
        density = statistics.median(r["density"] for r in runs)
        number = statistics.median(sent(main_phase(r)) for r in runs)
        time = middle(runs, "time_s")
        lines.append(f"{name}, after the freeze; {density:.3f} of the elements are kept:")
        for other, what in (("dense", "DDP on gloo"), ("dense-prunex", "PruneX without masks")):
            if other in methods:
                base = statistics.median(sent(main_phase(r)) for r in methods[other])
                if base:  # gloo's are counted on the nodes' own interfaces only
                    lines.append(f"  bytes between nodes: {number / base:.3f} x {other} ({what})")
        if "dense-prunex" in methods and middle(methods["dense-prunex"], "inter_s"):
            ratio = middle(runs, "inter_s") / middle(methods["dense-prunex"], "inter_s")
            lines.append(
                f"  inter-node time: {ratio:.3f} x dense-prunex = {ratio / density:.3f} x density x "
                "dense"
            )
        for other, theirs in methods.items():
            if other != name:
                lines.append(
                    f"  iteration: {middle(theirs, 'time_s') / time:.2f} x as fast as {other}"
                )
        admm = [r["phases"][p] for r in runs for p in ("admm", "frozen") if p in r["phases"]]
        if admm:
            lines.append(
                f"  before it: {1e3 * statistics.fmean(p['time_s']['mean'] for p in admm):.0f} ms and "
                f"{statistics.fmean(sent(p, 'mean') for p in admm) / 1e6:.3f} MB per local step, rounds "
                "included"
            )
        own = statistics.median(r["admm_cost"]["share"] for r in runs)
        each = statistics.median(r["admm_cost"]["own_s"] / r["admm_cost"]["steps"] for r in runs)
        line = f"  H-SADMM's own computation: {1e3 * each:.1f} ms per local step, {100 * own:.1f} % of "
        line += "an iteration of its phase, rounds included"
        if "dense" in methods:
            line += (
                f", {100 * each / middle(methods['dense'], 'time_s'):.1f} % of a dense iteration"
            )
        lines.append(line)
        lines.append(f"  equal parameters and masks on all ranks: {all(map(equal, runs))}")
    return lines


def equal(run: Run) -> bool:
    return bool(run["same_parameters"] and run["same_masks"] and run.get("dropped_are_zero", True))


def paired(methods: Dict[str, List[Run]]) -> List[str]:
    """Final accuracy minus dense's with the same seed."""
    if "dense" not in methods:
        return []
    dense = {r["seed"]: r["accuracy"] for r in methods["dense"]}
    lines = []
    for name, runs in methods.items():
        pairs = [100 * (r["accuracy"] - dense[r["seed"]]) for r in runs if r["seed"] in dense]
        if name in ("dense", "dense-prunex") or not pairs:
            continue
        mean, error = mean_and_error(pairs)
        spread = f" +- {error:.2f} (standard error)" if error is not None else ""
        lines.append(f"  {name}: {mean:+.2f}{spread} points, {len(pairs)} seed(s)")
    return ["final accuracy minus dense's, by seed:"] + lines if lines else []


def text_of(document: Dict[str, Any]) -> str:
    """All tables of a document, as Markdown."""
    out = []
    for rate, runs in rates_of(document).items():
        methods = by_method(runs)
        budget = document["settings"]
        equal_part = (
            f"{budget['seconds']:g} s of training per method"
            if budget["seconds"]
            else f"{budget['iterations']} iterations per method"
        )
        out += [
            f"## {rate}: {document['nodes']} nodes, {document['world']} ranks, "
            f"{runs[0]['parameters'] / 1e6:.2f} M parameters, {equal_part}",
            "",
            *([PACED, ""] if document["network"] == "loopback" and rate != "none" else []),
            *table(methods),
            "",
            *about_prunex(methods),
            *paired(methods),
            "",
        ]
    return "\n".join(out)


def rates_of(document: Dict[str, Any]) -> Dict[str, List[Run]]:
    found: Dict[str, List[Run]] = defaultdict(list)
    for run in document["runs"]:
        found[run["rate"]].append(run)
    return found


# ---- plots


def _bars(
    axes: Any, methods: Dict[str, List[Run]], values: List[Tuple[str, float]], what: str
) -> None:
    """One bar per method, in the methods' order and colours; values: (label, value) each."""
    colours = [_colour(list(methods), name) for name in methods]
    axes.barh([v[0] for v in values][::-1], [v[1] for v in values][::-1], color=colours[::-1])
    axes.set_xlabel(what)
    axes.grid(axis="x", alpha=0.3)


def _colour(names: List[str], name: str) -> str:
    wheel = ["#4c72b0", "#8fa8d1", "#dd8452", "#e9b48f", "#55a868", "#8c8c8c", "#937860", "#64b5cd"]
    if name.startswith("prunex"):
        return "#c44e52" if name == [n for n in names if n.startswith("prunex")][0] else "#8172b3"
    others = [n for n in names if not n.startswith("prunex")]
    return wheel[others.index(name) % len(wheel)]


def plot(rate: str, runs: List[Run], path: str) -> None:
    """Six panels of one rate as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    methods = by_method(runs)
    figure, axes = pyplot.subplots(2, 3, figsize=(16, 9), constrained_layout=True)
    figure.suptitle(f"Training on a link of {rate}")
    for name, theirs in methods.items():
        if name == "dense-prunex":  # there for its time per iteration only
            continue
        for number, run in enumerate(theirs):
            style = {
                "color": _colour(list(methods), name),
                "label": name if number == 0 else None,
                "marker": ".",
                "alpha": 0.85,
            }
            right = [100 * p["accuracy"] for p in run["points"]]
            axes[0, 0].plot([p["time_s"] for p in run["points"]], right, **style)
            axes[0, 1].plot([p["bytes_sent"] / 1e6 for p in run["points"]], right, **style)
    axes[0, 0].set(xlabel="training time, s", ylabel="test accuracy, %")
    axes[0, 1].set(xlabel="MB that a node sent", ylabel="test accuracy, %", xscale="log")
    axes[0, 0].legend(fontsize=8)
    inter = []
    for name, theirs in methods.items():
        time = middle(theirs, "inter_s")
        shown = time or middle(theirs, "exchange_s")  # gloo does not tell its stages
        inter.append((name if time else f"{name} (exchange)", 1e3 * shown))
    _bars(axes[0, 2], methods, inter, "inter-node time per iteration, ms")
    bytes_sent = [
        (name, statistics.median(sent(main_phase(run)) for run in theirs) / 1e6)
        for name, theirs in methods.items()
    ]
    _bars(axes[1, 0], methods, bytes_sent, "MB per iteration and node (PruneX: after the freeze)")
    for name, theirs in methods.items():
        if not name.startswith("prunex"):
            continue
        rounds = theirs[0]["admm_rounds"]
        numbers = [r["round"] for r in rounds]
        colour = _colour(list(methods), name)
        axes[1, 1].semilogy(numbers, [r["r"] for r in rounds], color=colour, label=f"{name}: r")
        axes[1, 1].semilogy(
            numbers, [r["s"] for r in rounds], color=colour, ls="--", label=f"{name}: s"
        )
        axes[1, 2].plot(
            numbers, [r["mask_flips"] for r in rounds], color=colour, marker="o", label=name
        )
    axes[1, 1].set(xlabel="round", ylabel="residuals r (primal), s (dual)")
    axes[1, 2].set(xlabel="round", ylabel="groups whose mask changed")
    for each in (axes[1, 1], axes[1, 2]):
        if each.lines:
            each.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def plot_all(document: Dict[str, Any], folder: str) -> List[str]:
    """One PNG per rate; returns their paths."""
    paths = []
    for rate, runs in rates_of(document).items():
        paths.append(os.path.join(folder, f"training-{rate}.png"))
        plot(rate, runs, paths[-1])
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("document")
    parser.add_argument("--plot", metavar="FOLDER", help="where to put a PNG per rate")
    options = parser.parse_args()
    with open(options.document, encoding="utf-8") as file:
        document = json.load(file)
    print(text_of(document))
    if options.plot:
        for path in plot_all(document, options.plot):
            print(path)


if __name__ == "__main__":
    main()

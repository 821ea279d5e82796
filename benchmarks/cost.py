"""How the time grows with n, L, d and K: ours, written out, and the bare products."""

import argparse
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import reference
import torch
from selection import machine

from loes import LOES

BASE = {"n": 2000, "L": 8, "d": 256, "K": 3}
GROWTH = {
    "n": [1000, 2000, 4000, 8000],
    "L": [4, 8, 16, 32],
    "d": [64, 128, 256, 512],
    "K": [2, 3, 4, 6],
}
STYLES = {"literal": "k:s", "ours": "k-o", "bare": "k--^"}  # told apart without colour


def measure(size: dict[str, int], repeats: int, clock: str) -> dict[str, float]:
    """Time one size."""
    layers, y = reference.residual_stream(size["n"], size["L"], size["d"])
    k = size["K"]
    runs = {
        "ours": lambda: LOES(k).fit(layers, y),
        "bare": lambda: reference.bare_products(layers, k),
    }
    times = reference.interleaved(runs, repeats, clock)
    return times | {
        "literal": reference.seconds(lambda: reference.literal_paper(layers, y, k), clock)
    }


def draw(table: pd.DataFrame, path: str) -> None:
    """Draw one panel a quantity, log-log."""
    figure, axes = plt.subplots(1, 4, figsize=(11, 3), sharey=True, layout="constrained")
    for axis, (name, rows) in zip(axes, table.groupby("varied", sort=False), strict=True):
        for what, style in STYLES.items():
            axis.loglog(rows[name], rows[what], style, label=what, markerfacecolor="white")
        axis.set_xticks(rows[name], [str(value) for value in rows[name]])
        axis.minorticks_off()
        axis.set_xlabel(name)
    axes[0].set_ylabel("seconds")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Print the times and the log-log slopes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figure", help="where to write the figure, such as benchmarks/cost.png")
    parser.add_argument("--small", action="store_true", help="n and d divided by four")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--clock", choices=list(reference.CLOCKS), default="wall")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.threads:
        torch.set_num_threads(options.threads)
    print(machine())
    rows = []
    for varied, values in GROWTH.items():
        for value in values:
            size = BASE | {varied: value}
            if options.small:
                size |= {"n": size["n"] // 4, "d": size["d"] // 4}
            times = measure(size, options.repeats, options.clock)
            rows.append({"varied": varied} | size | times)
    table = pd.DataFrame(rows)
    print(table.to_string(index=False, float_format="{:.3g}".format))
    slopes = {
        varied: {
            what: np.polyfit(np.log(group[varied]), np.log(group[what]), 1)[0] for what in STYLES
        }
        for varied, group in table.groupby("varied", sort=False)
    }
    print("\nExponents, from log-log fits:")
    print(pd.DataFrame(slopes).T.to_string(float_format="{:.2f}".format))
    if options.figure:
        draw(table, options.figure)


if __name__ == "__main__":
    main()

"""Compute what the explorer page of the book weighs: writes book/_static/explorer/EXAMPLE.js.

The terms of a step depend on the layers picked before it, in their order, but not on the weights.
So a tree of states, all ordered sequences of at most two picks, holds every selection of three
layers, whatever the weights; the page only adds up and takes the smallest score. The last candidate
is Gaussian noise, which the page leaves out unless it is asked for.

Selections see the training part, probes are judged on validation; the test part is never touched.

    python data/explorer.py
"""

import argparse
import json
import warnings
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from loes import LOES, SelectionWarning, examples
from loes.baselines import Calibration, principal_components, validation_score
from loes.checks import as_targets
from loes.criteria import CRITERIA
from loes.selection import TERMS, candidate_terms
from loes.solver import Samples, Stack, open_stack
from loes.store import write_whole

FOLDER = Path(__file__).parents[1] / "book/_static/explorer"
TITLES = {
    "topics": "MiniLM, topics of newsgroup posts",
    "intents-e5": "e5-small, intents of commands",
    "animals": "DINOv2-S, kinds of animals",
}
K = 3
DIGITS = 6
WEIGHTS = ("alpha", "gamma", "eta")


def rounded(value: float) -> float | None:
    """Round to six significant digits; None for what is not defined."""
    return None if np.isnan(value) else float(f"{value:.{DIGITS}g}")


def key(layers) -> str:
    """Name a sequence or a set of layers: "6-0-5", and "" for none."""
    return "-".join(map(str, layers))


def tree(layers: list[np.ndarray], y: np.ndarray, criterion: str) -> dict[str, list]:
    """Return the terms before the weights of every candidate, after each sequence of picks.

    Parameters
    ----------
    layers : (n, d_l) each.
    y : (n,) class labels.
    criterion : "paper" or "bounded".

    Returns
    -------
    From the `key` of a sequence of at most two picks to one row a layer: loss, iso, red, tri, the
    last two None before the first pick; or None for a layer that is picked or has nothing left.
    """
    targets, counts = map(torch.from_numpy, as_targets(y, len(y), "classification"))
    samples = Samples.of([torch.from_numpy(X) for X in layers], targets, counts)
    states = {}

    def grow(stack: Stack, picks: tuple[int, ...]) -> None:
        table = candidate_terms(stack, CRITERIA[criterion]())
        states[key(picks)] = [
            [rounded(value) for value in table.loc[layer, TERMS]] if layer in table.index else None
            for layer in range(len(layers))
        ]
        if len(picks) < K - 1:
            for layer in table.index:
                grow(stack.pick(layer, table.loc[layer, "ridge"]), (*picks, layer))

    grow(open_stack(samples, range(len(layers))), ())
    return states


def greedy(states: dict[str, list], k: int, candidates: int, weights: dict) -> list[int]:
    """Weigh the terms of a `tree` and walk it, as the page does: Eq. 7."""
    picks: list[int] = []
    while len(picks) < k:
        rows = enumerate(states[key(picks)][:candidates])
        terms = pd.DataFrame({layer: row for layer, row in rows if row}, index=TERMS, dtype=float).T
        score = (
            terms["loss"]
            + weights["alpha"] * (1 - terms["iso"])
            + (weights["gamma"] * terms["red"]).fillna(0)
            - (weights["eta"] * terms["tri"]).fillna(0)
        )
        picks.append(int(score.idxmin()))
    return picks


def weightings(criterion: str, seed: int = 0, draws: int = 6) -> list[dict[str, float]]:
    """Return the criterion's own weights, no weights at all, and some drawn over four decades."""
    default = CRITERIA[criterion]()
    drawn = 10 ** np.random.default_rng(seed).uniform(-3, 1, size=(draws, len(WEIGHTS)))
    rows = [[getattr(default, name) for name in WEIGHTS], [0.0] * len(WEIGHTS), *drawn]
    return [{name: rounded(w) for name, w in zip(WEIGHTS, row, strict=True)} for row in rows]


def selections(layers: list[np.ndarray], y: np.ndarray) -> list[dict]:
    """Let LOES itself select with several weights, without and with the noise: a check of trees."""
    runs = []
    for criterion, noise in product(CRITERIA, (False, True)):
        shown = layers if noise else layers[:-1]
        for weights in weightings(criterion):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SelectionWarning)
                picks = LOES(K, criterion=criterion, **weights).fit(shown, y).selected_
            runs.append({"criterion": criterion, "noise": noise, **weights, "layers": picks})
    return runs


def explore(name: str, seed: int = 0) -> dict:
    """Return all that the page needs of one example."""
    task, layers, *_ = examples.load(name)
    rng = np.random.default_rng(seed)
    parts, labels = [], []
    for rows in (task.train, task.validation):
        arrays = list(layers.take(rows).arrays)
        noise = rng.normal(size=arrays[-1].shape).astype(arrays[-1].dtype)
        parts.append([*arrays, noise])
        labels.append(task.labels[rows])
    calibration = Calibration(parts[0], labels[0], parts[1], labels[1], "classification", seed)
    reduced = principal_components(parts[0], K)
    sets = [s for k in range(1, K + 1) for s in combinations(range(len(reduced)), k)]
    return {
        "example": name,
        "title": TITLES[name],
        "layers": [*layers.names, "noise"],
        "width": [X.shape[1] for X in reduced],
        "samples": {"train": len(labels[0]), "validation": len(labels[1])},
        "classes": len(task.classes),
        "defaults": {criterion: weightings(criterion)[0] for criterion in CRITERIA},
        "terms": {criterion: tree(reduced, labels[0], criterion) for criterion in CRITERIA},
        "accuracy": {key(s): rounded(validation_score(calibration, s)) for s in sets},
        "selections": selections(reduced, labels[0]),
    }


def write(content: dict, folder: Path = FOLDER) -> Path:
    """Write a script that a page may load without a server: JSON, given a name."""
    path = folder / f"{content['example']}.js"
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    script = f'(window.LOES_EXPLORER ??= {{}})["{content["example"]}"] = {text};\n'
    write_whole(path, script.encode())
    return path


def read(path: Path) -> dict:
    """Return the content of a file of `write`."""
    return json.loads(path.read_text(encoding="utf-8").partition(" = ")[2].rstrip(";\n"))


def main() -> None:
    """Compute the examples asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("examples", nargs="*", metavar="EXAMPLE", help=f"of {', '.join(TITLES)}")
    options = parser.parse_args()
    if unknown := set(options.examples) - set(TITLES):
        parser.error(f"there is no {', '.join(sorted(unknown))}; take some of {', '.join(TITLES)}.")
    for name in options.examples or TITLES:
        path = write(explore(name))
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()

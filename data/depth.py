"""Ask language models where they know a task, and whether depth pays: writes results/depth.json.

The maps show development samples only. The study cuts SmolLM2 off after so many blocks and judges
each cut as data/compare.py judges the whole model. A quarter of an hour on one core:

    python data/depth.py
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from compare import LEARNING_RATE
from loes import LayerFeatures, evaluate, examples, tasks
from loes.baselines import METHODS
from loes.evaluation import divide
from loes.run import probe_layers
from loes.store import write_whole

RESULT = Path(__file__).parent / "results" / "depth.json"
DEEP = "intents"
DEPTHS = (6, 12, 18, 24, 30)  # the first two are those of MiniLM and e5-small
REFERENCES = ("last layer", "best single (validation)")
JUDGED = ("last layer", "best single (validation)", "random k", "LOES paper", "LOES bounded")


def cut(layers: LayerFeatures, depth: int) -> LayerFeatures:
    """Return what a model would offer that ended after so many blocks."""
    return LayerFeatures(layers.names[: depth + 1], layers.arrays[: depth + 1], layers.pooling)


def map_layers(task: tasks.Task, layers: LayerFeatures, seeds: range) -> list[dict]:
    """Return the validation accuracy of one probe a layer, over divisions of the development part.

    Parameters
    ----------
    task : of n samples.
    layers : their features.
    seeds : one division each.

    Returns
    -------
    One record a layer, as `loes.run.probe_layers` describes them.
    """
    development = np.array([*task.train, *task.validation])
    splits = [
        divide(development, task.labels, task.groups, "classification", 0.2, seed) for seed in seeds
    ]
    table = probe_layers(layers, task.labels, splits, "classification", progress=False)
    return table.to_dict(orient="records")


def study_depth(
    task: tasks.Task, layers: LayerFeatures, depths: Sequence[int], seeds: range, **training
) -> tuple[list[dict], list[dict]]:
    """Judge ways to choose layers on a model that is cut off at several depths.

    Parameters
    ----------
    task : of n samples.
    layers : their features, of the whole model.
    depths : number of blocks that are left.
    seeds : as in `loes.evaluate`.
    **training : further arguments of `loes.train_probe`.

    Returns
    -------
    One record a run (depth, method, seed, accuracy on validation and test, the layers), and one a
    gain of a method over a reference, with its interval, as `Evaluation.summary` returns them.
    """
    runs, gains = [], []
    for depth in tqdm(depths, desc="depths"):
        found = evaluate(
            cut(layers, depth),
            task.labels,
            development=[*task.train, *task.validation],
            test=task.test,
            groups=task.groups,
            methods={name: METHODS[name] for name in JUDGED},
            seeds=seeds,
            progress=False,
            **training,
        )
        kept = found.runs[found.runs["method"].isin(JUDGED)].assign(depth=depth)
        runs += kept[["depth", "method", "seed", "accuracy", "validation", "layers"]].to_dict(
            orient="records"
        )
        for reference in REFERENCES:
            table = found.summary(reference).loc[list(JUDGED)].drop(reference).reset_index()
            table = table.assign(depth=depth, reference=reference)
            gains += table[["depth", "reference", "method", "difference", "low", "high"]].to_dict(
                orient="records"
            )
    return runs, gains


def main() -> None:
    """Run the study, then draw the maps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    task, layers, *_ = examples.load(DEEP)
    content = {"example": DEEP, "seeds": len(seeds)}
    content["runs"], content["gains"] = study_depth(
        task, layers, DEPTHS, seeds, learning_rate=LEARNING_RATE
    )
    maps = content["maps"] = {}
    for name in tqdm(examples.CHAPTERS["language"], desc="maps"):
        task, layers, *_ = examples.load(name)
        maps[name] = map_layers(task, layers, seeds)
    for name in ("intents-minilm", "topics"):
        task, layers, *_ = examples.load(name, pretrained=False)
        maps[f"{name}, random weights"] = map_layers(task, layers, seeds)
    write_whole(RESULT, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()

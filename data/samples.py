"""Ask whether selection helps with few samples and with many: writes results/samples.json.

The test part stays the same; of the development part each seed draws so many samples a class. Ten
minutes on one core:

    python data/samples.py
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from compare import LEARNING_RATE
from depth import JUDGED
from loes import LayerFeatures, evaluate, examples, tasks
from loes.baselines import METHODS
from loes.store import write_whole

RESULT = Path(__file__).parent / "results" / "samples.json"
NAMES = ("topics", "animals", "intents-minilm")
SIZES = (5, 10, 20, 40, 125)  # samples a class, validation among them; no example has more
WAYS = (*JUDGED, "LOES paper, PCA", "LOES bounded, PCA", "all layers")


def draw(task: tasks.Task, size: int, seed: int) -> np.ndarray:
    """Return development samples, so many of each class, in which a larger size keeps a smaller."""
    development = pd.Series([*task.train, *task.validation]).sample(frac=1, random_state=seed)
    place = development.groupby(task.labels[development]).cumcount()
    return development[place < size].sort_index().to_numpy()


def study(
    task: tasks.Task, layers: LayerFeatures, sizes: tuple[int, ...], seeds: range, **training
) -> list[dict]:
    """Judge ways to choose layers by how many samples a class there are to choose and learn from.

    Parameters
    ----------
    task : of n samples.
    layers : their features.
    sizes : samples a class.
    seeds : of the draw, the division and the training.
    **training : further arguments of `loes.train_probe`.

    Returns
    -------
    One record a size, seed and way: accuracy on test, the layers, and how many samples there were.
    """
    runs = []
    for size in tqdm(sizes, desc="samples a class"):
        for seed in seeds:
            development = draw(task, size, seed)
            found = evaluate(
                layers,
                task.labels,
                development=development,
                test=task.test,
                groups=task.groups,
                methods={name: METHODS[name] for name in WAYS},
                seeds=[seed],
                progress=False,
                **training,
            )
            kept = found.runs[["method", "seed", "accuracy", "layers"]]
            kept = kept.assign(size=size, n=len(development))
            runs += json.loads(kept.to_json(orient="records"))  # null where chance has no layers
    return runs


def main() -> None:
    """Run the study on each example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    content = {}
    for name in NAMES:
        task, layers, *_ = examples.load(name)
        content[name] = {
            "classes": len(task.classes),
            "test": len(task.test),
            "runs": study(task, layers, SIZES, seeds, learning_rate=LEARNING_RATE),
        }
    write_whole(RESULT, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()

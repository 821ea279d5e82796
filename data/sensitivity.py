"""Ask what weights of Eq. 7 choose layers that serve a probe: writes results/sensitivity-*.json.

The test part is never touched: selections are made on calibration samples and judged by a ridge
probe on validation samples, under the divisions that data/compare.py evaluates with.

    python data/sensitivity.py
"""

import argparse
import json
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from loes import examples, sensitivity
from loes.baselines import Calibration, principal_components, validation_score
from loes.evaluation import divide
from loes.store import write_whole

RESULTS = Path(__file__).parent / "results"
WEIGHTS = {  # each criterion's own weight among them
    "bounded": ((0, 0.1, 0.25, 0.5, 1), (0, 0.1, 0.25, 0.5, 1), (0, 0.1, 0.25, 0.5)),
    "paper": ((0, 0.01, 0.1, 1), (0, 0.01, 0.1, 0.5), (0, 0.001, 0.01, 0.1)),
}
K = 3


def judge(name: str, criterion: str, seeds: range) -> pd.DataFrame:
    """Return, for each weighting and seed, the validation accuracy of the layers it chooses."""
    task, layers, *_ = examples.load(name)
    y, development = task.labels, np.array([*task.train, *task.validation])
    tables = []
    for seed in tqdm(seeds, desc=f"{name}, {criterion}"):
        train, held_out = divide(development, y, task.groups, "classification", 0.2, seed)
        known, unseen = layers.take(train), layers.take(held_out)
        calibration = Calibration(known, y[train], unseen, y[held_out], "classification", seed)
        alphas, gammas, etas = WEIGHTS[criterion]
        table = sensitivity(
            principal_components(known.arrays, K),
            y[train],
            n_layers=K,
            criterion=criterion,
            alphas=alphas,
            gammas=gammas,
            etas=etas,
            progress=False,
        )
        picks = table["selected"].map(lambda selected: tuple(sorted(selected)))
        scores = {pick: validation_score(calibration, pick) for pick in set(picks)}
        table["score"] = picks.map(scores)
        tables.append(table.assign(seed=seed))
    return pd.concat(tables, ignore_index=True).drop(columns="names")


def main() -> None:
    """Judge all examples under both criteria, those that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    for name, criterion in product(examples.names("foundations"), WEIGHTS):
        path = RESULTS / f"sensitivity-{name}-{criterion}.json"
        if path.exists():
            continue
        table = judge(name, criterion, range(options.seeds))
        table = table.groupby(["alpha", "gamma", "eta", "default"], as_index=False).agg(
            mean=("score", "mean"),
            spread=("score", "std"),
            selections=("selected", lambda picks: [list(pick) for pick in picks]),
        )
        content = {"example": name, "criterion": criterion, "k": K, "seeds": options.seeds}
        content["weightings"] = table.to_dict(orient="records")
        write_whole(path, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()

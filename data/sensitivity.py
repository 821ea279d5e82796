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
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

from loes import examples, sensitivity
from loes.baselines import principal_components
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
    development = np.array([*task.train, *task.validation])
    y, groups = task.labels[development], task.groups[development]
    layers = layers.take(development)
    tables = []
    for seed in tqdm(seeds, desc=f"{name}, {criterion}"):
        folds = StratifiedGroupKFold(5, shuffle=True, random_state=seed)
        train, held_out = next(folds.split(development, y, groups))
        known, unseen = layers.take(train), layers.take(held_out)
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
        scores = {}
        for picks in {tuple(sorted(selected)) for selected in table["selected"]}:
            probe = make_pipeline(StandardScaler(), RidgeClassifier(alpha=0.1 * len(train)))
            probe.fit(np.hstack([known[l] for l in picks]), y[train])
            score = probe.score(np.hstack([unseen[l] for l in picks]), y[held_out])
            scores[picks] = score
        table["score"] = [scores[tuple(sorted(selected))] for selected in table["selected"]]
        tables.append(table.assign(seed=seed))
    return pd.concat(tables, ignore_index=True).drop(columns="names")


def main() -> None:
    """Judge all examples under both criteria, those that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    for name, criterion in product(examples.EXAMPLES, WEIGHTS):
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

"""Judge ways to choose layers under one protocol, which no test sample can enter early."""

import json
import os
import platform
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from numbers import Integral
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.stats import bootstrap
from sklearn.decomposition import PCA
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.metrics import (
    accuracy_score,
    det_curve,
    f1_score,
    pairwise_distances_argmin_min,
    r2_score,
)
from sklearn.model_selection import GroupKFold, StratifiedGroupKFold
from tqdm import tqdm

from loes.baselines import METHODS, Calibration, Choice, Method, Unavailable, last
from loes.checks import as_layers, as_task, check_callable, check_whole
from loes.features import LayerFeatures
from loes.georeg import GeoReg
from loes.selection import SelectionWarning
from loes.store import write_whole
from loes.training import train_probe

REFERENCE = "last layer"
ROUNDING = 1e-5  # what float32 and another batch may change of a feature, relatively
CHANCE, SHUFFLED = "chance", "last layer, shuffled labels"


def _plain(value: object) -> object:
    """Return a numpy number as Python's, and the name of anything else."""
    return value.item() if isinstance(value, np.generic) else str(value)


def equal_error_rate(y: ArrayLike, scores: ArrayLike) -> float:
    """Error rate at the threshold where misses and false alarms are equally frequent.

    Chapter 14 derives it.

    Parameters
    ----------
    y : (n,) 0 or 1.
    scores : (n,) larger for 1.
    """
    false_alarms, misses, _ = det_curve(y, scores)
    gap = misses - false_alarms  # rises with the threshold
    right = int(np.argmax(gap >= 0)) if (gap >= 0).any() else len(gap) - 1
    left = max(right - 1, 0)
    share = 0.0 if gap[right] == gap[left] else -gap[left] / (gap[right] - gap[left])
    return float(false_alarms[left] + share * (false_alarms[right] - false_alarms[left]))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a protocol has found.

    Chapter 9 reads one.

    Attributes
    ----------
    runs : DataFrame, one row a method and seed: the scores on test, the best validation score, the
        layers and their fusion, and the seconds that choosing and training took.
    skipped : why a method has no runs.
    about : settings, versions and hashes, for the record.
    """

    runs: pd.DataFrame
    skipped: dict[str, str]
    about: dict
    _y: np.ndarray = field(repr=False)
    _groups: np.ndarray = field(repr=False)
    _predictions: dict[tuple[str, int], np.ndarray] = field(repr=False)

    @property
    def metric(self) -> str:
        """The score that `summary` compares by: accuracy, or R^2."""
        return "r2" if self.about["task"] == "regression" else "accuracy"

    def summary(self, reference: str = REFERENCE) -> pd.DataFrame:
        """Return mean and spread over the seeds, and the paired difference to one method.

        Its 95 % interval is a bootstrap over the groups of the test part (samples without groups),
        after averaging over the seeds: it says how far another test set would have moved it.
        Selection and training are in seconds, of which the first is also given as a share of the
        second.

        Raises
        ------
        ValueError when the reference has no runs.
        """
        if reference not in set(self.runs["method"]):
            raise ValueError(
                f"there are no runs of {reference!r}; take one of "
                f"{self.runs['method'].unique().tolist()} as the reference."
            )
        table = self.runs.groupby("method", sort=False).agg(
            **{
                "mean": (self.metric, "mean"),
                "spread": (self.metric, "std"),
                "selection s": ("selection_seconds", "mean"),
                "training s": ("training_seconds", "mean"),
            }
        )
        table["selection share"] = table["selection s"] / table["training s"]
        for method in table.index.drop(reference):
            table.loc[method, ["difference", "low", "high"]] = self._difference(method, reference)
        return table

    def _difference(self, method: str, reference: str) -> tuple[float, float, float]:
        """Mean difference over the seeds, and its interval over test groups."""
        gain = np.mean(
            [
                self._merit(self._predictions[method, seed])
                - self._merit(self._predictions[reference, seed])
                for seed in self.about["seeds"]
            ],
            axis=0,
        )
        gains, sizes = np.bincount(self._groups, gain), np.bincount(self._groups)
        if len(gains) < 2:
            return float(gain.mean()), np.nan, np.nan  # one group says nothing of another
        low, high = bootstrap(
            (gains, sizes),
            lambda gains, sizes, axis=-1: gains.sum(axis) / sizes.sum(axis),
            paired=True,
            batch=100,  # of the 9999 resamples: all at once are gigabytes
            method="percentile",
            rng=0,
        ).confidence_interval
        return float(gain.mean()), low, high

    def _merit(self, predicted: np.ndarray) -> np.ndarray:
        """Return what each test sample adds to the metric, which is their mean."""
        if self.metric == "accuracy":
            return (predicted == self._y).astype(float)
        y, predicted = self._y.reshape(len(self._y), -1), predicted.reshape(len(predicted), -1)
        return 1 - ((predicted - y) ** 2 / y.var(0)).mean(1)

    def save(self, path: str | os.PathLike) -> None:
        """Write runs, summary and provenance as JSON, whole or not at all."""
        reference = REFERENCE if REFERENCE in set(self.runs["method"]) else CHANCE
        content = {
            "about": self.about | {"reference": reference},
            "skipped": self.skipped,
            "summary": json.loads(self.summary(reference).reset_index().to_json(orient="records")),
            "runs": json.loads(self.runs.to_json(orient="records")),
        }
        text = json.dumps(content, indent=1, default=_plain) + "\n"
        write_whole(Path(path), text.encode())


def evaluate(
    layers: LayerFeatures,
    y: ArrayLike,
    *,
    development: ArrayLike,
    test: ArrayLike,
    groups: ArrayLike | None = None,
    methods: Mapping[str, Method] = METHODS,
    n_layers: int = 3,
    seeds: Sequence[int] = range(5),
    validation_share: float = 0.2,
    task: str = "auto",
    georeg: GeoReg | None = None,
    width: int | None = None,
    curvature: ArrayLike | None = None,
    extraction_seconds: float | None = None,
    progress: bool = True,
    **training,
) -> Evaluation:
    """Choose layers by each method, train a probe on them, and ask the test part once.

    For each seed the development samples are divided anew, by group, into calibration and
    validation. Methods see those only; the probe is trained on calibration, its epoch chosen on
    validation, and the test part is predicted once with what came out. Chance and a probe on
    shuffled labels are always there.

    Chapter 9 shows it at work.

    Parameters
    ----------
    layers : all layers of all samples.
    y : (n,) class labels, or (n,) or (n, c) targets.
    development, test : indices of the samples, disjoint, also by group.
    groups : (n,) what must not be split: template, speaker, prompt; None for single samples.
    methods : name to method. A method is a function of a `loes.baselines.Calibration` and k that
        returns a `loes.baselines.Choice`. Fixed picks beside the usual ways:
        ``baselines.METHODS | {"mine": lambda calibration, k: baselines.Choice([1, 6])}``. Keep
        ``"last layer"``, which `Evaluation.summary` compares with.
    n_layers : k.
    seeds : of the division, the training, and random methods.
    validation_share : of the development samples.
    task : as in `LOES`.
    georeg : added to the training loss of every method.
    width : reduce every fused set of layers to as many principal components, learnt on calibration,
        so that nobody wins by dimension alone; the fusion is then "concat".
    curvature : of each layer over tokens, for the method of that name.
    extraction_seconds : what extracting the layers took, for the record.
    progress : show a progress bar.
    **training : further arguments of `train_probe`.

    Raises
    ------
    ValueError when parts overlap, share a group or an identical sample, when a feature gives the
    label away, or when the parts disagree on the classes.
    """
    tensors, names = as_layers(layers)
    features = LayerFeatures(names, [X.cpu().numpy() for X in tensors])
    y, task = as_task(y, len(tensors[0]), task)
    classes = None
    if task == "classification":
        classes, y = np.unique(y, return_inverse=True)
    n = len(y)
    if groups is not None and np.shape(groups) != (n,):
        raise ValueError(f"groups must name one group a sample, ({n},); got {np.shape(groups)}.")
    if groups is not None and pd.isna(np.asarray(groups)).any():
        raise ValueError("groups holds missing names; name a group for every sample, or drop it.")
    groups = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    development, test = (
        _as_rows(rows, n, name) for rows, name in ((development, "development"), (test, "test"))
    )
    reserved = {CHANCE, SHUFFLED}
    if (
        not isinstance(n_layers, Integral)
        or isinstance(n_layers, bool)
        or not 1 <= n_layers <= len(features)
    ):
        raise ValueError(
            f"n_layers must be a whole number from 1 to {len(features)}, the layers there are; got "
            f"{n_layers!r}."
        )
    check_callable("georeg", georeg, "a GeoReg, such as GeoReg(weight=0.1)")
    if not isinstance(methods, Mapping):
        raise TypeError(
            "methods must map names to methods, such as {'last layer': METHODS['last layer']}; got "
            f"{type(methods).__name__}."
        )
    for name, method in methods.items():
        wanted = "a function of a Calibration and k"
        check_callable(f"the method {name!r}", method, wanted, required=True)
    if not isinstance(seeds, Iterable):
        raise TypeError(f"seeds must be a sequence, such as range({seeds}); got {seeds!r}.")
    seeds = list(seeds)
    for seed in seeds:
        check_whole("each of seeds", seed, least=0)
    seeds = [int(seed) for seed in seeds]
    if not seeds or not methods:
        raise ValueError("evaluate needs at least one seed and one method; got none.")
    if len(set(seeds)) < len(seeds) or reserved & set(methods):
        raise ValueError(f"seeds must differ, and no method be named one of {sorted(reserved)}.")
    if not 0 < validation_share <= 0.5:
        raise ValueError(f"validation_share must be in (0, 0.5]; got {validation_share!r}.")
    narrowest = min(X.shape[1] for X in features)
    if width is not None and (not isinstance(width, Integral) or not 1 <= width <= narrowest):
        raise ValueError(
            f"width must be a whole number from 1 to {narrowest}, which every layer has; got "
            f"{width!r}."
        )
    if curvature is not None and (
        np.shape(curvature) != (len(features),) or not np.isfinite(curvature).all()
    ):
        raise ValueError(f"curvature must hold one finite number a layer, {len(features)}.")
    divisions = {
        seed: divide(development, y, groups, task, validation_share, seed) for seed in seeds
    }
    _refuse_leaks(features, y, development, test, groups, task)

    settings = {"n_layers": n_layers, "width": width, "task": task, "georeg": georeg is not None}
    learner = {"georeg": georeg, "task": task, "progress": False} | training
    unseen = features.take(test)
    rows, skipped, predictions = [], {}, {}
    with tqdm(
        total=len(seeds) * len(methods), unit="run", **({} if progress else {"disable": True})
    ) as bar:
        for seed in seeds:
            train, held_out = divisions[seed]
            known, held_out_layers = features.take(train), features.take(held_out)
            calibration = Calibration(
                known, y[train], held_out_layers, y[held_out], task, seed, curvature
            )
            for X in (*known, *held_out_layers, calibration.y, calibration.validation_y):
                X.flags.writeable = False  # no method may change what the next one sees
            shuffled = calibration._replace(
                y=np.random.default_rng(seed).permutation(calibration.y)
            )
            outcomes = {CHANCE: _chance(calibration, len(test))}
            outcomes[SHUFFLED] = _train(last(shuffled, 1), shuffled, unseen, width, learner)
            for name, method in methods.items():
                bar.set_description(name)
                if name not in skipped:
                    try:
                        outcomes[name] = _choose_and_train(
                            method, calibration, unseen, n_layers, width, learner
                        )
                    except Unavailable as reason:
                        skipped[name] = str(reason)
                    except Exception as error:
                        error.add_note(f"This is method {name!r} with seed {seed}.")
                        raise
                bar.update()
            for name in skipped:  # also where an earlier seed has had it
                outcomes.pop(name, None)
            for name, outcome in outcomes.items():
                predictions[name, seed] = outcome.pop("predicted")
                scores = _scores(y[test], predictions[name, seed], outcome.pop("outputs"), task)
                rows.append({"method": name, "seed": seed} | scores | outcome)
    runs = pd.DataFrame(rows)
    runs = runs[~runs["method"].isin(list(skipped))]
    about = settings | {
        "seeds": list(seeds),
        "training": training,
        "classes": None if classes is None else classes.tolist(),
        "names": list(names),
        "n": {"development": len(development), "test": len(test)},
        "extraction_seconds": extraction_seconds,
        "features": joblib.hash(features.arrays),
        "targets": joblib.hash(y),
        "versions": {p: version(p) for p in ("loes", "torch", "numpy", "scikit-learn")}
        | {"python": platform.python_version()},
    }
    return Evaluation(
        runs,
        skipped,
        about,
        y[test],
        np.unique(groups[test], return_inverse=True)[1],
        predictions,
    )


def _choose_and_train(
    method: Method, calibration: Calibration, unseen: LayerFeatures, k: int, width, learner
) -> dict:
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SelectionWarning)  # the table shows what they lead to
        choice = method(calibration, k)
    chosen = time.perf_counter() - start
    if not isinstance(choice, Choice) or not _are_layers(choice.layers, len(unseen)):
        raise ValueError(
            f"a method must return Choice([...]) of different layers from 0 to {len(unseen) - 1}; "
            f"got {choice!r}."
        )
    outcome = _train(choice, calibration, unseen, width, learner)
    return outcome | {"layers": choice.layers, "fusion": choice.fusion, "selection_seconds": chosen}


def _are_layers(layers: object, count: int) -> bool:
    """Tell whether these are different layer numbers, and at least one: no mask, no array."""
    return (
        isinstance(layers, list)
        and all(isinstance(l, Integral) and not isinstance(l, bool) for l in layers)
        and 0 < len(set(layers)) == len(layers)
        and set(layers) <= set(range(count))
    )


def _train(
    choice: Choice, calibration: Calibration, unseen: LayerFeatures, width: int | None, learner
) -> dict:
    """Train a probe on the chosen layers and predict the test part."""
    start, fusion = time.perf_counter(), choice.fusion
    parts = [
        [part[l] for l in choice.layers]
        for part in (calibration.layers, calibration.validation_layers, unseen)
    ]
    if width is not None:
        fused = np.hstack(parts[0])
        pca = PCA(min(width, *fused.shape), random_state=0).fit(fused)
        parts, fusion = [[pca.transform(np.hstack(X))] for X in parts], "concat"
    train, held_out, test = parts
    probe = train_probe(
        train,
        calibration.y,
        validation=(held_out, calibration.validation_y),
        fusion=fusion,
        seed=calibration.seed,
        **learner,
    )
    return {
        "training_seconds": time.perf_counter() - start,
        "validation": probe.history["validation"].max(),
        "predicted": probe.predict(test),
        "outputs": probe.outputs(test).cpu().numpy(),
    }


def _chance(calibration: Calibration, n: int) -> dict:
    """Predict the most frequent class, or the mean, for all."""
    dummy = DummyClassifier() if calibration.task == "classification" else DummyRegressor()
    predicted = dummy.fit(np.zeros((len(calibration.y), 1)), calibration.y).predict(
        np.zeros((n, 1))
    )
    return {"predicted": predicted, "outputs": None}


def _scores(y: np.ndarray, predicted: np.ndarray, outputs: np.ndarray | None, task: str) -> dict:
    """All that is measured on the test part."""
    if task == "regression":
        return {"r2": r2_score(y, predicted)}
    scores = {
        "accuracy": accuracy_score(y, predicted),
        "macro_f1": f1_score(y, predicted, average="macro", zero_division=0),
    }
    if outputs is not None and outputs.shape[1] == 2 and len(np.unique(y)) == 2:
        scores["equal_error_rate"] = equal_error_rate(y, outputs[:, 1] - outputs[:, 0])
    return scores


def divide(
    development: np.ndarray, y: np.ndarray, groups: np.ndarray, task: str, share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Divide samples by group into calibration and validation, with all classes in calibration.

    Chapter 12 divides by template so.
    """
    folds = StratifiedGroupKFold if task == "classification" else GroupKFold
    n_folds = max(2, round(1 / share))
    splitter = folds(n_folds, shuffle=True, random_state=seed)
    labels = y[development] if task == "classification" else None
    n_groups = len(np.unique(groups[development]))
    most = n_folds if labels is None else np.bincount(labels).max()
    if min(n_groups, most) < n_folds:
        what = f"at most {most} samples of a class" if most < n_folds else f"{n_groups} groups"
        raise ValueError(
            f"development has {what}, too few to divide into {n_folds} folds; use more of them, or "
            f"a larger validation_share than {share}."
        )
    with warnings.catch_warnings():
        # Rare classes may miss validation; that calibration has them all is checked below.
        warnings.filterwarnings("ignore", "The least populated class")
        train, held_out = next(splitter.split(development, labels, groups[development]))
    train, held_out = development[train], development[held_out]
    if task == "classification" and len(missing := np.setdiff1d(y, y[train])):
        raise ValueError(
            f"with seed {seed}, calibration has no sample of {len(missing)} classes, such as "
            f"number {missing[0]} in sorted order; give development more groups of them, or leave "
            "them out."
        )
    return train, held_out


def _as_rows(rows: ArrayLike, n: int, name: str) -> np.ndarray:
    """Return row numbers, of a boolean mask too, or say what is wrong with them."""
    rows = np.asarray(rows)
    if rows.dtype == bool and rows.shape == (n,):
        rows = np.flatnonzero(rows)
    if rows.ndim != 1 or not len(rows) or rows.dtype.kind not in "iu":
        raise ValueError(
            f"{name} must hold at least one row number, or be a boolean mask of {n} samples; got "
            f"{rows.dtype} of shape {rows.shape}."
        )
    if rows.min() < 0 or rows.max() >= n or len(np.unique(rows)) < len(rows):
        raise ValueError(f"{name} must hold different row numbers from 0 to {n - 1}.")
    return rows


def _refuse_leaks(
    features: LayerFeatures,
    y: np.ndarray,
    development: np.ndarray,
    test: np.ndarray,
    groups: np.ndarray,
    task: str,
) -> None:
    """Refuse parts that share something, and features that are constant or give the label away."""
    for name, X in zip(features.names, features.arrays, strict=True):
        if not np.ptp(X[development], axis=0).any():
            raise ValueError(
                f"{name} is the same for all development samples; leave it out (the usual case: "
                "an embedding layer under cls pooling)."
            )
    shared = np.intersect1d(development, test)
    if len(shared):
        raise ValueError(
            f"development and test share {len(shared)} samples, such as {shared[0]}; the test part "
            "must not be seen before the end."
        )
    both = np.intersect1d(groups[development], groups[test])
    if len(both):
        raise ValueError(
            f"{len(both)} groups have samples in development and in test; divide by group."
        )
    twins = _twins(features, development, test)
    if len(twins):
        raise ValueError(
            f"{len(twins)} test samples, such as {twins[0]}, have the same features as a "
            "development sample: the same input is in both parts; drop duplicates first."
        )
    if task == "regression" and (y[test] == y[test][0]).all(0).any():
        raise ValueError("the target is constant over the test part, so that R^2 is not defined.")
    find, what = _collinear, "is the target, up to scale and shift"
    if task == "classification":
        find, what = (
            _determined_by,
            "is the same for all samples of a class and differs between classes: it is the label, "
            "or made from it",
        )
    rows = np.concatenate([development, test])
    for name, X in zip(features.names, features.arrays, strict=True):
        given_away = find(X[rows], y[rows])
        if given_away is not None:
            raise ValueError(f"feature {given_away} of {name} {what}; leave it out.")


def _twins(features: LayerFeatures, development: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return the test samples that equal a development sample in every layer, up to rounding."""
    centred = features[-1] - features[-1].mean(0)
    nearest, _ = pairwise_distances_argmin_min(centred[test], centred[development])
    nearest = development[nearest]
    same = np.ones(len(test), dtype=bool)
    for X in features.arrays:
        distances = np.linalg.norm(X[test] - X[nearest], axis=1)
        same &= distances <= ROUNDING * np.linalg.norm(X[nearest], axis=1)
    return test[same]


def _collinear(X: np.ndarray, y: np.ndarray) -> int | None:
    """Return a feature that is a target up to scale and shift."""
    X, y = (Z.astype(np.float64) - Z.mean(0) for Z in (X, y))
    scales = np.linalg.norm(X, axis=0)[:, None] * np.linalg.norm(y, axis=0)
    cosines = np.abs(X.T @ y) / np.where(scales > 0, scales, 1)
    leaks = np.flatnonzero((cosines > 1 - ROUNDING).any(1))
    return int(leaks[0]) if len(leaks) else None


def _determined_by(X: np.ndarray, y: np.ndarray) -> int | None:
    """Return a feature that varies, but not within any class."""
    within = np.zeros(X.shape[1])
    for c in np.unique(y):
        within = np.maximum(within, np.ptp(X[y == c], axis=0))
    between = np.ptp(X, axis=0)
    leaks = np.flatnonzero((between > 0) & (within <= ROUNDING * between))
    return int(leaks[0]) if len(leaks) else None

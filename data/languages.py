"""Choose layers for the same names in 24 languages: writes results/languages.json.

Is a name that of a territory, a language, a currency or a script? Unicode names the same items in
many languages: items, labels and parts are the same in all of them, and only the language differs.
Half an hour on one core:

    python data/languages.py          # those languages whose result is not there yet
    python data/languages.py ur hi    # these, again
"""

import argparse
import json
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
from babel import Locale
from babel.core import get_global
from numpy.typing import ArrayLike
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import pairwise_distances_argmin
from sklearn.preprocessing import normalize

from compare import LEARNING_RATE
from depth import map_layers
from loes import GeoReg, LayerFeatures, baselines, evaluate, extract_layers, tasks, zoo
from loes.packages import cache_folder
from loes.store import write_whole

RESULT = Path(__file__).parent / "results" / "languages.json"
MODEL, REFERENCE = "e5-small", "en"
KINDS = ("territories", "languages", "currencies", "scripts")
PARTS = ("train", "validation", "test")
PER_CLASS = 350  # all that English has; what the languages have in common is less

# GiB of text in CC-100, on which XLM-R was trained: published figures, Conneau et al. (2020), table
# of the appendix. The model here descends from XLM-R. 0: the language is not in CC-100.
LANGUAGES = {
    **{"en": 300.8, "ru": 278.0, "vi": 137.3, "fa": 111.6, "ja": 69.3, "de": 66.6},
    **{"ko": 54.2, "zh": 46.9, "el": 46.9, "ar": 28.0, "tr": 20.9, "hi": 20.2},
    **{"ta": 12.2, "ka": 9.1, "bn": 8.4, "ur": 5.7, "eu": 2.0, "sw": 1.6},
    **{"am": 0.8, "pa": 0.8, "ha": 0.3, "as": 0.1, "ti": 0.0, "yo": 0.0},
}

CHOICES = (
    *("last layer", "last k", "all layers", "random k", "best single (validation)"),
    *("LOES paper", "LOES bounded", "LOES paper, PCA", "LOES bounded, PCA"),
)
TRAINING = {
    "plain": (CHOICES, {}),
    "georeg": (("last layer", "LOES bounded", "LOES bounded, PCA"), {"georeg": GeoReg(0.1)}),
}


def names(language: str) -> pd.Series:
    """Return what Unicode calls items such as ``"currencies DKK"`` in one language.

    A name that two items share does not say which of them is meant, and is left out.
    """
    locale = Locale.parse(language)
    named = {
        f"{kind} {code}": name for kind in KINDS for code, name in getattr(locale, kind).items()
    }
    return pd.Series(named).drop_duplicates(keep=False)


def common_items(languages: Iterable[str]) -> pd.DataFrame:
    """Return the items that all languages name, divided as in the task ``"names"``.

    Returns
    -------
    DataFrame with one row an item: kind, part, group, and the name in each language.
    """
    task = tasks.load("names", per_class=PER_CLASS, language=REFERENCE)
    kinds = np.array(task.classes)[task.labels]
    sample = pd.DataFrame({"kind": kinds, "group": task.groups}, index=task.inputs)
    for part in PARTS:
        sample.loc[sample.index[getattr(task, part)], "part"] = part
    table = pd.DataFrame({language: names(language) for language in {REFERENCE, *languages}})
    return table.dropna().merge(sample, left_on=REFERENCE, right_index=True).sort_index()


def task_in(language: str, items: pd.DataFrame) -> tasks.Task:
    """Return the task of telling the kinds of `common_items` apart in one language."""
    labels, classes = pd.factorize(items["kind"], sort=True)
    return tasks.Task(
        inputs=items[language].tolist(),
        labels=labels,
        classes=list(classes),
        **{part: np.flatnonzero(items["part"] == part) for part in PARTS},
        licence="Unicode-3.0 (data), BSD-3-Clause (packaging)",
        source=f"Unicode CLDR names in babel {version('babel')}, language {language}",
        modality="text",
        groups=items["group"].to_numpy(),
    )


def extract(language: str, items: pd.DataFrame) -> LayerFeatures:
    """Return all layers of all names, from the cache that the book uses too."""
    model, tokenizer = zoo.load(MODEL)
    inputs = [zoo.MODELS[MODEL].prefix + name for name in items[language]]
    folder = cache_folder() / "languages" / f"{language}-{joblib.hash(inputs)[:8]}"
    return extract_layers(model, inputs, processor=tokenizer, cache=folder)


def found(queries: ArrayLike, targets: ArrayLike) -> np.ndarray:
    """Tell of each query whether the target in the same row is the nearest of all.

    Parameters
    ----------
    queries, targets : (n, d) the same items in two languages.
    """
    return pairwise_distances_argmin(queries, targets) == np.arange(len(queries))


def retrieval(
    language: str, items: pd.DataFrame, layers: LayerFeatures, english: LayerFeatures
) -> dict:
    """Find test items by their nearest neighbour in the other language.

    The vectors of each layer have length one, so that the nearest is that of the largest cosine;
    "centred" then subtracts the mean of the development items of its own language. Counted are
    items that the two languages do not spell alike; the trivial baseline compares character 1- to
    4-grams.

    Returns
    -------
    dict: how many items count; and for "from English" and "to English" accuracies of the layers
    "as they are" and "centred", and the one of the "spelling".
    """
    test = np.flatnonzero(items["part"] == "test")
    learn = np.flatnonzero(items["part"] != "test")
    counted = (items[language].str.casefold() != items[REFERENCE].str.casefold()).to_numpy()[test]
    grams = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), sublinear_tf=True)
    grams.fit([*items[language].iloc[learn], *items[REFERENCE].iloc[learn]])
    spelling = [grams.transform(items[each].iloc[test]).toarray() for each in (language, REFERENCE)]
    pairs = {"spelling": [spelling], "as they are": [], "centred": []}
    for X, E in zip(layers, english, strict=True):
        X, E = normalize(X), normalize(E)
        pairs["as they are"].append((X[test], E[test]))
        pairs["centred"].append((X[test] - X[learn].mean(0), E[test] - E[learn].mean(0)))
    accuracies = {
        "to English": {k: [found(X, E)[counted].mean() for X, E in v] for k, v in pairs.items()},
        "from English": {k: [found(E, X)[counted].mean() for X, E in v] for k, v in pairs.items()},
    }
    return {"counted": int(counted.sum())} | accuracies


def measure(language: str, items: pd.DataFrame, seeds: range) -> dict:
    """Return all that the book says of one language."""
    task, layers = task_in(language, items), extract(language, items)
    development = np.concatenate([task.train, task.validation])
    tokenizer = zoo.load(MODEL)[1]
    tokens = [len(tokenizer(name, add_special_tokens=False).input_ids) for name in task.inputs]
    pairs = None
    if language != REFERENCE:
        pairs = retrieval(language, items, layers, extract(REFERENCE, items))
    result = {
        "name": Locale.parse(language).english_name,
        "script": get_global("likely_subtags")[language].split("_")[1],
        "GiB": LANGUAGES[language],
        "tokens": np.mean(tokens),
        "chance": task.chance,
        "trivial baseline": tasks.trivial_baseline(task),
        "depth": [row["accuracy"] for row in map_layers(task, layers, seeds)],
        "retrieval": pairs,
    }
    for kind, (choices, settings) in TRAINING.items():
        evaluation = evaluate(
            layers,
            task.labels,
            development=development,
            test=task.test,
            groups=task.groups,
            methods={choice: baselines.METHODS[choice] for choice in choices},
            seeds=seeds,
            progress=False,
            learning_rate=LEARNING_RATE,
            **settings,
        )
        runs = evaluation.runs.groupby("method", sort=False)[["accuracy", "layers"]].agg(list)
        table = runs.join(evaluation.summary()[["difference", "low", "high"]])
        result[kind] = json.loads(table.to_json(orient="index"))
    return result


def main() -> None:
    """Run what was asked for, or all that is not there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "languages", nargs="*", metavar="LANGUAGE", help=f"some of {', '.join(LANGUAGES)}"
    )
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    if unknown := set(options.languages) - set(LANGUAGES):
        parser.error(f"{sorted(unknown)} are not among the languages {list(LANGUAGES)}.")
    items = common_items(LANGUAGES)
    about = {
        "model": MODEL,
        "languages": list(LANGUAGES),
        "seeds": list(range(options.seeds)),
        "learning_rate": LEARNING_RATE,
        "versions": {package: version(package) for package in ("loes", "babel", "torch")},
        "items": {column: items[column].tolist() for column in ("part", "group")}
        | {"key": items.index.tolist()},
    }
    content = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else {}
    if content.get("about") != about:  # of other items or settings: nothing of it can be kept
        content = {"about": about, "results": {}}
    results = content["results"]
    for language in options.languages or [each for each in LANGUAGES if each not in results]:
        results[language] = measure(language, items, range(options.seeds))
        content["results"] = {each: results[each] for each in LANGUAGES if each in results}
        write_whole(RESULT, (json.dumps(content, default=float) + "\n").encode())
        print(language, len(results), flush=True)


if __name__ == "__main__":
    main()

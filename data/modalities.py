"""Ask where a vision and a text model agree, and what both give: writes results/modalities.json.

Both look at the same emoji, one at pictures and the other at names. With LOES_PROFILE=full they are
the two towers of CLIP, and the result is modalities-full.json. An hour or two on one core:

    python data/modalities.py               # what is not there yet
    python data/modalities.py alignment.ur  # a part, again
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.neighbors import kneighbors_graph
from tqdm import tqdm

from compare import LEARNING_RATE
from loes import LOES, GeoReg, LayerFeatures, evaluate, examples, exhaustive, tasks
from loes.baselines import METHODS, Calibration, Choice, Method, principal_components
from loes.evaluation import divide
from loes.packages import cache_folder
from loes.store import write_whole

RESULTS = Path(__file__).parent / "results"
PER_CLASS = 150  # 1,507 of the 1,572 emoji
LANGUAGES = ("en", "de", "hi", "ja", "sw", "ur", "chr")
K = 3
NEIGHBOURS = 10
PAIRINGS = 100


def result() -> Path:
    """Return where the parts are written in the current profile."""
    return RESULTS / f"modalities{'' if examples.profile() == 'offline' else '-full'}.json"


# Where they agree.


def kernels(layers: Iterable[np.ndarray]) -> np.ndarray:
    """Return the inner products of all samples, centred without bias, each matrix of norm 1.

    The sum of the products of two such matrices is the debiased linear CKA of their layers.

    Parameters
    ----------
    layers : L arrays (n, d).

    Returns
    -------
    (L, n, n). Diagonals and sums of rows are zero.

    References
    ----------
    Song et al., "Feature selection via dependence maximization", JMLR 13, 2012.
    """
    return np.array([_normed(_centred(np.float64(X) - X.mean(0))) for X in layers])


def _centred(X: np.ndarray) -> np.ndarray:
    """Return X X^T without its diagonal, and without the part that its row sums foretell."""
    n, kernel = len(X), X @ X.T
    np.fill_diagonal(kernel, 0)
    rows = kernel.sum(0) / (n - 2)
    kernel += kernel.sum() / ((n - 1) * (n - 2)) - rows - rows[:, None]
    np.fill_diagonal(kernel, 0)
    return kernel


def neighbours(layers: Iterable[np.ndarray], k: int = NEIGHBOURS) -> np.ndarray:
    """Return who is among the k nearest neighbours of whom, by cosine, each matrix of norm 1.

    The sum of the products of two such matrices is the share of mutual nearest neighbours.

    Parameters
    ----------
    layers : L arrays (n, d), which are centred.

    Returns
    -------
    (L, n, n).

    References
    ----------
    Huh et al., "The Platonic representation hypothesis", ICML 2024.
    """
    graphs = (kneighbors_graph(X - X.mean(0), k, metric="cosine") for X in layers)
    return np.array([_normed(graph.toarray()) for graph in graphs])


def _normed(matrix: np.ndarray) -> np.ndarray:
    return matrix / np.linalg.norm(matrix)


def align(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return the alignment of each matrix of (L, n, n) with each of (M, n, n), as (L, M)."""
    return A.reshape(len(A), -1) @ B.reshape(len(B), -1).T


def averaged(B: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """Return the mean of matrices over all pairings that pair each sample with one of its kind.

    Parameters
    ----------
    B : (L, n, n).
    kinds : (n,) int from 0; all equal for pairings without a limit.

    Returns
    -------
    (L, n, n): each entry is the mean of those that a pairing can bring to its place.
    """
    Z = np.eye(kinds.max() + 1)[kinds]
    sizes = Z.sum(0)
    diagonal = np.einsum("lii->li", B) @ Z  # (L, kinds)
    sums = Z.T @ B @ Z  # (L, kinds, kinds)
    same = np.arange(len(sizes))
    sums[:, same, same] -= diagonal
    counts = np.outer(sizes, sizes)
    counts[same, same] -= sizes
    mean = Z @ (sums / np.maximum(counts, 1)) @ Z.T
    rows = np.arange(len(kinds))
    mean[:, rows, rows] = (diagonal / sizes)[:, kinds]
    return mean


def pairings(kinds: np.ndarray, count: int, seed: int) -> Iterator[np.ndarray]:
    """Draw permutations that give each sample one of its kind."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        drawn = np.empty(len(kinds), dtype=int)
        for kind in range(kinds.max() + 1):
            members = np.flatnonzero(kinds == kind)
            drawn[members] = rng.permutation(members)
        yield drawn


def aligned(
    pictures: Sequence[np.ndarray],
    names: Sequence[np.ndarray],
    kinds: dict[str, np.ndarray],
    *,
    count: int = PAIRINGS,
    seed: int = 0,
) -> dict:
    """Compare the layers of two models by two measures, and with what pairings by kind leave.

    Parameters
    ----------
    pictures, names : layers of the same n samples.
    kinds : name to (n,) int from 0: pairings may exchange samples of one kind.
    count : how many pairings are drawn to see what the largest entry of a map is by luck.
    seed : of these.

    Returns
    -------
    For each measure the map of all pairs of layers, and for each sort of kind the map expected of
    pairings within it, and median, 95 % quantile and maximum over `count` drawn pairings of what
    is the largest entry of their maps.
    """
    found = {}
    for measure, represent in {"CKA": kernels, "neighbours": neighbours}.items():
        A, B = (represent(layers).astype(np.float32) for layers in (pictures, names))
        found[measure] = {"map": align(A, B).round(4).tolist(), "within": {}}
        for sort, kind in kinds.items():
            drawn = tqdm(pairings(kind, count, seed), measure, count)
            largest = [align(A, B[:, pi[:, None], pi]).max() for pi in drawn]
            found[measure]["within"][sort] = {
                "expected": align(A, averaged(B, kind)).round(4).tolist(),
                "largest": np.quantile(largest, [0.5, 0.95, 1]).round(4).tolist(),
            }
    return found


def subcategories(groups: Sequence[str]) -> np.ndarray:
    """Return which of the finer categories of its source each emoji is in, as (n,) int."""
    (folder,) = (cache_folder() / "npm").glob("emoji-datasource-twitter-*/")
    items = json.loads((folder / "emoji.json").read_text(encoding="utf-8"))
    of = {tasks.vision._without_gender(item["unified"]): item["subcategory"] for item in items}
    return np.unique([of[group] for group in groups], return_inverse=True)[1]


def load(
    language: str = "en", *, pictures: bool = True, names: bool = True
) -> tuple[examples.Loaded, examples.Loaded]:
    """Load pictures and names of the same emoji, row by row, with random weights where False."""
    options = {} if language == "en" else {"language": language}
    of_pictures, of_names = examples.names("modalities")
    seen = examples.load(of_pictures, per_class=PER_CLASS, pretrained=pictures)
    read = examples.load(of_names, per_class=PER_CLASS, pretrained=names, **options)
    rows = shared(seen.task.groups, read.task.groups)
    return restricted(seen, rows[0]), restricted(read, rows[1])


def shared(*groups: np.ndarray) -> list[np.ndarray]:
    """Return the rows of each of two tasks whose groups have as many items in the other one.

    Both tasks are shuffled and divided alike, so that these rows are the same items in the same
    order. A group that has lost an item on one side, as its picture or its name is that of another,
    is left out.
    """
    counts = pd.concat([pd.Series(each).value_counts() for each in groups], axis=1)
    both = counts.index[counts.iloc[:, 0] == counts.iloc[:, 1]]
    return [np.flatnonzero(np.isin(each, both)) for each in groups]


def restricted(loaded: examples.Loaded, rows: np.ndarray) -> examples.Loaded:
    """Return an example with some of its rows."""
    task = loaded.task
    parts = {
        part: np.flatnonzero(np.isin(rows, getattr(task, part)))
        for part in ("train", "validation", "test")
    }
    inputs = [task.inputs[row] for row in rows]
    task = replace(task, inputs=inputs, labels=task.labels[rows], groups=task.groups[rows], **parts)
    return loaded._replace(task=task, layers=loaded.layers.take(rows))


def alignment(options: Mapping[str, object]) -> dict:
    """Align the layers on the train part, as `load` gives them with these options."""
    seen, read = load(**options)
    rows = seen.task.train
    kinds = {
        "all": np.zeros(len(rows), dtype=int),
        "category": seen.task.labels[rows],
        "subcategory": subcategories(seen.task.groups[rows]),
    }
    sizes = {sort: int(kind.max()) + 1 for sort, kind in kinds.items()}
    found = aligned(seen.layers.take(rows), read.layers.take(rows), kinds)
    return {"n": len(rows), "kinds": sizes} | found


UNTRAINED = {
    "pictures untrained": {"pictures": False},
    "names untrained": {"names": False},
    "both untrained": {"pictures": False, "names": False},
}
ALIGNMENTS = {language: {"language": language} for language in LANGUAGES} | UNTRAINED


# What both give.

PARTS = ("picture", "name")


def union(pictures: LayerFeatures, names: LayerFeatures) -> LayerFeatures:
    """Return the layers of two models of the same samples as one list of candidates."""
    both = dict(zip(PARTS, (pictures, names), strict=True))
    return LayerFeatures(
        [f"{part} {name}" for part, layers in both.items() for name in layers.names],
        [X for layers in both.values() for X in layers],
    )


def of_part(part: str, method: Method) -> Method:
    """Let a method see the layers of one model of a union only."""

    def choose(calibration: Calibration, k: int) -> Choice:
        names = calibration.layers.names
        rows = [l for l, name in enumerate(names) if name.startswith(f"{part} ")]
        known, held_out = (
            LayerFeatures([names[l] for l in rows], [layers[l] for l in rows])
            for layers in (calibration.layers, calibration.validation_layers)
        )
        choice = method(calibration._replace(layers=known, validation_layers=held_out), k)
        return choice._replace(layers=[rows[l] for l in choice.layers])

    return choose


def of_each(method: Method) -> Method:
    """Let a method choose among the layers of each model by itself, and take both choices."""

    def choose(calibration: Calibration, k: int) -> Choice:
        return Choice([l for part in PARTS for l in of_part(part, method)(calibration, k).layers])

    return choose


def twice(method: Method) -> Method:
    """Let a method choose as many layers as `of_each` takes."""
    return lambda calibration, k: method(calibration, 2 * k)


BOUNDED = METHODS["LOES bounded, PCA"]
LOES_METHODS = [name for name in METHODS if name.startswith("LOES")]
ACROSS = {  # beside the book's own methods, which see the union
    f"{part}s: {name}": of_part(part, METHODS[name])
    for part in PARTS
    for name in ("last layer", "last k", "all layers", "best single (validation)", *LOES_METHODS)
} | {
    "last of each": of_each(METHODS["last layer"]),
    "last k of each": of_each(METHODS["last k"]),
    "best of each (validation)": of_each(METHODS["best single (validation)"]),
    "LOES bounded, PCA, k of each": of_each(BOUNDED),
    "LOES bounded, PCA, 2k of the union": twice(BOUNDED),
}
FEW = {
    name: (METHODS | ACROSS)[name]
    for name in (
        "last layer",
        "pictures: last layer",
        "last of each",
        "best of each (validation)",
        "all layers",
        "random k",
        *LOES_METHODS,
        "residual only",
        "greedy (validation)",
    )
}


def with_noise(layers: LayerFeatures) -> LayerFeatures:
    """Add a layer that knows nothing: white noise. It comes first, not to be the last layer."""
    noise = np.random.default_rng(0).normal(size=layers[-1].shape).astype(np.float32)
    return LayerFeatures(["noise", *layers.names], [noise, *layers.arrays])


def of_one_size(layers: LayerFeatures, rows: np.ndarray) -> LayerFeatures:
    """Give every layer a total variance of 1 over some rows: principal components go by size."""
    arrays = [X / np.sqrt(X[rows].var(0).sum()) for X in layers]
    return LayerFeatures(layers.names, arrays)


def strangers(pictures: LayerFeatures, names: LayerFeatures, task: tasks.Task) -> LayerFeatures:
    """Give each picture the name of another emoji of its category, within each part."""
    order = np.arange(len(task.labels))
    for part in (task.train, task.validation, task.test):
        (drawn,) = pairings(task.labels[part], 1, seed=0)
        order[part] = part[drawn]
    return union(pictures, names.take(order))


def selection(
    *,
    methods: Mapping[str, Method] = FEW,
    kind: str = "",
    settings: Mapping[str, object] | None = None,
    **options: object,
) -> dict:
    """Judge ways to choose layers of the union by the protocol of the book.

    Parameters
    ----------
    methods : of `loes.evaluate`.
    kind : ``"noise"``, ``"one size"`` or ``"strangers"`` for another union; empty for the plain.
    settings : further arguments of `loes.evaluate`.
    **options : of `load`.
    """
    seen, read = load(**options)
    task, development = seen.task, np.array([*seen.task.train, *seen.task.validation])
    layers = union(seen.layers, read.layers)
    if kind == "noise":
        layers = with_noise(layers)
    elif kind == "one size":
        layers = of_one_size(layers, development)
    elif kind == "strangers":
        layers = strangers(seen.layers, read.layers, task)
    found = evaluate(
        layers,
        task.labels,
        development=development,
        test=task.test,
        groups=task.groups,
        methods=methods,
        n_layers=K,
        learning_rate=LEARNING_RATE,
        **settings or {},
    )
    picks = found.runs.groupby("method")["layers"].agg(list)
    runs = found.runs.pivot(index="method", columns="seed", values="accuracy")
    table = found.summary().join(runs.agg(list, axis=1).rename("runs")).join(picks)
    # Against the last layer of the names, and against the habit of whoever has two models.
    habit = found.summary("last of each")[["difference", "low", "high"]]
    table = table.join(habit.add_suffix(", last of each"))
    return {
        "about": {key: found.about[key] for key in ("n", "names", "classes", "seeds", "versions")}
        | {"chance": task.chance, "trivial": trivial(seen.task, read.task)},
        "skipped": found.skipped,
        "summary": json.loads(table.reset_index().round(4).to_json(orient="records")),
    }


def trivial(*both: tasks.Task) -> list[float]:
    """Return what probes reach on pixels and on words, without a model."""
    return [round(tasks.trivial_baseline(task), 4) for task in both]


SELECTIONS = {
    "plain": {"methods": METHODS | ACROSS},
    "georeg": {"settings": {"georeg": GeoReg(0.1)}},
    "equal width": {"kind": "one size", "settings": {"width": 384}},
    "noise": {"kind": "noise"},
    "strangers": {"kind": "strangers"},
    "untrained": UNTRAINED["both untrained"],
    "ur": {"language": "ur"},
    "chr": {"language": "chr"},
}


def pairs() -> dict:
    """Judge every layer and every pair of layers of the union by the bounded Loss of one probe."""
    seen, read = load()
    rows = seen.task.train
    layers, y = union(seen.layers, read.layers).take(rows), seen.task.labels[rows]
    losses = np.empty((len(layers), len(layers)))
    for size in (1, 2):
        table = exhaustive(layers, y, size, criterion="bounded")
        for chosen, loss in zip(table["selected"], table["loss"], strict=True):
            losses[chosen[0], chosen[-1]] = losses[chosen[-1], chosen[0]] = loss
    return {"n": len(rows), "names": layers.names, "losses": losses.round(4).tolist()}


def picks() -> dict:
    """Ask whether labels dealt out at random choose other layers, as `evaluate` divides."""
    seen, read = load()
    y, groups = seen.task.labels, np.unique(seen.task.groups, return_inverse=True)[1]
    development = np.array([*seen.task.train, *seen.task.validation])
    layers, rows = union(seen.layers, read.layers), []
    for seed in tqdm(range(5), "picks"):
        known, _ = divide(development, y, groups, "classification", 0.2, seed)
        reduced = principal_components(layers.take(known).arrays, K)
        dealt = np.random.default_rng(seed).permutation(y[known])
        for name, settings in CRITERIA.items():
            found = {
                labels: LOES(K, **settings).fit(reduced, some).selected_
                for labels, some in {"true": y[known], "shuffled": dealt}.items()
            }
            rows.append({"criterion": name, "seed": seed} | found)
    return {"names": layers.names, "rows": rows}


CRITERIA = {
    "paper": {"criterion": "paper"},
    "bounded": {"criterion": "bounded"},
    "bounded, Loss alone": {"criterion": "bounded", "alpha": 0, "gamma": 0, "eta": 0},
}


def jobs() -> dict:
    """Return what makes each part of the result."""
    return (
        {f"alignment.{name}": lambda o=o: alignment(o) for name, o in ALIGNMENTS.items()}
        | {"pairs": pairs, "picks": picks}
        | {f"selection.{name}": lambda o=o: selection(**o) for name, o in SELECTIONS.items()}
    )


def main() -> None:
    """Make the parts that were asked for, or all that are not there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"make again, of {[*jobs()]}")
    parts = parser.parse_args().parts
    if unknown := set(parts) - set(jobs()):
        parser.error(f"there is no part {unknown}; choose of {[*jobs()]}.")
    path = result()
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for part in parts or [part for part in jobs() if part not in content]:
        print(part, flush=True)
        content[part] = jobs()[part]()
        ordered = {part: content[part] for part in jobs() if part in content}
        lines = [f"{json.dumps(part)}: {json.dumps(each)}" for part, each in ordered.items()]
        write_whole(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


if __name__ == "__main__":
    main()

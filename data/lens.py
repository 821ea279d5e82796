"""Map which depth of a model holds which attribute of its inputs: writes results/lens.json.

Every sample of inputs has several attributes at once (a post its topic, its length and the order of
its words), so that their maps differ by the attribute alone. Half an hour on one core:

    python data/lens.py               # those views whose result is not there yet
    python data/lens.py silhouettes   # the views of one sample, again
"""

import argparse
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import soundfile
from PIL import Image
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

from compare import LEARNING_RATE
from loes import LOES, GeoReg, LayerFeatures, SelectionWarning, evaluate, examples, tasks, zoo
from loes.extract import extract_layers
from loes.packages import cache_folder, package_file
from loes.store import write_whole
from loes.tasks.espeak import speak

RESULT = Path(__file__).parent / "results" / "lens.json"
PENALTIES = np.logspace(-1, 5, 13)
RESAMPLES = {"pretrained": 20, "random": 8}


class Sample(NamedTuple):
    """Inputs with several attributes.

    Attributes
    ----------
    modality : ``"text"``, ``"image"`` or ``"audio"``.
    inputs : n of them.
    factors : name to (n,) levels, each written ``"stratum/level"``: what an input is made of, such
        as its silhouette.
    attributes : name to (n,) labels and the names of the factors that a test input must not share
        with any training input. Those of the first are the types of the control task.
    """

    modality: str
    inputs: list
    factors: dict[str, np.ndarray]
    attributes: dict[str, tuple[np.ndarray, tuple[str, ...]]]


class View(NamedTuple):
    """What looks at a sample: a model with its own or with random weights, pooled in some way."""

    sample: str
    model: str
    weights: str = "pretrained"
    pooling: str = "auto"


VIEWS = [
    View("posts", "minilm"),
    View("posts", "minilm", pooling="cls"),
    View("verdicts", "minilm"),
    View("verdicts", "e5-small"),
    View("names", "e5-small"),
    View("prompts", "whisper-base"),
    View("voices", "whisper-base"),
    View("silhouettes", "dinov2-small-saliency"),
    View("silhouettes", "efficientnet-lite0"),
]
VIEWS += [  # the control that was never trained
    View(sample, model, "random")
    for sample, model in (
        ("posts", "minilm"),
        ("names", "e5-small"),
        ("voices", "whisper-base"),
        ("silhouettes", "dinov2-small-saliency"),
        ("silhouettes", "efficientnet-lite0"),
    )
]


def posts(seed: int = 0) -> Sample:
    """Pieces of 20 Newsgroups: topic, length and order of the words, none of which tells another.

    From each post a window of 8 to 39 words is cut, and in half of them the words are shuffled.
    """
    task = tasks.load("20newsgroups", per_class=35, seed=seed)
    rng = np.random.default_rng(seed)
    rows = [row for row, post in enumerate(task.inputs) if len(post.split()) >= 48]
    texts, table = [], []
    for row in rows:
        words = task.inputs[row].split()
        length, shuffled = rng.integers(8, 40), rng.integers(2)
        start = rng.integers(len(words) - length + 1)
        words = words[start : start + length]
        if shuffled:
            words = rng.permutation(words).tolist()
        texts.append(" ".join(words))
        table.append((length // 8, shuffled, words[0] < "m"))
    topic = np.array(task.classes)[task.labels[rows]]
    length, shuffled, initial = np.array(table).T
    return Sample(
        "text",
        texts,
        {"post": np.array([f"{label}/{row}" for label, row in zip(topic, rows, strict=True)])},
        {
            "topic": (topic, ("post",)),
            "length": (length, ("post",)),
            "word order": (shuffled, ("post",)),
            "first letter": (initial, ("post",)),
        },
    )


PLAIN = [
    "The {thing} was {word}.",
    "I found the {thing} {word}.",
    "To me the {thing} seemed {word}.",
    "We all thought that the {thing} was {word}.",
    "This {thing} is {word}, if you ask me.",
    "My first impression of the {thing}: {word}.",
    "The {thing} looked {word} on the first day.",
    "People call the {thing} {word}.",
    "Everybody says that this {thing} is {word}.",
    "In the end the {thing} turned out {word}.",
    "Was the {thing} {word}? Yes.",
    "Her letter calls the {thing} {word}.",
]
NEGATED = [
    "The {thing} was not {word}.",
    "I did not find the {thing} {word}.",
    "To me the {thing} never seemed {word}.",
    "None of us thought that the {thing} was {word}.",
    "This {thing} is not {word}, if you ask me.",
    "My first impression of the {thing}: not {word}.",
    "The {thing} never looked {word} on the first day.",
    "People do not call the {thing} {word}.",
    "Nobody says that this {thing} is {word}.",
    "In the end the {thing} turned out not to be {word}.",
    "Was the {thing} {word}? No.",
    "Her letter does not call the {thing} {word}.",
]
GOOD = (
    "wonderful lovely great delightful superb pleasant charming brilliant fantastic good splendid"
)
GOOD += " beautiful perfect nice terrific fabulous"
BAD = "terrible dreadful bad poor disgusting horrible nasty boring ugly disappointing hopeless"
BAD += " miserable pathetic shabby lousy awful"
THINGS = ["room", "meal", "film", "concert", "garden", "hotel", "journey", "book"]


def verdicts(seed: int = 0) -> Sample:
    """Made sentences that pass a good or a bad verdict, which a negation turns round.

    The words and the templates are ours. Test sentences share neither with training sentences.
    """
    rng = np.random.default_rng(seed)
    words = [("good", word) for word in GOOD.split()] + [("bad", word) for word in BAD.split()]
    templates = [("plain", text) for text in PLAIN] + [("negated", text) for text in NEGATED]
    table = pd.DataFrame(
        [
            (kind, word, form, template, thing)
            for (kind, word), (form, template) in product(words, templates)
            for thing in rng.choice(THINGS, 2, replace=False)
        ],
        columns=["kind", "word", "form", "template", "thing"],
    )
    good = (table["kind"] == "good") != (table["form"] == "negated")
    new = ("word", "template")
    return Sample(
        "text",
        [row.template.format(thing=row.thing, word=row.word) for row in table.itertuples()],
        {
            "word": (table["kind"] + "/" + table["word"]).to_numpy(str),
            "template": (table["form"] + "/" + table["template"]).to_numpy(str),
        },
        {
            "verdict": (good.to_numpy(), new),
            "sentiment of the word": (table["kind"].to_numpy(str), new),
            "negation": (table["form"].to_numpy(str), new),
            "thing": (table["thing"].to_numpy(str), new),
        },
    )


LANGUAGES = ("de", "es", "fr", "id", "it", "pl", "sw", "tr")  # all in Latin letters


def names(seed: int = 0) -> Sample:
    """Names of territories, languages, currencies and scripts in eight languages."""
    parts = []
    for language in LANGUAGES:
        task = tasks.load("names", per_class=20, seed=seed, language=language)
        part = pd.DataFrame({"name": task.inputs, "item": task.groups, "language": language})
        parts.append(part.assign(kind=np.array(task.classes)[task.labels]))
    table = pd.concat(parts).drop_duplicates("name", keep=False)  # of one language only
    length = pd.qcut(table["name"].str.len(), 4, labels=False)
    return Sample(
        "text",
        table["name"].tolist(),
        {"item": (table["kind"] + "/" + table["item"]).to_numpy(str)},
        {
            "language": (table["language"].to_numpy(str), ("item",)),
            "kind": (table["kind"].to_numpy(str), ("item",)),
            "length": (length.to_numpy(), ("item",)),
        },
    )


def prompts(seed: int = 0) -> Sample:
    """Telephone prompts: the language, which is also the voice, and how long the clip is."""
    task = examples.load("spoken-language").task
    seconds = [soundfile.info(clip).duration for clip in task.inputs]
    return Sample(
        "audio",
        task.inputs,
        {"prompt": np.array([f"prompt/{group}" for group in task.groups])},
        {
            "language = voice": (np.array(task.classes)[task.labels], ("prompt",)),
            "duration": (pd.qcut(seconds, 4, labels=False), ("prompt",)),
        },
    )


WORDS = {
    "animal": "dog cat horse cow sheep goat rabbit tiger lion monkey eagle dolphin spider",
    "food": "bread cheese butter apple carrot onion potato rice sugar pepper sausage biscuit honey",
    "number": "one two three four five six seven eight nine ten eleven twelve thirteen",
    "colour": "red green blue yellow purple black white brown grey pink violet scarlet turquoise",
    "body": "head arm leg hand finger shoulder elbow knee ankle stomach nose mouth eyebrow",
}
VOICES = [f"m{number}" for number in range(1, 9)] + [f"f{number}" for number in range(1, 6)]


def voices(seed: int = 0) -> Sample:
    """English words, each spoken by every voice of the synthesiser espeak-ng."""
    rows = [
        (word, kind, voice)
        for kind, words in WORDS.items()
        for word, voice in product(words.split(), VOICES)
    ]
    library = package_file("espeakng-loader", "espeakng_loader/libespeak-ng.so")
    sounds, rate = speak(library, [(word, f"en+{voice}") for word, _, voice in rows])
    word, kind, voice = np.array(rows).T
    return Sample(
        "audio",
        [(sound, rate) for sound in sounds],
        {
            "word": np.array([f"{kind}/{word}" for word, kind, _ in rows]),
            "voice": np.array([f"{voice[0]}/{voice}" for _, _, voice in rows]),
        },
        {
            "speaker": (voice, ("word",)),
            "word": (word, ("voice",)),
            "kind of word": (kind, ("word",)),
        },
    )


SIDE = 112  # pixels
TEXTURES = ("stripes", "checks", "dots", "rings", "noise")


def texture(kind: str, rng: np.random.Generator, side: int = SIDE) -> np.ndarray:
    """Return a black and white pattern, half of it white: (side, side) bool.

    Direction, place and period (8 to 14 pixels) are random.
    """
    angle, period = rng.uniform(0, np.pi), rng.uniform(8, 14)
    x, y = np.indices((side, side)) / period + rng.uniform(0, side / period, (2, 1, 1))
    u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    if kind == "stripes":
        return u % 1 < 0.5
    if kind == "checks":
        return (u % 1 < 0.5) ^ (v % 1 < 0.5)
    if kind == "dots":
        return (u % 1 - 0.5) ** 2 + (v % 1 - 0.5) ** 2 < 1 / (2 * np.pi)
    if kind == "rings":
        return np.hypot(x - side / period, y - side / period) % 1 < 0.5
    cells = rng.random((2 * side, 2 * side)) < 0.5
    return cells[np.int64(2 * (u - u.min())), np.int64(2 * (v - v.min()))]


def silhouettes(seed: int = 0) -> Sample:
    """Animals without their looks: each silhouette filled with each of five textures, on grey."""
    task = tasks.load("animals", per_class=13, seed=seed)
    rng = np.random.default_rng(seed)
    pictures, rows = [], []
    for row, kind in product(task.train, TEXTURES):
        outline = Image.fromarray(task.inputs[row]).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        picture = np.where(np.asarray(outline) > 127, 255 * texture(kind, rng), 128)
        pictures.append(picture.astype(np.uint8))
        rows.append((task.classes[task.labels[row]], row, kind))
    return Sample(
        "image",
        pictures,
        {"silhouette": np.array([f"{shape}/{row}" for shape, row, _ in rows])},
        {
            "shape": (np.array([shape for shape, _, _ in rows]), ("silhouette",)),
            "texture": (np.array([kind for _, _, kind in rows]), ("silhouette",)),
        },
    )


SAMPLES: dict[str, Callable[[], Sample]] = {
    function.__name__: function
    for function in (posts, verdicts, names, prompts, voices, silhouettes)
}
SECONDS = {"prompts": 3, "voices": 1.5}  # what Whisper hears of a clip


def layers_of(view: View, sample: Sample) -> LayerFeatures:
    """Extract all layers of a view, or take them from the cache."""
    if view.sample == "prompts":
        return examples.load("spoken-language", pretrained=view.weights == "pretrained").layers
    entry, (model, processor) = zoo.MODELS[view.model], zoo.load(view.model)
    if view.weights == "random":
        model = zoo.reinitialized(model)
    if view.model == examples.DINOV2:
        processor.size = processor.crop_size = {"height": SIDE, "width": SIDE}
    inputs = [entry.prefix + text for text in sample.inputs] if entry.prefix else sample.inputs
    return extract_layers(
        model,
        inputs,
        processor=processor,
        pooling=view.pooling,
        modules=entry.modules,
        max_length=SECONDS.get(view.sample),
        cache=cache_folder() / "lens" / "-".join(view),
    )


def depths(names: Sequence[str]) -> np.ndarray:
    """Return the depth of each layer, (L,): the share of the blocks that it has behind it."""
    first = 0 if names[0] == "embedding" else 1
    return np.arange(first, len(names) + first) / (len(names) + first - 1)


def resamples(
    factors: Sequence[np.ndarray], count: int, seed: int = 0
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Divide rows into train and test by a bootstrap of what they are made of.

    The levels of each factor are drawn with replacement, stratum by stratum. Rows of which all
    levels were drawn are for training (once each), rows of which none was are for testing, and the
    others are left out. With one factor 63 % and 37 % of the rows remain, with two 40 % and 14 %.

    Parameters
    ----------
    factors : arrays (n,) of levels written ``"stratum/level"``.
    count : how many divisions.
    seed : of the draws.
    """
    rng = np.random.default_rng(seed)
    for _ in range(count):
        drawn = []
        for factor in factors:
            levels = pd.Series(np.unique(factor))
            strata = levels.str.split("/").str[0]
            chosen = levels.groupby(strata).sample(frac=1, replace=True, random_state=rng)
            drawn.append(np.isin(factor, chosen))
        yield np.flatnonzero(np.all(drawn, axis=0)), np.flatnonzero(~np.any(drawn, axis=0))


def control_labels(labels: np.ndarray, types: np.ndarray, seed: int = 0) -> np.ndarray:
    """Give each type a label at random: nothing to find, only types to know by heart.

    The control task of Hewitt and Liang, "Designing and Interpreting Probes with Control Tasks",
    EMNLP 2019.

    Parameters
    ----------
    labels : (n,), whose frequencies the new ones have on average.
    types : (n,) what the new labels depend on.
    seed : of the draw.
    """
    levels, of_row = np.unique(types, return_inverse=True)
    return np.random.default_rng(seed).choice(labels, len(levels))[of_row]


def probe() -> Pipeline:
    """Return a ridge probe: a penalty for each column, chosen by leave-one-out."""
    return make_pipeline(StandardScaler(), RidgeCV(PENALTIES, alpha_per_target=True))


def judge(
    X: np.ndarray, labels: dict[str, np.ndarray], train: np.ndarray, test: np.ndarray
) -> dict[str, tuple[float, float]]:
    """Return test accuracy and Loss of a ridge probe, for each of several labellings of one layer.

    The Loss is the share of the one-hot labels that the probe leaves unexplained, over that of
    their training mean. One column a class. All columns share one decomposition of the features,
    which is what takes the time.

    Parameters
    ----------
    X : (n, d).
    labels : name to (n,) labels.
    train, test : rows.
    """
    one_hot = {name: pd.get_dummies(pd.Series(of), dtype=float) for name, of in labels.items()}
    Y = np.concatenate(list(one_hot.values()), axis=1)
    scores = probe().fit(X[train], Y[train]).predict(X[test])
    errors, deviations = (Y[test] - scores) ** 2, (Y[test] - Y[train].mean(0)) ** 2
    ends = np.cumsum([table.shape[1] for table in one_hot.values()])
    found = {}
    for name, end in zip(one_hot, ends, strict=True):
        part = slice(end - one_hot[name].shape[1], end)
        right = scores[:, part].argmax(1) == Y[test, part].argmax(1)
        found[name] = float(right.mean()), float(errors[:, part].sum() / deviations[:, part].sum())
    return found


def first_pick(layers: LayerFeatures, y: np.ndarray, criterion: str) -> tuple[int, list[float]]:
    """Return the first layer that LOES picks, and the Loss of every layer at that step."""
    flat = [l for l, X in enumerate(layers) if (X.std(0) <= 1e-5 * np.abs(X).max()).all()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SelectionWarning)
        loes = LOES(1, criterion=criterion, exclude=flat).fit(layers, y)
    loss = loes.path_.set_index("layer")["loss"].reindex(range(len(layers)))
    return loes.selected_[0], loss.tolist()


def look(view: View, sample: Sample, layers: LayerFeatures) -> list[dict]:
    """Return one row of the map for each attribute of a sample."""
    rows, count = [], RESAMPLES[view.weights]
    for new in dict.fromkeys(new for _, new in sample.attributes.values()):
        labels = {name: of for name, (of, needs) in sample.attributes.items() if needs == new}
        types = sample.factors[new[0]]
        factors = [sample.factors[name] for name in new]
        each = [np.array([f"input/{row}" for row in range(len(types))])]
        divisions = {"new": [*resamples(factors, count)], "known": [*resamples(each, count // 2)]}
        found = {}
        for kind, some in divisions.items():
            found[kind] = []
            for seed, rows_of in enumerate(tqdm(some, desc=f"{' '.join(view)}, {kind} {new[0]}")):
                controls = {
                    f"control {name}": control_labels(of, types, seed)
                    for name, of in labels.items()
                }
                found[kind].append([judge(X, labels | controls, *rows_of) for X in layers])
        for name, y in labels.items():
            chance = [
                DummyClassifier().fit(y[train], y[train]).score(y[test], y[test])
                for train, test in divisions["new"]
            ]
            curves = {
                f"{what}, {kind}": np.array([[of[key] for of in run] for run in found[kind]])
                for kind in found
                for what, key in (("attribute", name), ("control", f"control {name}"))
            }
            row = {
                **view._asdict(),
                "attribute": name,
                "classes": len(np.unique(y)),
                "n": len(y),
                "n train": int(np.mean([len(train) for train, _ in divisions["new"]])),
                "new": list(new),
                "layers": layers.names,
                "widths": [X.shape[1] for X in layers],
                "depth": depths(layers.names).round(4).tolist(),
                "chance": round(float(np.mean(chance)), 4),
                "accuracy": curves["attribute, new"][..., 0].round(4).tolist(),
                "known": curves["attribute, known"][..., 0].mean(0).round(4).tolist(),
                "control": curves["control, new"][..., 0].mean(0).round(4).tolist(),
                "control known": curves["control, known"][..., 0].mean(0).round(4).tolist(),
                "loss new": curves["attribute, new"][..., 1].mean(0).round(4).tolist(),
            }
            for criterion in ("paper", "bounded"):
                picks, losses = zip(
                    *(
                        first_pick(layers.take(train), y[train], criterion)
                        for train, _ in divisions["new"]
                    ),
                    strict=True,
                )
                row[f"picks {criterion}"] = list(picks)
                row[f"loss {criterion}"] = [
                    None if np.isnan(loss) else loss for loss in np.mean(losses, axis=0).round(4)
                ]
            if view.weights == "pretrained" and view.pooling == "auto":
                row["trivial"] = round(trivial(sample, y, divisions["new"][:3]), 4)
            rows.append(row)
    return rows


def trivial(sample: Sample, y: np.ndarray, divisions: list) -> float:
    """Return what features that know nothing reach, on average over some divisions."""
    classes, codes = np.unique(y, return_inverse=True)
    return float(
        np.mean(
            [
                tasks.trivial_baseline(
                    tasks.Task(
                        inputs=sample.inputs,
                        labels=codes,
                        classes=list(classes),
                        train=train,
                        validation=train[:0],
                        test=test,
                        licence="",
                        source="",
                        modality=sample.modality,
                        groups=np.arange(len(y)),
                    )
                )
                for train, test in divisions
            ]
        )
    )


def compare(sample: Sample, layers: LayerFeatures) -> list[dict]:
    """Judge all ways to choose layers by the protocol of the book, for shape and for texture."""
    rows = []
    silhouette = sample.factors["silhouette"]
    ((development, test),) = resamples([silhouette], 1, seed=1)
    for (name, (y, _)), georeg in product(sample.attributes.items(), (None, GeoReg(0.1))):
        found = evaluate(
            layers,
            y,
            development=development,
            test=test,
            groups=silhouette,
            georeg=georeg,
            learning_rate=LEARNING_RATE,
        )
        picks = found.runs.groupby("method")["layers"].agg(list)
        table = found.summary().assign(layers=picks).reset_index()
        rows.append(
            {
                "attribute": name,
                "georeg": georeg is not None,
                "n": found.about["n"],
                "summary": json.loads(table.round(4).to_json(orient="records")),
            }
        )
    return rows


def save(content: dict) -> None:
    """Write the result, one row a line."""
    parts = [
        f"{json.dumps(part)}: [\n" + ",\n".join(map(json.dumps, rows)) + "\n]"
        for part, rows in content.items()
    ]
    RESULT.parent.mkdir(exist_ok=True)
    write_whole(RESULT, ("{" + ",\n".join(parts) + "}\n").encode())


def main() -> None:
    """Look with all views that were not there, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("samples", nargs="*", help=f"look again with these of {[*SAMPLES]}")
    again = parser.parse_args().samples
    if unknown := set(again) - set(SAMPLES):
        parser.error(f"there is no sample {unknown}; choose of {[*SAMPLES]}.")
    content = {"rows": [], "comparison": []}
    if RESULT.exists():
        content = json.loads(RESULT.read_text(encoding="utf-8"))
    content["rows"] = [row for row in content["rows"] if row["sample"] not in again]
    for view in VIEWS:
        if any(view._asdict().items() <= row.items() for row in content["rows"]):
            continue
        sample = SAMPLES[view.sample]()
        content["rows"] += look(view, sample, layers_of(view, sample))
        save(content)
    if not content["comparison"] or "silhouettes" in again:
        view, sample = View("silhouettes", examples.DINOV2), silhouettes()
        content["comparison"] = compare(sample, layers_of(view, sample))
        save(content)


if __name__ == "__main__":
    main()

"""Models with tasks that suit them, their layers extracted once: what the book works on.

Chapter 2 reads the first of them.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import joblib
from filelock import FileLock

from loes import tasks, zoo
from loes.extract import extract_layers
from loes.features import LayerFeatures
from loes.packages import cache_folder
from loes.run import load_model
from loes.store import write_whole

RESULTS = Path(__file__).parents[1] / "data" / "results"
RESULTS_URL = "https://raw.githubusercontent.com/loes-book/loes/main/data/results"


@dataclass(frozen=True)
class Example:
    """A model, a task, and how the one reads the other.

    Chapter 11 lists some.

    Attributes
    ----------
    model : a name of `zoo.MODELS`, or of the hub.
    task : a name of `tasks.TASKS`.
    per_class : training samples a class, unless `load` is told otherwise.
    options : of the task.
    extraction : settings of `extract_layers`.
    adapt : changes the processor before use.
    """

    model: str
    task: str
    per_class: int
    options: dict = field(default_factory=dict)
    extraction: dict = field(default_factory=dict)
    adapt: Callable[[Any], Any] = lambda processor: processor


def _small_pictures(processor):
    """Let DINOv2 see 112 pixels: a quarter of the patches, a fifth of the time."""
    processor.size, processor.crop_size = {"shortest_edge": 112}, {"height": 112, "width": 112}
    return processor


DINOV2, CNN, E5, WHISPER = "dinov2-small-saliency", "efficientnet-lite0", "e5-small", "whisper-base"
SECONDS = {"max_length": 3}
EXAMPLES = {
    "topics": Example("minilm", "20newsgroups", 100),
    "intents": Example("smollm2", "intents", 50, {"language": "en"}),
    "names": Example(E5, "names", 100, {"language": "ur"}),
    "animals": Example(DINOV2, "animals", 50, adapt=_small_pictures),
    "words": Example(WHISPER, "spoken-words", 80, {"language": "fr"}, SECONDS),
    "animals-cnn": Example(CNN, "animals", 50),
    "drawings": Example(DINOV2, "clipart", 50, adapt=_small_pictures),
    "drawings-cnn": Example(CNN, "clipart", 50),
    "topics-e5": Example(E5, "20newsgroups", 50),
    "intents-minilm": Example("minilm", "intents", 50, {"language": "en"}),
    "intents-e5": Example(E5, "intents", 50, {"language": "en"}),
    "spoken-language": Example(WHISPER, "spoken-language", 60, extraction=SECONDS),
    "synthetic-speech": Example(WHISPER, "synthetic-speech", 100, extraction=SECONDS),
    "emoji-pictures": Example(DINOV2, "emoji", 60, adapt=_small_pictures),
    "emoji-names": Example(E5, "emoji", 60, {"modality": "text"}),
}


def _pairs(models: dict[str, str], data: dict[str, dict], per_class: int, **extraction) -> dict:
    """Return an example for each of the paper's models on each of its data sets."""
    return {
        f"{task}-{model}": Example(name, "hub", per_class, options, extraction)
        for task, options in data.items()
        for model, name in models.items()
    }


# What the paper works on: models and data of the hub, for those who have a network and a GPU.
CLIP = "openai/clip-vit-base-patch32"
BERTS = {"bert": "google-bert/bert-large-uncased", "modernbert": "answerdotai/ModernBERT-base"}
MASSIVE = {"dataset": "mteb/amazon_massive_scenario", "labels": "label_text"}
HUB = {
    "vision": _pairs(
        {
            "dinov2": "facebook/dinov2-base",
            "clip": CLIP,
            "mae": "facebook/vit-mae-base",
            "vit": "google/vit-base-patch16-224-in21k",
            "deit": "facebook/deit-base-patch16-224",
        },
        {
            "cifar100": {"dataset": "uoft-cs/cifar100", "inputs": "img", "labels": "fine_label"},
            "dtd": {"dataset": "tanganke/dtd", "inputs": "image"},
            "cars": {"dataset": "tanganke/stanford_cars", "inputs": "image"},
        },
        40,
    ),
    "language": _pairs(
        BERTS,
        {
            "mtop": {"dataset": "mteb/mtop_domain", "config": "en", "labels": "label_text"},
            "banking77": {"dataset": "mteb/banking77", "labels": "label_text"},
            "emotion": {"dataset": "mteb/emotion", "labels": "label_text"},
            "massive": MASSIVE | {"config": "en"},
        },
        100,
    ),
    "languages": _pairs(  # those two read English only
        BERTS | {"e5": "intfloat/multilingual-e5-small"}, {"urdu": MASSIVE | {"config": "ur"}}, 100
    ),
    "speech": _pairs(
        {
            "wav2vec2": "facebook/wav2vec2-base",
            "hubert": "facebook/hubert-base-ls960",
            "wavlm": "microsoft/wavlm-base",
        },
        {
            "asvspoof": {
                "dataset": "Bisher/ASVspoof_2019_LA",
                "inputs": "audio",
                "labels": "key",
                "groups": "speaker_id",
            },
            "cremad": {
                "dataset": "confit/cremad-parquet",
                "inputs": "audio",
                "labels": "emotion",
            },
        },
        400,
        max_length=6,
    ),
    "modalities": {  # the two towers of one model; the data of both come in packages
        "pictures-clip": Example(CLIP, "emoji", 60),
        "texts-clip": Example(CLIP, "emoji", 60, {"modality": "text"}),
    },
    "lens": {"names-xlmr": Example("FacebookAI/xlm-roberta-base", "names", 20, {"language": "ur"})},
}
for _chapter, _modality in (("vision", "image"), ("speech", "audio")):
    for _example in HUB[_chapter].values():
        _example.options["modality"] = _modality

CHAPTERS = {
    "foundations": ("topics", "intents", "names", "animals", "words"),
    "vision": ("animals", "animals-cnn", "drawings", "drawings-cnn"),
    "language": ("intents", "intents-minilm", "intents-e5", "topics", "topics-e5"),
    "speech": ("spoken-language", "words", "synthetic-speech"),
    "languages": ("names",),
    "modalities": ("emoji-pictures", "emoji-names"),
    "lens": ("names",),
}
PROFILES = ("offline", "full")


def profile() -> str:
    """Return what the environment variable LOES_PROFILE asks for, ``"offline"`` unless set.

    ``"offline"``: models and data that come in packages. ``"full"``: the paper's own, from the hub,
    for a machine with a network and a GPU.

    Chapter 11 says what differs.

    Raises
    ------
    ValueError for another value.
    """
    asked = os.environ.get("LOES_PROFILE", "offline")
    if asked not in PROFILES:
        raise ValueError(f"LOES_PROFILE must be one of {PROFILES}; got {asked!r}.")
    return asked


def names(chapter: str) -> tuple[str, ...]:
    """Return the names of a chapter's examples in the current profile.

    Chapter 11 goes through them.

    Parameters
    ----------
    chapter : ``"foundations"`` (all of Part I), ``"vision"``, ``"language"``, ``"speech"``,
        ``"languages"``, ``"modalities"`` or ``"lens"``.

    Raises
    ------
    ValueError for another chapter, or a profile that there is not.
    """
    if chapter not in CHAPTERS:
        raise ValueError(f"unknown chapter {chapter!r}; choose one of {sorted(CHAPTERS)}.")
    full = HUB.get(chapter, CHAPTERS[chapter])  # Part I works on the same in both
    return CHAPTERS[chapter] if profile() == "offline" else tuple(full)


def find(name: str) -> Example:
    """Return the example of that name, or a ValueError that lists the names there are.

    Chapter 11 shows it at work.
    """
    known = EXAMPLES | {key: entry for entries in HUB.values() for key, entry in entries.items()}
    if name not in known:
        raise ValueError(f"unknown example {name!r}; choose one of {sorted(known)}.")
    return known[name]


class Loaded(NamedTuple):
    """What `load` returns.

    `extraction` holds model, inputs and settings as `extract_layers` takes them; `seconds` is what
    it took when the layers were extracted, which a filled cache does not repeat.

    Chapter 2 reads the first.
    """

    task: tasks.Task
    layers: LayerFeatures
    seconds: float
    extraction: dict


def load(
    name: str,
    *,
    per_class: int | None = None,
    device: str = "cpu",
    pretrained: bool = True,
    seed: int = 0,
    **options: object,
) -> Loaded:
    """Load the task of an example and all layers of its samples.

    The layers are extracted on first use, which takes a minute or a few on two cores, and kept in
    the user's cache folder.

    Chapter 2 loads the first.

    Parameters
    ----------
    name : a key of `EXAMPLES`, such as ``"topics"``, or one of `names` in the full profile.
    per_class : training samples a class; None for the example's own number.
    device : where to extract.
    pretrained : False for the same architecture with random weights, a control.
    seed : of those weights.
    **options : of the task, instead of the example's own, such as ``language="sw"``.

    Raises
    ------
    ValueError for an unknown name; and as `tasks.load`, `zoo.load` and `extract_layers`.
    """
    example = find(name)
    per_class = example.per_class if per_class is None else per_class
    task = tasks.load(example.task, per_class=per_class, **example.options | options)
    model, processor = load_model(example.model, task.modality)
    if not pretrained:
        model = zoo.reinitialized(model, seed)
    twins = {entry.hub: entry for entry in zoo.MODELS.values()}  # wanting the same prefix
    entry = (twins | zoo.MODELS).get(example.model)
    prefix = entry.prefix if entry else ""
    inputs = [prefix + text for text in task.inputs] if prefix else task.inputs
    extraction = example.extraction | {
        "model": model,
        "inputs": inputs,
        "processor": example.adapt(processor),
        "device": device,
    }
    if entry and entry.modules:
        extraction["modules"] = entry.modules
    parts = [name, str(per_class)]
    if options:
        parts.append(joblib.hash(options)[:8])
    if not pretrained:
        parts.append(f"random{seed}")
    cache = cache_folder() / "examples" / "-".join(parts)
    cache.parent.mkdir(parents=True, exist_ok=True)
    record = cache.with_suffix(".json")
    with FileLock(f"{cache}.lock"):  # another chapter may be at it
        start = time.perf_counter()
        layers = extract_layers(cache=cache, **extraction)
        if not record.exists():
            write_whole(record, json.dumps(time.perf_counter() - start).encode())
    return Loaded(task, layers, json.loads(record.read_text(encoding="utf-8")), extraction)


def result(stem: str) -> dict:
    """Return one of the project's results: a JSON file of data/results, parsed.

    Read from the checkout that this package is imported from, or else from the project's page.

    Chapter 11 reads some.

    Parameters
    ----------
    stem : the file's name without its ending, such as ``"compare-topics-plain"``.

    Raises
    ------
    FileNotFoundError when it is in neither place.
    """
    path = RESULTS / f"{stem}.json"
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    try:
        with urlopen(f"{RESULTS_URL}/{stem}.json", timeout=60) as answer:
            return json.load(answer)
    except OSError as error:
        raise FileNotFoundError(
            f"there is no result {stem!r} in {RESULTS}, nor at {RESULTS_URL} ({error}); clone the "
            "repository, whose data folder has all of them and the scripts that make them."
        ) from error

"""Models with tasks that suit them, their layers extracted once: what the book works on."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from filelock import FileLock

from loes import tasks, zoo
from loes.extract import extract_layers
from loes.features import LayerFeatures
from loes.packages import cache_folder
from loes.store import write_whole


@dataclass(frozen=True)
class Example:
    """A model, a task, and how the one reads the other.

    Attributes
    ----------
    model, task : names of `zoo.MODELS` and `tasks.TASKS`.
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


EXAMPLES = {
    "topics": Example("minilm", "20newsgroups", 100),
    "intents": Example("smollm2", "intents", 50, {"language": "en"}),
    "names": Example("e5-small", "names", 100, {"language": "ur"}),
    "animals": Example("dinov2-small-saliency", "animals", 50, adapt=_small_pictures),
    "words": Example("whisper-base", "spoken-words", 80, {"language": "fr"}, {"max_length": 3}),
}


class Loaded(NamedTuple):
    """What `load` returns.

    `extraction` holds model, inputs and settings as `extract_layers` takes them; `seconds` is what
    it took when the layers were extracted, which a filled cache does not repeat.
    """

    task: tasks.Task
    layers: LayerFeatures
    seconds: float
    extraction: dict


def load(name: str, *, per_class: int | None = None, device: str = "cpu") -> Loaded:
    """Load the task of an example of `EXAMPLES` and all layers of its samples.

    The layers are extracted on first use, which takes a minute or a few on two cores, and kept in
    the user's cache folder.

    Parameters
    ----------
    name : a key of `EXAMPLES`, such as ``"topics"``.
    per_class : training samples a class; None for the example's own number.
    device : where to extract.

    Raises
    ------
    ValueError for an unknown name; and as `tasks.load`, `zoo.load` and `extract_layers`.
    """
    if name not in EXAMPLES:
        raise ValueError(f"unknown example {name!r}; choose one of {sorted(EXAMPLES)}.")
    example = EXAMPLES[name]
    per_class = example.per_class if per_class is None else per_class
    task = tasks.load(example.task, per_class=per_class, **example.options)
    model, processor = zoo.load(example.model)
    prefix = zoo.MODELS[example.model].prefix
    inputs = [prefix + text for text in task.inputs] if prefix else task.inputs
    extraction = example.extraction | {
        "model": model,
        "inputs": inputs,
        "processor": example.adapt(processor),
        "device": device,
    }
    cache = cache_folder() / "examples" / f"{name}-{per_class}"
    cache.parent.mkdir(parents=True, exist_ok=True)
    record = cache.with_suffix(".json")
    with FileLock(f"{cache}.lock"):  # another chapter may be at it
        start = time.perf_counter()
        layers = extract_layers(cache=cache, **extraction)
        if not record.exists():
            write_whole(record, json.dumps(time.perf_counter() - start).encode())
    return Loaded(task, layers, json.loads(record.read_text(encoding="utf-8")), extraction)

"""Compare ways to choose layers on real models and tasks: writes results/compare-*.json.

About an hour on two cores for all:

    python data/compare.py            # those whose result is not there yet
    python data/compare.py minilm     # one, again
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from loes import GeoReg, baselines, evaluate, extract_layers, tasks, zoo
from loes.packages import cache_folder

RESULTS = Path(__file__).parent / "results"
LEARNING_RATE = 1e-3  # the paper's 1e-4 is too slow for the few hundred steps of a thousand samples


@dataclass(frozen=True)
class Case:
    """A model, a task, and how the one reads the other."""

    task: str
    per_class: int
    options: dict = dataclasses.field(default_factory=dict)
    extraction: dict = dataclasses.field(default_factory=dict)
    adapt: Callable[[Any], Any] = lambda processor: processor


def small_pictures(processor):
    """Let DINOv2 see 112 pixels: a quarter of the patches, a fifth of the time."""
    processor.size, processor.crop_size = {"shortest_edge": 112}, {"height": 112, "width": 112}
    return processor


CASES = {
    "minilm": Case("20newsgroups", 50),
    "e5-small": Case("names", 100, {"language": "ur"}),
    "smollm2": Case("intents", 50, {"language": "en"}),
    "dinov2-small-saliency": Case("animals", 50, adapt=small_pictures),
    "whisper-base": Case("spoken-words", 80, {"language": "fr"}, {"max_length": 3}),
}


KINDS: dict[str, Callable[[int], dict]] = {  # from the width of a layer to further settings
    "plain": lambda width: {},
    "georeg": lambda width: {"georeg": GeoReg(0.1)},
    "equal-width": lambda width: {"width": width},
    "georeg-scale-free": lambda width: {"georeg": GeoReg(0.1, scale_free=True)},
}


def result(name: str, kind: str) -> Path:
    """Return where a result is written."""
    return RESULTS / f"compare-{name}-{kind}.json"


def prepare(name: str) -> dict[str, Any]:
    """Load the task of a case and the layers of its samples, from the cache where it has them."""
    case = CASES[name]
    task = tasks.load(case.task, per_class=case.per_class, **case.options)
    model, processor = zoo.load(name)
    prefix = zoo.MODELS[name].prefix
    inputs = [prefix + text for text in task.inputs] if prefix else task.inputs
    settings = case.extraction | {"processor": case.adapt(processor)}
    cache = cache_folder() / "compare" / name
    anew, start = not cache.exists(), time.perf_counter()
    layers = extract_layers(model, inputs, cache=cache, **settings)
    seconds = time.perf_counter() - start if anew else None
    turns = None
    if task.modality == "text":
        turns = baselines.token_curvature(model, [inputs[i] for i in task.train[:200]], **settings)
    return {"task": task, "layers": layers, "seconds": seconds, "curvature": turns}


def compare(name: str, kinds: Sequence[str], seeds: range) -> None:
    """Judge all methods on the layers of one model, in some kinds of training, and save."""
    case, prepared = CASES[name], prepare(name)
    task, layers = prepared["task"], prepared["layers"]
    trivial = tasks.trivial_baseline(task)
    for kind in kinds:
        found = evaluate(
            layers,
            task.labels,
            development=[*task.train, *task.validation],
            test=task.test,
            groups=task.groups,
            seeds=seeds,
            curvature=prepared["curvature"],
            extraction_seconds=prepared["seconds"],
            learning_rate=LEARNING_RATE,
            **KINDS[kind](layers[-1].shape[1]),
        )
        found.about.update(
            model=name,
            task=case.task,
            options=case.options,
            modality=task.modality,
            chance=task.chance,
            trivial_baseline=trivial,
        )
        RESULTS.mkdir(exist_ok=True)
        found.save(result(name, kind))
        print(name, kind, found.summary().round(3).to_string(), sep="\n", flush=True)


def report() -> None:
    """Write all results as one page."""
    lines = [
        "# Do selected layers help?",
        "",
        "Made by `data/compare.py`. Accuracy on the test part, mean and spread over five seeds;",
        "difference to the last layer with a 95 % interval over groups of the test part; seconds",
        "to choose the layers and to train the probe on cached features.",
    ]
    for path in sorted(RESULTS.glob("compare-*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        about, n = content["about"], content["about"]["n"]
        table = pd.DataFrame(content["summary"]).set_index("method").round(3)
        lines += [
            "",
            f"## {about['model']}, {about['task']}: {path.stem.split(about['model'])[1][1:]}",
            "",
            f"{n['development']} samples to learn from, {n['test']} to test; majority class "
            f"{about['chance']:.3f}, trivial baseline {about['trivial_baseline']:.3f}.",
            "",
            "```",
            table.fillna("").to_string(),
            "```",
        ]
        lines += [f"\nNot run: {name} ({why})." for name, why in content["skipped"].items()]
    (RESULTS / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Run what was asked for, or all that is not there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(CASES)}")
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    if unknown := set(options.names) - set(CASES):
        parser.error(f"unknown {', '.join(sorted(unknown))}; choose from {', '.join(CASES)}.")
    for name in options.names or CASES:
        missing = [k for k in options.kinds if options.names or not result(name, k).exists()]
        if missing:
            compare(name, missing, range(options.seeds))
    report()


if __name__ == "__main__":
    main()

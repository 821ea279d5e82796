"""Compare ways to choose layers on the book's examples: writes results/compare-*.json.

Some hours on two cores for all:

    python data/compare.py            # those whose result is not there yet
    python data/compare.py topics     # one, again
    python data/compare.py topics --layers 4    # as many as the paper takes of text models
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from loes import GeoReg, baselines, evaluate, examples, tasks

RESULTS = Path(__file__).parent / "results"
N_LAYERS = 3
LEARNING_RATE = 1e-3  # the paper's 1e-4 is too slow for the few hundred steps of a thousand samples

KINDS: dict[str, Callable[[int], dict]] = {  # from the width of a layer to further settings
    "plain": lambda width: {},
    "georeg": lambda width: {"georeg": GeoReg(0.1)},
    "equal-width": lambda width: {"width": width},
    "random-weights": lambda width: {},  # plain training, on a model that was never trained
}
# Beside the book's five first examples, those of Part II; not every question is asked of all.
FIRST = examples.CHAPTERS["foundations"]
RUNS = {name: ("plain", "georeg", "equal-width") for name in FIRST} | {
    name: ("plain", "georeg")
    for chapter in ("vision", "language", "speech")
    for name in examples.CHAPTERS[chapter]
    if name not in FIRST
}
for control in ("animals", "drawings", "topics", "intents-minilm", "names", "spoken-language"):
    RUNS[control] += ("random-weights",)


REPORT = """\
# Do selected layers help?

Made by `data/compare.py`: frozen backbones, three layers, five seeds. First the accuracy on the
test part in %, mean over the seeds. Then, run by run, mean and spread, the difference to the last
layer with a 95 % interval over groups of the test part, and the seconds to choose the layers and to
train the probe on cached features. (Other work went on beside these runs: take the seconds as
orders of magnitude.)

```
{means}
```

LOES, bounded, does not beat the last three layers side by side on {lost}.

What fine-tuning with GeoReg does to the geometry is in `finetune.json`, made by `data/finetune.py`;
what the weights of Eq. 7 do to the picks, judged on validation samples, in `sensitivity-*.json`,
made by `data/sensitivity.py`."""


def result(name: str, kind: str, n_layers: int = N_LAYERS) -> Path:
    """Return where a result is written."""
    layers = "" if n_layers == N_LAYERS else f"-{n_layers}-layers"
    return RESULTS / f"compare-{name}-{kind}{layers}.json"


def compare(name: str, kinds: Sequence[str], seeds: range, n_layers: int = N_LAYERS) -> None:
    """Judge all methods on the layers of one example, in some kinds of training, and save."""
    untrained = {"random-weights"} & set(kinds)
    if untrained and len(kinds) > 1:
        compare(name, [kind for kind in kinds if kind not in untrained], seeds, n_layers)
        kinds = list(untrained)
    task, layers, seconds, extraction = examples.load(name, pretrained=not untrained)
    example = examples.find(name)
    trivial, turns = tasks.trivial_baseline(task), None
    if task.modality == "text":
        some = [extraction["inputs"][i] for i in task.train[:200]]
        turns = baselines.token_curvature(**extraction | {"inputs": some})
    for kind in kinds:
        found = evaluate(
            layers,
            task.labels,
            development=[*task.train, *task.validation],
            test=task.test,
            groups=task.groups,
            n_layers=n_layers,
            seeds=seeds,
            curvature=turns,
            extraction_seconds=seconds,
            learning_rate=LEARNING_RATE,
            **KINDS[kind](layers[-1].shape[1]),
        )
        found.about.update(
            example=name,
            model=example.model,
            task=example.task,
            options=example.options,
            pretrained=not untrained,
            modality=task.modality,
            chance=task.chance,
            trivial_baseline=trivial,
        )
        RESULTS.mkdir(exist_ok=True)
        found.save(result(name, kind, n_layers))
        print(name, kind, found.summary().round(3).to_string(), sep="\n", flush=True)


def report() -> None:
    """Write all results with the usual number of layers as one page."""
    contents = {p: json.loads(p.read_text("utf-8")) for p in sorted(RESULTS.glob("compare-*.json"))}
    overview, pages = {}, []
    for path, content in contents.items():
        about, n = content["about"], content["about"]["n"]
        if about["n_layers"] != N_LAYERS:
            continue
        table = pd.DataFrame(content["summary"]).set_index("method")
        kind = path.stem.removeprefix(f"compare-{about['example']}-")
        overview[about["example"], kind] = 100 * table["mean"]
        pages += [
            "",
            f"## {about['model']}, {about['task']}: {kind}",
            "",
            f"{n['development']} samples to learn from, {n['test']} to test; majority class "
            f"{about['chance']:.3f}, trivial baseline {about['trivial_baseline']:.3f}. Extracting "
            f"all layers took {about['extraction_seconds']:.0f} s.",
            "",
            "```",
            table.round(3).to_string(na_rep=""),
            "```",
        ]
        pages += [f"\nNot run: {name} ({why})." for name, why in content["skipped"].items()]
    order = sorted(overview, key=lambda column: [*KINDS].index(column[1]))
    means = pd.DataFrame(overview)[order].reindex(list(baselines.METHODS)).round(1)
    lost = means.columns[means.loc["LOES bounded"] <= means.loc["last k"]]
    text = REPORT.format(
        means=means.to_string(na_rep=""),
        lost=", ".join(f"{example} ({kind})" for example, kind in lost) or "none of these",
    )
    (RESULTS / "README.md").write_text("\n".join([text, *pages]) + "\n", encoding="utf-8")


def main() -> None:
    """Run what was asked for, or all that is not there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"some of {', '.join(examples.EXAMPLES)}"
    )
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS), help="instead of the usual ones")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--layers", type=int, default=N_LAYERS, help="how many to choose (default: %(default)s)"
    )
    options = parser.parse_args()
    for name in options.names:
        examples.find(name)
    for name in options.names or RUNS:
        asked = options.kinds or RUNS.get(name, ("plain",))
        missing = [
            kind
            for kind in asked
            if options.names or not result(name, kind, options.layers).exists()
        ]
        if missing:
            compare(name, missing, range(options.seeds), options.layers)
    report()


if __name__ == "__main__":
    main()

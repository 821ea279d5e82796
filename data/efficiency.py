"""Measure what selection costs beside extraction and training: writes results/efficiency.json.

Half an hour on one core for all; an example that is done is kept. All times are processor seconds
of one thread, in which other work on the machine does not count, each taken several times in turns.

    python data/efficiency.py            # those that are not there yet
    python data/efficiency.py topics     # one, again
"""

import argparse
import json
import platform
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from time import process_time
from timeit import timeit

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import AdamW
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from loes import LOES, FusedEncoder, GeoReg, SelectionWarning, examples, exhaustive, extract_layers
from loes.export import truncate
from loes.families import family_of, reading_part
from loes.features import LayerFeatures
from loes.readers import Batch, Reader
from loes.store import write_whole
from loes.training import CLIP, train_probe

RESULT = Path(__file__).parent / "results" / "efficiency.json"
SUBSETS = {"topics": 3, "animals": 2, "intents": 2}  # what exhaustive search can do: n > K d
NAMES = (*SUBSETS, "names", "words")
CRITERIA = ("paper", "bounded")
K = 3
REPEATS = 3
INPUTS = 64  # that forward passes are timed on
BATCH, STEPS = 32, 2
EPOCHS = 3  # of a probe on cached features


def seconds(runs: dict[str, Callable[[], object]], repeats: int = REPEATS) -> dict[str, list]:
    """Time some runs in turns, so that whatever slows the machine meets all alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(timeit(run, timer=process_time, number=1))
    return times


def flops(run: Callable[[], object]) -> int:
    """Count the operations in matrix products, a multiplication and an addition as two.

    Factorisations are not counted. Attention is, as the plain products that it consists of.
    """
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def saved_bytes(loss: Callable[[], torch.Tensor], parameters: Iterable[torch.Tensor]) -> int:
    """Bytes that a forward pass keeps for the backward pass, parameters left out."""
    known, kept = {p.untyped_storage().data_ptr() for p in parameters}, {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        graph = loss()  # as long as it lives no storage is freed, and no address used twice
    del graph
    return sum(kept.values())


def read(part: PreTrainedModel, extraction: dict, inputs: Sequence) -> list[Batch]:
    """Return inputs as batches that a `FusedEncoder` takes."""
    reader = Reader(
        part, family_of(part, None), extraction["processor"], BATCH, extraction.get("max_length")
    )
    return list(islice(reader.batches(inputs, range(len(inputs))), STEPS))


def loss_of(encoder: FusedEncoder, batch: Batch, y: torch.Tensor) -> torch.Tensor:
    """Return the loss of one batch."""
    return encoder(**batch.tensors, token_mask=batch.mask, labels=y[batch.rows]).loss


def learn(encoder: FusedEncoder, batches: Sequence[Batch], y: torch.Tensor) -> None:
    """Take one step of training a batch."""
    trainable = [p for p in encoder.parameters() if p.requires_grad]
    optimizer = AdamW(trainable, lr=1e-5)
    for batch in batches:
        optimizer.zero_grad()
        loss_of(encoder, batch, y).backward()
        torch.nn.utils.clip_grad_norm_(trainable, CLIP)
        optimizer.step()
    optimizer.zero_grad()  # five encoders wait at a time, and gradients are as large as weights


def selection(layers: LayerFeatures, y: np.ndarray) -> dict:
    """Time the greedy loop, on what it is for and on what holds nothing."""
    rng = np.random.default_rng(0)
    noise = [rng.normal(size=X.shape).astype(X.dtype) for X in layers]
    shuffled, runs, found = rng.permutation(y), {}, {}
    for criterion in CRITERIA:
        selector = LOES(K, criterion=criterion)
        found[criterion] = {
            "flops": flops(partial(selector.fit, layers, y)),
            "picks": selector.selected_,
        }
        for content, stack, labels in (
            ("true", layers, y),
            ("noise", noise, y),
            ("shuffled", layers, shuffled),
        ):
            runs[criterion, content] = partial(LOES(K, criterion=criterion).fit, stack, labels)
    for (criterion, content), times in seconds(runs).items():
        found[criterion].setdefault("seconds", {})[content] = times
    return found


def subsets(layers: LayerFeatures, y: np.ndarray, k: int) -> dict:
    """Judge every subset of k layers, and say where the greedy one stands."""
    found = {"k": k}
    for criterion in CRITERIA:
        runs = {"greedy": partial(LOES(k, criterion=criterion).fit, layers, y)}
        times = seconds(runs, repeats=1)
        start = process_time()
        table = exhaustive(layers, y, k, criterion=criterion, progress=False)
        times["all"] = [process_time() - start]
        greedy = table[table["greedy"]].iloc[0]
        found["subsets"] = len(table)
        found[criterion] = {
            "seconds": times,
            "rank": int(greedy.name),
            "gap": greedy["gap"],
            "best": table["loss"][0],
        }
    return found


def forward(model: PreTrainedModel, extraction: dict, inputs: Sequence) -> dict:
    """Count the operations of the model cut off above each layer, and time some of these."""
    n_blocks = reading_part(model, (), None).config.num_hidden_layers

    def run(part: PreTrainedModel) -> LayerFeatures:
        return extract_layers(**extraction | {"model": part, "inputs": inputs, "progress": False})

    found: dict[str, list] = {"flops": [], "parameters": []}
    for h in range(n_blocks + 1):
        part = truncate(model, max(h, 1))
        found["flops"].append(flops(partial(run, part)) / len(inputs))
        found["parameters"].append(reading_part(part, (), None).num_parameters())
    timed = sorted(set(np.linspace(1, n_blocks, 5).round().astype(int).tolist()))
    times = seconds({str(h): partial(run, truncate(model, h)) for h in timed})
    return found | {
        "seconds": {h: [t / len(inputs) for t in values] for h, values in times.items()}
    }


def training(model: PreTrainedModel, extraction: dict, inputs: Sequence, y: np.ndarray) -> dict:
    """Time steps of training on three layers, of the whole model and of its lower half."""
    part = reading_part(model, (), None)
    whole = part.config.num_hidden_layers
    half = max(whole // 2, K - 1)
    batches, y = read(part, extraction, inputs), torch.from_numpy(y)
    n = sum(len(batch.rows) for batch in batches)
    runs, memory, parameters = {}, {}, {}
    for kind, top, frozen, georeg in (
        ("frozen", whole, True, None),
        ("frozen, half", half, True, None),
        ("tuned", whole, False, None),
        ("tuned, half", half, False, None),
        ("tuned, GeoReg", whole, False, GeoReg()),
    ):
        encoder = FusedEncoder(
            model, range(top - K + 1, top + 1), int(y.max()) + 1, frozen=frozen, georeg=georeg
        )
        runs[kind] = partial(learn, encoder, batches, y)
        memory[kind] = saved_bytes(partial(loss_of, encoder, batches[0], y), encoder.parameters())
        parameters[kind] = {
            "all": sum(p.numel() for p in encoder.parameters()),
            "trained": sum(p.numel() for p in encoder.parameters() if p.requires_grad),
            "overhead": encoder.overhead,
        }
    return {
        "seconds": {kind: [t / n for t in times] for kind, times in seconds(runs).items()},
        "saved bytes": {kind: size / len(batches[0].rows) for kind, size in memory.items()},
        "parameters": parameters,
    }


def probe(layers: LayerFeatures, y: np.ndarray) -> dict:
    """Time epochs of a probe on three cached layers."""
    some = layers.arrays[-K:]
    runs = {
        kind: partial(train_probe, some, y, epochs=EPOCHS, georeg=georeg, progress=False)
        for kind, georeg in (("plain", None), ("GeoReg", GeoReg()))
    }
    return {kind: [t / EPOCHS / len(y) for t in times] for kind, times in seconds(runs).items()}


def measure(name: str) -> dict:
    """Measure everything on one example; times of passes and epochs are a sample."""
    task, layers, _, extraction = examples.load(name)
    model, y = extraction["model"], task.labels[task.train]
    known = layers.take(task.train)
    rows = np.random.default_rng(0).choice(task.train, INPUTS, replace=False)
    inputs = [extraction["inputs"][row] for row in rows]
    found = {
        "model": examples.find(name).model,
        "n": len(y),
        "layers": len(known),
        "width": known[0].shape[1],
        "classes": len(task.classes),
        "forward": forward(model, extraction, inputs),
        "selection": selection(known, y),
        "probe": probe(known, y),
    }
    if task.modality != "audio":  # a Whisper encoder trains on 30 s, of which 27 would be silence
        found["training"] = training(model, extraction, inputs, task.labels[rows])
    if name in SUBSETS:
        found["exhaustive"] = subsets(known, y, SUBSETS[name])
    return found


def main() -> None:
    """Measure what was asked for, or all that is not there."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(NAMES)}")
    options = parser.parse_args()
    warnings.simplefilter("ignore", SelectionWarning)
    torch.set_num_threads(1)
    about = {
        "k": K,
        "repeats": REPEATS,
        "batch": BATCH,
        "machine": platform.machine(),
        "versions": {name: version(name) for name in ("loes", "torch", "transformers")},
    }
    before = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    found = before["examples"] if before.get("about") == about else {}
    for name in options.names or NAMES:
        if options.names or name not in found:
            found[name] = measure(name)
            content = json.dumps({"about": about, "examples": found}, indent=1)
            write_whole(RESULT, (content + "\n").encode())
            print(name, "done", flush=True)


if __name__ == "__main__":
    main()

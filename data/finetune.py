"""Fine-tune MiniLM on its selected layers with and without GeoReg: writes results/finetune.json.

What happens to the geometry of the fused embedding, step by step. Half an hour on one core; a run
that is done is kept, so that it can be stopped and started again.
"""

import argparse
import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import accuracy_score
from tqdm import tqdm

from loes import LOES, FusedEncoder, GeoReg, extract_layers, tasks, terms, zoo
from loes.store import write_whole
from loes.training import WARM_UP, cosine_schedule

RESULTS = Path(__file__).parent / "results"
BATCH, STEPS, WATCH = 32, 120, 20
MAX_LENGTH = 32
RATES = {"backbone": 2e-5, "probe": 1e-3}
PENALTIES = {
    "none": lambda: None,
    "paper": lambda: GeoReg(0.1),
    "scale-free": lambda: GeoReg(0.1, scale_free=True),
}


def geometry(Z: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Measure what GeoReg is to keep, and what its paper form can buy it with: the scale."""
    variances = np.linalg.svd(Z - Z.mean(0), compute_uv=False) ** 2 / (len(Z) - 1)
    shares = variances / variances.sum()
    return {
        "isotropy": terms.isotropy(Z),
        "effective rank": float(np.exp(-(shares * np.log(shares + 1e-30)).sum())),
        "triangle area": terms.triangle_area(Z, y),
        "triangle share": terms.triangle_share(Z, y),
        "total variance": float(variances.sum()),
    }


def embed(encoder: FusedEncoder, tokens: dict) -> tuple[np.ndarray, np.ndarray]:
    """Return the fused embedding and the predicted classes."""
    encoder.eval()
    outputs = []
    with torch.inference_mode():
        for start in range(0, len(tokens["input_ids"]), 64):
            outputs.append(encoder(**{k: v[start : start + 64] for k, v in tokens.items()}))
    Z = torch.cat([o.embedding for o in outputs]).double().numpy()
    return Z, torch.cat([o.logits for o in outputs]).argmax(1).numpy()


def run(penalty: str, seed: int, task: tasks.Task, layers: list[int], bar: tqdm) -> dict:
    """Fine-tune once, watching the validation part; the test part is predicted at the end."""
    torch.manual_seed(seed)
    model, tokenizer = zoo.load("minilm")

    def tokenize(rows):
        texts = [task.inputs[row] for row in rows]
        settings = {"truncation": True, "max_length": MAX_LENGTH, "return_tensors": "pt"}
        return dict(tokenizer(texts, padding=True, **settings))

    encoder = FusedEncoder(model, layers, len(task.classes), georeg=PENALTIES[penalty]())
    optimizer = torch.optim.AdamW(
        [{"params": getattr(encoder, part).parameters(), "lr": lr} for part, lr in RATES.items()]
    )
    schedule = cosine_schedule(optimizer, STEPS)
    held_out, y = tokenize(task.validation), task.labels
    rng, watched = np.random.default_rng(seed), []
    for step in range(STEPS + 1):
        if step % WATCH == 0:
            Z, predicted = embed(encoder, held_out)
            accuracy = accuracy_score(y[task.validation], predicted)
            watched.append({"step": step, "validation": accuracy} | geometry(Z, y[task.validation]))
        if step == STEPS:
            break
        rows = rng.choice(task.train, BATCH, replace=False)
        encoder.train()
        loss = encoder(**tokenize(rows), labels=torch.as_tensor(y[rows])).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        schedule.step()
        bar.update()
    _, predicted = embed(encoder, tokenize(task.test))
    test = accuracy_score(y[task.test], predicted)
    return {"penalty": penalty, "seed": seed, "test": test, "watched": watched}


def main() -> None:
    """Run all penalties and seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    task = tasks.load("20newsgroups", per_class=50)
    model, tokenizer = zoo.load("minilm")
    texts = [task.inputs[row] for row in task.train]
    features = extract_layers(model, texts, processor=tokenizer, max_length=MAX_LENGTH)
    layers = LOES(3, criterion="bounded").fit(features, task.labels[task.train]).selected_
    about = {
        "model": "minilm",
        "task": "20newsgroups",
        "layers": layers,
        "steps": STEPS,
        "batch": BATCH,
        "rates": RATES,
        "warm_up": WARM_UP,
        "versions": {name: version(name) for name in ("loes", "torch", "transformers")},
    }
    path = RESULTS / "finetune.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    runs = before["runs"] if before.get("about") == about else []
    done = {(r["penalty"], r["seed"]) for r in runs}
    wanted = [(p, seed) for seed in range(options.seeds) for p in PENALTIES]
    todo = [pair for pair in wanted if pair not in done]
    with tqdm(total=len(todo) * STEPS, unit="step") as bar:
        for penalty, seed in todo:
            runs.append(run(penalty, seed, task, layers, bar))
            content = json.dumps({"about": about, "runs": runs}, indent=1)
            write_whole(path, (content + "\n").encode())
    table = pd.json_normalize(runs, "watched", ["penalty", "seed", "test"])
    print(table.groupby(["penalty", "step"]).mean(numeric_only=True).round(3).to_string())
    print(pd.DataFrame(runs).groupby("penalty")["test"].agg(["mean", "std"]).round(3))


if __name__ == "__main__":
    main()

"""Pretrain one small ViT under three objectives: writes checkpoints/ and results/pretrain.json.

The same network, pictures, augmentation and, about, seconds: only the loss differs. About an hour
for the training and another for the measuring on one core. What is there is not made again, so that
it can be stopped and started.

    python data/pretrain.py
"""

import json
import time
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import combinations, product
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression, RidgeClassifierCV
from sklearn.metrics import r2_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from tqdm import tqdm
from transformers import ViTConfig, ViTMAEConfig, ViTMAEForPreTraining, ViTModel
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

import compare
from loes import LOES, GeoReg, SelectionWarning, evaluate, extract_layers, tasks, terms
from loes.baselines import METHODS
from loes.features import LayerFeatures
from loes.packages import cache_folder
from loes.store import fingerprint_model, replacing, write_whole
from loes.training import cosine_schedule

DATA = Path(__file__).parent
CHECKPOINTS, RESULT = DATA / "checkpoints", DATA / "results" / "pretrain.json"
CONFIG = {
    "image_size": 28,
    "patch_size": 4,
    "hidden_size": 64,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "intermediate_size": 256,
}
MEAN, STD = 0.5, 0.5  # of the processor; the pictures are grey, three times the same
BATCH, LEARNING_RATE, WEIGHT_DECAY = 128, 1e-3, 0.05
SEEDS = range(3)
PER_CLASS = 572  # all of the train part
ROTATION, ZOOM, SHIFT = 20.0, 0.3, 0.15  # degrees; relative; in widths of the picture
TASKS = {"animals": PER_CLASS, "digits": 104}  # all there is
K = 3
RIDGES = np.logspace(-1, 4, 11)  # on standardised features: times the mean eigenvalue over n
REFERENCES = ("last layer", "random k", "best single (validation)")
JUDGED = (
    "last layer",
    "last k",
    "all layers",
    "random k",
    "best single (validation)",
    "LOES paper",
    "LOES bounded",
)
JUDGED_WITH_GEOREG = ("last layer", "LOES paper", "LOES bounded")
JUDGED_WHITENED = (*REFERENCES, "LOES paper", "LOES bounded")
PAINTED = 500  # pictures, each of 49 patches


def stacked(task: tasks.Task, rows: np.ndarray) -> Tensor:
    """Return pictures of a task as (n, 1, side, side) in [0, 1]."""
    return torch.from_numpy(np.stack([task.inputs[row] for row in rows]))[:, None] / 255


def normalised(pictures: Tensor) -> Tensor:
    """Return (n, 1, side, side) in [0, 1] as the processor does: (n, 3, side, side) about 0."""
    return ((pictures - MEAN) / STD).expand(-1, 3, -1, -1)


def augment(pictures: Tensor) -> Tensor:
    """Turn, zoom, move and mirror each picture at random.

    Parameters
    ----------
    pictures : (n, 1, side, side) in [0, 1], black outside.

    Returns
    -------
    (n, 3, side, side), normalised as the processor does.
    """
    n = len(pictures)
    angle, zoom, *shift = 2 * torch.rand(4, n) - 1
    angle, zoom = torch.deg2rad(ROTATION * angle), 1 + ZOOM * zoom
    mirror = torch.where(torch.rand(n) < 0.5, -1.0, 1.0)
    cos, sin = torch.cos(angle) / zoom, torch.sin(angle) / zoom
    x, y = (2 * SHIFT * s for s in shift)  # the grid is two units wide
    maps = torch.stack([mirror * cos, -mirror * sin, x, sin, cos, y], dim=1).view(n, 2, 3)
    grid = F.affine_grid(maps, list(pictures.shape), align_corners=False)
    return normalised(F.grid_sample(pictures, grid, align_corners=False))


def pooled(encoder: ViTModel, pictures: Tensor) -> Tensor:
    """Return the mean of the patches behind the final norm, (n, width)."""
    return encoder(pictures).last_hidden_state[:, 1:].mean(1)


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Return the loss of SimCLR: tell the other view of a picture from all other views.

    Parameters
    ----------
    first, second : (n, d) embeddings of two views of the same n pictures.
    temperature : of the softmax over cosines.

    Source: Chen et al., ICML 2020, arXiv 2002.05709, Eq. 1.
    """
    n = len(first)
    views = F.normalize(torch.cat([first, second]), dim=1)
    similarities = (views @ views.T / temperature).fill_diagonal_(-torch.inf)
    return F.cross_entropy(similarities, torch.arange(2 * n).roll(n))


class Supervised(nn.Module):
    """Name the class of a picture."""

    def __init__(self, encoder: ViTModel, n_classes: int):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(encoder.config.hidden_size, n_classes)

    def forward(self, pictures: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy."""
        return F.cross_entropy(self.head(pooled(self.encoder, augment(pictures))), labels)


class Masked(nn.Module):
    """Paint the three quarters of the patches that the encoder has not seen.

    Source: He et al., CVPR 2022, arXiv 2111.06377.
    """

    def __init__(self, encoder: ViTModel, n_classes: int):
        super().__init__()
        width, shared = encoder.config.hidden_size, {k: getattr(encoder.config, k) for k in CONFIG}
        self.model = ViTMAEForPreTraining(
            ViTMAEConfig(
                **shared,
                mask_ratio=0.75,
                decoder_hidden_size=width,
                decoder_num_hidden_layers=2,
                decoder_num_attention_heads=encoder.config.num_attention_heads,
                decoder_intermediate_size=2 * width,
            )
        )
        embeddings, decoder = self.model.vit.embeddings, self.model.decoder
        # transformers leaves zeros where the decoder's fixed positions should be.
        decoder.initialize_weights(embeddings.patch_embeddings.num_patches)
        # The encoder's own tensors, so that it learns; all but the pooler, which nothing uses.
        self.model.vit.load_state_dict(encoder.state_dict(), strict=False, assign=True)
        embeddings.position_embeddings.requires_grad_(True)  # as in the other two

    def forward(self, pictures: Tensor, labels: Tensor) -> Tensor:
        """Return the mean squared error over the pixels of the hidden patches."""
        return self.model(augment(pictures)).loss


class Contrastive(nn.Module):
    """Find the other view of the same picture."""

    temperature = 0.2

    def __init__(self, encoder: ViTModel, n_classes: int):
        super().__init__()
        width = encoder.config.hidden_size
        self.encoder = encoder
        self.projection = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, pictures: Tensor, labels: Tensor) -> Tensor:
        """Return NT-Xent between two views."""
        views = augment(pictures.repeat(2, 1, 1, 1))
        return nt_xent(*self.projection(pooled(self.encoder, views)).chunk(2), self.temperature)


# What each costs decides how often it sees the pictures.
OBJECTIVES: dict[str, tuple[type[nn.Module], int]] = {
    "supervised": (Supervised, 14),
    "masked": (Masked, 30),
    "contrastive": (Contrastive, 7),
}


def initial(seed: int, config: dict = CONFIG) -> ViTModel:
    """Return the untrained network: where all objectives start, and the control."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ViTModel(ViTConfig(**config)).eval()


def train(
    objective: str,
    seed: int,
    pictures: Tensor,
    labels: Tensor,
    epochs: int | None = None,
    config: dict = CONFIG,
    bar: tqdm | None = None,
) -> tuple[ViTModel, list[float]]:
    """Pretrain an encoder; return it and the mean loss of each epoch.

    Parameters
    ----------
    objective : a key of OBJECTIVES, which also says how many `epochs`.
    seed : of the weights, the order, the augmentation and the masks.
    pictures : (n, 1, side, side) in [0, 1].
    labels : (n,), which only "supervised" looks at.
    """
    kind, usual = OBJECTIVES[objective]
    epochs = usual if epochs is None else epochs
    encoder = initial(seed, config)
    losses = []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        learner = kind(encoder, int(labels.max()) + 1).train()
        optimizer = torch.optim.AdamW(
            learner.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY
        )
        steps = len(pictures) // BATCH or 1
        schedule = cosine_schedule(optimizer, epochs * steps)
        for _ in range(epochs):
            total = 0.0
            for rows in torch.randperm(len(pictures))[: steps * BATCH].chunk(steps):
                loss = learner(pictures[rows], labels[rows])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(learner.parameters(), 1.0, error_if_nonfinite=True)
                optimizer.step()
                schedule.step()
                total += loss.item()
                if bar is not None:
                    bar.update()
            losses.append(total / steps)
    return encoder.eval(), losses


def folder(objective: str, seed: int) -> Path:
    """Return where a checkpoint is: seed 0 in the project, the others in the user's cache."""
    root = CHECKPOINTS if seed == 0 else cache_folder() / "pretrain"
    return root / f"{objective}-{seed}"


def processor(config: dict = CONFIG) -> ViTImageProcessorPil:
    """Return what makes tensors of pictures of any size, such as `augment` returns."""
    side = config["image_size"]
    return ViTImageProcessorPil(
        size={"height": side, "width": side}, image_mean=[MEAN] * 3, image_std=[STD] * 3
    )


def pretrain(objective: str, seed: int, target: Path, bar: tqdm, **training) -> None:
    """Train a checkpoint, unless it is there: float16 weights, configuration, processor, losses."""
    if target.exists():
        return
    bar.set_description(f"{objective}, seed {seed}")
    start = time.process_time()
    encoder, losses = train(objective, seed, bar=bar, **training)
    record = {"seconds": round(time.process_time() - start), "losses": losses}
    with replacing(target) as draft:
        encoder.half().save_pretrained(draft)
        processor(training.get("config", CONFIG)).save_pretrained(draft)
        (draft / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def load(objective: str, seed: int) -> ViTModel:
    """Return a pretrained encoder as it was saved, or the untrained one for "random"."""
    if objective == "random":
        return initial(seed)
    return ViTModel.from_pretrained(folder(objective, seed)).float().eval()


def parts(task: tasks.Task) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples to learn from and those to test on: none that pretraining has seen."""
    seen = task.source.startswith("animal-mnist")  # its train part is what pretraining saw
    return (task.validation if seen else np.array([*task.train, *task.validation])), task.test


def ridge_probe() -> Pipeline:
    """Return the probe of a single layer: standardised, its penalty chosen by leave-one-out."""
    return make_pipeline(StandardScaler(), RidgeClassifierCV(RIDGES))


def describe(layers: LayerFeatures, task: tasks.Task) -> list[dict]:
    """Return, for each layer, the accuracy of a ridge probe on the test part and its geometry."""
    development, test = parts(task)
    known, y = layers.take(development), task.labels
    Y, rows = np.eye(len(task.classes))[y[development]], []
    for layer, (X, Z) in enumerate(zip(known, layers.take(test), strict=True)):
        rows.append(
            {
                "layer": layer,
                "accuracy": ridge_probe().fit(X, y[development]).score(Z, y[test]),
                "isotropy": terms.isotropy(X),
                "spectral_entropy": terms.spectral_entropy(X),
                "loo_loss": terms.loo_loss(X, Y)[0],
                "triangle_share": terms.triangle_share(X, y[development]),
            }
        )
    return rows


def pixel_probe(task: tasks.Task) -> float:
    """Return what the probe of `describe` makes of the pixels: the floor for every layer."""
    development, test = parts(task)
    X, y = np.stack(task.inputs).reshape(len(task.inputs), -1), task.labels
    return ridge_probe().fit(X[development], y[development]).score(X[test], y[test])


def readable_pixels(encoder: ViTModel, task: tasks.Task) -> list[float]:
    """Return, for each layer, the share of the pixels that a token tells of its own patch.

    Least squares from the vector of a patch to its pixels, one map for all patches, learnt on some
    pictures; the share (R^2) of the pixels' variance on others.
    """
    side = encoder.config.patch_size

    def read(rows: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        pictures = normalised(stacked(task, rows))
        with torch.no_grad():
            states = encoder(pictures, output_hidden_states=True).hidden_states
        patches = F.unfold(pictures[:, :1], side, stride=side).mT  # (n, patches, side * side)
        return [H[:, 1:].flatten(0, 1).numpy() for H in states], patches.flatten(0, 1).numpy()

    (known, Y), (unseen, T) = (read(rows[:PAINTED]) for rows in parts(task))
    return [
        r2_score(T, LinearRegression().fit(X, Y).predict(Z), multioutput="variance_weighted")
        for X, Z in zip(known, unseen, strict=True)
    ]


def judge(
    layers: LayerFeatures, task: tasks.Task, methods: tuple[str, ...], georeg: GeoReg | None
) -> dict:
    """Return what the protocol of data/compare.py finds: scores, and gains over `REFERENCES`."""
    development, test = parts(task)
    found = evaluate(
        layers,
        task.labels,
        development=development,
        test=test,
        methods={name: METHODS[name] for name in methods},
        n_layers=K,
        georeg=georeg,
        learning_rate=compare.LEARNING_RATE,
        progress=False,
    )
    scores = found.summary()[["mean", "spread"]]
    scores["layers"] = found.runs.groupby("method")["layers"].agg(list)
    gains = {
        reference: found.summary(reference)[["difference", "low", "high"]].dropna()
        for reference in REFERENCES
        if reference in methods
    }
    tables = {"scores": scores} | gains
    return {
        name: json.loads(table.reset_index().to_json(orient="records"))
        for name, table in tables.items()
    }


def whitened(layers: LayerFeatures, task: tasks.Task) -> LayerFeatures:
    """Return the layers with all their directions alike, as the development part has them.

    A linear map that any probe could have learnt. Directions of mere rounding errors are left out.
    """
    development, _ = parts(task)

    def whiten(X: np.ndarray) -> np.ndarray:
        known = X[development]
        rank = np.linalg.matrix_rank(known - known.mean(0))
        return PCA(rank, whiten=True, svd_solver="full").fit(known).transform(X)

    return LayerFeatures(layers.names, [whiten(X) for X in layers], layers.pooling)


def concatenated(layers: LayerFeatures, task: tasks.Task, picks: dict[str, list[int]]) -> dict:
    """Return the test accuracy of a ridge probe on sets of layers side by side.

    Of every set of `K`, in the order of `itertools.combinations`, and of the picks, the last layer
    and all layers: how good a choice is among all that there are, without luck.
    """
    development, test = parts(task)
    known, unseen, y = layers.take(development), layers.take(test), task.labels

    def score(chosen: Sequence[int]) -> float:
        X, Z = (np.hstack([part[layer] for layer in chosen]) for part in (known, unseen))
        return ridge_probe().fit(X, y[development]).score(Z, y[test])

    depth = range(len(layers))
    named = picks | {"last layer": [depth[-1]], "all layers": [*depth]}
    return {name: score(chosen) for name, chosen in named.items()} | {
        "every set": [score(chosen) for chosen in combinations(depth, K)]
    }


def measure(layers: LayerFeatures, task: tasks.Task, with_georeg: bool) -> dict:
    """Return all that is measured of one encoder on one task."""
    development, _ = parts(task)
    known, y = layers.take(development), task.labels[development]
    picks = {
        f"LOES {criterion}": LOES(K, criterion=criterion).fit(known, y).selected_
        for criterion in ("paper", "bounded")
    }
    found = {
        "layers": describe(layers, task),
        "picks": picks,
        "concatenated": concatenated(layers, task, picks),
        "plain": judge(layers, task, JUDGED, None),
        "whitened": judge(whitened(layers, task), task, JUDGED_WHITENED, None),
    }
    if with_georeg:
        found["GeoReg"] = judge(layers, task, JUDGED_WITH_GEOREG, GeoReg(0.1))
    return found


def similarities(layers: Mapping[tuple[str, int], LayerFeatures]) -> list[dict]:
    """Return CKA, layer by layer, between objectives of one seed and seeds of one objective."""
    pairs = [(a, b) for a, b in combinations(layers, 2) if (a[0] == b[0]) != (a[1] == b[1])]
    return [
        {"of": list(a), "and": list(b), "cka": list(map(terms.cka, layers[a], layers[b]))}
        for a, b in tqdm(pairs, unit="pair")
    ]


def train_all(data: tasks.Task) -> None:
    """Train the checkpoints that are not there."""
    pictures, labels = stacked(data, data.train), torch.from_numpy(data.labels[data.train])
    missing = [(o, s) for s, o in product(SEEDS, OBJECTIVES) if not folder(o, s).exists()]
    steps = sum(OBJECTIVES[objective][1] for objective, _ in missing) * (len(pictures) // BATCH)
    with tqdm(total=steps, unit="step") as bar:
        for objective, seed in missing:
            target = folder(objective, seed)
            pretrain(objective, seed, target, bar, pictures=pictures, labels=labels)


def settings(data: dict[str, tasks.Task]) -> dict:
    """Return what the results depend on, and the floors to read them against."""
    return {
        "config": CONFIG,
        "epochs": {name: epochs for name, (_, epochs) in OBJECTIVES.items()},
        "batch": BATCH,
        "learning_rate": LEARNING_RATE,
        "pictures": len(data["animals"].train),
        "n_layers": K,
        "n": {
            name: dict(zip(("development", "test"), map(len, parts(task)), strict=True))
            for name, task in data.items()
        },
        "chance": {name: task.chance for name, task in data.items()},
        "pixel_probe": {name: pixel_probe(task) for name, task in data.items()},
        "versions": {name: version(name) for name in ("loes", "torch", "transformers")},
    }


def measure_all(data: dict[str, tasks.Task]) -> dict:
    """Measure every encoder on every task; what an earlier run has measured is kept."""
    before = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    about = rounded(settings(data))
    models = before.get("models", []) if before.get("about") == about else []
    done, known = {model["weights"] for model in models}, {}
    for objective, seed in tqdm([*product([*OBJECTIVES, "random"], SEEDS)], unit="model"):
        encoder = load(objective, seed)
        layers = {
            name: extract_layers(encoder, task.inputs, processor=processor(), progress=False)
            for name, task in data.items()
        }
        known[objective, seed] = layers["animals"].take(parts(data["animals"])[0])
        if (weights := fingerprint_model(encoder)) in done:
            continue
        models.append(
            {"objective": objective, "seed": seed, "weights": weights}
            | training_record(objective, seed)
            | {"pixels": readable_pixels(encoder, data["animals"])}
            # GeoReg of one seed: it doubles the time, and moves little.
            | {name: measure(layers[name], task, seed == 0) for name, task in data.items()}
        )
        write(RESULT, {"about": about, "models": models})
    return {"about": about, "models": models, "similarities": similarities(known)}


def training_record(objective: str, seed: int) -> dict:
    """Return seconds and losses of a training, or nothing for "random"."""
    record = folder(objective, seed) / "training.json"
    return {} if objective == "random" else json.loads(record.read_text(encoding="utf-8"))


def rounded(content: dict) -> dict:
    """Return what JSON keeps of it, with four digits after the point."""
    return json.loads(json.dumps(content), parse_float=lambda number: round(float(number), 4))


def write(path: Path, content: dict) -> None:
    """Write rounded JSON, whole or not at all."""
    write_whole(path, (json.dumps(rounded(content), indent=1) + "\n").encode())


def main() -> None:
    """Train and measure what is not there yet."""
    torch.set_num_threads(1)  # sums in one order, whatever the machine
    warnings.simplefilter("ignore", SelectionWarning)  # the results say what they led to
    data = {name: tasks.load(name, per_class=count) for name, count in TASKS.items()}
    train_all(data["animals"])
    write(RESULT, measure_all(data))


if __name__ == "__main__":
    main()

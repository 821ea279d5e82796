"""Train a probe on the cached features of some layers, by the recipe of the paper."""

import copy
from collections import Counter
from dataclasses import dataclass
from math import ceil, inf

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from sklearn.metrics import accuracy_score, r2_score
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm
from transformers import get_cosine_schedule_with_warmup

from loes.checks import Layers, as_layers, as_task, check_callable, check_whole
from loes.fusion import FusedProbe
from loes.georeg import GeoReg

WARM_UP = 0.1  # share of the steps
CLIP = 1.0  # largest norm of the gradient
WEIGHT_DECAY = 0.01


@dataclass(frozen=True, eq=False)
class Targets:
    """Labels or values as a probe learns them, and back.

    Chapter 10 trains on some.

    Attributes
    ----------
    classes : the class labels in the order of the outputs; None for regression.
    center, scale : mean and standard deviation of the values; unused for classes.
    """

    classes: np.ndarray | None
    center: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, y: ArrayLike, n: int, task: str) -> "Targets":
        """Learn the classes, or the mean and deviation, of n training targets."""
        y, task = as_task(y, n, task)
        if task == "regression":
            _check_varying_targets(y, "y")
            return cls(None, y.mean(0), np.maximum(y.std(0), np.finfo(np.float32).tiny))
        classes = np.unique(y)
        if len(classes) < 2:
            raise ValueError(f"y holds one class only ({classes[0]!r}); training needs two.")
        return cls(classes, np.zeros(()), np.ones(()))

    @property
    def task(self) -> str:
        """Which of classification and regression it is."""
        return "regression" if self.classes is None else "classification"

    @property
    def width(self) -> int:
        """Number of outputs."""
        return len(self.center) if self.classes is None else len(self.classes)

    def encode(self, y: ArrayLike, n: int) -> Tensor:
        """Return (n,) class indices, or (n, c) standardised values."""
        y, _ = as_task(y, n, self.task)
        if self.classes is None:
            return torch.tensor((y - self.center) / self.scale, dtype=torch.float32)
        unseen = np.setdiff1d(y, self.classes)
        if len(unseen):
            raise ValueError(
                f"there are classes that training has not seen: {unseen[:3].tolist()}."
            )
        return torch.from_numpy(np.searchsorted(self.classes, y))

    def decode(self, outputs: Tensor) -> np.ndarray:
        """Return (n,) class labels, or (n, c) values."""
        outputs = outputs.cpu().numpy()
        if self.classes is None:
            return outputs * self.scale + self.center
        return self.classes[outputs.argmax(1)]


@dataclass(frozen=True, eq=False)
class TrainedProbe:
    """A probe that `train_probe` has trained.

    Chapter 10 trains some.

    Attributes
    ----------
    probe : the `FusedProbe`, as it was after the best epoch.
    targets : how outputs become labels or values.
    history : DataFrame, one row an epoch: loss, the parts of GeoReg, and the validation score.
    best_epoch : the epoch kept, from 1: the best by validation, or the last without it.
    """

    probe: FusedProbe
    targets: Targets
    history: pd.DataFrame
    best_epoch: int

    def predict(self, layers: Layers) -> np.ndarray:
        """Return (n,) class labels, or (n, c) values."""
        return self.targets.decode(self.outputs(layers))

    @torch.inference_mode()
    def outputs(self, layers: Layers) -> Tensor:
        """Return the (n, c) outputs: logits, or standardised values.

        Raises
        ------
        ValueError for other layers than those of the training, or features too large for float32.
        """
        device = next(self.probe.parameters()).device
        X = _features(layers, device)
        if (widths := [x.shape[1] for x in X]) != self.probe.fusion.widths:
            raise ValueError(
                f"the probe was trained on layers of widths {self.probe.fusion.widths}; got "
                f"{widths}. Pass the same layers, in the same order."
            )
        return _outputs(self.probe, X)


def _check_varying_targets(y: np.ndarray, name: str) -> None:
    """Refuse (n, c) values of which a column is constant."""
    if (y == y[0]).all(0).any():
        raise ValueError(
            f"{name} has a constant target, so there is nothing to explain; leave it out."
        )


def _outputs(probe: FusedProbe, X: list[Tensor]) -> Tensor:
    outputs = probe.eval()(X).outputs
    if not outputs.isfinite().all():
        raise ValueError(
            "the outputs are not finite: the features are too large for float32; rescale them."
        )
    return outputs


def _features(layers: Layers, device: torch.device) -> list[Tensor]:
    return [X.to(device, torch.float32) for X in as_layers(layers)[0]]


def cosine_schedule(optimizer: torch.optim.Optimizer, steps: int) -> LambdaLR:
    """Warm up linearly over a tenth of the steps, then fall to zero along a half cosine."""
    return get_cosine_schedule_with_warmup(optimizer, round(WARM_UP * steps), steps)


def train_probe(
    layers: Layers,
    y: ArrayLike,
    *,
    validation: tuple[Layers, ArrayLike] | None = None,
    task: str = "auto",
    fusion: str = "adapters",
    adapter_width: int = 256,
    georeg: GeoReg | None = None,
    epochs: int = 15,
    batch_size: int = 32,
    learning_rate: float = 1e-4,
    dropout: float = 0.2,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: bool = True,
) -> TrainedProbe:
    """Train a fused probe on features that do not change: the backbone stays frozen.

    AdamW, a cosine schedule after a tenth of warm-up, gradients clipped at norm 1, and the epoch
    with the best validation score (accuracy, or R^2), the first of equals.

    Chapter 10 shows it at work.

    Parameters
    ----------
    layers : the selected layers of the training samples, (n, d_l) each.
    y : (n,) class labels, or (n,) or (n, c) regression targets.
    validation : layers and targets of other samples, to choose the epoch by; None to keep the last.
        Never the test samples: what chooses may not judge.
    task : as in `LOES`.
    fusion, adapter_width, dropout : of the `FusedProbe`.
    georeg : added to the loss, on the fused embedding; None for no regularisation.
    epochs, batch_size, learning_rate : of the optimiser. The paper's: 15 epochs (20 for images) and
        1e-4 with a frozen backbone.
    seed : of the initial weights, the order of the samples, and dropout; the caller's own random
        state is left alone.
    device : where to train.
    progress : show a progress bar.

    Raises
    ------
    ValueError for features or targets that do not fit each other, a validation class that training
    has not seen, impossible settings, or a training that diverges.

    References
    ----------
    Batra, Gumber, Khandelwal, Khemani and Gupta, ICML 2026, arXiv 2605.23033.
    """
    for name, value in (("epochs", epochs), ("batch_size", batch_size)):
        check_whole(name, value)
    check_callable("georeg", georeg, "a GeoReg, such as GeoReg(weight=0.1)")
    device = torch.device(device)
    X = _features(layers, device)
    n = len(X[0])
    targets = Targets.of(y, n, task)
    codes = targets.encode(y, n).to(device)
    labels = codes if targets.classes is not None else None
    if validation is not None:
        if not isinstance(validation, list | tuple) or len(validation) != 2:
            raise ValueError("validation must be a pair (layers, targets), or None for no choice.")
        held_out = _features(validation[0], device)
        truth, _ = as_task(validation[1], len(held_out[0]), targets.task)
        targets.encode(truth, len(held_out[0]))  # refuses what does not fit, before hours
        if [x.shape[1] for x in held_out] != [x.shape[1] for x in X]:
            raise ValueError("validation must have the same layers as the training samples.")
        if targets.classes is None and len(held_out[0]) < 2:
            raise ValueError("R^2 on validation wants at least two samples; got one.")
        if targets.classes is None:
            _check_varying_targets(truth, "validation")
    criterion, score = (
        (nn.MSELoss(), r2_score) if labels is None else (nn.CrossEntropyLoss(), accuracy_score)
    )
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        probe = FusedProbe(
            [x.shape[1] for x in X],
            targets.width,
            fusion=fusion,
            adapter_width=adapter_width,
            dropout=dropout,
        ).to(device)
        optimizer = AdamW(probe.parameters(), lr=learning_rate, weight_decay=WEIGHT_DECAY)
        steps = epochs * ceil(n / batch_size)
        schedule = cosine_schedule(optimizer, steps)
        history, best_epoch, best_state = [], epochs, None
        with tqdm(total=steps, unit="step", **({} if progress else {"disable": True})) as bar:
            for epoch in range(1, epochs + 1):
                probe.train()
                sums = Counter()
                for rows in torch.randperm(n).to(device).split(batch_size):
                    outputs, embedding = probe([x[rows] for x in X])
                    parts = {"loss": criterion(outputs, codes[rows])}
                    loss = parts["loss"]
                    if georeg is not None and len(rows) > 1:
                        penalty = georeg(embedding, None if labels is None else labels[rows])
                        loss = loss + penalty.loss
                        parts |= {"variance": penalty.variance, "area": penalty.area}
                    optimizer.zero_grad()
                    loss.backward()
                    norm = nn.utils.clip_grad_norm_(probe.parameters(), CLIP)
                    optimizer.step()
                    if not norm.isfinite():
                        raise _diverged(epoch, learning_rate)
                    schedule.step()
                    sums.update(
                        {name: float(part.detach()) * len(rows) for name, part in parts.items()}
                    )
                    bar.update()
                with torch.inference_mode():  # a step may lead out of what floats can hold
                    outputs = probe.eval()([x[rows] for x in X]).outputs
                if not outputs.isfinite().all():
                    raise _diverged(epoch, learning_rate)
                row = {"epoch": epoch} | {name: total / n for name, total in sums.items()}
                if validation is not None:
                    with torch.inference_mode():
                        predicted = targets.decode(_outputs(probe, held_out))
                    row["validation"] = score(truth, predicted)
                    if row["validation"] > max((r["validation"] for r in history), default=-inf):
                        best_epoch, best_state = epoch, copy.deepcopy(probe.state_dict())
                history.append(row)
    if best_state is not None:
        probe.load_state_dict(best_state)
    return TrainedProbe(probe.eval(), targets, pd.DataFrame(history), best_epoch)


def _diverged(epoch: int, learning_rate: float) -> ValueError:
    return ValueError(
        f"training diverged in epoch {epoch}: lower the learning rate, now {learning_rate}, or the "
        "weight of GeoReg, or scale the features."
    )

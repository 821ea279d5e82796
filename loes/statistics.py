"""`LayerStatistics`: what selection needs of any number of samples, gathered in one pass."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from loes.checks import Layers, as_layers, as_task, check_callable
from loes.solver import Block, inverse_deviation
from loes.store import fingerprint_inputs, write_whole

FORMAT = "loes.LayerStatistics/2"
KEYS = ("task", "n", "names", "widths", "classes")
SAME = 1e-4  # of a feature's size: by so much may batches differ that a model has computed again


class LayerStatistics:
    """Accumulate the moments of layers and targets over batches, in memory independent of n.

    Layers and targets side by side are one long vector a sample, of width D; kept are its mean and
    its centred D x D Gram matrix, in float64. A batch is merged by the update of Chan, Golub and
    LeVeque (1983), which loses no digits to large means. Classes may turn up in any batch.

    Chapter 8 shows why moments are enough.

    Parameters
    ----------
    task : ``"classification"``, ``"regression"``, or ``"auto"`` to tell from the first batch.

    Attributes
    ----------
    n : samples seen.
    names, widths : of the layers.
    classes : the labels seen, sorted; None for regression or without a target.

    Notes
    -----
    Memory is 8 D^2 bytes: 0.7 GB for 12 layers of width 768. Leave-one-out needs the samples
    again; see `LOES.fit_statistics`.

    Examples
    --------
    >>> import numpy as np
    >>> from loes import LOES, LayerStatistics
    >>> rng = np.random.default_rng(0)
    >>> statistics = LayerStatistics()
    >>> for _ in range(10):
    ...     y = rng.integers(0, 2, size=100)
    ...     layers = [rng.normal(size=(100, 4)), rng.normal(size=(100, 4)) + y[:, None]]
    ...     statistics.update(layers, y)
    >>> LOES(n_layers=1, alpha=0).fit_statistics(statistics).selected_
    [1]
    """

    def __init__(self, task: str = "auto"):
        self.task = task
        self.n = 0
        self.names: list[str] = []
        self.widths: list[int] = []
        self.classes: list | None = None
        self._mean = torch.zeros(0, dtype=torch.float64)
        self._gram = torch.zeros(0, 0, dtype=torch.float64)

    def update(self, layers: Layers, y: ArrayLike | None = None) -> None:
        """Add a batch.

        Parameters
        ----------
        layers : the layers of the batch, as for `LOES.fit`; always the same ones.
        y : their labels or targets; in every batch or in none.

        Raises
        ------
        ValueError for input that `LOES.fit` would refuse, or that does not match earlier batches.
        The statistics are then as before.
        """
        tensors, names = as_layers(layers)
        batch = LayerStatistics(self.task)
        batch.names, batch.widths = names, [X.shape[1] for X in tensors]
        columns = [X.double() for X in tensors]
        if y is not None:
            y, batch.task = as_task(y, len(columns[0]), self.task)
            if batch.task == "classification":
                labels, codes = np.unique(y, return_inverse=True)
                batch.classes = labels.tolist()
                y = np.eye(len(labels))[codes]
            columns.append(torch.from_numpy(y).to(columns[0].device))
        Z = torch.cat(columns, dim=1)
        batch.n, batch._mean = len(Z), Z.mean(0)
        Z -= batch._mean
        batch._gram = Z.T @ Z
        self.merge(batch)

    def merge(self, other: "LayerStatistics") -> None:
        """Add the samples that another worker has seen.

        Raises
        ------
        TypeError for anything but LayerStatistics; ValueError when the other one's task, layers or
        targets are not the same.
        """
        if not isinstance(other, LayerStatistics):
            raise TypeError(f"merge wants LayerStatistics; got {type(other).__name__}.")
        if other.n == 0:
            return
        if self.task != other.task and "auto" not in (self.task, other.task):
            raise ValueError(
                f"statistics of different things do not add up: got a task of {other.task}, wanted "
                f"{self.task}."
            )
        if self.n == 0:
            self.__dict__.update(other.__dict__)
            return
        mine, theirs = self._layout(), other._layout()
        if mine != theirs:
            raise ValueError(
                f"statistics of different things do not add up: got {theirs}, wanted {mine}."
            )
        if self.classes is not None:
            classes = sorted({*self.classes, *other.classes})
            self._expand(classes)
            aligned = LayerStatistics()
            aligned.__dict__.update(other.__dict__)
            aligned._expand(classes)
            other = aligned
        shift = other._mean.to(self._mean.device) - self._mean
        total = self.n + other.n
        self._gram = (
            self._gram
            + other._gram.to(self._gram.device)
            + self.n * other.n / total * torch.outer(shift, shift)
        )
        self._mean = self._mean + other.n / total * shift
        self.n = total

    def save(self, path: str | os.PathLike) -> None:
        """Write to a safetensors file, whole or not at all."""
        about = {key: json.dumps(getattr(self, key)) for key in KEYS}
        about |= {"format": FORMAT, "sha256": self._fingerprint()}
        write_whole(Path(path), save({"mean": self._mean, "gram": self._gram}, metadata=about))

    @classmethod
    def load(cls, path: str | os.PathLike) -> "LayerStatistics":
        """Read what `save` has written.

        Raises
        ------
        ValueError for a file that is damaged or was written by something else.
        """
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                if about.get("format") != FORMAT:
                    raise ValueError(
                        f"{path} holds {about.get('format', 'something else')}, not {FORMAT}; "
                        "accumulate the statistics again."
                    )
                statistics, digest = cls(), about["sha256"]
                for key in KEYS:
                    setattr(statistics, key, json.loads(about[key]))
                statistics._mean, statistics._gram = (
                    file.get_tensor("mean"),
                    file.get_tensor("gram"),
                )
        except (SafetensorError, KeyError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{path} is damaged or no statistics file ({error}); accumulate them again."
            ) from error
        width = len(statistics._mean)
        if statistics._gram.shape != (width, width) or width < sum(statistics.widths):
            raise ValueError(f"{path} is damaged: its arrays and its description disagree.")
        if digest != statistics._fingerprint():
            raise ValueError(f"{path} is damaged: its SHA-256 is another one.")
        if not statistics._gram.isfinite().all() or not statistics._mean.isfinite().all():
            raise ValueError(f"{path} holds NaN or infinite moments; accumulate them again.")
        return statistics

    def moments(self, batches: Callable[[], Iterable] | None = None) -> "StreamedMoments":
        """Return the moments that a selection works on.

        Raises
        ------
        ValueError when there are too few samples or classes, or a constant target; TypeError for
        batches that are no function.
        """
        check_callable("batches", batches, "a function that returns a fresh iterable of batches")
        if self.n < 2:
            raise ValueError(f"selection needs at least two samples; got {self.n}.")
        ends = np.cumsum([0, *self.widths]).tolist()
        columns = [slice(a, b) for a, b in pairwise(ends)]
        targets = torch.arange(ends[-1], len(self._mean), device=self._mean.device)
        counts = None
        if self.classes is not None:
            if len(self.classes) < 2:
                raise ValueError(
                    f"all samples are of one class ({self.classes[0]!r}), so there is nothing to "
                    "tell apart; add labels of at least two classes, or leave y out."
                )
            counts = self.n * self._mean[targets]
            if counts.max() < 1.5:
                raise ValueError(
                    f"all {self.n} samples are of different classes, so there is nothing to learn; "
                    "add labels that repeat, or pass LayerStatistics task='regression'."
                )
        elif (self._gram.diagonal() <= self.n * (1e-13 * self._mean) ** 2)[targets].any():
            raise ValueError("a target is constant, so there is nothing to explain; leave it out.")
        return StreamedMoments(
            self.n, self._mean, self._gram, columns, targets, counts, self.classes, batches
        )

    def _fingerprint(self) -> str:
        about = json.dumps([getattr(self, key) for key in KEYS])
        return fingerprint_inputs([about, self._mean, self._gram])

    def _layout(self) -> str:
        """Describe layers and targets, as far as all batches have to agree on them."""
        others = len(self._mean) - sum(self.widths)
        target = f"{others} target columns"
        if self.classes is not None:
            target = f"{type(self.classes[0]).__name__} labels"
        layers = ", ".join(f"{n} ({d})" for n, d in zip(self.names, self.widths, strict=True))
        return f"layers {layers} with {target}"

    def _expand(self, classes: list) -> None:
        """Bring the class columns into the order of `classes`; unseen ones are zero so far."""
        start = sum(self.widths)
        new = torch.tensor(
            [*range(start), *(start + classes.index(c) for c in self.classes)],
            device=self._mean.device,
        )
        mean = self._mean.new_zeros(start + len(classes))
        gram = self._gram.new_zeros(len(mean), len(mean))
        mean[new] = self._mean
        gram[new[:, None], new] = self._gram
        self._mean, self._gram, self.classes = mean, gram, classes


@dataclass(frozen=True)
class StreamedMoments:
    """The interface of `Samples`, from accumulated moments and, for leave-one-out, the batches."""

    n: int
    mean: Tensor
    joint: Tensor
    columns: list[slice]
    target_columns: Tensor
    counts: Tensor | None
    classes: list | None
    batches: Callable[[], Iterable] | None
    scale: Tensor | None = None  # 1 / standard deviation of each column, once standardised
    shift: Tensor | None = None  # and its mean before that

    in_memory = False
    dtype = torch.float64

    @property
    def rereadable(self) -> bool:
        """Whether the samples can be asked again."""
        return self.batches is not None

    @property
    def means(self) -> list[Tensor]:
        """Mean of each layer."""
        return [self.mean[c] for c in self.columns]

    @property
    def n_targets(self) -> int:
        """Number of target columns."""
        return len(self.target_columns)

    @property
    def target_energy(self) -> float:
        """Squared norm of the centred targets."""
        return float(self.joint.diagonal()[self.target_columns].sum())

    def gram(self, layer: int) -> Tensor:
        """X^cT X^c, (d, d)."""
        return self.cross(layer, layer)

    def cross(self, first: int, second: int) -> Tensor:
        """X_i^cT X_j^c, (d_i, d_j)."""
        return self.joint[self.columns[first], self.columns[second]]

    def against_targets(self, layer: int) -> Tensor | None:
        """X^cT Y^c, (d, c)."""
        return self.joint[self.columns[layer]][:, self.target_columns] if self.n_targets else None

    def standardized(self) -> "StreamedMoments":
        """Return the moments of features with mean 0 and variance 1."""
        scale = inverse_deviation(self.joint.diagonal() / self.n, self.mean)
        scale[self.columns[-1].stop :] = 1.0
        mean = self.mean.clone()
        mean[: self.columns[-1].stop] = 0.0
        joint = scale[:, None] * self.joint * scale
        return replace(self, mean=mean, joint=joint, scale=scale, shift=self.mean)

    def blocks(self) -> Iterator[Block]:
        """Read the batches again, and see that they are the ones that were counted."""
        if self.batches is None:
            raise ValueError(
                "leave-one-out needs the samples once more; pass batches=, a function that returns "
                "a fresh iterable over the same (layers, y), or use criterion='paper'."
            )
        seen, task = 0, "regression" if self.classes is None else "classification"
        widths = [c.stop - c.start for c in self.columns]
        # Sums of the samples, and of them times one mixture of the targets: other samples, or the
        # same in another order than their targets, have other ones.
        mixture = torch.arange(1, self.n_targets + 1).to(self.mean)
        sums = self.mean.new_zeros(2, len(self.mean))
        for batch in self.batches():
            if not isinstance(batch, list | tuple) or len(batch) != 2:
                raise ValueError("batches() must give pairs (layers, y), y None without a target.")
            layers, y = batch
            tensors, _ = as_layers(layers)
            if (found := [X.shape[1] for X in tensors]) != widths:
                raise ValueError(
                    f"batches() gave layers of widths {found}; the statistics hold {widths}."
                )
            seen += len(tensors[0])
            if self.scale is not None:
                tensors = [
                    (X.double() - self.shift[c]) * self.scale[c]
                    for X, c in zip(tensors, self.columns, strict=True)
                ]
            targets = None
            if self.n_targets:
                y, _ = as_task(y, len(tensors[0]), task)
                if task == "classification":
                    if unseen := {*np.unique(y).tolist()} - {*self.classes}:
                        raise ValueError(
                            f"batches() gave labels that the statistics have not seen: {unseen}."
                        )
                    y = np.equal.outer(y, np.array(self.classes)).astype(np.float64)
                targets = torch.from_numpy(y).to(self.mean.device) - self.mean[self.target_columns]
            marks = self.mean.new_tensor([[1.0], [0.0]]).repeat(1, len(tensors[0]))
            if targets is not None:
                marks[1] = targets @ mixture
                sums[:, self.target_columns] += marks @ targets
            for X, c in zip(tensors, self.columns, strict=True):
                sums[:, c] += marks @ (X.double() - self.mean[c])
            yield Block(tensors, self.means, targets)
        if seen != self.n:
            raise ValueError(f"batches() gave {seen} samples; the statistics hold {self.n}.")
        self._check_sums(sums, mixture)

    def _check_sums(self, sums: Tensor, mixture: Tensor) -> None:
        """Refuse sums of other samples: (2, D), plain and times a mixture of the targets."""
        against = self.joint[:, self.target_columns] @ mixture
        energy = mixture @ against[self.target_columns]
        wanted = torch.stack([torch.zeros_like(against), against])
        sizes = (self.joint.diagonal() + self.n * self.mean.square()).sqrt()
        slack = sizes * torch.stack([energy.new_tensor(self.n), energy]).sqrt()[:, None] * SAME
        slack[:, self.target_columns] *= 1e-5  # nothing computes them again
        if ((sums - wanted).abs() > slack).any():
            raise ValueError(
                "batches() gave other samples than the statistics hold, or targets in another "
                "order; pass a function that returns what was counted."
            )

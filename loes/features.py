"""`LayerFeatures`: one feature matrix a layer, the data that everything downstream works on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LayerFeatures(Sequence):
    """The pooled features of every layer of a model, in the order of its hidden states.

    Chapter 1 is a first look at some.

    Attributes
    ----------
    names : one name a layer. ``"embedding"`` is the input of the first block (``hidden_states[0]``)
        and ``"layer3"`` the output of the third, so that ``features[3]`` is always ``"layer3"``.
    arrays : one float32 array of shape (n, d_l) a layer.
    pooling : how tokens became one vector a sample, for the record.
    """

    names: list[str]
    arrays: list[np.ndarray]
    pooling: str = "none"

    def __post_init__(self):
        if len(self.names) != len(self.arrays):
            raise ValueError(
                f"LayerFeatures wants one name a layer; got {len(self.names)} names "
                f"for {len(self.arrays)} arrays."
            )

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, layer: int) -> np.ndarray:
        return self.arrays[layer]

    def take(self, samples) -> "LayerFeatures":
        """Return the same layers for some of the samples (indices or a boolean mask)."""
        return LayerFeatures(self.names, [array[samples] for array in self.arrays], self.pooling)

    def without(self, layers: Sequence[int]) -> "LayerFeatures":
        """Return the same samples without some of the layers, by index; a ValueError for others."""
        layers = set(layers)
        if strange := layers - {*range(len(self))}:
            raise ValueError(
                f"there are no layers {sorted(strange, key=str)}; take indices from 0 to "
                f"{len(self) - 1}."
            )
        kept = [layer for layer in range(len(self)) if layer not in layers]
        return LayerFeatures(
            [self.names[layer] for layer in kept], [self[layer] for layer in kept], self.pooling
        )

    def __repr__(self) -> str:
        n = len(self.arrays[0]) if self.arrays else 0
        widths = sorted({array.shape[1] for array in self.arrays})
        return (
            f"LayerFeatures({len(self)} layers, n={n}, width={'/'.join(map(str, widths))}, "
            f"pooling={self.pooling!r})"
        )

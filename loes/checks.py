"""What comes in: layers as tensors, targets as columns, or a message that says what is wrong."""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from itertools import accumulate
from math import inf
from numbers import Integral, Number

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils.multiclass import type_of_target

from loes.features import LayerFeatures
from loes.solver import Samples, Spectrum

# Variation below this share of a layer's norm is rounding noise.
CONSTANT = 1e-6
TASKS = ["auto", "classification", "regression"]

Layers = LayerFeatures | Sequence[ArrayLike | torch.Tensor] | ArrayLike | torch.Tensor


def check_whole(name: str, value: object, least: int = 1) -> None:
    """Refuse anything but a whole number from `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}; got {value!r}.")


def check_callable(name: str, value: object, wanted: str, *, required: bool = False) -> None:
    """Refuse what cannot be called, but None where nothing is required."""
    if not callable(value) and (required or value is not None):
        choice = "" if required else ", or None"
        raise TypeError(f"{name} must be {wanted}{choice}; got {type(value).__name__}.")


def check_sequence(inputs: object, wanted: str, ability: str) -> None:
    """Refuse a single string, what lacks an ability, and tables, mappings and sets.

    Tables and mappings iterate over their keys, sets in no order: neither is what was meant.
    """
    keyed = isinstance(inputs, Set) or hasattr(inputs, "keys")
    if isinstance(inputs, (str, bytes)) or keyed or not hasattr(inputs, ability):
        hint = " Pass a list of its values, or of one of its columns." if keyed else ""
        raise TypeError(f"inputs must be {wanted}; got one {type(inputs).__name__}.{hint}")


def as_indices(name: str, layers: object, count: int | None) -> list[int]:
    """Return distinct layer indices as a list; `count` is how many layers there are, if known."""
    known = range(sys.maxsize if count is None else count)
    if (
        not isinstance(layers, Collection)
        or any(not isinstance(l, Integral) or isinstance(l, bool) or l not in known for l in layers)
        or len(set(layers)) < len(layers)
    ):
        end = "" if count is None else f" to {count - 1}"
        raise ValueError(f"{name} must hold distinct layer indices from 0{end}; got {layers!r}.")
    return [int(l) for l in layers]


def _check_unmasked(name: str, X: object) -> None:
    """Refuse a masked array: an array of its values would hold the masked ones as well."""
    if np.ma.is_masked(X):
        raise ValueError(f"{name} holds masked values; drop those samples, or fill them.")


def as_numpy(X: ArrayLike | torch.Tensor) -> np.ndarray:
    """Return an array, also of a tensor on an accelerator, with a gradient or in bfloat16."""
    if isinstance(X, torch.Tensor):
        X = X.detach().cpu()
        X = X.float() if X.dtype == torch.bfloat16 else X
    return np.asarray(X)


def _as_tensor(X: ArrayLike | torch.Tensor, name: str) -> torch.Tensor:
    """Return a layer as a float32 or float64 tensor, where it is."""
    _check_unmasked(name, X)
    if not isinstance(X, torch.Tensor):
        X = np.asarray(X)
        if X.dtype.kind in "fiu":
            dtype = np.float32 if X.dtype in (np.float16, np.float32) else np.float64
            X = torch.from_numpy(np.require(X, dtype, ["C", "W"]))
    if X.ndim != 2 or 0 in X.shape or not isinstance(X, torch.Tensor) or X.is_complex():
        raise ValueError(
            f"{name} must be a numeric (n, d) matrix with n, d >= 1; got shape {tuple(X.shape)} "
            f"of {X.dtype}."
        )
    if X.layout != torch.strided or X.device.type == "meta":
        raise ValueError(
            f"{name} is a {X.layout} tensor on {X.device}; pass a dense one that holds numbers, "
            "such as X.to_dense()."
        )
    X = X.detach()
    if X.dtype not in (torch.float32, torch.float64):
        X = X.to(torch.float32 if X.is_floating_point() else torch.float64)
    return X


def as_layers(
    layers: Layers, sizes: Sequence[int] | None = None
) -> tuple[list[torch.Tensor], list[str]]:
    """Return the layers as (n, d_l) tensors with their names, or say what is wrong with them.

    With `sizes`, `layers` is one (n, sum of sizes) matrix of layers side by side.
    """
    names = list(layers.names) if isinstance(layers, LayerFeatures) else None
    if sizes is not None:
        _check_unmasked("the matrix of layers", layers)
        sizes = np.ravel(sizes).tolist()
        for size in sizes:
            check_whole("each of layer_sizes", size)
        layers = layers if isinstance(layers, torch.Tensor) else np.asarray(layers)
        if layers.ndim != 2 or layers.shape[1] != sum(sizes):
            raise ValueError(
                f"layer_sizes={sizes} wants one (n, {sum(sizes)}) matrix; got "
                f"{tuple(layers.shape)}."
            )
        layers = [layers[:, end - d : end] for d, end in zip(sizes, accumulate(sizes), strict=True)]
    elif hasattr(layers, "ndim"):
        if layers.ndim != 3:
            raise ValueError(
                "one array of layers must have the shape (n, L, d); got "
                f"{tuple(layers.shape)}. For one layer only, pass a list: [X]."
            )
        layers = [layers[:, layer] for layer in range(layers.shape[1])]
    if not isinstance(layers, Iterable) or isinstance(layers, (str, Mapping)):
        raise TypeError(
            "layers must be LayerFeatures, a sequence of (n, d) matrices, or one (n, L, d) "
            f"array; got {type(layers).__name__}."
        )
    layers = list(layers)
    names = names or [f"layer {layer}" for layer in range(len(layers))]
    if not layers:
        raise ValueError("there are no layers to choose from; got an empty sequence.")
    tensors = [_as_tensor(X, name) for X, name in zip(layers, names, strict=True)]
    for name, X in zip(names, tensors, strict=True):
        if len(X) != len(tensors[0]):
            raise ValueError(
                f"layers must have one row a sample each; {names[0]} has {len(tensors[0])} rows "
                f"and {name} has {len(X)}."
            )
        if X.device != tensors[0].device:
            raise ValueError(
                f"layers must be on one device; {names[0]} is on {tensors[0].device} and {name} "
                f"on {X.device}. Move them with .to(device)."
            )
        if not X.sum().isfinite() and not X.isfinite().all():  # the sum is quick to ask
            raise ValueError(
                f"{name} holds {int((~X.isfinite()).sum())} NaN or infinite features; "
                "extract it again in float32, or drop the samples concerned."
            )
    return tensors, names


def check_varying(spectra: Mapping[int, Spectrum], moments: Samples, names: list[str]) -> None:
    """Refuse a layer that is the same for all samples, up to rounding, or that leaves its dtype."""
    for layer, spectrum in spectra.items():
        mean_energy = moments.n * float(moments.means[layer].square().sum())
        energy = spectrum.trace + mean_energy
        if spectrum.trace > CONSTANT**2 * energy:
            continue
        if not energy < inf or 0 < energy < torch.finfo(moments.dtype).tiny:
            raise ValueError(
                f"the features of {names[layer]} are too {'small' if energy < 1 else 'large'}: "
                f"their squares leave the range of {str(moments.dtype)[6:]}; rescale the layer."
            )
        raise ValueError(
            f"{names[layer]} is constant, up to rounding, over the {moments.n} samples, so no term "
            f"is defined for it; leave it out, in a selection by exclude=[{layer}] (the usual "
            "case: an embedding layer under cls pooling)."
        )


def as_task(y: ArrayLike, n: int, task: str) -> tuple[np.ndarray, str]:
    """Return (n,) labels and "classification", or (n, c) float targets and "regression"."""
    if task not in TASKS:
        raise ValueError(f"task must be one of {TASKS}; got {task!r}.")
    _check_unmasked("y", y)
    kinds = {type(label) for label in y} if isinstance(y, list | tuple) else set()
    text, numbers = (
        any(issubclass(kind, of) for kind in kinds) for of in (str, (Number, np.bool_))
    )
    if text and numbers and task != "regression":  # an array would turn NaN into the class "nan"
        raise ValueError("y mixes text and numbers, such as NaN; drop samples without a label.")
    y = as_numpy(y)
    if y.ndim == 0 or len(y) != n:
        raise ValueError(f"y must hold one target a sample: {n} samples, y of shape {y.shape}.")
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise ValueError("y holds NaN or infinite targets; drop those samples.")
    strange = {type(label).__name__ for label in y.flat if not isinstance(label, str)}
    if y.dtype.kind not in "biufUO" or (y.dtype.kind == "O" and strange):
        raise ValueError(
            "y must hold int, bool or str class labels, or numeric targets; got "
            f"{', '.join(sorted(strange))} in an array of {y.dtype}. Drop samples without a label "
            "and convert the others, such as by y.astype(str)."
        )
    if y.ndim == 2 and y.shape[1] == 1 and (task == "classification" or y.dtype.kind != "f"):
        raise ValueError(f"y has shape {y.shape}, one column of labels; pass y.ravel().")
    kind = type_of_target(y)
    if task == "auto":
        if y.ndim == 2 and kind == "multilabel-indicator" and (y.sum(1) == 1).all():
            raise ValueError(
                f"y of shape {y.shape} looks one-hot; pass the class of each sample, "
                "y.argmax(1), or say task='regression'."
            )
        if y.ndim == 1 and y.dtype.kind == "f" and kind != "continuous":
            raise ValueError(
                "y is float but holds whole numbers only, which may be classes or values; "
                "say which with task='classification' or task='regression'."
            )
        task = (
            "classification" if y.ndim == 1 and kind in ("binary", "multiclass") else "regression"
        )
    if task == "classification":
        if y.ndim != 1 or kind not in ("binary", "multiclass"):
            raise ValueError(
                f"classification wants (n,) class labels; got {kind} targets of shape {y.shape}. "
                "Pass the class of each sample (y.argmax(1) if y is one-hot), or say "
                "task='regression'."
            )
        return y, task
    if y.dtype.kind not in "fiub" or y.ndim > 2:
        raise ValueError(
            f"regression wants numeric (n,) or (n, c) targets; got {y.dtype} {y.shape}. Convert "
            "them, or say task='classification' if they are labels."
        )
    return y.astype(np.float64).reshape(n, -1), "regression"


def as_targets(y: ArrayLike, n: int, task: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return (n, c) float targets, one-hot for classes, and the class sizes, or None."""
    y, task = as_task(y, n, task)
    if task == "classification":
        classes, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
        if len(classes) < 2:
            raise ValueError(
                f"y holds one class only ({str(classes[0])!r}), so there is nothing to tell apart; "
                "pass labels of at least two classes, or y=None for label-free selection."
            )
        if counts.max() < 2:
            raise ValueError(
                f"y has {n} classes of one sample each, so there is nothing to learn; pass labels "
                "that repeat, or task='regression' if they are values."
            )
        return np.eye(len(classes))[codes], counts.astype(np.float64)
    if (y == y[0]).all(0).any():
        raise ValueError("y has a constant target, so there is nothing to explain; leave it out.")
    return y, None

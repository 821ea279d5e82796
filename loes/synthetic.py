"""Layer stacks whose right answer is known: for teaching, for tests, and to try a criterion on.

Where the answer hangs on a moment, it is exact and not only true in expectation: noise is made
orthogonal to the constant, and to the labels. Both criteria of `LOES` find the answers when Loss
alone decides (alpha, gamma and eta 0); what their other terms make of them is a subject of the
book from Chapter 3 on.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loes.features import LayerFeatures


class Example(NamedTuple):
    """Layers, their targets, and what should come out.

    Chapter 3 judges its losses on one.
    """

    layers: LayerFeatures
    y: np.ndarray | None  # (n,) class labels
    answer: list[int]  # the layers that should be picked, in order


def planted(
    n: int = 600,
    width: int = 8,
    n_layers: int = 6,
    *,
    informative: Sequence[int] = (4, 1),
    n_classes: int = 4,
    seed: int = 0,
) -> Example:
    """Hide the classes in some layers, a different share in each; the others are noise.

    Each informative layer tells some classes apart from all others, the first most of them, so
    that no layer makes another superfluous. The answer is `informative`.

    Chapter 3 shows it at work.

    Raises
    ------
    ValueError where there are fewer classes than informative layers and one, or no such layers.
    """
    _want(
        0 < len(set(informative)) == len(informative) < n_classes
        and set(informative) < set(range(n_layers)),
        f"planted wants different informative layers, fewer than classes ({n_classes}) and than "
        f"layers ({n_layers}); got {list(informative)}.",
    )
    rng = np.random.default_rng(seed)
    y = _labels(n, n_classes)
    columns = np.eye(n_classes)[y][:, :-1]  # the last class is what is left
    shares = np.array_split(np.arange(n_classes - 1), len(informative))
    arrays = [rng.normal(size=(n, width)) for _ in range(n_layers)]
    for layer, share in zip(informative, shares, strict=True):
        arrays[layer] += 6 * columns[:, share] @ rng.normal(size=(len(share), width))
    return _example(arrays, y, list(informative))


def duplicated(n: int = 600, width: int = 8, *, seed: int = 0) -> Example:
    """Make three layers: one that knows most, its rotated copy, and one that knows the rest.

    Layer 1 is layer 0 rotated, with a little noise; layer 2 alone tells the last two of four
    classes apart, but is the worst of the three by itself. A ranking of single layers takes 0 and
    1; the answer is 0 and 2.

    Chapter 5 shows it at work.
    """
    rng = np.random.default_rng(seed)
    y = _labels(n, 4)
    rotation, _ = np.linalg.qr(rng.normal(size=(width, width)))
    first = rng.normal(size=(n, width))
    first[:, :2] += 6 * np.eye(4)[y][:, :2]  # classes 2 and 3 look alike
    copy = first @ rotation + 0.3 * rng.normal(size=(n, width))
    rest = rng.normal(size=(n, width))
    rest[:, 0] += 3.0 * np.array([0, 0, 1, -1])[y]
    return _example([first, copy, rest], y, [0, 2])


def noise(n: int = 600, width: int = 8, *, seed: int = 0) -> Example:
    """Append a layer of white noise to two informative ones of uneven spectrum.

    The noise is uncorrelated with the labels, exactly. The answer is the informative layers, 0
    (which knows more) before 1.

    Chapter 8 shows it at work.
    """
    rng = np.random.default_rng(seed)
    y = _labels(n, 3)
    scales = 1 / np.arange(1, width + 1)
    arrays = [rng.normal(size=(n, width)) for _ in range(2)]
    arrays[0][:, :2] += 2 * np.eye(3)[y][:, :2]
    arrays[1][:, 0] += np.array([0, 0, 1])[y]
    arrays = [X * scales for X in arrays]
    white = rng.normal(size=(n, width))
    return _example([*arrays, _within(white, np.eye(3)[y])], y, [0, 1])


def collapsed(n: int = 600, width: int = 16, *, ranks: Sequence[int] = (1, 4, 16)) -> Example:
    """Make layers that spread their variance evenly over some directions and leave out the rest.

    The covariance of layer l is the identity on ``ranks[l]`` directions, exactly, so that its
    participation ratio and effective rank are ``ranks[l]``. There are no labels; the answer is the
    layers by rank, the fullest first.

    Chapter 4 shows it at work.

    Raises
    ------
    ValueError for a rank above the width or above n - 1.
    """
    most = min(width, n - 1)
    _want(
        all(1 <= rank <= most for rank in ranks),
        f"ranks must be from 1 to {most}; got {list(ranks)}.",
    )
    rng = np.random.default_rng(0)
    arrays = []
    for rank in ranks:
        Q, _ = np.linalg.qr(np.hstack([np.ones((n, 1)), rng.normal(size=(n, rank))]))
        rotation, _ = np.linalg.qr(rng.normal(size=(width, width)))
        arrays.append(np.sqrt(n) * Q[:, 1:] @ rotation[:rank])  # orthogonal to the constant
    order = np.argsort(-np.asarray(ranks), kind="stable")
    return _example(arrays, None, order.tolist())


def simplex(
    n: int = 600,
    width: int = 8,
    *,
    n_classes: int = 4,
    spreads: Sequence[float] = (2.0, 0.5, 0.0),
    seed: int = 0,
) -> Example:
    """Put the class centroids on the corners of a regular simplex, with more or less spread.

    The corners are those of the one-hot codes, rotated: all distances are the root of 2, all
    triangle areas half the root of 3, exactly. ``spreads[l]`` is the standard deviation of a
    feature about its class centroid; 0 is neural collapse. The answer is the layers by spread,
    the least first.

    Chapter 7 shows it at work.

    Raises
    ------
    ValueError for a width below the number of classes.
    """
    _want(width >= n_classes >= 2, f"{n_classes} corners want as many dimensions; got {width}.")
    rng = np.random.default_rng(seed)
    y = _labels(n, n_classes)
    codes = np.eye(n_classes)[y]
    arrays = []
    for spread in spreads:
        rotation, _ = np.linalg.qr(rng.normal(size=(width, width)))
        about = _within(rng.normal(size=(n, width)), codes)
        about /= about.std()
        arrays.append(codes @ rotation[:n_classes] + spread * about)
    order = np.argsort(np.asarray(spreads), kind="stable")
    return _example(arrays, y, order.tolist())


def _labels(n: int, n_classes: int) -> np.ndarray:
    _want(n >= 2 * n_classes, f"{n_classes} classes want at least twice as many samples; got {n}.")
    return np.arange(n) % n_classes


def _within(X: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Centre X within each class of one-hot codes."""
    return X - codes @ np.linalg.lstsq(codes, X)[0]


def _example(arrays: list[np.ndarray], y: np.ndarray | None, answer: list[int]) -> Example:
    names = [f"layer {l}" for l in range(len(arrays))]
    return Example(LayerFeatures(names, arrays), y, answer)


def _want(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)

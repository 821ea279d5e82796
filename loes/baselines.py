"""Ways to choose layers, all with one signature, so that one protocol can judge them.

Chapter 11 compares them.
"""

import warnings
from collections.abc import Callable, Sequence
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import MultiTaskLasso, Ridge, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from loes.extract import extract_layers
from loes.features import LayerFeatures
from loes.pooling import turning
from loes.selection import LOES
from loes.terms import spectral_entropy

MAX_SUBSETS = 1000


class Calibration(NamedTuple):
    """All that a method may look at: never a test sample.

    Chapter 12 makes one by hand.

    Attributes
    ----------
    layers, validation_layers : all layers of the calibration and of the validation samples.
    y, validation_y : their targets; classes as whole numbers from 0.
    task : ``"classification"`` or ``"regression"``.
    seed : of what the method draws.
    curvature : of each layer over tokens, if `loes.evaluate` was given it.
    """

    layers: LayerFeatures
    y: np.ndarray
    validation_layers: LayerFeatures
    validation_y: np.ndarray
    task: str  # "classification" or "regression"
    seed: int
    curvature: np.ndarray | None = None  # of each layer, over tokens; see `token_curvature`


class Choice(NamedTuple):
    """Some layers, in order, and how to fuse them.

    Chapter 11 compares them.

    Attributes
    ----------
    layers : their indices.
    fusion : as in `loes.train_probe`.
    """

    layers: list[int]
    fusion: str = "adapters"


class Unavailable(Exception):
    """A method cannot be had here: too many subsets, no tokens, a library that is missing.

    Chapter 15 prints what could not be had.
    """


Method = Callable[[Calibration, int], Choice]


def last(calibration: Calibration, k: int) -> Choice:
    """Take the last layer alone: the habit.

    Chapter 11 compares it.
    """
    return Choice([len(calibration.layers) - 1])


def last_k(calibration: Calibration, k: int) -> Choice:
    """Concatenate the last k layers.

    Chapter 11 compares it.
    """
    n_layers = len(calibration.layers)
    return Choice(list(range(n_layers - k, n_layers)))


def last_k_mean(calibration: Calibration, k: int) -> Choice:
    """Average the last k layers.

    Chapter 11 compares it.
    """
    _want_equal_widths(calibration)
    return Choice(last_k(calibration, k).layers, "mean")


def mixing(calibration: Calibration, k: int) -> Choice:
    """Average all layers with learnt softmax weights (Peters et al., 2018).

    Chapter 11 compares it.
    """
    _want_equal_widths(calibration)
    return Choice(list(range(len(calibration.layers))), "mixing")


def all_layers(calibration: Calibration, k: int) -> Choice:
    """Concatenate all layers.

    Chapter 11 compares it.
    """
    return Choice(list(range(len(calibration.layers))))


def random_k(calibration: Calibration, k: int) -> Choice:
    """Draw k layers at random: the control of every selection.

    Chapter 11 compares it.
    """
    rng = np.random.default_rng(calibration.seed)
    return Choice(rng.choice(len(calibration.layers), k, replace=False).tolist())


def best_single(calibration: Calibration, k: int) -> Choice:
    """Take the layer whose ridge probe does best on validation.

    Chapter 11 compares it.
    """
    scores = [validation_score(calibration, [l]) for l in range(len(calibration.layers))]
    return Choice([int(np.argmax(scores))])


def greedy_validation(calibration: Calibration, k: int) -> Choice:
    """Add the layer that helps a joint ridge probe most, k times.

    Chapter 11 compares it.
    """
    picked: list[int] = []
    for _ in range(k):
        rest = [l for l in range(len(calibration.layers)) if l not in picked]
        picked.append(max(rest, key=lambda l: validation_score(calibration, [*picked, l])))
    return Choice(picked)


def exhaustive_validation(calibration: Calibration, k: int) -> Choice:
    """Take the subset of k layers whose joint ridge probe does best on validation.

    Chapter 11 compares it.
    """
    n_layers = len(calibration.layers)
    if comb(n_layers, k) > MAX_SUBSETS:
        raise Unavailable(f"{comb(n_layers, k)} subsets, more than {MAX_SUBSETS}")
    subsets = combinations(range(n_layers), k)
    return Choice(list(max(subsets, key=lambda s: validation_score(calibration, s))))


def loes(criterion: str, *, reduce: bool = False, **parameters) -> Method:
    """Return LOES with one of its criteria and weights.

    Where k layers have more features than there are samples, LOES stops after fewer; `reduce` lets
    it see the `principal_components` of each layer only.

    Chapter 11 compares it.
    """

    def choose(calibration: Calibration, k: int) -> Choice:
        layers = calibration.layers.arrays
        if reduce:
            layers = principal_components(layers, k)
        selector = LOES(k, criterion=criterion, task=calibration.task, **parameters)
        return Choice(selector.fit(layers, calibration.y).selected_)

    return choose


def principal_components(layers: Sequence[np.ndarray], k: int) -> list[np.ndarray]:
    """Reduce each layer to so many principal components that k layers fill half of the samples.

    Chapter 8 says why.
    """
    n = len(layers[0])
    widths = [min(X.shape[1], max(1, n // (2 * k))) for X in layers]
    return [
        PCA(width, random_state=0).fit_transform(X) for width, X in zip(widths, layers, strict=True)
    ]


def entropy(calibration: Calibration, k: int) -> Choice:
    """Take the k layers of largest spectral entropy (Skean et al., 2025), whatever the target.

    Chapter 4 derives the entropy, Chapter 11 compares the ranking.
    """
    return _largest([spectral_entropy(X) for X in calibration.layers], k)


def token_curvature(model, inputs, **options) -> np.ndarray:
    """Return the mean angle, in radians, by which the path of the tokens turns in each layer, (L,).

    Chapter 11 lists what `curvature` makes of it.

    Parameters
    ----------
    model, inputs, **options : as for `loes.extract_layers`.

    Raises
    ------
    ValueError when no input has three tokens; and as `loes.extract_layers`.
    """
    features = extract_layers(model, inputs, **options | {"pooling": turning})
    if not features[0][:, 1].any():
        raise ValueError("no input has three tokens, so that no path of tokens turns.")
    return np.array([X[:, 0].sum() / X[:, 1].sum() for X in features])


def curvature(calibration: Calibration, k: int) -> Choice:
    """Take the k layers whose token sequences turn least (Hosseini and Fedorenko, 2023).

    Chapter 11 lists it.
    """
    if calibration.curvature is None:
        raise Unavailable("curvature needs token sequences")
    return _largest(-np.asarray(calibration.curvature), k)


def intrinsic_dimension(calibration: Calibration, k: int) -> Choice:
    """Take the k layers of largest intrinsic dimension by TwoNN (Facco et al., 2017).

    Chapter 11 compares it.
    """
    try:
        from skdim.id import TwoNN
    except ImportError:
        raise Unavailable("pip install scikit-dimension") from None
    return _largest([TwoNN().fit(X.astype(np.float64)).dimension_ for X in calibration.layers], k)


def group_lasso(calibration: Calibration, k: int) -> Choice:
    """Take the k layers whose features a group lasso weighs most (Evci et al., 2022, Head2Toe).

    A group is one feature with its weights for all outputs; a layer counts by the mean norm.

    Chapter 11 compares it.
    """
    Z = np.hstack([StandardScaler().fit_transform(X) for X in calibration.layers])
    y = calibration.y
    Y = np.eye(y.max() + 1)[y] if calibration.task == "classification" else y.reshape(len(y), -1)
    Y = StandardScaler(with_std=False).fit_transform(Y)
    strongest = np.linalg.norm(Z.T @ Y, axis=1).max() / len(Z)  # above it all weights are zero
    with warnings.catch_warnings():
        # The order of the layers settles long before the weights do.
        warnings.simplefilter("ignore", ConvergenceWarning)
        lasso = MultiTaskLasso(alpha=0.1 * strongest, max_iter=100, tol=1e-2).fit(Z, Y)
    norms = np.linalg.norm(lasso.coef_, axis=0)
    ends = np.cumsum([X.shape[1] for X in calibration.layers])[:-1]
    return _largest([part.mean() for part in np.split(norms, ends)], k)


METHODS: dict[str, Method] = {
    "last layer": last,
    "last k": last_k,
    "last k, mean": last_k_mean,
    "all, mixing": mixing,
    "all layers": all_layers,
    "random k": random_k,
    "best single (validation)": best_single,
    "LOES paper": loes("paper"),
    "LOES bounded": loes("bounded"),
    "LOES paper, PCA": loes("paper", reduce=True),
    "LOES bounded, PCA": loes("bounded", reduce=True),
    "residual only": loes("paper", alpha=0, gamma=0, eta=0),
    "greedy (validation)": greedy_validation,
    "exhaustive (validation)": exhaustive_validation,
    "entropy": entropy,
    "curvature": curvature,
    "intrinsic dimension": intrinsic_dimension,
    "group lasso": group_lasso,
}


def _want_equal_widths(calibration: Calibration) -> None:
    if len({X.shape[1] for X in calibration.layers}) > 1:
        raise Unavailable("the layers differ in width")


def _largest(scores: Sequence[float], k: int) -> Choice:
    """Return the k layers of largest score, the largest first."""
    return Choice(np.argsort(-np.asarray(scores), kind="stable")[:k].tolist())


def validation_score(calibration: Calibration, layers: Sequence[int]) -> float:
    """Accuracy, or R^2, on validation of one ridge probe of some layers side by side.

    Chapter 12 asks how far to believe the best of many.
    """
    probe = RidgeClassifier if calibration.task == "classification" else Ridge
    X, Z = (
        np.hstack([features[l] for l in layers])
        for features in (calibration.layers, calibration.validation_layers)
    )
    # On standardised features a tenth of n is a tenth of the mean eigenvalue of the Gram matrix.
    model = make_pipeline(StandardScaler(), probe(alpha=0.1 * len(X)))
    return model.fit(X, calibration.y).score(Z, calibration.validation_y)

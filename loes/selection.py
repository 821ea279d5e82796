"""LOES: greedy selection of the layers that together explain a target, Eq. 7."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted

from loes import terms
from loes.features import LayerFeatures

# Directions whose singular value is below this share of the centred layer's Frobenius norm are
# rounding noise of the projections (float64) and of the features themselves (float32).
RANK_TOLERANCE = 1e-6

WEIGHTS = {
    "paper": {"alpha": 1.0, "gamma": 0.5, "eta": 0.1},
    "bounded": {"alpha": 0.25, "gamma": 0.25, "eta": 0.1},
}

Layers = LayerFeatures | Sequence[ArrayLike] | ArrayLike


def _as_array(X: ArrayLike) -> np.ndarray:
    if hasattr(X, "detach"):  # a tensor, perhaps on an accelerator, with a gradient or in bfloat16
        X = X.detach().cpu()
        X = X.float() if str(X.dtype) == "torch.bfloat16" else X
    return np.asarray(X)


def _as_arrays(layers: Layers) -> tuple[list[np.ndarray], list[str]]:
    """Return the layers as (n, d_l) arrays with their names, or say what is wrong with them."""
    if isinstance(layers, LayerFeatures):
        names, arrays = list(layers.names), list(layers.arrays)
    else:
        if hasattr(layers, "ndim"):
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
        arrays = [_as_array(X) for X in layers]
        names = [f"layer {layer}" for layer in range(len(arrays))]
    if not arrays:
        raise ValueError("there are no layers to choose from; got an empty sequence.")
    for name, X in zip(names, arrays, strict=True):
        if X.ndim != 2 or X.dtype.kind not in "fiu" or 0 in X.shape:
            raise ValueError(
                f"{name} must be a numeric (n, d) matrix with n, d >= 1; got shape {X.shape} "
                f"of {X.dtype}."
            )
        if len(X) != len(arrays[0]):
            raise ValueError(
                f"layers must have one row a sample each; {names[0]} has {len(arrays[0])} rows "
                f"and {name} has {len(X)}."
            )
        if not np.isfinite(X).all():
            raise ValueError(
                f"{name} holds {int((~np.isfinite(X)).sum())} NaN or infinite features; "
                "extract it again in float32, or drop the samples concerned."
            )
    return arrays, names


def _check_varying(arrays: list[np.ndarray], names: list[str]) -> None:
    if len(arrays[0]) < 2:
        raise ValueError("selection needs at least two samples; got 1.")
    for name, X in zip(names, arrays, strict=True):
        X = X.astype(np.float64)
        if np.linalg.norm(X - X.mean(0)) <= RANK_TOLERANCE * np.linalg.norm(X):
            raise ValueError(
                f"{name} is constant, up to rounding, over the {len(X)} samples, so no term is "
                "defined for it; leave it out (the usual case: an embedding layer, cls pooling)."
            )


def _as_targets(y: ArrayLike, n: int, task: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the (n, c) float targets, and the (n,) class codes when the task is classification."""
    y = _as_array(y)
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
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"y holds one class only ({str(classes[0])!r}), so there is nothing to tell apart; "
                "pass labels of at least two classes, or y=None for label-free selection."
            )
        return np.eye(len(classes))[codes], codes
    if y.dtype.kind not in "fiub" or y.ndim > 2:
        raise ValueError(
            f"regression wants numeric (n,) or (n, c) targets; got {y.dtype} {y.shape}. Convert "
            "them, or say task='classification' if they are labels."
        )
    targets = y.astype(np.float64).reshape(n, -1)
    if (targets == targets[0]).all(0).any():
        raise ValueError("y has a constant target, so there is nothing to explain; leave it out.")
    return targets, None


def _ridge_prediction(X: np.ndarray, R: np.ndarray, ridge: float) -> np.ndarray:
    if np.isinf(ridge):
        return np.zeros_like(R)
    A = X.T @ X + ridge * np.eye(X.shape[1])
    return X @ (np.linalg.pinv(A, rcond=RANK_TOLERANCE**2, hermitian=True) @ (X.T @ R))


class LOES(TransformerMixin, BaseEstimator):
    r"""Layer-wise optimal embedding selection: greedily pick the layers a task needs.

    At each step the layer with the lowest score is picked,

    .. math:: \text{Score} = \text{Loss} + \alpha (1 - \text{Iso})
              + \gamma \text{Red} - \eta \text{Tri},

    then a ridge probe on it is subtracted from the residual targets and the span of its features
    is projected out of the remaining candidates. Red and Tri enter from the second step on.

    Parameters
    ----------
    n_layers : how many layers to pick, K.
    criterion : ``"paper"``, the terms of Batra et al. (2026); or ``"bounded"``, the same four
        ideas with every term in [0, 1]: pure noise then wins only where no layer explains much.
    alpha, gamma, eta : weights of isotropy, redundancy and triangle area; None for the
        criterion's own: 1, 0.5, 0.1 ("paper") or 0.25, 0.25, 0.1 ("bounded").
    ridge : added to the unnormalised Gram matrix by "paper"; "bounded" chooses its own by
        leave-one-out.
    task : ``"classification"``, ``"regression"``, or ``"auto"`` to tell from `y`.

    Attributes
    ----------
    selected_ : list of int, the picked layers in the order of picking.
    path_ : DataFrame with one row a step and candidate: step (from 1), layer, loss, iso, red, tri,
        score, chosen. A term that does not enter a score is NaN.
    names_ : list of str, the names of all layers.

    References
    ----------
    Batra, Gumber, Khandelwal, Khemani and Gupta, "Uncovering the Latent Potential of Deep
    Intermediate Representations", ICML 2026, arXiv 2605.23033, Eq. 7.

    Examples
    --------
    >>> import numpy as np
    >>> from loes import LOES
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1, 2], 50)
    >>> signal = np.eye(3)[y] + 0.1 * rng.normal(size=(150, 3))
    >>> noise = rng.normal(size=(150, 3))
    >>> LOES(n_layers=1, criterion="bounded").fit([noise, signal], y).selected_
    [1]
    """

    def __init__(
        self,
        n_layers: int = 3,
        *,
        criterion: str = "paper",
        alpha: float | None = None,
        gamma: float | None = None,
        eta: float | None = None,
        ridge: float = 1e-3,
        task: str = "auto",
    ):
        self.n_layers = n_layers
        self.criterion = criterion
        self.alpha = alpha
        self.gamma = gamma
        self.eta = eta
        self.ridge = ridge
        self.task = task

    def _check_parameters(self, n_candidates: int) -> dict[str, float]:
        if self.criterion not in WEIGHTS:
            raise ValueError(f"criterion must be one of {list(WEIGHTS)}; got {self.criterion!r}.")
        if self.task not in ("auto", "classification", "regression"):
            raise ValueError(
                f"task must be 'auto', 'classification' or 'regression'; got {self.task!r}."
            )
        k = self.n_layers
        if not isinstance(k, Integral) or isinstance(k, bool) or not 1 <= k <= n_candidates:
            raise ValueError(
                f"n_layers={k!r} cannot be picked from {n_candidates} layers; "
                f"choose a whole number, 1 <= n_layers <= {n_candidates}."
            )
        weights = {
            name: default if getattr(self, name) is None else getattr(self, name)
            for name, default in WEIGHTS[self.criterion].items()
        }
        for name, value in {**weights, "ridge": self.ridge}.items():
            if not isinstance(value, Real) or not (np.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a finite number >= 0; got {value!r}.")
        return weights

    def fit(self, layers: Layers, y: ArrayLike | None = None) -> "LOES":
        """Pick the layers.

        Parameters
        ----------
        layers : LayerFeatures, a sequence of (n, d_l) arrays or tensors, or one (n, L, d) array
            or tensor. Widths may differ between layers.
        y : (n,) class labels, or (n,) or (n, c) regression targets; None to select without a
            target, by isotropy and redundancy alone.

        Raises
        ------
        ValueError for features or targets that no term is defined on, and for a budget larger
        than the number of layers. Warns and stops early when the layers picked already span
        every direction that the others have.
        """
        arrays, names = _as_arrays(layers)
        weights = self._check_parameters(len(arrays))
        _check_varying(arrays, names)
        originals = [X.astype(np.float64) for X in arrays]
        candidates = [X - X.mean(0) for X in originals]
        scales = [np.linalg.norm(X) for X in candidates]
        residual, codes = None, None
        if y is not None:
            targets, codes = _as_targets(y, len(arrays[0]), self.task)
            residual = targets - targets.mean(0)
        iso = [self._isotropy(X) for X in originals]

        selected: list[int] = []
        path = []
        for step in range(1, self.n_layers + 1):
            rows = []
            for layer, X in enumerate(candidates):
                if layer in selected or np.linalg.norm(X) <= RANK_TOLERANCE * scales[layer]:
                    continue
                row = {"step": step, "layer": layer, "iso": iso[layer]}
                row["loss"] = self._loss(X, residual)[0] if residual is not None else np.nan
                picked = [originals[j] for j in selected]
                row["red"] = self._redundancy(originals[layer], picked) if selected else np.nan
                row["tri"] = (
                    self._triangle_area(X, codes) if selected and codes is not None else np.nan
                )
                score = [
                    row["loss"],
                    weights["alpha"] * (1 - row["iso"]),
                    weights["gamma"] * row["red"],
                    -weights["eta"] * row["tri"],
                ]
                rows.append({**row, "score": np.nansum(score)})
            if not rows:
                warnings.warn(
                    f"selection stopped after {len(selected)} of {self.n_layers} layers: the "
                    f"{sum(arrays[j].shape[1] for j in selected)} features already picked span "
                    f"everything the other layers hold over n={len(arrays[0])} samples. Use more "
                    "samples, reduce the layers by PCA, or ask for fewer layers.",
                    stacklevel=2,
                )
                break
            pick = min(rows, key=lambda row: row["score"])["layer"]
            path += [{**row, "chosen": row["layer"] == pick} for row in rows]
            selected.append(pick)
            X = candidates[pick]
            if residual is not None:
                residual = residual - _ridge_prediction(X, residual, self._loss(X, residual)[1])
            U, s, _ = np.linalg.svd(X, full_matrices=False)
            Q = U[:, s > RANK_TOLERANCE * scales[pick]]
            candidates = [X - Q @ (Q.T @ X) for X in candidates]

        columns = ["step", "layer", "loss", "iso", "red", "tri", "score", "chosen"]
        self.path_ = pd.DataFrame(path, columns=columns)
        self.selected_ = selected
        self.names_ = names
        self._widths = [X.shape[1] for X in arrays]
        return self

    def transform(self, layers: Layers) -> np.ndarray:
        """Concatenate the selected layers, in the order of picking, into (n, sum of d_l).

        Raises
        ------
        ValueError when `layers` has another number of layers, or other widths, than `fit` saw.
        """
        check_is_fitted(self)
        arrays, _ = _as_arrays(layers)
        if len(arrays) != len(self.names_):
            raise ValueError(
                f"fit saw {len(self.names_)} layers; got {len(arrays)}. Pass all layers of the "
                "same model, not the selected ones."
            )
        widths = [X.shape[1] for X in arrays]
        if widths != self._widths:
            raise ValueError(
                f"fit saw layers of widths {self._widths}; got {widths}. Pass the layers of the "
                "same model in the same order."
            )
        return np.concatenate([arrays[layer] for layer in self.selected_], axis=1)

    def _loss(self, X: np.ndarray, residual: np.ndarray) -> tuple[float, float]:
        """Return the Loss term and the ridge it was computed with."""
        if self.criterion == "paper":
            return terms.ridge_loss(X, residual, ridge=self.ridge), self.ridge
        return terms.loo_loss(X, residual)

    def _isotropy(self, X: np.ndarray) -> float:
        return terms.isotropy(X) if self.criterion == "paper" else terms.spectral_entropy(X)

    def _redundancy(self, X: np.ndarray, selected: list[np.ndarray]) -> float:
        if self.criterion == "paper":
            return terms.redundancy(X, selected)
        return max(terms.cka(X, Xj) for Xj in selected)

    def _triangle_area(self, X: np.ndarray, codes: np.ndarray) -> float:
        paper = self.criterion == "paper"
        return (terms.triangle_area if paper else terms.triangle_share)(X, codes)

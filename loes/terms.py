"""The terms of Eq. 7, each written out as its textbook definition.

Nothing here is fast and nothing is shared between functions: one term, one function, to be read
next to its chapter, from Chapter 3 on. `loes.LOES` computes the same numbers; the tests keep the
two equal.

`ridge_loss`, `isotropy`, `redundancy` and `triangle_area` are the paper's terms. `loo_loss`,
`spectral_entropy`, `cka` and `triangle_share` say the same four things within [0, 1].

Shapes: ``n`` samples, ``d`` features, ``c`` classes or regression targets.
Source: Batra et al., ICML 2026, arXiv 2605.23033, Eq. 7.
"""

from collections.abc import Sequence
from itertools import combinations
from math import log, sqrt

import numpy as np
from numpy.typing import ArrayLike


def _float64(X: ArrayLike, *, varying: bool = False) -> np.ndarray:
    X = np.asarray(X, dtype=np.float64)
    if X.ndim != 2 or 0 in X.shape or not np.isfinite(X).all():
        raise ValueError(
            "a term wants finite matrices (n, d) with n, d >= 1; got shape "
            f"{X.shape}, {X.size - int(np.isfinite(X).sum())} entries not finite."
        )
    if varying and not np.ptp(X, axis=0).any():
        raise ValueError(f"a matrix of shape {X.shape} is constant, so the term is not defined.")
    return X


def ridge_loss(X: ArrayLike, R: ArrayLike, *, ridge: float = 1e-3) -> float:
    r"""Mean squared error, in sample, of a ridge probe of the features `X` on the residual `R`.

    .. math:: \text{Loss} = \frac{1}{nc} \lVert R^c - X^c W \rVert_F^2, \qquad
              W = ({X^c}^\top X^c + \lambda I)^{-1} {X^c}^\top R^c

    Chapter 3 derives it.

    Parameters
    ----------
    X : (n, d) features, orthogonalised against the layers already selected.
    R : (n, c) what the selected layers have left unexplained; at step 1 the one-hot labels.
    ridge : :math:`\lambda`, added to the unnormalised Gram matrix, in the units of ``X**2``.

    Returns
    -------
    float, in the units of ``R**2``. Empty of meaning when n <= d: any `X` then fits any `R`.
    """
    X, R = _float64(X), _float64(R)
    X, R = X - X.mean(0), R - R.mean(0)
    A = X.T @ X + ridge * np.eye(X.shape[1])
    W = np.linalg.pinv(A, rcond=1e-12, hermitian=True) @ (X.T @ R)  # rank may be short
    return float(np.mean((R - X @ W) ** 2))


def isotropy(X: ArrayLike, *, eps: float = 1e-6) -> float:
    r"""Mean over standard deviation of the eigenvalues of the covariance of `X`.

    .. math:: \text{Iso} = \frac{\operatorname{mean}(\mu)}{\operatorname{std}(\mu) + \epsilon},
              \qquad \mu = \operatorname{eig}({X^c}^\top X^c / n)

    Chapter 4 derives it.

    Parameters
    ----------
    X : (n, d) features of the layer as they are, not orthogonalised.
    eps : added to the (population) standard deviation.

    Returns
    -------
    float >= 0, without unit and without upper bound: large when all directions carry equal
    variance. White noise scores about ``sqrt(n / d)``.
    """
    X = _float64(X)
    X = X - X.mean(0)
    eigenvalues = np.linalg.eigvalsh(X.T @ X / len(X))
    return float(eigenvalues.mean() / (eigenvalues.std() + eps))


def redundancy(X: ArrayLike, selected: Sequence[ArrayLike]) -> float:
    r"""Largest Frobenius alignment of `X` with any layer already selected.

    .. math:: \text{Red} = \max_{j \in S}
              \frac{\lVert X^\top X_j \rVert_F}{\lVert X \rVert_F \lVert X_j \rVert_F}

    Chapter 6 derives it.

    Parameters
    ----------
    X : (n, d) features of the candidate, neither centred nor orthogonalised.
    selected : the (n, d_j) features of the selected layers, at least one.

    Returns
    -------
    float in [0, 1], without unit. Not 1 for a layer with itself unless that layer has rank one.

    Raises
    ------
    ValueError if `selected` is empty: the maximum over nothing is undefined.
    """
    if len(selected) == 0:
        raise ValueError("redundancy needs at least one selected layer; got none.")
    X = _float64(X)
    return max(
        float(np.linalg.norm(X.T @ Xj) / (np.linalg.norm(X) * np.linalg.norm(Xj)))
        for Xj in map(_float64, selected)
    )


def triangle_area(X: ArrayLike, labels: ArrayLike) -> float:
    r"""Mean area of the triangles spanned by the class centroids of `X`, over all triples.

    .. math:: \text{Tri} = \binom{c}{3}^{-1} \sum_{i<j<k}
              \tfrac12 \sqrt{\lVert u \rVert^2 \lVert v \rVert^2 - (u^\top v)^2},
              \qquad u = m_j - m_i,\; v = m_k - m_i

    Chapter 7 derives it.

    Parameters
    ----------
    X : (n, d) features, orthogonalised against the layers already selected.
    labels : (n,) class of each sample.

    Returns
    -------
    float >= 0, in the units of ``X**2``; 0 with fewer than three classes.

    Notes
    -----
    The authors' code draws triples with replacement, so that some are degenerate; its expectation
    is this mean times ``(c - 1)(c - 2) / c**2``.
    """
    X, labels = _float64(X), np.asarray(labels)
    if labels.shape != (len(X),):
        raise ValueError(
            f"labels must name one class a sample, ({len(X)},); got shape {labels.shape}."
        )
    centroids = np.stack([X[labels == k].mean(0) for k in np.unique(labels)])
    if len(centroids) < 3:
        return 0.0
    areas = []
    for i, j, k in combinations(range(len(centroids)), 3):
        u, v = centroids[j] - centroids[i], centroids[k] - centroids[i]
        areas.append(0.5 * np.sqrt(max((u @ u) * (v @ v) - (u @ v) ** 2, 0.0)))
    return float(np.mean(areas))


# Multiples of the mean eigenvalue of the Gram matrix; infinity stands for "do not use the layer".
RIDGE_GRID = (*np.logspace(-4, 3, 15), np.inf)


def loo_loss(
    X: ArrayLike,
    R: ArrayLike,
    *,
    leverage: ArrayLike | float = 0.0,
    grid: Sequence[float] = RIDGE_GRID,
) -> tuple[float, float]:
    r"""Share of the residual `R` that a ridge probe of `X` leaves unexplained, leave-one-out.

    .. math:: \text{Loss} = \min_\lambda
              \frac{\sum_i \lVert e_i / (1 - g_i - h_i) \rVert^2}
                   {\sum_i \lVert r_i / (1 - g_i) \rVert^2},
              \qquad h_i = \sum_k \frac{s_k^2}{s_k^2 + \lambda} u_{ik}^2

    Chapter 3 derives it, Chapter 8 its leverage.

    Parameters
    ----------
    X : (n, d) features, orthogonalised against the layers already selected.
    R : (n, c) what the selected layers have left unexplained.
    leverage : (n,) hat values of the probes of the layers already selected, added up: `R` has seen
        the samples too. With the 1/n of the intercept they are :math:`g_i`.
    grid : ridges to choose from, relative to ``trace(X.T @ X) / min(n, d)`` of the centred `X`.

    Returns
    -------
    (loss, ridge): loss in [0, 1], without unit; ridge absolute, infinite if `X` does not help.
    """
    X, R = _float64(X, varying=True), _float64(R, varying=True)
    grid = np.asarray(grid, dtype=np.float64)
    if not grid.size or not (grid >= 0).all():
        raise ValueError(f"grid must hold ridges >= 0, at least one; got {grid.tolist()}.")
    n = len(X)
    X, R = X - X.mean(0), R - R.mean(0)
    known = 1 / n + np.asarray(leverage, dtype=np.float64) * np.ones(n)
    U, s, _ = np.linalg.svd(X, full_matrices=False)
    total = np.sum((R / (1 - known)[:, None]) ** 2)
    losses = {}
    for ridge in grid * np.mean(s**2):
        shrink = s**2 / (s**2 + ridge)
        errors = R - U @ (shrink[:, None] * (U.T @ R))
        hat = known + (U**2) @ shrink
        losses[ridge] = float(np.sum((errors / (1 - hat)[:, None]) ** 2) / total)
    ridge = min(losses, key=losses.get)
    return losses[ridge], float(ridge)


def spectral_entropy(X: ArrayLike) -> float:
    r"""Log participation ratio of the covariance of `X`, as a share of its maximum.

    .. math:: \text{Iso} = \frac{\log PR}{\log d}, \qquad
              PR = \frac{(\operatorname{tr} C)^2}{\lVert C \rVert_F^2}

    This is the Rényi entropy of order 2 of the normalised eigenvalues, divided by ``log(d)``.

    Chapter 4 derives it.

    Parameters
    ----------
    X : (n, d) features of the layer as they are, not orthogonalised.

    Returns
    -------
    float in [0, 1], without unit: 0 when one direction holds all variance, 1 when all d hold the
    same (also for d = 1).
    """
    X = _float64(X, varying=True)
    d = X.shape[1]
    C = np.cov(X, rowvar=False, bias=True).reshape(d, d)
    return log(np.trace(C) ** 2 / np.sum(C**2)) / log(d) if d > 1 else 1.0


def cka(X: ArrayLike, Y: ArrayLike) -> float:
    r"""Linear centred kernel alignment of two layers.

    .. math:: \text{CKA} = \frac{\lVert {X^c}^\top Y^c \rVert_F^2}
              {\lVert {X^c}^\top X^c \rVert_F \lVert {Y^c}^\top Y^c \rVert_F}

    Chapter 6 derives it.

    Parameters
    ----------
    X, Y : (n, d) and (n, e) features.

    Returns
    -------
    float in [0, 1], without unit: 1 for a layer with itself, however rotated or scaled
    (Kornblith et al., ICML 2019, arXiv 1905.00414).
    """
    X, Y = _float64(X, varying=True), _float64(Y, varying=True)
    X, Y = X - X.mean(0), Y - Y.mean(0)
    cross = np.linalg.norm(X.T @ Y) ** 2
    return float(cross / (np.linalg.norm(X.T @ X) * np.linalg.norm(Y.T @ Y)))


def triangle_share(X: ArrayLike, labels: ArrayLike) -> float:
    r"""Mean triangle area, as a share of what a regular simplex with the same variance reaches.

    .. math:: \text{Tri} = \text{area} \Big/
              \Big( \frac{\sqrt 3}{2} \frac{c}{c - 1} \operatorname{tr} \operatorname{Cov} X \Big)

    Chapter 7 derives it.

    Parameters
    ----------
    X : (n, d) features, orthogonalised against the layers already selected.
    labels : (n,) class of each sample.

    Returns
    -------
    float in [0, 1], without unit: 1 for a regular simplex of classes without spread, 0 for
    collapsed centroids or fewer than three classes. Cut at 1, which very unequal class sizes
    would otherwise exceed.
    """
    area = triangle_area(X, labels)
    if area == 0:
        return 0.0
    X = _float64(X)
    c = len(np.unique(labels))
    largest = sqrt(3) / 2 * c / (c - 1) * X.var(0).sum()
    return min(float(area / largest), 1.0)

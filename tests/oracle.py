"""LOES a second time: in sample space, in float64, by SVD, and anew at every step."""

from itertools import combinations

import numpy as np
import pandas as pd

from loes.criteria import CRITERIA
from loes.selection import PATH
from loes.terms import RIDGE_GRID

TARGETS = ["classes", "two classes", "values", "several values", "none"]
RANK = 1e-6  # singular values below this share of a layer's norm count as zero


def problem(seed, widths=(3, 5, 4, 2), n=40, target="classes", rank=None):
    """Layers that share some of their variance, off the origin, and a target they explain."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(n, 3))
    layers = []
    for d in widths:
        X = common @ rng.normal(size=(3, d)) + rng.normal(size=(n, d)) * np.geomspace(2, 0.5, d)
        if rank:
            X = X[:, :rank] @ rng.normal(size=(rank, d))
        layers.append(X + rng.normal(size=d))
    return layers, target_of(common + 0.5 * rng.normal(size=(n, 3)), target)


def target_of(signal, target):
    """Make one of TARGETS of three columns."""
    return {
        "classes": signal.argmax(1),
        "two classes": np.where(signal[:, 0] > 0, "yes", "no"),
        "values": signal[:, 0],
        "several values": signal,
        "none": None,
    }[target]


def area(p, q, r):
    """Half the product of the singular values of two edges; the zero row is for d = 1."""
    edges = np.pad(np.stack([q - p, r - p], axis=1), ((0, 1), (0, 0)))
    return np.prod(np.linalg.svd(edges, compute_uv=False)) / 2


def centre(X):
    """Subtract the mean, twice: what rounding left of a large one."""
    X = X - X.mean(0)
    return X - X.mean(0)


def isotropy(X, criterion):
    """Of the eigenvalues of the covariance, zeros included."""
    n, d = X.shape
    variances = np.zeros(d)
    variances[: min(n, d)] = np.linalg.svd(X, compute_uv=False) ** 2 / n
    if criterion == "paper":
        return variances.mean() / (variances.std() + 1e-6)
    if d == 1:
        return 1.0
    return -np.log(np.sum((variances / variances.sum()) ** 2)) / np.log(d)


def redundancy(X, Z, criterion):
    """Cosine of the kernels, or its counterpart for features that are not centred."""
    if criterion == "paper":
        return np.linalg.norm(X.T @ Z) / (np.linalg.norm(X) * np.linalg.norm(Z))
    X, Z = centre(X), centre(Z)
    return np.linalg.norm(X.T @ Z) ** 2 / (np.linalg.norm(X.T @ X) * np.linalg.norm(Z.T @ Z))


def triangle(X, labels, criterion):
    """Mean over triples of classes; over that of a simplex for the bounded criterion."""
    centroids = [X[labels == label].mean(0) for label in np.unique(labels)]
    areas = [area(*corners) for corners in combinations(centroids, 3)]
    if criterion == "paper" or not areas:
        return np.mean(areas) if areas else 0.0
    c = len(centroids)
    return min(np.mean(areas) / (np.sqrt(0.75) * c / (c - 1) * np.sum(X**2) / len(X)), 1.0)


def probes(X, residual, criterion, ridge, floor, hats):
    """Return (loss, fitted values, hat values) of every ridge probe; the paper's has one ridge.

    `hats` are the hat values of the probes before, with that of the intercept.
    """
    U, s, _ = np.linalg.svd(X, full_matrices=False)
    U, s = U[:, s > floor], s[s > floor]
    fits = []
    for multiple in RIDGE_GRID if criterion == "bounded" else [None]:
        penalty = ridge if multiple is None else multiple * np.sum(s**2) / min(X.shape)
        shrink = s**2 / (s**2 + penalty)
        fitted = U @ (shrink[:, None] * (U.T @ residual))
        errors = residual - fitted
        if criterion == "paper":
            loss = np.mean(errors**2)
        else:
            total = np.sum((residual / (1 - hats)[:, None]) ** 2)
            loss = np.sum((errors / (1 - hats - U**2 @ shrink)[:, None]) ** 2) / total
        fits.append((loss, fitted, U**2 @ shrink))
    return fits


def oracle(layers, y, criterion, n_layers, ridge=1e-3, order=None):
    """Return the picks and the path; `order` has it pick those instead of the best."""
    layers = [np.asarray(X, dtype=np.float64) for X in layers]
    n = len(layers[0])
    alpha, gamma, eta = (getattr(CRITERIA[criterion](), name) for name in ("alpha", "gamma", "eta"))
    residual, labels = None, None
    if y is not None:
        labels = y if y.dtype.kind in "iU" else None
        targets = pd.get_dummies(y).to_numpy(float) if labels is not None else y.reshape(n, -1)
        residual = centre(targets)
    centred = [centre(X) for X in layers]
    norms = [np.linalg.norm(X) for X in centred]
    basis, hats = np.empty((n, 0)), np.full(n, 1 / n)
    selected, rows = [], []
    for step in range(1, n_layers + 1):
        left, fits, step_rows = {}, {}, []
        for layer in sorted(set(range(len(layers))) - set(selected)):
            X = centred[layer]
            for _ in range(2):
                X = X - basis @ (basis.T @ X)
            floor = RANK * norms[layer]
            if np.linalg.norm(X) <= floor * np.sqrt(X.shape[1]):
                continue
            left[layer] = X
            loss, red, tri = np.nan, np.nan, np.nan
            iso = isotropy(centred[layer], criterion)
            if residual is not None:
                fits[layer] = min(
                    probes(X, residual, criterion, ridge, floor if ridge == 0 else 0, hats),
                    key=lambda fit: fit[0],
                )
                loss = fits[layer][0]
            if selected:
                red = max(redundancy(layers[layer], layers[j], criterion) for j in selected)
                tri = np.nan if labels is None else triangle(X, labels, criterion)
            parts = [loss, alpha * (1 - iso), gamma * red, -eta * tri]
            free = n - 1 - basis.shape[1]
            step_rows.append([step, layer, loss, iso, red, tri, np.nansum(parts), False, free])
        if not step_rows:
            break
        best = min(step_rows, key=lambda row: row[6])
        pick = best[1] if order is None else order[step - 1]
        for row in step_rows:
            row[7] = row[1] == pick
        rows += step_rows
        selected.append(pick)
        if residual is not None:
            residual, hats = residual - fits[pick][1], hats + fits[pick][2]
        U, s, _ = np.linalg.svd(left[pick], full_matrices=False)
        basis = np.hstack([basis, U[:, s > RANK * norms[pick]]])
    return selected, pd.DataFrame(rows, columns=PATH)


def assert_same_path(path, expected, rtol=1e-8):
    """Compare paths whatever the order of their rows.

    The area of a flat triangle is the root of a difference and keeps half the digits, as does a
    loss that is next to nothing: hence the absolute tolerances.
    """
    path, expected = (
        frame.sort_values(["step", "layer"], ignore_index=True) for frame in (path, expected)
    )
    flat = 1e-8 * max(1.0, expected.tri.abs().max()) if expected.tri.notna().any() else 0.0
    for name in PATH:
        atol = 1e-10 + (flat if name in ("tri", "score") else 0.0)
        np.testing.assert_allclose(path[name], expected[name], rtol, atol, err_msg=name)


def regime(name, seed, target="classes"):
    """Layers of one difficult kind, and a target: see REGIMES."""
    rng = np.random.default_rng(seed)
    n, widths = {
        "n < d": (20, [40, 30, 50, 35]),
        "n and d mixed": (40, [8, 60, 5, 50]),
        "n <= |S| d": (40, [15, 12, 14, 13]),
        "unequal widths": (60, [1, 9, 2, 14]),
    }.get(name, (60, [6, 6, 6, 6]))
    signal = rng.normal(size=(n, 3))
    common = signal + 0.5 * rng.normal(size=(n, 3))
    layers = [
        common @ rng.normal(size=(3, d)) + rng.normal(size=(n, d)) * np.geomspace(2, 0.5, d) + 1
        for d in widths
    ]
    if name.startswith("residual stream"):
        eps = float(name.split()[-1])
        for l in range(1, 4):
            layers[l] = layers[l - 1] + 4 * eps * rng.normal(size=(n, 6))
    if name == "scaled columns":
        layers = [X * 10 ** rng.uniform(-2, 2, size=X.shape[1]) for X in layers]
    if name == "scaled layers":
        layers = [X * scale for X, scale in zip(layers, [1e-3, 1, 1e3, 30], strict=True)]
    if name == "large means":
        layers = [X + 1e3 * rng.normal(size=X.shape[1]) for X in layers]
    if name == "short rank":
        layers = [X[:, :3] @ rng.normal(size=(3, X.shape[1])) for X in layers]
    if name == "duplicates":
        layers[2], layers[3] = layers[0], layers[1] @ np.linalg.qr(rng.normal(size=(6, 6)))[0]
    return layers, target_of(signal, target)


REGIMES = [
    "random",
    *(f"residual stream {eps}" for eps in (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)),
    "scaled columns",
    "scaled layers",
    "large means",
    "short rank",
    "duplicates",
    "unequal widths",
    "n < d",
    "n and d mixed",
    "n <= |S| d",
]

"""What `LOES.fit` is measured against: the same selection written out, and the bare products."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median

import numpy as np
import torch
from sklearn.linear_model import RidgeClassifierCV
from sklearn.model_selection import train_test_split
from torch import Tensor

from loes import terms
from loes.solver import BLOCK


def residual_stream(
    n: int, n_layers: int, d: int, rank: int | None = None, classes: int = 20, seed: int = 0
) -> tuple[list[Tensor], np.ndarray]:
    """Return float32 layers X_{l+1} = X_l + f(X_l) + noise, and labels; of full rank, or `rank`."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng)

    width = rank or d
    y = torch.arange(n) % classes
    scales = torch.arange(1, width + 1) ** -0.25  # the spectrum decays, as in real layers
    H, layers = normal(n, width) * scales + 0.5 * normal(classes, width)[y], []
    for _ in range(n_layers):
        layers.append(H @ normal(rank, d) / d**0.5 + 0.3 if rank else H + 0.3)
        mixed = torch.tanh(H @ normal(width, width) / width**0.5)
        H = H + 0.3 * mixed + 0.2 * normal(n, width)
    return layers, y.numpy()


def one_hot(y: np.ndarray) -> Tensor:
    """Return (n, c) float32 targets."""
    return torch.eye(y.max() + 1)[torch.from_numpy(y)]


def project_out(picked: Sequence[Tensor], X: Tensor) -> Tensor:
    """Remove from X the span of the picked layers, all centred: one solve of size |S| d."""
    if not picked:
        return X
    S = torch.cat(list(picked), dim=1)
    A = (S.T @ S).double()
    A.diagonal().add_((1e-6 if X.dtype == torch.float32 else 1e-10) * A.norm())  # above rounding
    W = torch.cholesky_solve((S.T @ X).double(), torch.linalg.cholesky(A))
    return X - S @ W.to(X.dtype)


def ridge_probe(X: Tensor, R: Tensor, ridge: float) -> Tensor:
    """Return what a ridge probe of X leaves of R."""
    A = (X.T @ X).double()
    A.diagonal().add_(ridge)
    return R - X @ torch.linalg.solve(A, (X.T @ R).double()).to(X.dtype)


def mean_area(X: Tensor, Y: Tensor, triples: Tensor) -> float:
    """Mean area of the class triangles, all triples at once."""
    M = (Y.T @ X) / Y.sum(0)[:, None]
    u, v = M[triples[1]] - M[triples[0]], M[triples[2]] - M[triples[0]]
    square = u.square().sum(1) * v.square().sum(1) - (u * v).sum(1).square()
    return float(0.5 * square.clamp(min=0).sqrt().mean())


def literal_paper(
    layers: Sequence[Tensor], y: np.ndarray, k: int, dtype: torch.dtype = torch.float64
) -> list[int]:
    """LOES by the definitions of criterion="paper": every term from the samples, each time."""
    layers, Y, selected = [X.to(dtype) for X in layers], one_hot(y).to(dtype), []
    triples = torch.tensor(list(combinations(range(Y.shape[1]), 3))).T
    centred = [X - X.mean(0) for X in layers]
    R = Y - Y.mean(0)
    for _ in range(k):
        scores = {}
        for l in sorted(set(range(len(layers))) - set(selected)):
            X = project_out([centred[s] for s in selected], centred[l])
            eigenvalues = torch.linalg.eigvalsh((centred[l].T @ centred[l]).double() / len(X))
            iso = eigenvalues.mean() / (eigenvalues.std(correction=0) + 1e-6)
            scores[l] = float(ridge_probe(X, R, 1e-3).square().mean() + 1 - iso)
            if selected:
                red = max(
                    (layers[l].T @ layers[s]).norm() / (layers[l].norm() * layers[s].norm())
                    for s in selected
                )
                scores[l] += float(0.5 * red) - 0.1 * mean_area(X, Y, triples)
        pick = min(scores, key=scores.get)
        R = ridge_probe(project_out([centred[s] for s in selected], centred[pick]), R, 1e-3)
        selected.append(pick)
    return selected


def literal_bounded(layers: Sequence[Tensor], y: np.ndarray, k: int) -> list[int]:
    """LOES by the definitions of criterion="bounded": the functions of `loes.terms`, in float64."""
    Y, selected = one_hot(y).double(), []
    centred = [X.double() - X.double().mean(0) for X in layers]
    R = Y - Y.mean(0)
    for _ in range(k):
        scores, ridges = {}, {}
        for l in sorted(set(range(len(layers))) - set(selected)):
            X = project_out([centred[s] for s in selected], centred[l]).numpy()
            loss, ridges[l] = terms.loo_loss(X, R)
            scores[l] = loss + 0.1 * (1 - terms.spectral_entropy(layers[l]))
            if selected:
                red = max(terms.cka(layers[l], layers[s]) for s in selected)
                scores[l] += 0.1 * red - 0.1 * terms.triangle_share(X, y)
        pick = min(scores, key=scores.get)
        if np.isfinite(ridges[pick]):
            X = project_out([centred[s] for s in selected], centred[pick])
            R = ridge_probe(X, R, ridges[pick])
        selected.append(pick)
    return selected


def sequential_ridge(layers: Sequence[Tensor], y: np.ndarray, k: int) -> list[int]:
    """Forward selection of whole layers with scikit-learn: a RidgeClassifierCV a candidate."""
    train, test = train_test_split(np.arange(len(y)), random_state=0, stratify=y)
    selected = []
    for _ in range(k):
        scores = {}
        for l in sorted(set(range(len(layers))) - set(selected)):
            X = torch.cat([layers[s] for s in (*selected, l)], dim=1).numpy()
            probe = RidgeClassifierCV(alphas=np.logspace(-1, 3, 5)).fit(X[train], y[train])
            scores[l] = probe.score(X[test], y[test])
        selected.append(max(scores, key=scores.get))
    return selected


def bare_products(layers: Sequence[Tensor], k: int) -> None:
    """Multiply what no method can leave out: L Gram products, each pick with all that remain."""
    remaining = list(range(len(layers)))
    pairs = [(l, l) for l in remaining]
    for _ in range(k - 1):
        pick = remaining.pop()
        pairs += [(pick, l) for l in remaining]
    blocks = [
        [X[start : start + BLOCK] for X in layers] for start in range(0, len(layers[0]), BLOCK)
    ]
    for i, j in pairs:
        sum(block[i].T @ block[j] for block in blocks)


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def synchronize() -> None:
    """Wait for the accelerator, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(run: Callable[[], object], clock: str = "wall") -> float:
    """Return the time of one call."""
    synchronize()
    start = CLOCKS[clock]()
    run()
    synchronize()
    return CLOCKS[clock]() - start


def interleaved(
    runs: dict[str, Callable[[], object]], repeats: int, clock: str = "wall"
) -> dict[str, float]:
    """Return the median time of each, taken in turns, so that other load meets all alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(seconds(run, clock))
    return {name: median(values) for name, values in times.items()}


def print_peak() -> None:
    """Print the peak memory of this process so far, in bytes (Linux)."""
    # Not ru_maxrss, which a process inherits from the one that started it.
    status = Path("/proc/self/status").read_text()
    print(int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024)


def child_peak(script: str, *arguments: object) -> int:
    """Return what ``script --child ...`` prints: its peak, with freed arrays given back at once."""
    command = [sys.executable, script, "--child", *map(str, arguments)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # else peaks vary by 100 MB
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(run.stdout.split()[-1])

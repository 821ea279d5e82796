"""What a criterion makes of the statistics of a candidate: the four terms of Eq. 7.

Above 100,000 triples, which is from 86 classes on, the mean triangle is that of a seeded sample of
them; naming the classes in another order then draws other triples, and moves scores by about 2e-3.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import comb, log, sqrt

import numpy as np
import torch
from torch import Tensor

from loes.solver import Alignment, Spectrum, Stack

MAX_TRIANGLES = 100_000


@lru_cache(maxsize=64)
def all_triples(c: int) -> Tensor:
    """All triples of c classes, (3, m)."""
    return torch.combinations(torch.arange(c), 3).T


@lru_cache(maxsize=8)
def _triples(c: int, seed: int) -> Tensor:
    """All triples of c classes, or a seeded sample of distinct ones where they are too many."""
    if comb(c, 3) <= MAX_TRIANGLES:
        return all_triples(c)
    draws = np.random.default_rng(seed).integers(0, c, size=(2 * MAX_TRIANGLES, 3))
    draws = np.unique(np.sort(draws, axis=1), axis=0)
    draws = draws[(np.diff(draws, axis=1) > 0).all(axis=1)]
    return torch.from_numpy(np.random.default_rng(seed).permutation(draws)[:MAX_TRIANGLES].T)


def triangle_squares(gram: Tensor, triples: Tensor) -> tuple[Tensor, Tensor]:
    """Squared double areas of triangles, and the rectangles of two of their sides that bound them.

    Parameters
    ----------
    gram : (c, c) inner products of the points.
    triples : (3, m) corners of each triangle.
    """
    i, j, k = triples.to(gram.device)
    squares = gram.diagonal()
    distances = (squares[:, None] + squares - 2 * gram).flatten()  # squared
    uu, vv, ww = (distances.index_select(0, a * len(gram) + b) for a, b in ((i, j), (i, k), (j, k)))
    return uu * vv - ((uu + vv - ww) / 2).square(), uu * vv


def mean_triangle_area(gram: Tensor, seed: int = 0) -> float:
    """Mean area of the triangles between c points, from their (c, c) inner products."""
    if len(gram) < 3:
        return 0.0
    squares, _ = triangle_squares(gram, _triples(len(gram), seed))
    return float(0.5 * squares.clamp(min=0).sqrt().mean())


def sampled_share(c: int, triangles: str) -> float:
    """Share of triples of c classes that are distinct: all, or as drawn with replacement."""
    return (c - 1) * (c - 2) / c**2 if triangles == "authors" else 1.0


@dataclass(frozen=True)
class Paper:
    """The terms as Batra et al. (2026) define them (Eq. 7)."""

    alpha: float = 1.0
    gamma: float = 0.5
    eta: float = 0.1
    ridge: float = 1e-3
    triangles: str = "distinct"
    in_sample = True

    def losses(self, stack: Stack, layers: list[int]) -> dict[int, tuple[float, float]]:
        """In-sample mean squared error of each candidate's probe, and its ridge."""
        entries = stack.moments.n * stack.moments.n_targets
        return {l: (stack.ridge_rss(l, self.ridge) / entries, self.ridge) for l in layers}

    def isotropy(self, spectrum: Spectrum, n: int) -> float:
        """Mean over standard deviation of the eigenvalues of the covariance."""
        trace, spread, d = spectrum
        return (trace / n / d) / (sqrt(spread / d) / n + 1e-6)

    def redundancy(self, stack: Stack, layer: int, alignment: Alignment) -> float:
        """Frobenius alignment with one pick, features not centred."""
        moments = stack.moments
        sizes = [
            stack.spectra[l].trace + moments.n * float(moments.means[l].square().sum())
            for l in (layer, alignment.pick)
        ]
        return sqrt(max(alignment.raw, 0.0) / (sizes[0] * sizes[1]))

    def triangle(self, stack: Stack, layer: int, area: float) -> float:
        """Mean triangle area, in the units of the features squared."""
        return area * sampled_share(stack.moments.n_targets, self.triangles)


@dataclass(frozen=True)
class Bounded:
    """The same four ideas, each within [0, 1], so that the weights mean what they say.

    The weights come from data/sensitivity.py: on five models the layers chosen hardly depend on
    them, but for one, where Iso above a tenth picks layers that serve the probe less.
    """

    alpha: float = 0.1
    gamma: float = 0.1
    eta: float = 0.1
    ridge: float = 1e-3  # not used: leave-one-out chooses
    triangles: str = "distinct"
    in_sample = False

    def losses(self, stack: Stack, layers: list[int]) -> dict[int, tuple[float, float]]:
        """Leave-one-out share of the residual left unexplained, and the ridge that attains it."""
        return {l: (fit.loss, fit.ridge) for l, fit in stack.loo(layers).items()}

    def isotropy(self, spectrum: Spectrum, n: int) -> float:
        """Log participation ratio over log width."""
        trace, _, d = spectrum
        return log(trace**2 / spectrum.square_sum) / log(d) if d > 1 else 1.0

    def redundancy(self, stack: Stack, layer: int, alignment: Alignment) -> float:
        """Linear centred kernel alignment with one pick."""
        own, pick = (stack.spectra[l].square_sum for l in (layer, alignment.pick))
        return alignment.centred / sqrt(own * pick)

    def triangle(self, stack: Stack, layer: int, area: float) -> float:
        """Mean triangle area over that of a regular simplex that holds all variance."""
        c = stack.moments.n_targets
        largest = sqrt(3) / 2 * c / (c - 1) * stack.energy(layer) / stack.moments.n
        return min(area / largest, 1.0) * sampled_share(c, self.triangles) if area > 0 else 0.0


Criterion = Paper | Bounded
CRITERIA = {"paper": Paper, "bounded": Bounded}

"""The small matrices behind a greedy selection, in two forms that answer the same questions.

`Primal` works with d x d Gram matrices, `Dual` with n x n kernels. Both are immutable: `pick`
returns what is left once a layer's span has been projected out of all others, so that several
selections can branch off the same statistics.

Notation: X^c is centred, X~ is X^c orthogonalised against the layers picked so far, R the residual
of the targets. Only the cross-Gram G = X_s^cT X_l^c of a pick s and a candidate l costs a product
over the samples. With T such that Q = X~_s T is orthonormal and V = Q^T X_l, the Gram matrix A of
X~_l becomes A - V^T V, and its product b with R becomes b - V^T T^T b_s.

Factorisations, and all products of float64 features, are in float64. With float32 features, V and
the Gram matrices of candidates come from float32 products. What would amplify their rounding does
not: the Gram matrix of a pick, which T is made of, is taken anew from the samples in float64, and Q
itself is formed. (T^T G from a float32 G would be noise wherever a layer is nearly singular, as
every layer behind a LayerNorm is.)
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

# Singular values below this share of the root of a layer's total variance count as zero: rounding
# noise of float32 features, and all that a float64 Gram matrix can resolve.
RANK_TOLERANCE = 1e-6
# Where a projection leaves less than this share of a layer's variance, or a fit less than this
# share of the residual, the difference of Gram matrices has lost digits: ask the samples again.
CANCELLED = {torch.float64: 1e-4, torch.float32: 1e-2}
RIDGE_GRID = (*(10 ** (k / 2) for k in range(-8, 7)), float("inf"))
BLOCK = 2048  # samples a product: few in float64 at a time, enough to keep the hardware busy


class Spectrum(NamedTuple):
    """What is needed of the d eigenvalues of a centred Gram matrix."""

    trace: float
    spread: float  # sum of squared differences from their mean
    width: int

    @property
    def square_sum(self) -> float:
        """Sum of the squared eigenvalues: the squared Frobenius norm."""
        return self.spread + self.trace**2 / self.width


class LooFit(NamedTuple):
    """The best ridge probe of a grid, judged by leave-one-out."""

    loss: float  # share of the residual left unexplained
    error: float  # standard error of that share, over the samples
    ridge: float


class Alignment(NamedTuple):
    """Squared Frobenius norms of the cross-Gram of a candidate and one pick."""

    pick: int
    centred: float
    raw: float


class Block(NamedTuple):
    """Some samples: rows of every layer as extracted, and of the centred targets."""

    layers: Sequence[Tensor]
    means: Sequence[Tensor]
    targets: Tensor | None

    def rows(self, layer: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Centred rows of one layer."""
        return self.layers[layer].to(dtype) - self.means[layer].to(dtype)


@dataclass(frozen=True)
class Samples:
    """Layers and targets in memory: the moments that `Primal` needs, a block of samples at a time.

    `layers` are (n, d_l) tensors of float32 or float64 with their (d_l,) float64 `means`; `targets`
    is (n, c) float64 and centred, or None; `counts` holds the class sizes, or None.
    """

    layers: Sequence[Tensor]
    means: Sequence[Tensor]
    targets: Tensor | None
    counts: Tensor | None

    in_memory = rereadable = True  # the samples can be asked again

    @classmethod
    def of(cls, layers: Sequence[Tensor], targets: Tensor | None, counts: Tensor | None):
        """Take the means of the layers, and centre the targets."""
        means = [sum(x.double().sum(0) for x in X.split(BLOCK)) / len(X) for X in layers]
        return cls(layers, means, None if targets is None else targets - targets.mean(0), counts)

    def standardized(self) -> "Samples":
        """Return a copy whose features have mean 0 and variance 1; constant features become 0."""
        layers = []
        for X, mean in zip(self.layers, self.means, strict=True):
            variance = sum((x.double() - mean).square().sum(0) for x in X.split(BLOCK)) / self.n
            layers.append(((X.double() - mean) * inverse_deviation(variance, mean)).to(X.dtype))
        return Samples.of(layers, self.targets, self.counts)

    @property
    def n(self) -> int:
        """Number of samples."""
        return len(self.layers[0])

    @property
    def n_targets(self) -> int:
        """Number of target columns."""
        return 0 if self.targets is None else self.targets.shape[1]

    @property
    def target_energy(self) -> float:
        """Squared norm of the centred targets."""
        return 0.0 if self.targets is None else float(self.targets.square().sum())

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the products: float32 if all layers are."""
        single = all(X.dtype == torch.float32 for X in self.layers)
        return torch.float32 if single else torch.float64

    def blocks(self) -> Iterator[Block]:
        """Cut the samples into consecutive blocks."""
        for start in range(0, self.n, BLOCK):
            rows = slice(start, start + BLOCK)
            targets = None if self.targets is None else self.targets[rows]
            yield Block([X[rows] for X in self.layers], self.means, targets)

    def gram(self, layer: int) -> Tensor:
        """X^cT X^c, (d, d)."""
        return sum(gram_of(block.rows(layer, self.dtype)).double() for block in self.blocks())

    def cross(self, first: int, second: int) -> Tensor:
        """X_i^cT X_j^c, (d_i, d_j)."""
        return sum(block.rows(first).T @ block.rows(second) for block in self.blocks())

    def project(self, Q: Tensor, layer: int) -> Tensor:
        """Q^T X, (rank, d), for an orthonormal basis of (n, rank)."""
        pairs = zip(Q.split(BLOCK), self.blocks(), strict=True)
        return sum(q.T @ block.rows(layer, Q.dtype) for q, block in pairs)

    def against_targets(self, layer: int) -> Tensor | None:
        """X^cT Y^c, (d, c)."""
        if self.targets is None:
            return None
        return sum(block.rows(layer).T @ block.targets for block in self.blocks())


def inverse_deviation(variance: Tensor, mean: Tensor) -> Tensor:
    """1 / standard deviation of each feature, or 0 where that is rounding noise."""
    varies = variance > RANK_TOLERANCE**2 * (variance + mean.square())
    return torch.where(varies, variance.rsqrt(), 0.0)


def gram_of(X: Tensor, out: Tensor | None = None) -> Tensor:
    """Return X^T X by halves: 5/8 of the work of a product that does not know of the symmetry."""
    d = X.shape[1]
    out = X.new_empty(d, d) if out is None else out
    if d < 128:
        return torch.mm(X.T, X, out=out)
    half = d // 2
    gram_of(X[:, :half], out[:half, :half])
    gram_of(X[:, half:], out[half:, half:])
    out[:half, half:] = X[:, :half].T @ X[:, half:]
    out[half:, :half] = out[:half, half:].T
    return out


def spread_of(M: Tensor, trace: float) -> float:
    """Sum of squared differences of M's eigenvalues from their mean, without cancellation."""
    M = M.clone()
    M.diagonal().sub_(trace / len(M))
    return float(M.square().sum())


def solve_ridge(A: Tensor, b: Tensor, ridge: float) -> Tensor:
    """Return (A + ridge I)^-1 b, A positive semidefinite; by pseudo-inverse if that is singular."""
    if ridge == float("inf"):
        return torch.zeros_like(b)
    shifted = A.clone()
    shifted.diagonal().add_(ridge)
    L, info = torch.linalg.cholesky_ex(shifted)
    pivots = L.diagonal().square() / shifted.diagonal().clamp(min=torch.finfo(A.dtype).tiny)
    if not info and pivots.min() > RANK_TOLERANCE**2:
        return torch.cholesky_solve(b, L)
    eigenvalues, P = torch.linalg.eigh(A)
    kept = eigenvalues > RANK_TOLERANCE**2 * eigenvalues[-1]
    P = P[:, kept]
    return P @ ((P.T @ b) / (eigenvalues[kept] + ridge)[:, None])


def whitening(A: Tensor, energy: float) -> Tensor:
    """T with T^T A T = I and as many columns as A has eigenvalues that are not rounding noise."""
    L, info = torch.linalg.cholesky_ex(A)
    pivots = L.diagonal().square()
    if not info and pivots.min() > 1e-8 * energy:
        identity = torch.eye(len(A), dtype=A.dtype, device=A.device)
        return torch.linalg.solve_triangular(L, identity, upper=False).T
    eigenvalues, P = torch.linalg.eigh(A)
    kept = eigenvalues > RANK_TOLERANCE**2 * energy
    return P[:, kept] * eigenvalues[kept].rsqrt()


def left_out(errors: Tensor, kept: Tensor) -> Tensor:
    """Errors of samples had they been left out: divided by what their hat values lack of 1.

    Where that is rounding noise, the probe passes through the sample whatever its target.
    """
    return errors / kept.clamp(min=RANK_TOLERANCE**2)


def best_ridge(ridges: Tensor, gains: Tensor, squares: Tensor, total: float, n: int) -> LooFit:
    """Choose the ridge from sums over samples of the leave-one-out gain and of its square."""
    k = int(gains.argmax())
    variance = (squares[k] / n - (gains[k] / n) ** 2).clamp(min=0)
    error = float((variance * n).sqrt()) / total
    return LooFit(1 - float(gains[k]) / total, error, float(ridges[k]))


class Pick(NamedTuple):
    """A picked layer: Q = X~ T, X~ = Q U^T, V = Q^T X of the candidates that remained, the probe.

    For float32 features Q is kept, and the probe acts on it; otherwise it acts on X~.
    """

    layer: int
    whiten: Tensor
    unwhiten: Tensor  # U
    ridge: float | None
    probe: Tensor | None
    coefficients: dict[int, Tensor]
    basis: Tensor | None

    def smoother(self) -> Tensor:
        """S such that the ridge probe of this pick predicts Q S Q^T R."""
        gram = self.unwhiten.T @ self.unwhiten
        return solve_ridge(gram, gram, self.ridge)


@dataclass(frozen=True)
class Primal:
    """A stack of layers by its d x d moments, for n > d and for streamed statistics."""

    moments: Samples
    spectra: dict[int, Spectrum]
    grams: dict[int, Tensor]  # A = X~^T X~ of each candidate
    against: dict[int, Tensor | None]  # b = X~^T R
    rss: float  # ||R||^2
    alignments: dict[int, tuple[Alignment, ...]]
    picks: tuple[Pick, ...] = ()
    rank: int = 0  # of the picked layers together

    @classmethod
    def open(cls, moments: Samples, layers: Sequence[int]) -> "Primal":
        """Compute the moments of every layer."""
        grams = {l: moments.gram(l) for l in layers}
        traces = {l: float(A.trace()) for l, A in grams.items()}
        return cls(
            moments,
            {l: Spectrum(traces[l], spread_of(A, traces[l]), len(A)) for l, A in grams.items()},
            grams,
            {l: moments.against_targets(l) for l in layers},
            moments.target_energy,
            {l: () for l in layers},
        )

    @property
    def candidates(self) -> list[int]:
        """The layers not picked yet."""
        return sorted(self.grams)

    def energy(self, layer: int) -> float:
        """Total variance, times n, of X~."""
        return float(self.grams[layer].trace())

    def centroid_gram(self, layer: int) -> Tensor:
        """Inner products of the class centroids of X~, (c, c)."""
        centroids = self.against[layer] / self.moments.counts
        return centroids.T @ centroids

    def ridge_rss(self, layer: int, ridge: float) -> float:
        """||R - X~ W||^2 of the ridge probe."""
        return self._probe(layer, ridge)[1]

    def _probe(self, layer: int, ridge: float) -> tuple[Tensor, float]:
        """Return W of the ridge probe and ||R - X~ W||^2."""
        moments = self.moments
        W = solve_ridge(self.grams[layer], self.against[layer], ridge)
        rss = self.rss - float((W * (2 * self.against[layer] - self.grams[layer] @ W)).sum())
        if rss < CANCELLED[moments.dtype] * self.rss and moments.rereadable:
            if moments.dtype == torch.float32:
                self._refine([layer])
                W = solve_ridge(self.grams[layer], self.against[layer], ridge)
            rows = self._residual_blocks()
            rss = sum(float((r - x(layer) @ W).square().sum()) for x, _, r in rows)
        return W, max(rss, 0.0)

    def loo(self, layers: Sequence[int]) -> dict[int, LooFit]:
        """Best leave-one-out ridge probe of each layer; reads the samples once.

        What is left out is left out of the picks' probes too: their hat values count.
        """
        n, probes = self.moments.n, {}
        smoothers = [pick.smoother() for pick in self.picks]
        total, sums = 0.0, {l: [0.0, 0.0] for l in layers}
        for l in layers:
            eigenvalues, P = torch.linalg.eigh(self.grams[l])
            mean = eigenvalues.clamp(min=0).sum() / min(n, len(eigenvalues))
            ridges = mean * eigenvalues.new_tensor(RIDGE_GRID)
            inverse = 1 / (eigenvalues.clamp(min=0)[:, None] + ridges)
            W = inverse[:, :, None] * (P.T @ self.against[l])[:, None]  # (d, ridges, c)
            probes[l] = ridges, P, inverse, W.flatten(1)
        for x, bases, r in self._residual_blocks():
            free = r.new_full((len(r), 1), 1 - 1 / n)
            for Q, S in zip(bases, smoothers, strict=True):
                free = free - ((Q @ S) * Q).sum(1, keepdim=True)
            before = left_out(r, free).square().sum(1, keepdim=True)
            total += float(before.sum())
            for l in layers:
                ridges, P, inverse, W = probes[l]
                z = x(l) @ P
                errors = r[:, None] - (z @ W).unflatten(1, (len(ridges), -1))
                kept = free - z.square() @ inverse
                gain = before - left_out(errors, kept[..., None]).square().sum(2)
                sums[l][0] = sums[l][0] + gain.sum(0)
                sums[l][1] = sums[l][1] + gain.square().sum(0)
        return {l: best_ridge(probes[l][0], *sums[l], total, n) for l in layers}

    def pick(self, layer: int, ridge: float | None) -> "Primal":
        """Fit the layer, take it from the candidates and project its span out of the others."""
        b, moments, Q = self.against[layer], self.moments, None
        if moments.dtype == torch.float32:
            rows = [x(layer) for x, *_ in self._residual_blocks()]
            self.grams[layer] = sum(gram_of(x) for x in rows)
        A = self.grams[layer]
        T = whitening(A, self.spectra[layer].trace)
        if moments.dtype == torch.float32:
            Q = torch.cat([x @ T for x in rows])
            del rows  # as large as Q, and not needed again
        single = None if Q is None else Q.float()
        unwhiten = A @ T  # X~_s = Q unwhiten^T
        whitened = None if b is None else T.T @ b
        coefficients, grams, against, alignments = {}, {}, {}, {}
        for l in self.grams.keys() - {layer}:
            earlier = [
                (pick.coefficients[layer].to(moments.dtype), pick.coefficients[l].to(moments.dtype))
                for pick in self.picks
            ]
            if Q is None:
                G = moments.cross(layer, l)
                V = T.T @ (G - sum(Vs.T @ Vl for Vs, Vl in earlier))
            else:
                V = moments.project(single, l)
                G = unwhiten.float() @ V + sum(Vs.T @ Vl for Vs, Vl in earlier)
                G = G.double()
            alignments[l] = (*self.alignments[l], self.align(layer, l, G))
            coefficients[l] = V
            grams[l] = self.grams[l] - gram_of(V).double()
            against[l] = None if b is None else self.against[l] - V.double().T @ whitened
        W, rss = (None, 0.0) if b is None else self._probe(layer, ridge)
        probe = W if Q is None or W is None else unwhiten.T @ W
        left = replace(
            self,
            grams=grams,
            against=against,
            rss=rss,
            alignments=alignments,
            picks=(*self.picks, Pick(layer, T, unwhiten, ridge, probe, coefficients, Q)),
            rank=self.rank + T.shape[1],
        )
        cancelled = CANCELLED[moments.dtype]
        lost = [l for l in grams if left.energy(l) < cancelled * self.spectra[l].trace]
        if lost and moments.rereadable:
            left._refine(lost)
        return left

    def _refine(self, layers: Sequence[int]) -> None:
        """Compute anew, from the samples, what the picks have left of some layers."""
        rest = {(k, l): 0.0 for k in range(len(self.picks)) for l in layers}
        for x, bases, _ in self._residual_blocks():
            for k, l in rest:
                rest[k, l] = rest[k, l] + bases[k].T @ x(l)
        for (k, l), V in rest.items():  # a second projection removes what rounding left
            self.picks[k].coefficients[l] = self.picks[k].coefficients[l] + V
        sums = {l: [0.0, 0.0] for l in layers}
        for x, _, r in self._residual_blocks():
            for l in layers:
                X = x(l)
                sums[l][0] = sums[l][0] + gram_of(X)
                sums[l][1] = None if r is None else sums[l][1] + X.T @ r
        for l in layers:
            self.grams[l], self.against[l] = sums[l]

    def align(self, s: int, l: int, G: Tensor | None = None) -> Alignment:
        """Norms of the cross-Gram of two layers, as extracted; G if it is at hand."""
        G = self.moments.cross(s, l) if G is None else G
        n, mu, nu = self.moments.n, self.moments.means[s], self.moments.means[l]
        centred = float(G.square().sum())
        shift = 2 * n * float(mu @ G @ nu)
        return Alignment(s, centred, centred + shift + _mean_energy(n, mu, nu))

    def _residual_blocks(self) -> Iterator[tuple[Callable, list[Tensor], Tensor | None]]:
        """Yield a function from layer to rows of X~, those of each Q, and of R, block by block.

        The function takes picks as well: what the picks before them have left of them.
        """
        start = 0
        for block in self.moments.blocks():
            bases: list[Tensor] = []
            stop = start + len(block.layers[0])

            def rows(layer, block=block, bases=bases):
                x = block.rows(layer)
                for pick, Q in zip(self.picks, bases, strict=False):
                    if pick.layer == layer:
                        break
                    x = x - Q @ pick.coefficients[layer].double()
                return x

            r = block.targets
            for pick in self.picks:
                if pick.basis is None:
                    x = rows(pick.layer)
                    fit, Q = x @ pick.probe if r is not None else None, x @ pick.whiten
                else:
                    Q = pick.basis[start:stop]
                    fit = Q @ pick.probe if r is not None else None
                r = None if r is None else r - fit
                bases.append(Q)
            start = stop
            yield rows, bases, r


@dataclass(frozen=True)
class Dual:
    """A stack of layers by its n x n kernels, for n < d: never holds a d x d matrix."""

    moments: Samples
    spectra: dict[int, Spectrum]
    originals: dict[int, Tensor]  # X^c X^cT of every layer
    kernels: dict[int, Tensor]  # X~ X~^T of each candidate
    residual: Tensor | None  # R
    leverage: Tensor  # hat values of the picks' probes, (n, 1)
    alignments: dict[int, tuple[Alignment, ...]]
    basis: Tensor  # Q of all picks, (n, rank)

    @classmethod
    def open(cls, moments: Samples, layers: Sequence[int]) -> "Dual":
        """Compute the kernel of every layer."""
        whole = Block(moments.layers, moments.means, moments.targets)
        kernels, spectra = {}, {}
        for l in layers:
            X = whole.rows(l)
            n, d = X.shape
            K = X @ X.T
            trace = float(K.trace())
            smaller = K if n <= d else X.T @ X
            # With n < d, the d - n eigenvalues that K lacks are zero.
            spread = spread_of(smaller, trace) + trace**2 * (1 / len(smaller) - 1 / d)
            kernels[l], spectra[l] = K, Spectrum(trace, spread, d)
        basis = kernels[layers[0]].new_empty(moments.n, 0)
        leverage = basis.new_zeros(moments.n, 1)
        nothing = {l: () for l in layers}
        return cls(moments, spectra, kernels, kernels, moments.targets, leverage, nothing, basis)

    @property
    def candidates(self) -> list[int]:
        """The layers not picked yet."""
        return sorted(self.kernels)

    @property
    def rank(self) -> int:
        """Dimensions that the picks span together."""
        return self.basis.shape[1]

    def energy(self, layer: int) -> float:
        """Total variance, times n, of X~."""
        return float(self.kernels[layer].trace())

    def centroid_gram(self, layer: int) -> Tensor:
        """Inner products of the class centroids of X~, (c, c)."""
        average = self.moments.targets / self.moments.counts
        return average.T @ self.kernels[layer] @ average

    def ridge_rss(self, layer: int, ridge: float) -> float:
        """||R - X~ W||^2 of the ridge probe."""
        return float(self._unexplained(layer, ridge).square().sum())

    def loo(self, layers: Sequence[int]) -> dict[int, LooFit]:
        """Best leave-one-out ridge probe of each layer, the picks' hat values counted."""
        n, r, fits = self.moments.n, self.residual, {}
        free = 1 - 1 / n - self.leverage
        before = left_out(r, free).square().sum(1, keepdim=True)
        for l in layers:
            eigenvalues, P = torch.linalg.eigh(self.kernels[l])
            eigenvalues = eigenvalues.clamp(min=0)
            mean = eigenvalues.sum() / min(n, self.spectra[l].width)
            ridges = mean * eigenvalues.new_tensor(RIDGE_GRID)
            left = 1 / (1 + eigenvalues[:, None] / ridges)  # 1 - shrinkage, (n, ridges)
            errors = P @ (left[:, :, None] * (P.T @ r)[:, None]).flatten(1)
            errors = errors.unflatten(1, (len(ridges), -1))
            kept = P.square() @ left - 1 / n - self.leverage  # without cancellation
            gain = before - left_out(errors, kept[..., None]).square().sum(2)
            total = float(before.sum())
            fits[l] = best_ridge(ridges, gain.sum(0), gain.square().sum(0), total, n)
        return fits

    def pick(self, layer: int, ridge: float | None) -> "Dual":
        """Fit the layer, take it from the candidates and project its span out of the others."""
        eigenvalues, P = torch.linalg.eigh(self.kernels[layer])
        kept = eigenvalues > RANK_TOLERANCE**2 * self.spectra[layer].trace
        eigenvalues, Q = eigenvalues[kept], P[:, kept]
        leverage = self.leverage
        if self.residual is not None:
            shrink = eigenvalues / (eigenvalues + ridge)
            leverage = leverage + Q.square() @ shrink[:, None]
        others = [l for l in self.candidates if l != layer]
        left = replace(
            self,
            kernels={},
            residual=None if self.residual is None else self._unexplained(layer, ridge),
            leverage=leverage,
            alignments={l: (*self.alignments[l], self.align(layer, l)) for l in others},
            basis=torch.cat([self.basis, Q], dim=1),
        )
        for l in others:
            K = self.kernels[l]
            KQ = K @ Q
            M = Q @ (KQ - Q @ (Q.T @ KQ) / 2).T
            left.kernels[l] = K - M - M.T
            if left.energy(l) < CANCELLED[torch.float64] * self.spectra[l].trace:
                x = self.moments.layers[l].double() - self.moments.means[l]
                for _ in range(2):  # the second pass removes what rounding left of the first
                    x = x - left.basis @ (left.basis.T @ x)
                left.kernels[l] = x @ x.T
        return left

    def _unexplained(self, layer: int, ridge: float) -> Tensor:
        K, R = self.kernels[layer], self.residual
        if ridge == float("inf"):
            return R
        shifted = K.clone()
        shifted.diagonal().add_(ridge)
        L, info = torch.linalg.cholesky_ex(shifted)
        if not info and ridge > 1e-10 * float(K.trace()):
            return ridge * torch.cholesky_solve(R, L)
        eigenvalues, P = torch.linalg.eigh(K)
        kept = eigenvalues > RANK_TOLERANCE**2 * eigenvalues[-1]
        shrink = torch.where(kept, eigenvalues / (eigenvalues + ridge), 0)
        return R - P @ (shrink[:, None] * (P.T @ R))

    def align(self, s: int, l: int) -> Alignment:
        """Norms of the cross-Gram of two layers, as extracted."""
        moments, n = self.moments, self.moments.n
        centred = float((self.originals[s] * self.originals[l]).sum())
        mu, nu = moments.means[s], moments.means[l]
        shift = (moments.layers[s].double() - mu) @ mu @ ((moments.layers[l].double() - nu) @ nu)
        return Alignment(s, centred, centred + 2 * n * float(shift) + _mean_energy(n, mu, nu))


def _mean_energy(n: int, mu: Tensor, nu: Tensor) -> float:
    return (n * float(mu.norm() * nu.norm())) ** 2


Stack = Primal | Dual


def open_stack(moments: Samples, layers: Sequence[int]) -> Stack:
    """Open the smaller of the two forms for some layers of `moments`."""
    widths = [len(moments.means[l]) for l in layers]
    dual = moments.in_memory and moments.n**2 * len(widths) < sum(d**2 for d in widths)
    return (Dual if dual else Primal).open(moments, layers)

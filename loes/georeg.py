"""GeoReg: keep the covariance spectrum of fused features even and their class centroids apart."""

from math import comb
from typing import NamedTuple

import torch
from torch import Tensor, nn

from loes.criteria import all_triples, triangle_squares


class GeoRegParts(NamedTuple):
    """The penalty and what it is made of, each a scalar tensor.

    Chapter 10 derives them.
    """

    loss: Tensor  # to add to the task's loss; the only part that carries the weight
    variance: Tensor  # of the eigenvalues of the covariance
    area: Tensor  # mean over centroid triangles; 0 where the batch has fewer than three classes


class GeoReg(nn.Module):
    r"""Geometric regularisation of a batch of features.

    .. math:: w \left( \operatorname{Var}(\lambda(\operatorname{Cov} Z))
              - \log(\text{area} + 10^{-6}) \right)

    with the unbiased variance of the eigenvalues of the unbiased covariance, and the mean area of
    the triangles between class centroids. The variance needs no eigenvalues: it is
    :math:`(\lVert C \rVert_F^2 - (\operatorname{tr} C)^2 / D) / (D - 1)`, and the ridge of
    :math:`10^{-4}` that the paper adds to C moves all eigenvalues alike and cancels.

    Chapter 10 derives it.

    Parameters
    ----------
    weight : w.
    scale_free : divide the variance by the squared mean eigenvalue and the area by the total
        variance. The paper's form falls when all features shrink; this one does not change.
    max_triangles : more class triples than this are sampled, anew for each batch. The default takes
        all up to 40 classes in a batch; 1 is the authors' single random triangle.
    seed : of that sampling.

    References
    ----------
    Batra, Gumber, Khandelwal, Khemani and Gupta, "Uncovering the Latent Potential of Deep
    Intermediate Representations", ICML 2026, arXiv 2605.23033.

    Examples
    --------
    >>> import torch
    >>> from loes import GeoReg
    >>> georeg = GeoReg(weight=0.1)
    >>> Z, y = torch.randn(32, 16, requires_grad=True), torch.arange(32) % 4
    >>> georeg(Z, y).loss.backward()
    """

    def __init__(
        self,
        weight: float = 0.1,
        *,
        scale_free: bool = False,
        max_triangles: int = 10_000,
        seed: int = 0,
    ):
        super().__init__()
        if not weight >= 0:
            raise ValueError(f"weight must be a number >= 0; got {weight!r}.")
        if max_triangles < 1:
            raise ValueError(f"max_triangles must be at least 1; got {max_triangles!r}.")
        self.weight = weight
        self.scale_free = scale_free
        self.max_triangles = max_triangles
        self._generator = torch.Generator().manual_seed(seed)

    def extra_repr(self) -> str:
        """Show the settings."""
        return (
            f"weight={self.weight}, scale_free={self.scale_free}, "
            f"max_triangles={self.max_triangles}"
        )

    def forward(self, features: Tensor, labels: Tensor | None = None) -> GeoRegParts:
        """Return the penalty of a batch and its parts.

        Parameters
        ----------
        features : (batch, D), at least two samples; half precision is raised to float32.
        labels : (batch,) class indices. None, or fewer than three classes in the batch, leaves the
            spectral part alone.

        Raises
        ------
        TypeError for features or labels that are no tensor.
        ValueError for features that are no matrix of at least two rows and columns, and for labels
        of another length or that are no integers. Features that are NaN or infinite are not
        refused: their loss is not finite either, which is what the gradient scalers of mixed
        precision look for.
        """
        if not isinstance(features, Tensor) or not isinstance(labels, Tensor | None):
            raise TypeError(
                "GeoReg wants features, and labels unless None, as tensors; got "
                f"{type(features).__name__} and {type(labels).__name__}. Convert with torch.tensor."
            )
        if features.ndim != 2 or min(features.shape) < 2:
            raise ValueError(
                "GeoReg wants features of shape (batch, D) with batch and D at least 2; "
                f"got {tuple(features.shape)}."
            )
        if labels is not None and labels.shape != features.shape[:1]:
            raise ValueError(
                f"GeoReg wants one label a sample, shape ({len(features)},); "
                f"got {tuple(labels.shape)}."
            )
        if labels is not None and labels.is_floating_point():
            raise ValueError(
                f"GeoReg wants integer class labels; got {labels.dtype}. For regression pass None."
            )
        with torch.autocast(features.device.type, enabled=False):
            Z = features if features.dtype == torch.float64 else features.float()
            variance, trace = eigenvalue_variance(Z)
            centroids = Z[:0] if labels is None else class_means(Z, labels)
            area = Z.new_zeros(())
            if len(centroids) >= 3:
                area = triangle_areas(centroids, self._triples(len(centroids))).mean()
            if self.scale_free:
                tiny = torch.finfo(Z.dtype).tiny
                variance = variance / (trace / Z.shape[1]).square().clamp(min=tiny)
                area = area / trace.clamp(min=tiny)
            loss = variance - (area + 1e-6).log() if len(centroids) >= 3 else variance
        return GeoRegParts(self.weight * loss, variance, area)

    def _triples(self, c: int) -> Tensor:
        """All triples of c classes, or a random sample of them, (3, m)."""
        if comb(c, 3) <= self.max_triangles:
            return all_triples(c)
        keys = torch.rand(self.max_triangles, c, generator=self._generator)
        return keys.topk(3, dim=1).indices.T


def eigenvalue_variance(Z: Tensor) -> tuple[Tensor, Tensor]:
    """Unbiased variance of the eigenvalues of Z's covariance, and their sum.

    From the smaller of the Gram matrices, (D, D) or (batch, batch); in the latter the D - batch
    eigenvalues that are missing are zero.
    """
    n, d = Z.shape
    Z = Z - Z.mean(0)
    G = (Z.T @ Z if d <= n else Z @ Z.T) / (n - 1)
    trace, m = G.diagonal().sum(), len(G)
    # Squared differences from the mean eigenvalue of G, then from the mean over all D: no
    # cancellation, unlike the squared norm less the squared trace.
    deviation = G - trace / m * torch.eye(m, dtype=G.dtype, device=G.device)
    spread = deviation.square().sum() + trace.square() * (1 / m - 1 / d)
    return spread / (d - 1), trace


def class_means(Z: Tensor, labels: Tensor) -> Tensor:
    """Mean of the samples of each class that the batch holds, (c, D)."""
    classes, codes, counts = labels.unique(return_inverse=True, return_counts=True)
    return Z.new_zeros(len(classes), Z.shape[1]).index_add(0, codes, Z) / counts[:, None]


def triangle_areas(points: Tensor, triples: Tensor) -> Tensor:
    """Areas of the triangles between (c, D) points; 0, with gradient 0, where they collapse."""
    centred = points - points.mean(0)
    squares, bounds = triangle_squares(centred @ centred.T, triples)
    # Below this the difference is rounding noise, whose root has a gradient without bound.
    spans = squares > 8 * torch.finfo(points.dtype).eps * bounds
    return torch.where(spans, 0.5 * torch.where(spans, squares, 1.0).sqrt(), 0.0)

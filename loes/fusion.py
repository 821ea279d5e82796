"""From several layers to one embedding, and from that to predictions."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

FUSIONS = ("adapters", "concat", "mean", "sum", "mixing")


class Fusion(nn.Module):
    """Fuse layers of (batch, d_l) features into one (batch, width) embedding.

    Parameters
    ----------
    widths : d_l of each layer.
    kind : ``"adapters"``, LayerNorm -> Linear -> GELU for each layer, concatenated (Batra et al.,
        2026); ``"concat"``; ``"mean"`` or ``"sum"``; or ``"mixing"``, a mean with learnt softmax
        weights (Peters et al., 2018). The last three want layers of equal width.
    adapter_width : what each adapter reduces its layer to.

    Attributes
    ----------
    width : of the embedding.
    widths : as given.
    """

    def __init__(self, widths: Sequence[int], kind: str = "adapters", adapter_width: int = 256):
        super().__init__()
        if kind not in FUSIONS:
            raise ValueError(f"fusion must be one of {FUSIONS}; got {kind!r}.")
        if not widths:
            raise ValueError("there is no layer to fuse; got an empty sequence of widths.")
        if kind in ("mean", "sum", "mixing") and len(set(widths)) > 1:
            raise ValueError(
                f"fusion={kind!r} wants layers of equal width; got {list(widths)}. "
                "Use 'adapters' or 'concat'."
            )
        if adapter_width < 1:
            raise ValueError(f"adapter_width must be at least 1; got {adapter_width!r}.")
        self.kind = kind
        self.widths = list(widths)
        self.width = {"adapters": adapter_width * len(widths), "concat": sum(widths)}.get(
            kind, widths[0]
        )
        if kind == "adapters":
            self.adapters = nn.ModuleList(
                nn.Sequential(nn.LayerNorm(d), nn.Linear(d, adapter_width), nn.GELU())
                for d in widths
            )
        elif kind == "mixing":
            self.scores = nn.Parameter(torch.zeros(len(widths)))

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """Return the embedding, (batch, width)."""
        if self.kind == "adapters":
            layers = [adapt(X) for adapt, X in zip(self.adapters, layers, strict=True)]
        if self.kind in ("adapters", "concat"):
            return torch.cat(list(layers), dim=-1)
        stacked = torch.stack(list(layers))
        if self.kind == "mixing":
            return torch.einsum("l,lbd->bd", self.scores.softmax(0), stacked)
        return stacked.sum(0) if self.kind == "sum" else stacked.mean(0)


class Prediction(NamedTuple):
    """What a probe says of a batch."""

    outputs: Tensor  # (batch, n_outputs): logits, or values
    embedding: Tensor  # (batch, width): what GeoReg regularises


class FusedProbe(nn.Module):
    """Fuse layers and predict: the fusion, then LayerNorm -> Dropout -> Linear.

    Chapter 10 trains some.

    Parameters
    ----------
    widths : d_l of each layer.
    n_outputs : classes, or target columns.
    fusion, adapter_width : as in `Fusion`.
    dropout : of the head.
    """

    def __init__(
        self,
        widths: Sequence[int],
        n_outputs: int,
        *,
        fusion: str = "adapters",
        adapter_width: int = 256,
        dropout: float = 0.2,
    ):
        super().__init__()
        self.fusion = Fusion(widths, fusion, adapter_width)
        self.head = nn.Sequential(
            nn.LayerNorm(self.fusion.width),
            nn.Dropout(dropout),
            nn.Linear(self.fusion.width, n_outputs),
        )

    def forward(self, layers: Sequence[Tensor]) -> Prediction:
        """Return the outputs and the embedding that they come from."""
        embedding = self.fusion(layers)
        return Prediction(self.head(embedding), embedding)

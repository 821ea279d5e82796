"""A model whose selected layers are pooled, fused and read by one head, to train or to use."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from loes.checks import as_indices, check_callable, check_whole
from loes.export import readable_part, truncate
from loes.extract import load_backbone
from loes.families import family_of, final_norm_of, reading_part, resolve_pooling
from loes.forward import hidden_states
from loes.fusion import FusedProbe
from loes.georeg import GeoReg
from loes.pooling import pool
from loes.store import replacing

FORMAT = "loes.FusedEncoder/1"
SETTINGS, PROBE, BACKBONE = "fused.json", "probe.safetensors", "backbone"


@dataclass
class FusedOutput(ModelOutput):
    """What a `FusedEncoder` returns; the first is left out without labels."""

    loss: Tensor | None = None
    logits: Tensor | None = None  # (batch, n_outputs)
    embedding: Tensor | None = None  # (batch, width)


def _check_classes(labels: Tensor, outputs: Tensor) -> None:
    """Refuse class labels that outputs of shape (batch, n_outputs) have no place for."""
    n, n_outputs = outputs.shape
    if n_outputs < 2:
        raise ValueError("class labels want at least two outputs; got one.")
    if labels.shape != (n,):
        raise ValueError(
            f"class labels of shape {tuple(labels.shape)} do not fit a batch of {n}; pass one a "
            f"sample, ({n},)."
        )
    strange = labels[(labels != -100) & ((labels < 0) | (labels >= n_outputs))]
    if len(strange):
        raise ValueError(
            f"class labels must be from 0 to {n_outputs - 1}, or -100 for no label; got "
            f"{int(strange[0])}. Pass class indices, or raise n_outputs."
        )


class FusedEncoder(nn.Module):
    """Selected layers of a transformers model, pooled, fused and read by a head.

    The forward pass ends with the highest selected layer: blocks above it are cut off.

    Chapter 10 fine-tunes one, Chapter 17 says what the cut saves.

    Parameters
    ----------
    model : a transformers model; of CLIP, one of the towers. It is copied, not changed.
    layers : the selected layers, 0 for the embedding, l for the output of block l.
    n_outputs : classes, or target columns.
    fusion, adapter_width, dropout : as in `FusedProbe`.
    pooling : as in `extract_layers`.
    frozen : leave the backbone as it is, without dropout and without gradients.
    georeg : added to the loss of `forward`, on the fused embedding.

    Attributes
    ----------
    backbone : the truncated model.
    probe : the `FusedProbe` on its layers.

    Notes
    -----
    With the Trainer of transformers, set ``remove_unused_columns=False``: it cannot see which
    inputs the backbone takes. With PEFT, name the probe in ``modules_to_save``.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layers: Sequence[int],
        n_outputs: int,
        *,
        fusion: str = "adapters",
        adapter_width: int = 256,
        dropout: float = 0.2,
        pooling: str = "auto",
        frozen: bool = False,
        georeg: GeoReg | None = None,
    ):
        super().__init__()
        whole = getattr(readable_part(model).config, "num_hidden_layers", None)
        if whole is None:
            raise ValueError(
                f"{type(model).__name__} is no stack of blocks of one width; extract its layers "
                "once and use train_probe."
            )
        layers = as_indices("layers", layers, whole + 1)
        if not layers:
            raise ValueError("layers is empty; name at least one.")
        check_whole("n_outputs", n_outputs)
        check_callable("georeg", georeg, "a GeoReg, such as GeoReg(weight=0.1)")
        self.settings = {
            "layers": layers,
            "n_outputs": int(n_outputs),
            "fusion": fusion,
            "adapter_width": adapter_width,
            "dropout": dropout,
            "pooling": pooling,
            "frozen": frozen,
        }
        self.georeg = georeg
        self.backbone = truncate(model, max(1, *layers))
        self.probe = FusedProbe(
            [self._part.config.hidden_size] * len(layers),
            n_outputs,
            fusion=fusion,
            adapter_width=adapter_width,
            dropout=dropout,
        )
        self._family = family_of(self._part, None)
        self._pooling = resolve_pooling(self._family, pooling)
        # The final norm belongs above the whole model, not above the block that is now the last.
        self._skips_norm = max(1, *layers) < whole and self._family.norm_on == "tokens"
        if hasattr(self._part.config, "mask_ratio"):
            self._part.config.mask_ratio = 0.0  # a masked autoencoder that sees everything
        self.backbone.requires_grad_(not frozen)
        self.train()

    @property
    def _part(self) -> PreTrainedModel:
        return reading_part(self.backbone, (), None)

    @property
    def overhead(self) -> float:
        """Parameters of the probe over those of the part of the backbone that is run."""
        added = sum(p.numel() for p in self.probe.parameters())
        return added / self._part.num_parameters()

    def train(self, mode: bool = True) -> "FusedEncoder":
        """Set the mode; a frozen backbone stays as it is used for extraction."""
        super().train(mode)
        if self.settings["frozen"]:
            self.backbone.eval()
        return self

    def forward(
        self, *, labels: Tensor | None = None, token_mask: Tensor | None = None, **inputs: Tensor
    ) -> FusedOutput:
        """Return the outputs, and with labels the loss.

        Parameters
        ----------
        labels : (batch,) class indices, or (batch, n_outputs) values; of one output also (batch,).
        token_mask : (batch, tokens) true where a token is pooled; None for the attention mask of
            texts, and for all patches or frames otherwise.
        **inputs : what the backbone takes, such as `input_ids` and `attention_mask`.

        Raises
        ------
        TypeError for labels that are no tensor.
        ValueError for labels that do not fit the outputs; for a sample whose mask has no true
        token; and for padded sound without a `token_mask`: which frames are true, a mask of samples
        does not say.
        """
        if not isinstance(labels, Tensor | None):
            raise TypeError(
                f"labels must be a tensor of class indices or values; got {type(labels).__name__}. "
                "Of class names take the codes: np.unique(names, return_inverse=True)."
            )
        mask = inputs.get("attention_mask")
        if token_mask is None and self._family.frames is not None and mask is not None:
            if not mask.all():
                raise ValueError(
                    "these clips are padded: pass token_mask, (batch, frames) true for true frames."
                )
        elif token_mask is None:
            token_mask = mask
        if token_mask is not None and not (filled := token_mask.any(1)).all():
            row = int(filled.int().argmin())
            raise ValueError(f"sample {row} of the batch has no true token to pool; leave it out.")
        states = self._states(inputs)
        pooled = [
            pool(states[layer], token_mask, self._pooling, self._family.special)
            for layer in self.settings["layers"]
        ]
        outputs, embedding = self.probe(pooled)
        loss = None
        if labels is not None:
            classes = not labels.is_floating_point()
            labels = labels.long() if classes else labels.reshape(len(outputs), -1)
            if classes:
                _check_classes(labels, outputs)
            if not classes and labels.shape != outputs.shape:
                raise ValueError(
                    f"values of shape {tuple(labels.shape)} do not fit outputs of shape "
                    f"{tuple(outputs.shape)}."
                )
            loss = (nn.functional.cross_entropy if classes else nn.functional.mse_loss)(
                outputs, labels
            )
            if self.georeg is not None:
                known = labels >= 0 if classes else slice(None)  # -100 marks what has no label
                embedded = embedding[known]
                if len(embedded) > 1:  # the last batch may hold one
                    loss = loss + self.georeg(embedded, labels[known] if classes else None).loss
        return FusedOutput(loss=loss, logits=outputs, embedding=embedding)

    def _states(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        part = self._part
        norm = final_norm_of(part, self._family) if self._skips_norm else None
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.settings["frozen"]):
            return hidden_states(partial(part, **inputs), norm, "skip")

    def save_pretrained(self, folder: str | PathLike) -> None:
        """Write backbone, probe and settings (safetensors and JSON), whole or not at all."""
        folder = Path(folder)
        if folder.exists() and not (folder / SETTINGS).is_file() and any(folder.iterdir()):
            raise ValueError(f"{folder} holds other files; name a new or an empty folder.")
        with replacing(folder) as draft:
            self.backbone.save_pretrained(draft / BACKBONE)
            save_file(self.probe.state_dict(), draft / PROBE)
            about = {"format": FORMAT, "skips_norm": self._skips_norm, "settings": self.settings}
            (draft / SETTINGS).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def from_pretrained(cls, folder: str | PathLike, georeg: GeoReg | None = None):
        """Load what `save_pretrained` has written, in evaluation mode.

        Raises
        ------
        ValueError for a folder of something else, or one that is damaged.
        """
        folder = Path(folder)
        try:
            about = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
            if about["format"] != FORMAT:
                raise ValueError(f"its format is {about['format']}")
            backbone = load_backbone(folder / BACKBONE, local_files_only=True)
            encoder = cls(backbone, **about["settings"], georeg=georeg)
            encoder.probe.load_state_dict(load_file(folder / PROBE))
            encoder._skips_norm = about["skips_norm"]
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise ValueError(f"{folder} holds no {FORMAT}, or a damaged one: {error}") from error
        return encoder.eval()

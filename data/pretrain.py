"""Pretrain one small ViT under three objectives: writes checkpoints/ and results/pretrain.json.

The same network, pictures, augmentation and, about, seconds: only the loss differs. About an hour
on one core; a checkpoint that is there is not trained again, so that it can be stopped and started.

    python data/pretrain.py             # train what is missing, then measure
    python data/pretrain.py --measure   # measure anew
"""

import argparse
import json
import time
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from itertools import combinations, product
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.linear_model import RidgeClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from tqdm import tqdm
from transformers import ViTConfig, ViTMAEConfig, ViTMAEForPreTraining, ViTModel
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from loes import LOES, evaluate, extract_layers, tasks, terms
from loes.baselines import METHODS
from loes.features import LayerFeatures
from loes.packages import cache_folder
from loes.store import replacing, write_whole
from loes.training import WARM_UP, cosine_schedule

DATA = Path(__file__).parent
CHECKPOINTS, RESULT = DATA / "checkpoints", DATA / "results" / "pretrain.json"
CONFIG = {
    "image_size": 28,
    "patch_size": 4,
    "hidden_size": 64,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "intermediate_size": 256,
}
MEAN, STD = 0.5, 0.5  # of the processor; the pictures are grey, three times the same
BATCH, LEARNING_RATE, WEIGHT_DECAY = 128, 1e-3, 0.05
SEEDS = range(3)
PER_CLASS = 572  # all of the train part
ROTATION, ZOOM, SHIFT = 20.0, 0.3, 0.15  # degrees; relative; in widths of the picture


def augment(pictures: Tensor) -> Tensor:
    """Turn, zoom, move and mirror each picture at random.

    Parameters
    ----------
    pictures : (n, 1, side, side) in [0, 1], black outside.

    Returns
    -------
    (n, 3, side, side), normalised as the processor does.
    """
    n = len(pictures)
    angle, zoom, *shift = 2 * torch.rand(4, n) - 1
    angle, zoom = torch.deg2rad(ROTATION * angle), 1 + ZOOM * zoom
    mirror = torch.where(torch.rand(n) < 0.5, -1.0, 1.0)
    cos, sin = torch.cos(angle) / zoom, torch.sin(angle) / zoom
    x, y = (2 * SHIFT * s for s in shift)  # the grid is two units wide
    maps = torch.stack([mirror * cos, -mirror * sin, x, sin, cos, y], dim=1).view(n, 2, 3)
    grid = F.affine_grid(maps, list(pictures.shape), align_corners=False)
    moved = F.grid_sample(pictures, grid, align_corners=False)
    return ((moved - MEAN) / STD).expand(-1, 3, -1, -1)


def pooled(encoder: ViTModel, pictures: Tensor) -> Tensor:
    """Return the mean of the patches behind the final norm, (n, width)."""
    return encoder(pictures).last_hidden_state[:, 1:].mean(1)


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Return the loss of SimCLR: tell the other view of a picture from all other views.

    Parameters
    ----------
    first, second : (n, d) embeddings of two views of the same n pictures.
    temperature : of the softmax over cosines.

    Source: Chen et al., ICML 2020, arXiv 2002.05709, Eq. 1.
    """
    n = len(first)
    views = F.normalize(torch.cat([first, second]), dim=1)
    similarities = (views @ views.T / temperature).fill_diagonal_(-torch.inf)
    return F.cross_entropy(similarities, torch.arange(2 * n).roll(n))


class Supervised(nn.Module):
    """Name the class of a picture."""

    def __init__(self, encoder: ViTModel, n_classes: int):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(encoder.config.hidden_size, n_classes)

    def forward(self, pictures: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy."""
        return F.cross_entropy(self.head(pooled(self.encoder, augment(pictures))), labels)


class Masked(nn.Module):
    """Paint the three quarters of the patches that the encoder has not seen.

    Source: He et al., CVPR 2022, arXiv 2111.06377.
    """

    def __init__(self, encoder: ViTModel, n_classes: int):
        super().__init__()
        width, shared = encoder.config.hidden_size, {k: getattr(encoder.config, k) for k in CONFIG}
        self.model = ViTMAEForPreTraining(
            ViTMAEConfig(
                **shared,
                mask_ratio=0.75,
                decoder_hidden_size=width,
                decoder_num_hidden_layers=2,
                decoder_num_attention_heads=encoder.config.num_attention_heads,
                decoder_intermediate_size=2 * width,
            )
        )
        embeddings, decoder = self.model.vit.embeddings, self.model.decoder
        # transformers leaves zeros where the decoder's fixed positions should be.
        decoder.initialize_weights(embeddings.patch_embeddings.num_patches)
        # The encoder's own tensors, so that it learns; all but the pooler, which nothing uses.
        self.model.vit.load_state_dict(encoder.state_dict(), strict=False, assign=True)
        embeddings.position_embeddings.requires_grad_(True)  # as in the other two

    def forward(self, pictures: Tensor, labels: Tensor) -> Tensor:
        """Return the mean squared error over the pixels of the hidden patches."""
        return self.model(augment(pictures)).loss


class Contrastive(nn.Module):
    """Find the other view of the same picture."""

    temperature = 0.2

    def __init__(self, encoder: ViTModel, n_classes: int):
        super().__init__()
        width = encoder.config.hidden_size
        self.encoder = encoder
        self.projection = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, pictures: Tensor, labels: Tensor) -> Tensor:
        """Return NT-Xent between two views."""
        views = augment(pictures.repeat(2, 1, 1, 1))
        return nt_xent(*self.projection(pooled(self.encoder, views)).chunk(2), self.temperature)


# What each costs decides how often it sees the pictures.
OBJECTIVES: dict[str, tuple[type[nn.Module], int]] = {
    "supervised": (Supervised, 14),
    "masked": (Masked, 30),
    "contrastive": (Contrastive, 7),
}


def initial(seed: int, config: dict = CONFIG) -> ViTModel:
    """Return the untrained network: where all objectives start, and the control."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ViTModel(ViTConfig(**config)).eval()


def train(
    objective: str,
    seed: int,
    pictures: Tensor,
    labels: Tensor,
    epochs: int | None = None,
    config: dict = CONFIG,
    bar: tqdm | None = None,
) -> tuple[ViTModel, list[float]]:
    """Pretrain an encoder; return it and the mean loss of each epoch.

    Parameters
    ----------
    objective : a key of OBJECTIVES, which also says how many `epochs`.
    seed : of the weights, the order, the augmentation and the masks.
    pictures : (n, 1, side, side) in [0, 1].
    labels : (n,), which only "supervised" looks at.
    """
    kind, usual = OBJECTIVES[objective]
    epochs = usual if epochs is None else epochs
    encoder = initial(seed, config)
    losses = []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        learner = kind(encoder, int(labels.max()) + 1).train()
        optimizer = torch.optim.AdamW(
            learner.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY
        )
        steps = len(pictures) // BATCH or 1
        schedule = cosine_schedule(optimizer, epochs * steps)
        for _ in range(epochs):
            total = 0.0
            for rows in torch.randperm(len(pictures))[: steps * BATCH].chunk(steps):
                loss = learner(pictures[rows], labels[rows])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(learner.parameters(), 1.0, error_if_nonfinite=True)
                optimizer.step()
                schedule.step()
                total += loss.item()
                if bar:
                    bar.update()
            losses.append(total / steps)
    return encoder.eval(), losses

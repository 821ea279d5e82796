"""From one vector a token to one vector a sample."""

from collections.abc import Callable

import torch


def name_of(pooling: str | Callable) -> str:
    """Return the name of a pooling, for the record."""
    return pooling if isinstance(pooling, str) else pooling.__name__


def pool_tokens(hidden: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """Reduce token vectors to one vector a sample, looking at true tokens only.

    Parameters
    ----------
    hidden : (batch, tokens, d) hidden states of one layer.
    mask : (batch, tokens) 1 for a true token, 0 for padding, on either side.
    pooling : ``"mean"`` of the true tokens, ``"cls"`` the first or ``"last"`` the last of them, or
        ``"mean_without_first"``; a sample of one token keeps it.

    Returns
    -------
    (batch, d) float32 tensor: a half-precision sum over tokens would lose digits.
    """
    rows = torch.arange(len(hidden), device=hidden.device)
    # argmax finds the first true token; on the reversed mask, the distance of the last from the end
    first = mask.long().argmax(1)
    if pooling == "cls":
        return hidden[rows, first].float()
    if pooling == "last":
        return hidden[rows, mask.shape[1] - 1 - mask.long().flip(1).argmax(1)].float()
    true = mask.bool()
    if pooling == "mean_without_first":
        true = true.clone()
        true[rows, first] = true.sum(1) == 1
    true = true.unsqueeze(-1)
    # Filled, not multiplied by zero: padding may have overflowed.
    return hidden.masked_fill(~true, 0).sum(1, dtype=torch.float32) / true.sum(1)


def pool(
    hidden: torch.Tensor, mask: torch.Tensor | None, pooling: str | Callable, special: int = 0
) -> torch.Tensor:
    """Reduce what a layer gives to one vector a sample, by its number of axes.

    Parameters
    ----------
    hidden : (batch, d), which stays; (batch, tokens, d); or (batch, d, height, width), of which the
        spatial mean is taken.
    mask : (batch, tokens) true where a token is pooled; None for every token but special ones.
    pooling : as in `pool_tokens`; ``"cls"`` is the first of the special tokens. Or a function of
        (batch, tokens, d) and the mask, which is then always there, that returns (batch, width).
    special : how many tokens at the front are none of the input: cls, registers, distillation.

    Returns
    -------
    (batch, d) float32 tensor.
    """
    if hidden.ndim == 2:
        return hidden.float()
    if hidden.ndim == 4:
        return hidden.mean((2, 3), dtype=torch.float32)
    if callable(pooling):
        if mask is None:
            mask = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
            mask[:, :special] = False
        pooled = pooling(hidden, mask)
        shape = tuple(getattr(pooled, "shape", ()))
        if not isinstance(pooled, torch.Tensor) or len(shape) != 2 or shape[0] != len(hidden):
            raise ValueError(
                f"pooling must return a tensor (batch, width), here ({len(hidden)}, width); "
                f"{name_of(pooling)} returned {type(pooled).__name__} {shape}."
            )
        return pooled.float()
    if special and pooling == "cls":
        return hidden[:, 0].float()
    if mask is None:
        return hidden[:, special:].mean(1, dtype=torch.float32)
    return pool_tokens(hidden, mask, pooling)


def turning(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return how far the path of the tokens turns on average at a token, and whether it has one.

    The angle is that between successive steps from token to token, in radians (Hosseini and
    Fedorenko, 2023); a sample with fewer than three true tokens has none, and angle 0.

    Parameters
    ----------
    hidden : (batch, tokens, d) hidden states of one layer.
    mask : (batch, tokens) true for a true token.

    Returns
    -------
    (batch, 2) tensor of the mean angle and of 1, or 0 where there is no angle.
    """
    steps = hidden[:, 1:].float() - hidden[:, :-1].float()
    cosine = torch.nn.functional.cosine_similarity(steps[:, 1:], steps[:, :-1], dim=-1)
    true = mask[:, 2:].bool() & mask[:, 1:-1].bool() & mask[:, :-2].bool()
    angles = cosine.clamp(-1, 1).arccos().masked_fill(~true, 0).sum(1)
    count = true.sum(1)
    return torch.stack([angles / count.clamp(min=1), (count > 0).float()], dim=1)

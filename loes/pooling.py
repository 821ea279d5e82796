"""From one vector a token to one vector a sample."""

import torch


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
    hidden: torch.Tensor, mask: torch.Tensor | None, pooling: str, special: int = 0
) -> torch.Tensor:
    """Reduce what a layer gives to one vector a sample, by its number of axes.

    Parameters
    ----------
    hidden : (batch, d), which stays; (batch, tokens, d); or (batch, d, height, width), of which the
        spatial mean is taken.
    mask : (batch, tokens) true where a token is pooled; None for every token but special ones.
    pooling : as in `pool_tokens`; ``"cls"`` is the first of the special tokens.
    special : how many tokens at the front are none of the input: cls, registers, distillation.

    Returns
    -------
    (batch, d) float32 tensor.
    """
    if hidden.ndim == 2:
        return hidden.float()
    if hidden.ndim == 4:
        return hidden.mean((2, 3), dtype=torch.float32)
    if special and pooling == "cls":
        return hidden[:, 0].float()
    if mask is None:
        return hidden[:, special:].mean(1, dtype=torch.float32)
    return pool_tokens(hidden, mask, pooling)

"""From a model and its inputs to one pooled feature matrix a layer."""

from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Integral
from os import PathLike

import numpy as np
import torch
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from loes.features import LayerFeatures

POOLINGS = ("mean", "cls", "last")


def pool_tokens(hidden: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """Reduce token vectors to one vector a sample, looking at true tokens only.

    Parameters
    ----------
    hidden : (batch, tokens, d) hidden states of one layer.
    mask : (batch, tokens) 1 for a true token, 0 for padding, on either side.
    pooling : ``"mean"`` of the true tokens, ``"cls"`` the first or ``"last"`` the last of them.

    Returns
    -------
    (batch, d) tensor.
    """
    if pooling == "mean":
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)
    mask = mask.long()
    # argmax finds the first true token; on the reversed mask, the distance of the last from the end
    index = mask.argmax(1) if pooling == "cls" else mask.shape[1] - 1 - mask.flip(1).argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), index]


def extract_layers(
    model: PreTrainedModel | str | PathLike,
    inputs: Sequence[str],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    pooling: str = "auto",
    batch_size: int = 32,
    max_length: int | None = None,
    device: str | torch.device | None = None,
    progress: bool = True,
) -> LayerFeatures:
    """Run `model` over texts and keep one pooled vector a text and layer.

    Texts are batched by length, so that little is spent on padding, and returned in their own
    order. Only pooled features are kept: memory is n x layers x d, whatever the text length.

    Parameters
    ----------
    model : a transformers model, or the folder or hub id to load one from.
    inputs : n texts.
    tokenizer : the model's tokenizer; loaded beside the model when `model` is a folder or id.
    pooling : ``"mean"`` of the true tokens, ``"cls"`` the first or ``"last"`` the last of them;
        ``"auto"`` is the mean.
    batch_size : texts a forward pass.
    max_length : longer texts are cut to this many tokens; None for what the
        tokenizer and the model allow.
    device : where to run; None for where the model is.
    progress : show a progress bar.

    Returns
    -------
    LayerFeatures with L + 1 float32 arrays (n, d) for a model of L blocks; the first is the
    embedding output. The last is `hidden_states[-1]` as the family defines it: after the final
    norm in most language models.

    Raises
    ------
    TypeError, ValueError for input that cannot give features: no texts, something that is no
    text, a text without a token, no tokenizer, no padding token, an unknown pooling, or
    features that are not finite (the layer and a cure are named).
    """
    wanted = "inputs must be a sequence of texts, such as ['one text', 'another']"
    # Tables and mappings iterate over their keys, sets in no order: neither is what was meant.
    keyed = isinstance(inputs, (Mapping, Set)) or hasattr(inputs, "keys")
    if isinstance(inputs, (str, bytes)) or keyed or not isinstance(inputs, Iterable):
        hint = " Pass one of its columns." if keyed else ""
        raise TypeError(f"{wanted}; got one {type(inputs).__name__}.{hint}")
    texts = list(inputs)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{wanted}; got {type(text).__name__} in it.")
    if not texts:
        raise ValueError("inputs is empty; pass at least one text.")
    for name, value in (
        ("batch_size", batch_size),
        ("max_length", 1 if max_length is None else max_length),
    ):
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number >= 1; got {value!r}.")
    if pooling not in ("auto", *POOLINGS):
        raise ValueError(f"pooling must be 'auto' or one of {POOLINGS}; got {pooling!r}.")
    pooling = "mean" if pooling == "auto" else pooling
    if isinstance(model, (str, PathLike)):
        tokenizer = tokenizer or AutoTokenizer.from_pretrained(model)
        model = AutoModel.from_pretrained(model)
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            "model must be a transformers model, or the folder or hub id to load one from; got "
            f"{type(model).__name__}."
        )
    if model.config.is_encoder_decoder:
        model = model.get_encoder()  # the half that reads texts
    if tokenizer is None:
        raise ValueError(
            "a loaded model says nothing about its tokenizer: pass tokenizer=..., "
            "or pass the model's folder or hub id instead of the model."
        )
    if tokenizer.pad_token is None:
        raise ValueError(
            f"{type(tokenizer).__name__} has no padding token, so texts cannot be batched; "
            "set tokenizer.pad_token = tokenizer.eos_token first."
        )

    # A tokenizer that was never told its limit answers with a huge number: ask the model then.
    # A model without a limit may answer with None or -1, and the library counts in 32 bits.
    positions = getattr(model.config, "max_position_embeddings", None)
    limits = (max_length, tokenizer.model_max_length, positions, 2**31 - 1)
    longest = int(min(limit for limit in limits if limit is not None and limit > 0))
    tokens = tokenizer(texts, truncation=True, max_length=longest)
    lengths = np.array([len(ids) for ids in tokens["input_ids"]])
    if (lengths == 0).any():
        where = int(np.flatnonzero(lengths == 0)[0])
        raise ValueError(f"inputs[{where}] ({texts[where]!r}) has no token; leave it out.")
    order = np.argsort(-lengths, kind="stable")  # longest first: too large a batch fails at once

    device = torch.device(device) if device is not None else model.device
    in_training = [module for module in model.modules() if module.training]
    quiet = {} if progress else {"disable": True}  # unsaid, so that TQDM_DISABLE is heard
    model.to(device).eval()
    arrays: list[np.ndarray] = []
    try:
        with (
            torch.inference_mode(),
            tqdm(total=len(texts), unit="text", **quiet) as bar,
        ):
            for start in range(0, len(texts), batch_size):
                rows = order[start : start + batch_size]
                # On the right even for decoders: padding on the left would shift the positions.
                batch = tokenizer.pad(
                    {key: [tokens[key][row] for row in rows] for key in tokens},
                    padding_side="right",
                    return_tensors="pt",
                ).to(device)
                hidden_states = model(**batch, output_hidden_states=True).hidden_states
                if not arrays:
                    arrays = [
                        np.empty((len(texts), hidden.shape[-1]), dtype=np.float32)
                        for hidden in hidden_states
                    ]
                    names = ["embedding", *(f"layer{i}" for i in range(1, len(arrays)))]
                for name, array, hidden in zip(names, arrays, hidden_states, strict=True):
                    # float32 before the mean: a half-precision sum over tokens loses digits
                    pooled = pool_tokens(hidden.float(), batch["attention_mask"], pooling)
                    if not pooled.isfinite().all():
                        raise ValueError(
                            f"{name} has non-finite features ({model.dtype} on {device}): half "
                            "precision has overflowed or the weights are damaged. Load the model "
                            "in float32 or bfloat16."
                        )
                    array[rows] = pooled.cpu().numpy()
                bar.update(len(rows))
    finally:
        for module in in_training:
            module.training = True

    return LayerFeatures(names, arrays, pooling)

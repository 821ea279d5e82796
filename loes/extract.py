"""From a model and its inputs to one pooled feature matrix a layer."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm
from transformers import AutoModel, PreTrainedModel

from loes.checks import check_sequence, check_whole
from loes.families import (
    FINAL_NORMS,
    POOLINGS,
    family_of,
    final_norm_of,
    has_decoder,
    reading_part,
    resolve_pooling,
)
from loes.features import LayerFeatures
from loes.forward import Forward
from loes.inputs import modality_of
from loes.pooling import name_of
from loes.readers import Reader, describe_processor, find_processor, modality_read_by
from loes.store import FeatureStore, fingerprint_inputs, fingerprint_model

# Weights from which no layer is computed: their masks are drawn in training only.
UNREAD = {"pooler", "mask_token", "masked_spec_embed", "num_batches_tracked"}
EXTRACTION = 1  # raised whenever the same settings come to give other features
UNITS = {"text": "text", "image": "image", "audio": "clip", None: "sample"}


def extract_layers(
    model: torch.nn.Module | str | PathLike,
    inputs: Sequence,
    *,
    processor: Any = None,
    pooling: str | Callable = "auto",
    final_norm: str = "as_is",
    modules: Sequence[str] | None = None,
    batch_size: int = 32,
    max_length: float | None = None,
    cache: str | PathLike | None = None,
    shard_size: int = 4096,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    progress: bool = True,
    trust_remote_code: bool = False,
) -> LayerFeatures:
    """Run `model` over texts, images or clips and keep one pooled vector a sample and layer.

    Texts and clips are batched by length, so that little is spent on padding, and returned in their
    own order; padding never enters a feature, so that batches and their size do not matter. Only
    pooled features are kept: memory is n x layers x d, however long the inputs are.

    Chapter 2 says what a layer is, and how one reads it wrongly.

    Parameters
    ----------
    model : a transformers model, or the folder or hub id to load one from; with `modules`, any
        torch module. Of an encoder-decoder the encoder is run; of CLIP, the tower for the inputs.
    inputs : n texts; n images, as paths, PIL images or arrays; or n clips, as paths, pairs (array,
        rate in Hz) or records of the datasets library. See `loes.inputs`.
    processor : the model's tokenizer, image processor or feature extractor, or a processor that
        holds it; loaded beside the model when `model` is a folder or id. Or any callable from a
        list of inputs to a tensor or a mapping of tensors, known to a cache by its name only; None
        stacks tensors for a model that is not of transformers. Tensors of floating point take the
        precision of the model.
    pooling : ``"mean"`` of true tokens, patches or frames; ``"cls"``, the first token; ``"last"``
        true token; ``"mean_without_first"``, for decoders, whose first token is an attention sink
        with huge features. ``"auto"`` is the mean, and that without the first for decoders; the
        result says which. Or a function of hidden states (batch, tokens, d) and the mask of true
        tokens that returns (batch, width), known to a cache by its name only.
    final_norm : the last layer ``"as_is"``, as `hidden_states[-1]` of the family has it (a table is
        in `loes.families`); ``"apply"``, behind the final norm; or ``"skip"``, before it.
    modules : names of modules whose outputs are taken instead of the hidden states, pooled by their
        axes: (n, d) as they are, (n, tokens, d) over tokens, (n, d, height, width) over space. Of
        several outputs the first tensor, of several runs the last.
    batch_size : samples a forward pass, at most.
    max_length : longer texts are cut to this many tokens, longer clips to this many seconds; None
        for what processor and model allow. A Whisper encoder then hears no more than that, at a
        fraction of the cost of its 30 s, and gives other features: it attends to the padding.
    cache : folder for finished shards, which another run with the same model, inputs and settings
        takes from there; batch size and device do not count.
    shard_size : samples a shard.
    device : where to run, and where the model stays; None for where it is.
    dtype : precision to load a folder or id in, such as ``"bfloat16"``; None for that of the
        weights. Sums over tokens are always float32.
    progress : show a progress bar.
    trust_remote_code : run Python code that comes with a folder or id.

    Returns
    -------
    LayerFeatures with L + 1 float32 arrays (n, d) for a model of L blocks; the first is the
    embedding output, the input of the first block. A stage of a CNN counts as a block. With
    `modules`, one array a module.

    Raises
    ------
    TypeError, ValueError for input that cannot give features, most of it before the model runs:
    no inputs, or of another kind than the model reads; a text without a token or a clip without a
    frame; no processor; a pooling that means nothing for the family; a family that is not known;
    a cache of something else; or features that are not finite (the layer and a cure are named).

    Notes
    -----
    Weights are taken from safetensors where there are any. Older checkpoints are pickles, of which
    transformers unpickles tensors only (``weights_only``); one with code in it is refused.
    """
    inputs = _as_sequence(inputs)
    features: LayerFeatures | None = None
    for rows, shard in stream_layers(
        model,
        inputs,
        processor=processor,
        pooling=pooling,
        final_norm=final_norm,
        modules=modules,
        batch_size=batch_size,
        max_length=max_length,
        cache=cache,
        shard_size=shard_size,
        device=device,
        dtype=dtype,
        progress=progress,
        trust_remote_code=trust_remote_code,
    ):
        if features is None:
            arrays = [np.empty((len(inputs), X.shape[1]), np.float32) for X in shard]
            features = LayerFeatures(shard.names, arrays, shard.pooling)
        for array, X in zip(features, shard, strict=True):
            array[rows] = X
    return features


def stream_layers(
    model: torch.nn.Module | str | PathLike,
    inputs: Sequence,
    *,
    processor: Any = None,
    pooling: str | Callable = "auto",
    final_norm: str = "as_is",
    modules: Sequence[str] | None = None,
    batch_size: int = 32,
    max_length: float | None = None,
    cache: str | PathLike | None = None,
    shard_size: int = 4096,
    shards: Iterable[int] | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    progress: bool = True,
    trust_remote_code: bool = False,
) -> Iterator[tuple[slice, LayerFeatures]]:
    """Give the features of `extract_layers` shard by shard, in memory that does not grow with n.

    Chapter 2 reads a model so.

    Parameters
    ----------
    shards : numbers of the shards to compute, from 0, as one of several processes; None for all.
    model, inputs, processor, ... : as in `extract_layers`.

    Returns
    -------
    Iterator over (rows of `inputs`, their LayerFeatures). Arguments are checked at once; the model
    runs when the iterator is asked for a shard.
    """
    inputs = _as_sequence(inputs)
    for name, value, allowed in (
        ("pooling", "auto" if callable(pooling) else pooling, ("auto", *POOLINGS)),
        ("final_norm", final_norm, FINAL_NORMS),
    ):
        if value not in allowed:
            raise ValueError(f"{name} must be one of {allowed}; got {value!r}.")
    for name, value in (("batch_size", batch_size), ("shard_size", shard_size)):
        check_whole(name, value)
    if modules is not None and final_norm != "as_is":
        raise ValueError(f"final_norm={final_norm!r} is for hidden states, not for modules=[...].")
    n_shards = -(-len(inputs) // shard_size)
    shards = range(n_shards) if shards is None else list(shards)
    if unknown := [shard for shard in shards if shard not in range(n_shards)]:
        raise ValueError(f"shards must be among 0 ... {n_shards - 1}; got {unknown}.")

    model, folder = _load(model, dtype, trust_remote_code)
    watched = None if modules is None else _submodules(model, modules)
    part = reading_part(model, inputs, modules)
    family = family_of(part, modules)
    pooling = resolve_pooling(family, pooling)
    norm = None if final_norm == "as_is" else final_norm_of(part, family)
    processor = find_processor(processor, part, family.modality, folder, trust_remote_code)
    modality = modality_read_by(processor)
    _check_max_length(max_length, modality, processor)
    _check_kind(inputs, modality, type(part).__name__)

    reader = Reader(part, family, processor, batch_size, max_length)
    forward = Forward(part, family, reader, pooling, final_norm, norm, watched, device)
    store = None
    if cache is not None:
        about = {
            "extraction": EXTRACTION,
            "model": _name(part),
            "revision": getattr(getattr(part, "config", None), "_commit_hash", None),
            "weights": fingerprint_model(part),
            "processor": describe_processor(processor),
            "inputs": fingerprint_inputs(_files(inputs, modality)),
            "n": len(inputs),
            "shard_size": int(shard_size),
            "pooling": name_of(pooling),
            "final_norm": final_norm,
            "modules": None if modules is None else list(modules),
            "max_length": None if max_length is None else float(max_length),
            "dtype": str(forward.dtype),
        }
        store = FeatureStore(cache, about)
    return _stream(forward, inputs, shards, shard_size, store, progress)


def _stream(
    forward: Forward,
    inputs: Sequence,
    shards: Iterable[int],
    shard_size: int,
    store: FeatureStore | None,
    progress: bool,
) -> Iterator[tuple[slice, LayerFeatures]]:
    """Take each shard from the store, or compute it and put it there."""
    rows = {k: slice(k * shard_size, min((k + 1) * shard_size, len(inputs))) for k in shards}
    quiet = {} if progress else {"disable": True}  # unsaid, so that TQDM_DISABLE is heard
    bar = tqdm(
        total=sum(part.stop - part.start for part in rows.values()),
        desc=name_of(forward.pooling),
        unit=UNITS[modality_read_by(forward.reader.processor)],
        **quiet,
    )
    finished = 0
    with bar:
        for shard, part in rows.items():
            features = store and store.read(shard)
            if features is None:
                numbers = range(part.start, part.stop)
                features = forward.features(inputs, numbers, bar.update)
                if store is not None:
                    store.write(shard, features)
            else:
                finished += part.stop - part.start
                bar.initial = finished  # so that the rate is that of the forward passes
                bar.update(part.stop - part.start)
            yield part, features


def _as_sequence(inputs: Any) -> Sequence:
    """Return inputs that can be counted and taken one by one, or say what they should be."""
    wanted = "a sequence of texts, images or clips, such as ['one text', 'another']"
    check_sequence(inputs, wanted, "__iter__")
    if not (hasattr(inputs, "__len__") and hasattr(inputs, "__getitem__")):
        inputs = list(inputs)
    if not len(inputs):
        raise ValueError("inputs is empty; pass at least one sample.")
    return inputs


def _check_max_length(max_length: Any, modality: str | None, processor: Any) -> None:
    """Refuse a length that is none, in tokens or in seconds."""
    if max_length is None:
        return
    if modality == "text":
        special = processor.num_special_tokens_to_add()
        check_whole("max_length", max_length)
        if max_length <= special:
            raise ValueError(
                f"max_length={max_length} leaves no room for a text beside the {special} special "
                f"tokens of {type(processor).__name__}; raise it to {special + 1} or more."
            )
    elif modality != "audio":
        raise ValueError("max_length cuts texts and clips; leave it out for other inputs.")
    elif not isinstance(max_length, Real) or not 0 < max_length < float("inf"):
        raise ValueError(f"max_length must be seconds > 0 for clips; got {max_length!r}.")


def _check_kind(inputs: Sequence, modality: str | None, reader: str) -> None:
    """Refuse inputs of another kind than the model reads, before anything is computed."""
    if modality == "text":
        for index, text in enumerate(inputs):
            if not isinstance(text, str):
                raise TypeError(
                    f"{reader} wants a sequence of texts, such as ['one text', 'another']; got "
                    f"{type(text).__name__} in it."
                )
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"inputs[{index}] is no text: {error.reason} in {text[:40]!r}; leave it out."
                ) from None
    elif modality is not None and (found := modality_of(inputs)) != modality:
        raise TypeError(f"{reader} reads {modality} inputs; got a sequence of {found} inputs.")


def load_backbone(name: str | PathLike, **options: Any) -> PreTrainedModel:
    """Load a model from a folder or the hub, or refuse one whose weights lack part of its layers.

    What no layer comes from may be missing, such as a pooler, and is zero then: transformers draws
    it at random, and the same folder would have another fingerprint each time.

    Parameters
    ----------
    name : a folder or hub id.
    options : for `AutoModel.from_pretrained`.

    Raises
    ------
    ValueError naming a missing weight; and whatever transformers raises.
    """
    model, found = AutoModel.from_pretrained(name, output_loading_info=True, **options)
    idle = UNREAD | ({"decoder"} if has_decoder(model.config) else set())
    missing = {key: set(key.split(".")) for key in sorted(found["missing_keys"])}
    if lacking := [key for key, parts in missing.items() if not parts & idle]:
        raise ValueError(
            f"the weights of {name} are incomplete: {len(lacking)} that config.json asks for are "
            f"missing, such as {lacking[0]}; fetch the checkpoint again, or mend its config.json."
        )
    weights = model.state_dict()
    for key, parts in missing.items():
        if parts & UNREAD:
            weights[key].zero_()
    return model


def _load(
    model: Any, dtype: str | torch.dtype | None, trust_remote_code: bool
) -> tuple[torch.nn.Module, str | PathLike | None]:
    """Return the model and the folder or id that it came from, if any."""
    if isinstance(model, (str, PathLike)):
        precision = {} if dtype is None else {"dtype": dtype}
        return load_backbone(model, trust_remote_code=trust_remote_code, **precision), model
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            "model must be a transformers model, the folder or hub id to load one from, or a torch "
            f"module; got {type(model).__name__}."
        )
    if dtype is not None:
        raise ValueError("dtype is for loading a folder or id; call model.to(dtype) instead.")
    return model, None


def _submodules(model: torch.nn.Module, names: Sequence[str]) -> dict[str, torch.nn.Module]:
    """Return modules by name, or say which name is wrong."""
    known = dict(model.named_modules())
    if isinstance(names, str) or not len(names):
        raise ValueError(f"modules must be a list of names; got {names!r}.")
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=3) or list(known)[1:9]
            raise ValueError(f"there is no module {name!r}; did you mean one of {near}?")
    return {name: known[name] for name in names}


def _name(model: torch.nn.Module) -> str:
    """Return the name of the folder or hub id, without where it lies, or else the class."""
    path = getattr(getattr(model, "config", None), "name_or_path", "")
    return Path(path).name or type(model).__name__


def _files(inputs: Sequence, modality: str | None) -> Iterable:
    """Return inputs with the names of image and audio files as paths, whose content counts."""
    if modality not in ("image", "audio"):
        return inputs
    return (Path(item) if isinstance(item, str) else item for item in inputs)

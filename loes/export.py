"""A checkpoint without the blocks above the highest selected layer, which plain transformers loads.

The rest of the model computes nothing that the selection uses. Where a family puts its final norm
on the last hidden state (GPT-2, Llama, ModernBERT, T5, Whisper; the table is in `loes.families`),
layer `n_blocks` of the whole model was raw and that of the truncated one is behind the norm:
``final_norm="skip"``, which the export records, gives the features of the whole model again.
"""

import copy
import json
import operator
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import MODEL_MAPPING, AutoModel, PretrainedConfig, PreTrainedModel

from loes.checks import as_indices
from loes.extract import extract_layers
from loes.families import DECODER_BLOCKS, family_of, has_decoder, reading_part
from loes.features import LayerFeatures
from loes.store import replacing

FORMAT = "loes.export/1"
RECORD = "loes.json"
BLOCKS = ("block", "blocks", "h", "layer", "layers")  # what families call their list of blocks


def readable_part(model: PreTrainedModel) -> PreTrainedModel:
    """Return the part of a model whose hidden states are layers: without heads and decoder."""
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"model must be a transformers model; got {type(model).__name__}.")
    if hasattr(model, "text_model") and hasattr(model, "vision_model"):
        raise ValueError(
            f"{type(model).__name__} has two towers; pass one of them: model.vision_model or "
            "model.text_model."
        )
    if not has_decoder(model.config) and type(model.config) not in MODEL_MAPPING:
        raise ValueError(
            f"{type(model).__name__} cannot be truncated: AutoModel knows no model for its "
            f"{type(model.config).__name__}, so that its folder could not be loaded."
        )
    return reading_part(model, (), None)


def _find_blocks(part: PreTrainedModel) -> str:
    """Return the name of the list of blocks, the outermost of its name and length."""
    n_blocks = getattr(part.config, "num_hidden_layers", None)
    lists = {
        name: len(module)
        for name, module in part.named_modules()
        if isinstance(module, torch.nn.ModuleList)
    }
    found = [
        name
        for name, length in lists.items()
        if length == n_blocks and name.rpartition(".")[2] in BLOCKS
    ]
    if not found:
        raise ValueError(
            f"{type(part).__name__} cannot be truncated: looked for config.num_hidden_layers, "
            f"which is {n_blocks}, and for a ModuleList of that length named one of {BLOCKS}; its "
            f"lists are {lists}."
        )
    return min(found, key=lambda name: name.count("."))


def _truncate_config(config: PretrainedConfig, n_blocks: int) -> None:
    """Make a configuration one of the first blocks, with its lists of one entry a block."""
    whole = config.num_hidden_layers
    for name, value in config.to_dict().items():
        if "layer" in name and isinstance(value, (list, tuple)) and len(value) == whole:
            setattr(config, name, value[:n_blocks])
    config.num_hidden_layers = n_blocks
    if hasattr(config, "encoder_layers"):
        config.encoder_layers = n_blocks
    if len(getattr(config, "stage_names", None) or ()) == whole + 1:
        config.stage_names = config.stage_names[: n_blocks + 1]
        config._out_features, config._out_indices = config.stage_names[-1:], [n_blocks]


def _with_empty_decoder(encoder: PreTrainedModel, config: PretrainedConfig) -> PreTrainedModel:
    """Return an encoder in the model that `AutoModel` makes of its folder, without decoder blocks.

    `AutoModel` loads no encoder alone. If the encoder does not read tokens, the table of token
    embeddings, which is the decoder's, shrinks to one row.
    """
    config = copy.deepcopy(config)
    _truncate_config(config, encoder.config.num_hidden_layers)
    config.is_encoder_decoder = True
    for name in DECODER_BLOCKS:
        if hasattr(config, name):
            setattr(config, name, 0)
    if encoder.main_input_name != "input_ids":
        config.vocab_size = 1
        for token in ("pad", "bos", "eos", "decoder_start"):
            setattr(config, f"{token}_token_id", 0)
    model = AutoModel.from_config(config).to(encoder.device, encoder.dtype)
    if encoder.main_input_name == "input_ids":
        model.set_input_embeddings(encoder.get_input_embeddings())
    model.encoder = encoder
    return model


def truncate(model: PreTrainedModel, n_blocks: int) -> PreTrainedModel:
    """Return a copy of a model that ends with block `n_blocks`, as `AutoModel` loads it.

    Its `hidden_states[: n_blocks]` are those of the whole model; so is the last one, except behind
    a final norm (see `loes.export`). Heads are left out. A pooler is kept, but what it was trained
    on is gone. Of an encoder-decoder the encoder remains, in a model whose decoder has no blocks.

    Chapter 17 says what it saves.

    Parameters
    ----------
    model : a transformers model; of CLIP, one of the towers. It is not changed.
    n_blocks : how many blocks to keep, from 1 to all.

    Raises
    ------
    TypeError for no transformers model; ValueError for a number out of range, a model of two
    towers, or one in which no list of blocks is found (what was looked for is named).
    """
    part = readable_part(model)
    name = _find_blocks(part)
    blocks = part.get_submodule(name)
    n_blocks = operator.index(n_blocks)
    if not 1 <= n_blocks <= len(blocks):
        raise ValueError(
            f"n_blocks must be from 1 to {len(blocks)}, the blocks of {type(part).__name__}; got "
            f"{n_blocks}."
        )
    # What is cut off is not copied: the memo says that each such block has been copied already.
    nothing = torch.nn.Identity()
    part = copy.deepcopy(part, {id(block): nothing for block in blocks[n_blocks:]})
    del part.get_submodule(name)[n_blocks:]
    _truncate_config(part.config, n_blocks)
    if has_decoder(model.config):
        part = _with_empty_decoder(part, model.config)
    return part.eval()


def _example(model: PreTrainedModel) -> Any:
    """Return an input of the kind a model reads: a sentence, a picture or a second of noise."""
    modality = family_of(model, None).modality
    if modality == "text":
        return "Each block of a model adds to what the blocks before it have found."
    noise = np.random.default_rng(0)
    if modality == "image":
        return Image.fromarray(noise.integers(0, 256, (224, 224, 3), dtype=np.uint8))
    return noise.uniform(-0.5, 0.5, 16000).astype(np.float32), 16000


def _measure(model: PreTrainedModel, example: Any, **settings: Any) -> tuple[LayerFeatures, int]:
    """Return the features of one input and the FLOPs of the forward pass."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # The counter hooks into gradients where modules pass on parameters, and there are none here.
    # It does not know the fused attention of CPUs; as plain products, that is the same work.
    model.requires_grad_(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            features = extract_layers(model, [example], progress=False, **settings)
    finally:
        for parameter in trainable:
            parameter.requires_grad = True
    return features, counter.get_total_flops()


def _compare(before: int, after: int) -> dict[str, float]:
    return {"before": before, "after": after, "saved": 1 - after / before}


def _check_folder(folder: Path) -> None:
    """Refuse to replace anything but an earlier export without additions."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder to export to.")
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    ours: set[str] = set()
    if RECORD in found:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        ours = {RECORD, *record.get("files", ())} if record.get("format") == FORMAT else ours
    if foreign := sorted(found - ours):
        raise ValueError(
            f"{folder} holds files that no export wrote, such as {foreign[0]}; name another "
            "folder, or empty this one."
        )


def export_checkpoint(
    model: PreTrainedModel,
    processor: Any,
    selected: Sequence[int],
    folder: str | PathLike,
    *,
    names: Sequence[str] | None = None,
    pooling: str = "auto",
    final_norm: str = "as_is",
    max_length: float | None = None,
    example: Any = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the part of a model that computes the selected layers, and how they become features.

    The folder holds the truncated model (safetensors), its processor, and ``loes.json``. Its
    features are those of the whole model; the export is loaded and compared on one input before
    it is put in place. To compute them:

    >>> settings = json.loads(Path(folder, "loes.json").read_text())  # doctest: +SKIP
    >>> features = extract_layers(folder, inputs, **settings["extract"])  # doctest: +SKIP
    >>> X = np.hstack([features[layer] for layer in settings["layers"]])  # doctest: +SKIP

    Parameters
    ----------
    model : a transformers model; of CLIP, one of the towers.
    processor : its tokenizer, image processor, feature extractor or processor.
    selected : the layers to keep, in the order in which they are concatenated: 0 is the embedding,
        l the output of block l. Of a family that is not in the table, one block more is kept.
    folder : where to write; new, empty, or an earlier export, which is replaced.
    names : the names of all layers, `LayerFeatures.names`; given, it must be those of the model.
    pooling, final_norm, max_length : as the features were extracted that the selection was made on.
    example : one input to count FLOPs on and to compare features; None for a short sentence, a
        picture of 224 pixels or a second of noise.
    extra : anything else to put on record in ``loes.json``, such as the labels' names.

    Returns
    -------
    dict of ``"blocks"``, ``"parameters"`` and ``"flops"``, each with ``"before"``, ``"after"`` and
    the share ``"saved"``. Parameters and FLOPs are those of the part that is run: neither heads nor
    a decoder. FLOPs are counted on the example, a multiplication and an addition as two.

    Raises
    ------
    TypeError, ValueError as `truncate`; and for layers that the model has not, names of other
    layers, a folder with foreign files, or a model whose truncated form gives other features.
    """
    whole = readable_part(model)
    n_whole = len(whole.get_submodule(_find_blocks(whole)))
    layers = as_indices("selected", selected, n_whole + 1)
    if not layers:
        raise ValueError("selected is empty; name at least one layer.")
    standard = ["embedding", *(f"layer{layer}" for layer in range(1, n_whole + 1))]
    if names is not None and list(names) != standard:
        raise ValueError(
            f"names must be those of the {n_whole + 1} hidden states, 'embedding', 'layer1' ...; "
            f"got {list(names)}. Layers named by modules=[...] cannot be exported."
        )
    folder = Path(folder)
    _check_folder(folder)
    example = _example(whole) if example is None else example
    settings = {"pooling": pooling, "final_norm": final_norm, "max_length": max_length}
    wanted, flops = _measure(model, example, processor=processor, **settings)

    known = family_of(whole, None).known
    # At least one, since transformers records no hidden state without a block; one more where
    # nothing tells whether there is a final norm, which must not be behind a selected layer.
    n_blocks = min(n_whole, max(1, *layers) + (not known))
    small = truncate(model, n_blocks)
    settings["pooling"] = wanted.pooling
    if n_blocks < n_whole and known:
        settings["final_norm"] = "skip"
    _, small_flops = _measure(small, example, processor=processor, **settings)
    with replacing(folder) as draft:
        small.save_pretrained(draft)
        processor.save_pretrained(draft)
        features = extract_layers(draft, [example], device=whole.device, progress=False, **settings)
        for layer in layers:
            scale = np.abs(wanted[layer]).max()
            if not np.allclose(features[layer], wanted[layer], rtol=0, atol=1e-3 * scale):
                raise ValueError(
                    f"{type(whole).__name__} cannot be exported: cut to {n_blocks} blocks, it "
                    f"gives other features of {standard[layer]}."
                )
        report = {
            "blocks": _compare(n_whole, n_blocks),
            "parameters": _compare(whole.num_parameters(), readable_part(small).num_parameters()),
            "flops": _compare(flops, small_flops),
        }
        record = {
            "format": FORMAT,
            "layers": layers,
            "names": [standard[layer] for layer in layers],
            "fusion": "concat",
            "extract": settings,
            "source": {"model": model.name_or_path, "class": type(model).__name__},
            "report": report,
            "versions": {name: version(name) for name in ("loes", "torch", "transformers")},
            "extra": dict(extra or {}),
            "files": sorted(
                path.relative_to(draft).as_posix() for path in draft.rglob("*") if path.is_file()
            ),
        }
        (draft / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
    return report

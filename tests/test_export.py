"""A truncated checkpoint, loaded from disk, computes what the whole model computed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as tr
from PIL import Image
from safetensors import SafetensorError

from loes import families
from loes.export import export_checkpoint, truncate
from loes.extract import extract_layers

BLOCKS = 4
SIZE = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "num_hidden_layers": BLOCKS,
}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT = {**SIZE, **IDS, "vocab_size": 20, "max_position_embeddings": 40}
MODERN = {**TEXT, "cls_token_id": 1, "sep_token_id": 2}
IMAGE = {**SIZE, "image_size": 8, "patch_size": 4}
T5 = {"vocab_size": 20, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2, "num_layers": BLOCKS}
CONVOLUTIONS = {"conv_dim": (8,) * 4, "conv_stride": (4, 2, 1, 1), "conv_kernel": (8, 4, 1, 1)}
CLIP = {
    **SIZE,
    **CONVOLUTIONS,
    "vocab_size": 20,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
STABLE = {"do_stable_layer_norm": True, "feat_extract_norm": "layer"}
WHISPER = {
    **{f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in
       {"layers": BLOCKS, "attention_heads": 2, "ffn_dim": 24}.items()},
    **IDS,
    "d_model": 16,
    "vocab_size": 20,
    "num_mel_bins": 8,
    "max_source_positions": 50,
    "max_target_positions": 8,
    "decoder_start_token_id": 1,
}  # fmt: skip
SPECTROGRAM = {"max_length": 16, "num_mel_bins": 8, "frequency_stride": 4, "time_stride": 4}

# Name: the model's class and the arguments of its configuration; the norm of all tokens that is on
# hidden_states[-1] only, if there is one.
FAMILIES = {
    "bert": (tr.BertModel, TEXT, None),
    "roberta": (tr.RobertaModel, TEXT, None),
    "xlm-roberta": (tr.XLMRobertaModel, TEXT, None),
    "distilbert": (
        tr.DistilBertModel,
        {"vocab_size": 20, "dim": 16, "n_heads": 2, "hidden_dim": 24, "n_layers": BLOCKS},
        None,
    ),
    "modernbert": (tr.ModernBertModel, MODERN, "final_norm"),
    "deberta-v2": (
        tr.DebertaV2Model,
        {**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        None,
    ),
    "gpt2": (
        tr.GPT2Model,
        {**IDS, "vocab_size": 20, "n_embd": 16, "n_head": 2, "n_layer": BLOCKS},
        "ln_f",
    ),
    "llama": (tr.LlamaModel, TEXT, "norm"),
    "qwen2": (tr.Qwen2Model, {**TEXT, "num_key_value_heads": 1}, "norm"),
    "t5": (tr.T5Model, T5, "final_layer_norm"),
    "t5-encoder": (tr.T5EncoderModel, T5, "final_layer_norm"),
    "bart": (
        tr.BartModel,
        {key: value for key, value in WHISPER.items() if "source" not in key and "mel" not in key},
        None,
    ),
    "vit": (tr.ViTModel, IMAGE, None),
    "deit": (tr.DeiTModel, IMAGE, None),
    "dinov2": (tr.Dinov2Model, IMAGE, None),
    "dinov2-registers": (tr.Dinov2WithRegistersModel, IMAGE, None),
    "dinov3": (tr.DINOv3ViTModel, IMAGE, None),
    "clip-vision": (tr.CLIPVisionModel, IMAGE, None),
    "clip-text": (tr.CLIPTextModel, TEXT, None),
    "siglip-vision": (tr.SiglipVisionModel, IMAGE, None),
    "wav2vec2": (tr.Wav2Vec2Model, CLIP, None),
    "wav2vec2-large": (tr.Wav2Vec2Model, {**CLIP, **STABLE}, None),
    "hubert": (tr.HubertModel, CLIP, None),
    "wavlm": (tr.WavLMModel, CLIP, None),
    "wavlm-large": (tr.WavLMModel, {**CLIP, **STABLE}, None),
    "whisper": (tr.WhisperModel, WHISPER, "layer_norm"),
    "ast": (tr.ASTModel, {**SIZE, **SPECTROGRAM, "patch_size": 4}, None),
}


def make(name):
    torch.manual_seed(0)
    kind, arguments, _ = FAMILIES[name]
    return kind(kind.config_class(**arguments)).eval()


def part_of(model):
    return model.get_encoder() if model.config.model_type in ("t5", "bart", "whisper") else model


def batch_of(model):
    generator = torch.Generator().manual_seed(1)
    config = model.config
    if model.main_input_name == "input_ids":
        return {"input_ids": torch.randint(3, 20, (2, 6), generator=generator)}
    shape = {
        "pixel_values": (2, 3, 8, 8),
        "input_features": (2, 8, 100),
        "input_values": (2, 16, 8) if config.model_type.startswith("audio") else (2, 900),
    }[model.main_input_name]
    return {model.main_input_name: torch.randn(shape, generator=generator)}


def hidden_states(model):
    with torch.inference_mode():
        return model(**batch_of(model), output_hidden_states=True).hidden_states


@pytest.mark.parametrize("n_blocks", [1, 3, BLOCKS])
@pytest.mark.parametrize("name", FAMILIES)
def test_layers_from_disk_are_those_of_the_whole_model(name, n_blocks, tmp_path):
    model = make(name)
    expected = hidden_states(part_of(model))  # before: the model must not remember that it ran
    assert len(expected) == BLOCKS + 1
    truncate(model, n_blocks).save_pretrained(tmp_path)
    small = part_of(tr.AutoModel.from_pretrained(tmp_path))
    assert small.config.num_hidden_layers == n_blocks
    raw = []
    if norm := FAMILIES[name][2]:
        small.get_submodule(norm).register_forward_pre_hook(lambda _, args: raw.append(args[0]))
    found = hidden_states(small)
    assert len(found) == n_blocks + 1
    for expected_layer, layer in zip(expected[:n_blocks], found[:-1], strict=True):
        assert torch.equal(layer, expected_layer)
    if norm and n_blocks < BLOCKS:
        assert not torch.equal(found[-1], expected[n_blocks])
        assert torch.equal(raw[0], expected[n_blocks])
    else:
        assert torch.equal(found[-1], expected[n_blocks])
    # The whole model is as it was.
    assert model.config.num_hidden_layers == BLOCKS
    for before, after in zip(expected, hidden_states(part_of(model)), strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("name", ["bert", "t5", "whisper", "vit", "wavlm"])
def test_a_truncated_model_loads_without_missing_weights(name, tmp_path):
    truncate(make(name), 2).save_pretrained(tmp_path)
    _, info = tr.AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())


def test_lists_of_one_entry_a_block_are_cut():
    small = truncate(make("modernbert"), 2)
    assert small.config.layer_types == ["full_attention", "sliding_attention"]
    small = truncate(make("dinov2"), 2)
    assert small.config.stage_names == ["stem", "stage1", "stage2"]
    assert small.config.out_features == ["stage2"]
    # wav2vec 2.0 has four convolutions here, as many as blocks: they stay
    small = truncate(make("wav2vec2"), 2)
    assert len(small.config.conv_dim) == len(small.feature_extractor.conv_layers) == 4


def test_heads_are_left_out_and_models_keep_their_precision():
    torch.manual_seed(0)
    model = tr.BertForMaskedLM(tr.BertConfig(**TEXT)).to(torch.bfloat16)
    small = truncate(model, 2)
    assert type(small) is tr.BertModel
    assert small.dtype == torch.bfloat16
    assert len(small.encoder.layer) == 2
    assert len(model.bert.encoder.layer) == BLOCKS
    small.encoder.layer[0].output.dense.bias.data.fill_(9)  # a copy: nothing is shared
    assert (model.bert.encoder.layer[0].output.dense.bias != 9).all()


@pytest.mark.parametrize("kind", [tr.WhisperForConditionalGeneration, tr.WhisperModel])
def test_of_whisper_the_encoder_remains(kind):
    model = kind(tr.WhisperConfig(**WHISPER))
    small = truncate(model, 2)
    assert type(small) is tr.WhisperModel
    encoder = model.get_encoder()
    block = sum(parameter.numel() for parameter in encoder.layers[0].parameters())
    rest = 1 * 16 + 8 * 16 + 2 * 16  # of the decoder: one token, its positions and its norm
    assert small.num_parameters() == encoder.num_parameters() - 2 * block + rest
    assert type(truncate(encoder, 2)) is tr.WhisperModel


def test_models_that_cannot_be_truncated_say_why():
    model = make("bert")
    for n_blocks in (0, BLOCKS + 1):
        with pytest.raises(ValueError, match=f"from 1 to {BLOCKS}, .* BertModel; got {n_blocks}"):
            truncate(model, n_blocks)
    with pytest.raises(TypeError):
        truncate(model, 1.5)
    with pytest.raises(TypeError, match="must be a transformers model; got Linear"):
        truncate(torch.nn.Linear(1, 1), 1)
    clip = tr.CLIPModel(tr.CLIPConfig(text_config=TEXT, vision_config=IMAGE, projection_dim=8))
    with pytest.raises(ValueError, match=r"CLIPModel has two towers; pass .* model\.vision_model"):
        truncate(clip, 1)
    assert len(truncate(clip.vision_model, 1).encoder.layers) == 1
    resnet = tr.ResNetModel(
        tr.ResNetConfig(embedding_size=4, hidden_sizes=[4, 4], depths=[1, 1], layer_type="basic")
    )
    with pytest.raises(
        ValueError, match=r"ResNetModel cannot be truncated: looked for config\.num"
    ):
        truncate(resnet, 1)

    class OwnConfig(tr.BertConfig):
        model_type = "own"

    class Own(tr.BertModel):
        config_class = OwnConfig

    with pytest.raises(ValueError, match="AutoModel knows no model for its OwnConfig"):
        truncate(Own(OwnConfig(**TEXT)), 1)


# Export


@pytest.fixture
def readers(make_tokenizer):
    """Model name -> processor."""
    tokenizer = make_tokenizer()
    mel = {"feature_size": 8, "chunk_length": 1, "n_fft": 400, "hop_length": 160}
    return {
        **dict.fromkeys(["bert", "gpt2", "llama", "t5", "t5-encoder"], tokenizer),
        "whisper": tr.WhisperFeatureExtractor(**mel),
        "wav2vec2": tr.Wav2Vec2FeatureExtractor(),
        "vit": tr.ViTImageProcessor(size={"height": 8, "width": 8}),
    }


def inputs_of(name):
    rng = np.random.default_rng(2)
    if name == "vit":
        return [Image.fromarray(rng.integers(0, 256, (9, 7, 3), dtype=np.uint8)) for _ in range(3)]
    if name in ("whisper", "wav2vec2"):
        return [(rng.normal(size=n).astype(np.float32), 16000) for n in (4000, 9000, 4000)]
    return ["the cat sat on the mat", "a dog ran", "far away"]


@pytest.mark.parametrize("final_norm", ["as_is", "apply", "skip"])
@pytest.mark.parametrize(
    "name", ["bert", "gpt2", "llama", "t5", "t5-encoder", "vit", "wav2vec2", "whisper"]
)
def test_an_export_gives_the_selected_features(name, final_norm, tmp_path, readers):
    model, processor, inputs = make(name), readers[name], inputs_of(name)
    whole = extract_layers(model, inputs, processor=processor, final_norm=final_norm)
    for layers in ([2, 0, 3], [1, BLOCKS]):
        folder = tmp_path / str(len(layers))
        report = export_checkpoint(
            model,
            processor,
            layers,
            folder,
            names=whole.names,
            pooling=whole.pooling,
            final_norm=final_norm,
        )
        settings = json.loads((folder / "loes.json").read_text())
        features = extract_layers(folder, inputs, **settings["extract"])
        assert features.names[-1] == f"layer{max(layers)}"
        assert features.pooling == whole.pooling
        X = np.hstack([features[layer] for layer in settings["layers"]])
        assert np.array_equal(X, np.hstack([whole[layer] for layer in layers]))
        assert settings["names"] == [whole.names[layer] for layer in layers]
        assert report["blocks"] == {
            "before": BLOCKS, "after": max(layers), "saved": 1 - max(layers) / BLOCKS
        }  # fmt: skip


def test_of_an_unknown_family_one_block_more_keeps_the_norm_away(tmp_path, make_tokenizer):
    torch.manual_seed(0)
    model, tokenizer = tr.PhiModel(tr.PhiConfig(**TEXT)).eval(), make_tokenizer()
    assert "phi" not in families.FAMILIES
    whole = extract_layers(model, inputs_of("phi"), processor=tokenizer)
    for layer, n_blocks in ((2, 3), (BLOCKS, BLOCKS)):
        folder = tmp_path / str(layer)
        report = export_checkpoint(model, tokenizer, [layer], folder)
        assert report["blocks"]["after"] == n_blocks
        settings = json.loads((folder / "loes.json").read_text())["extract"]
        features = extract_layers(folder, inputs_of("phi"), **settings)
        assert np.array_equal(features[layer], whole[layer])


def test_parameters_and_flops_are_those_of_the_blocks(tmp_path, make_tokenizer):
    model = make("bert")
    report = export_checkpoint(
        model, make_tokenizer(), [0, 1], tmp_path / "new", example="the cat sat on"
    )
    d, ff, tokens = 16, 24, 4 + 2
    block = 4 * (d * d + d) + 2 * d * ff + ff + d + 2 * 2 * d
    rest = (20 + 40 + 2 + 2) * d + (d * d + d)  # embeddings with their norm, and the pooler
    assert report["parameters"]["before"] == rest + BLOCKS * block
    assert report["parameters"]["after"] == rest + block
    assert report["parameters"]["saved"] == pytest.approx(3 * block / (rest + BLOCKS * block))
    products = 4 * tokens * d * d + 2 * tokens * d * ff + 2 * tokens * tokens * d
    assert report["flops"]["before"] == 2 * (BLOCKS * products + d * d)
    assert report["flops"]["after"] == 2 * (products + d * d)


def test_the_record_says_what_was_exported(tmp_path, make_tokenizer):
    folder = tmp_path / "a" / "new"
    report = export_checkpoint(
        make("bert"),
        make_tokenizer(),
        np.array([2, 1]),
        folder,
        pooling="cls",
        max_length=5,
        extra={"classes": ["x", "y"]},
    )
    record = json.loads((folder / "loes.json").read_text())
    assert record["layers"] == [2, 1]
    assert record["names"] == ["layer2", "layer1"]
    assert record["fusion"] == "concat"
    assert record["extract"] == {"pooling": "cls", "final_norm": "skip", "max_length": 5}
    assert record["source"] == {"model": "", "class": "BertModel"}
    assert record["extra"] == {"classes": ["x", "y"]}
    assert record["versions"]["transformers"] == tr.__version__
    assert record["report"] == report
    assert {*record["files"], "loes.json"} == {path.name for path in folder.iterdir()}
    assert "model.safetensors" in record["files"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]  # no draft is left
    assert [path.name for path in folder.parent.iterdir()] == ["new"]


def test_only_an_export_is_replaced(tmp_path, make_tokenizer):
    model, tokenizer, folder = make("bert"), make_tokenizer(), tmp_path / "new"
    folder.mkdir()
    export_checkpoint(model, tokenizer, [3], folder)
    export_checkpoint(model, tokenizer, [1], folder)
    assert tr.AutoConfig.from_pretrained(folder).num_hidden_layers == 1
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(
        ValueError, match=r"new holds files that no export wrote, such as notes\.txt"
    ):
        export_checkpoint(model, tokenizer, [2], folder)
    assert tr.AutoConfig.from_pretrained(folder).num_hidden_layers == 1
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "loes.json").write_text('{"format": "loes.selection/1"}')
    with pytest.raises(ValueError, match=r"such as loes\.json"):
        export_checkpoint(model, tokenizer, [2], folder)
    with pytest.raises(ValueError, match=r"loes\.json is a file; name a folder"):
        export_checkpoint(model, tokenizer, [2], folder / "loes.json")


@pytest.mark.parametrize("selected", [[], [0, BLOCKS + 1], [-1], [1, 1], ["a"], 2])
def test_layers_that_are_not_there_are_refused(selected, tmp_path, make_tokenizer):
    message = f"layer indices from 0 to {BLOCKS}; got" if selected != [] else "selected is empty"
    with pytest.raises(ValueError, match=message):
        export_checkpoint(make("bert"), make_tokenizer(), selected, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_layers_of_modules_are_refused(tmp_path, make_tokenizer):
    with pytest.raises(
        ValueError, match=r"'layer1' \.\.\.; got \['pooler'\]\. Layers named by mod"
    ):
        export_checkpoint(make("bert"), make_tokenizer(), [0], tmp_path / "new", names=["pooler"])


def test_a_failed_export_leaves_nothing(tmp_path, make_tokenizer, monkeypatch):
    model, tokenizer, folder = make("bert"), make_tokenizer(), tmp_path / "new"
    export_checkpoint(model, tokenizer, [1], folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def damage(model, n_blocks):
        small = truncate(model, n_blocks)
        small.encoder.layer[0].output.dense.bias.data[0] += 1
        return small

    monkeypatch.setattr("loes.export.truncate", damage)
    with pytest.raises(ValueError, match="cut to 2 blocks, it gives other features of layer1"):
        export_checkpoint(model, tokenizer, [0, 1, 2], folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert list(tmp_path.iterdir()) == [folder]
    monkeypatch.undo()

    def full(*_, **__):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(tr.BertModel, "save_pretrained", full)
    with pytest.raises(OSError, match=r"cannot write .*new: I/O error: No space left"):
        export_checkpoint(model, tokenizer, [2], folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    monkeypatch.undo()
    with pytest.raises(TypeError, match="not JSON serializable"):
        export_checkpoint(model, tokenizer, [2], folder, extra={"what": {1, 2}})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert list(Path(tmp_path).iterdir()) == [folder]

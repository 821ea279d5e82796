"""FusedEncoder against features extracted from the whole model, and in three training loops."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import Dataset
from transformers import (
    AutoModel,
    BertConfig,
    GPT2Config,
    ResNetConfig,
    T5Config,
    Trainer,
    TrainingArguments,
    ViTConfig,
    Wav2Vec2Config,
)

from loes import FusedEncoder, GeoReg, extract_layers
from loes.fusion import FUSIONS

TEXTS = ["the cat sat", "a dog ran far away on the mat", "the dog", "cat on the mat"]
TOKENS = {"vocab_size": 14, "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
CONFIGS = {
    "bert": BertConfig(
        vocab_size=14,
        hidden_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.5,
    ),
    "gpt2": GPT2Config(**TOKENS, n_embd=16, n_layer=4, n_head=2, initializer_range=0.5),
    "t5": T5Config(
        **TOKENS, d_model=16, d_kv=8, d_ff=32, num_layers=4, num_heads=2, decoder_start_token_id=0
    ),
}


def make(family):
    torch.manual_seed(0)
    return AutoModel.from_config(CONFIGS[family]).eval()


@pytest.fixture
def batch(make_tokenizer):
    return dict(make_tokenizer()(TEXTS, padding=True, return_tensors="pt"))


def accepted(family, batch):
    """Return what the family takes: only BERT has token types."""
    return batch if family == "bert" else {k: v for k, v in batch.items() if k != "token_type_ids"}


@pytest.mark.parametrize("layers", [[2], [0, 3], [4, 1], [0]])
@pytest.mark.parametrize("family", CONFIGS)
def test_it_reads_the_layers_of_the_whole_model(family, layers, batch, make_tokenizer):
    model = make(family)
    features = extract_layers(model, TEXTS, processor=make_tokenizer(), progress=False)
    encoder = FusedEncoder(model, layers, 3, fusion="concat").eval()
    embedding = encoder(**accepted(family, batch)).embedding.detach().numpy()
    expected = np.hstack([features[layer] for layer in layers])
    np.testing.assert_allclose(embedding, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("fusion", FUSIONS)
def test_every_fusion_gives_outputs_and_gradients(fusion, batch):
    encoder = FusedEncoder(make("bert"), [1, 3], 3, fusion=fusion, adapter_width=8)
    output = encoder(**batch, labels=torch.tensor([0, 1, 2, 0]))
    assert output.logits.shape == (4, 3)
    output.loss.backward()
    gradients = [p.grad for p in encoder.probe.parameters()]
    assert all(g is not None and g.isfinite().all() for g in gradients)


def test_blocks_above_the_highest_layer_are_gone():
    model = make("bert")
    encoder = FusedEncoder(model, [1, 2], 3)
    assert encoder.backbone.config.num_hidden_layers == 2
    assert model.config.num_hidden_layers == 4
    added = sum(p.numel() for p in encoder.probe.parameters())
    assert encoder.overhead == pytest.approx(added / encoder.backbone.num_parameters())


def test_a_frozen_backbone_does_not_change_and_has_no_dropout(batch):
    encoder = FusedEncoder(make("bert"), [1, 2], 3, frozen=True, dropout=0.0)
    before = {name: p.clone() for name, p in encoder.backbone.named_parameters()}
    optimizer = torch.optim.SGD([p for p in encoder.parameters() if p.requires_grad], lr=1e-3)
    encoder.train()
    labels = torch.tensor([0, 1, 2, 0])
    first = encoder(**batch, labels=labels).loss
    torch.testing.assert_close(encoder(**batch, labels=labels).loss, first)
    first.backward()
    optimizer.step()
    assert encoder(**batch, labels=labels).loss < first
    for name, p in encoder.backbone.named_parameters():
        assert p.grad is None
        torch.testing.assert_close(p, before[name], rtol=0, atol=0)


def test_a_free_backbone_is_trained(batch):
    encoder = FusedEncoder(make("bert"), [1, 2], 3)
    encoder(**batch, labels=torch.tensor([0, 1, 2, 0])).loss.backward()
    assert encoder.backbone.get_input_embeddings().weight.grad.abs().sum() > 0


def test_georeg_is_part_of_the_loss(batch):
    labels = torch.tensor([0, 1, 2, 0])
    georeg = GeoReg(0.5)
    encoder = FusedEncoder(make("bert"), [1, 2], 3, georeg=georeg).eval()
    output = encoder(**batch, labels=labels)
    task_loss = torch.nn.functional.cross_entropy(output.logits, labels)
    torch.testing.assert_close(output.loss, task_loss + georeg(output.embedding, labels).loss)


def test_georeg_leaves_out_samples_without_a_label(batch):
    georeg, labels = GeoReg(0.5), torch.tensor([0, 1, 2, -100])
    encoder = FusedEncoder(make("bert"), [1, 2], 3, georeg=georeg).eval()
    output = encoder(**batch, labels=labels)
    task_loss = torch.nn.functional.cross_entropy(output.logits, labels)
    expected = task_loss + georeg(output.embedding[:3], labels[:3]).loss
    torch.testing.assert_close(output.loss, expected)


def test_values_are_regressed(batch):
    encoder = FusedEncoder(make("bert"), [1], 2).eval()
    labels = torch.rand(4, 2)
    output = encoder(**batch, labels=labels)
    torch.testing.assert_close(output.loss, (output.logits - labels).square().mean())


@pytest.mark.parametrize("family", CONFIGS)
def test_it_comes_back_from_disk_as_it_was(family, batch, tmp_path):
    encoder = FusedEncoder(make(family), [3, 1], 3, frozen=True, adapter_width=4).eval()
    encoder.save_pretrained(tmp_path / "fused")
    again = FusedEncoder.from_pretrained(tmp_path / "fused")
    batch = accepted(family, batch)
    torch.testing.assert_close(again(**batch).logits, encoder(**batch).logits)
    assert again.settings == encoder.settings
    again.save_pretrained(tmp_path / "fused")  # an earlier save is replaced
    assert not list(tmp_path.glob("**/*.bin"))


def test_foreign_folders_are_neither_read_nor_overwritten(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    encoder = FusedEncoder(make("bert"), [1], 2)
    with pytest.raises(ValueError, match="holds other files"):
        encoder.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"holds no loes\.FusedEncoder"):
        FusedEncoder.from_pretrained(tmp_path)
    (tmp_path / "fused.json").write_text(json.dumps({"format": "other/1"}))
    with pytest.raises(ValueError, match="its format is other/1"):
        FusedEncoder.from_pretrained(tmp_path)


@pytest.mark.parametrize("damage", ["probe", "backbone", "settings", "no backbone"])
def test_damaged_folders_are_refused(damage, tmp_path):
    folder = tmp_path / "fused"
    FusedEncoder(make("bert"), [1, 2], 3).save_pretrained(folder)
    weights = folder / "backbone/model.safetensors"
    if damage == "probe":
        (folder / "probe.safetensors").write_bytes(b"\0" * 20)
    elif damage == "backbone":
        kept = {k: v for k, v in load_file(weights).items() if "layer.1." not in k}
        save_file(kept, weights, metadata={"format": "pt"})
    elif damage == "settings":
        (folder / "fused.json").write_text("[]")
    else:
        weights.unlink()
    with pytest.raises(ValueError, match="damaged"):
        FusedEncoder.from_pretrained(folder)


@pytest.mark.parametrize(
    ("n_outputs", "labels", "message"),
    [
        (2, torch.rand(4), r"shape \(4, 1\) do not fit outputs of shape \(4, 2\)"),
        (1, torch.tensor([0, 1, 0, 1]), "at least two outputs"),
        (3, torch.tensor([0, 3, 0, 1]), "from 0 to 2, or -100 for no label; got 3"),
        (3, torch.tensor([0, 1, 0, -1]), "from 0 to 2, or -100 for no label; got -1"),
        (3, torch.tensor([[0], [1], [0], [1]]), r"shape \(4, 1\) do not fit a batch of 4"),
    ],
)
def test_labels_have_to_fit_the_outputs(n_outputs, labels, message, batch):
    encoder = FusedEncoder(make("bert"), [1], n_outputs)
    with pytest.raises(ValueError, match=message):
        encoder(**batch, labels=labels)


def test_labels_that_are_no_tensor_are_refused_in_words(batch):
    encoder = FusedEncoder(make("bert"), [1], 2)
    with pytest.raises(TypeError, match=r"labels must be a tensor .* got list"):
        encoder(**batch, labels=["cat", "dog", "cat", "dog"])


def test_one_value_a_sample_needs_no_second_axis(batch):
    encoder = FusedEncoder(make("bert"), [1], 1).eval()
    labels = torch.rand(4)
    torch.testing.assert_close(
        encoder(**batch, labels=labels).loss, encoder(**batch, labels=labels[:, None]).loss
    )


@pytest.mark.parametrize("layers", [[1, 1], [5], [-1], [1.7], [True], 1])
def test_impossible_layers_are_refused(layers):
    with pytest.raises(ValueError, match="layers must hold distinct layer indices from 0 to 4"):
        FusedEncoder(make("bert"), layers, 2)


@pytest.mark.parametrize(
    ("model", "layers", "n_outputs", "options", "error", "message"),
    [
        (None, [], 2, {}, ValueError, "layers is empty"),
        (None, [1], 0, {}, ValueError, "n_outputs must be a whole number >= 1; got 0"),
        (None, [1], 2.0, {}, ValueError, "n_outputs must be a whole number >= 1; got 2.0"),
        (None, [1], 2, {"georeg": 0.1}, TypeError, "georeg must be a GeoReg, .*; got float"),
        (None, [1], 2, {"pooling": "x"}, ValueError, "here: there is no pooling of that name"),
        ("minilm", [1], 2, {}, TypeError, "model must be a transformers model; got str"),
    ],
)
def test_bad_settings_are_refused(model, layers, n_outputs, options, error, message):
    with pytest.raises(error, match=message):
        FusedEncoder(model or make("bert"), layers, n_outputs, **options)


def test_a_cnn_is_sent_to_cached_features():
    model = AutoModel.from_config(
        ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic")
    )
    with pytest.raises(ValueError, match="train_probe"):
        FusedEncoder(model, [1], 2)


# Images and sound


def test_patches_are_pooled_without_the_special_token():
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32,
        image_size=8, patch_size=4,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModel.from_config(config).eval()
    pixels = torch.randn(2, 3, 8, 8)
    encoder = FusedEncoder(model, [2], 2, fusion="concat").eval()
    state = model(pixels, output_hidden_states=True).hidden_states[2]
    torch.testing.assert_close(encoder(pixel_values=pixels).embedding, state[:, 1:].mean(1))


def test_a_sample_without_a_true_token_is_refused(batch):
    batch["attention_mask"][2] = 0
    with pytest.raises(ValueError, match="sample 2 of the batch has no true token"):
        FusedEncoder(make("bert"), [1], 2)(**batch)


def test_padded_clips_want_to_be_told_their_true_frames():
    config = Wav2Vec2Config(
        vocab_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, conv_dim=(8,), conv_kernel=(10,), conv_stride=(5,),
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, feat_extract_norm="layer",
        do_stable_layer_norm=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModel.from_config(config).eval()
    encoder = FusedEncoder(model, [1], 2, fusion="concat").eval()
    clips, mask = torch.randn(2, 60), torch.ones(2, 60, dtype=torch.long)
    assert encoder(input_values=clips, attention_mask=mask).embedding.shape == (2, 16)
    mask[1, 40:] = 0
    with pytest.raises(ValueError, match="token_mask"):
        encoder(input_values=clips, attention_mask=mask)
    frames = torch.ones(2, 11, dtype=torch.bool)
    frames[1, 7:] = False
    padded = encoder(input_values=clips, attention_mask=mask, token_mask=frames).embedding[1]
    alone = encoder(input_values=clips[1:, :40], attention_mask=mask[1:, :40]).embedding[0]
    torch.testing.assert_close(padded, alone, atol=1e-5, rtol=1e-4)


# Other people's training loops


class Sentences(Dataset):
    """A class is told by a word."""

    def __init__(self, tokenizer, n=48):
        rng = np.random.default_rng(0)
        self.labels = np.arange(n) % 3
        words = np.array(["cat", "dog", "mat"])[self.labels]
        others = rng.choice(["the", "a", "sat", "ran", "on"], (n, 3))
        texts = [" ".join((*other, word)) for other, word in zip(others, words, strict=True)]
        self.tokens = tokenizer(texts, return_tensors="pt")

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        item = {key: value[i] for key, value in self.tokens.items()}
        return item | {"labels": int(self.labels[i])}


def accuracy(encoder, data):
    with torch.inference_mode():
        logits = encoder.eval()(**data.tokens).logits
    return float((logits.argmax(1).numpy() == data.labels).mean())


def test_the_trainer_of_transformers_trains_it_with_georeg(make_tokenizer, tmp_path):
    data = Sentences(make_tokenizer())
    encoder = FusedEncoder(
        make("bert"), [1, 2], 3, adapter_width=8, georeg=GeoReg(0.01, scale_free=True)
    )
    arguments = TrainingArguments(
        output_dir=tmp_path,
        max_steps=60,
        per_device_train_batch_size=24,
        learning_rate=1e-2,
        remove_unused_columns=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(encoder, arguments, train_dataset=data).train()
    assert accuracy(encoder, data) > 0.9


def test_lora_trains_it_too(make_tokenizer):
    peft = pytest.importorskip("peft", reason="optional: pip install peft")
    data = Sentences(make_tokenizer())
    encoder = FusedEncoder(make("bert"), [1, 2], 3, adapter_width=8, dropout=0.0)
    settings = peft.LoraConfig(r=4, target_modules=["query", "value"], modules_to_save=["probe"])
    adapted = peft.get_peft_model(encoder, settings)
    trained = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert all("lora" in name or "probe" in name for name in trained)
    optimizer = torch.optim.AdamW(adapted.parameters(), lr=1e-2)
    labels = torch.as_tensor(data.labels)
    for _ in range(60):
        optimizer.zero_grad()
        adapted(**data.tokens, labels=labels).loss.backward()
        optimizer.step()
    assert accuracy(adapted, data) > 0.9

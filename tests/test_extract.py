"""Features of tiny models with random weights, against one text at a time, pooled by hand."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from tqdm import tqdm
from transformers import (
    AutoModel,
    AutoTokenizer,
    BartConfig,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    T5Config,
)
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from loes import LayerFeatures, extract, extract_layers, zoo
from loes.baselines import token_curvature
from loes.extract import stream_layers
from loes.pooling import pool, pool_tokens, turning
from loes.readers import describe_processor

TEXTS = ["the cat", "a dog ran far away on the mat", "sat", "the dog sat on a mat", "cat cat cat"]
TOKENS = {"vocab_size": 14, "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
CONFIGS = {
    "bert": BertConfig(
        vocab_size=14,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    ),
    "gpt2": GPT2Config(**TOKENS, n_embd=16, n_layer=2, n_head=2, n_positions=16),
    "llama": LlamaConfig(
        **TOKENS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    ),
    # Encoder and decoder in one; T5 has no limit of positions.
    "t5": T5Config(
        **TOKENS, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0
    ),
    "bart": BartConfig(
        **TOKENS,
        d_model=16,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=16,
        decoder_start_token_id=0,
    ),
}


@pytest.fixture(scope="module")
def models():
    """One model a family, with random weights and dropout, as it comes after training."""
    torch.manual_seed(0)
    return {name: AutoModel.from_config(config).train() for name, config in CONFIGS.items()}


@pytest.fixture
def bert(models):
    return models["bert"]


def by_hand(model, tokenizer, text, pooling, limit=16):
    """Run one text, which needs no padding, and pool it."""
    ids = torch.tensor([tokenizer(text)["input_ids"][:limit]])
    reader = model.get_encoder() if model.config.is_encoder_decoder else model
    modes = [module.training for module in model.modules()]
    with torch.no_grad():
        states = reader.eval()(input_ids=ids, output_hidden_states=True).hidden_states
    for module, mode in zip(model.modules(), modes, strict=True):
        module.training = mode
    pool = {"mean": lambda H: H.mean(0), "cls": lambda H: H[0], "last": lambda H: H[-1]}
    return [pool[pooling](state[0]).numpy() for state in states]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    ("family", "pooling"),
    [(family, pooling) for family in CONFIGS for pooling in ("mean", "last")]
    + [("bert", "cls"), ("bart", "cls")],
)
def test_features_are_those_of_each_text_alone(models, make_tokenizer, family, pooling, side):
    model, tokenizer = models[family], make_tokenizer(padding_side=side)
    features = extract_layers(
        model, TEXTS, processor=tokenizer, pooling=pooling, batch_size=3, progress=False
    )
    n_blocks = 3 if family == "bert" else 2
    assert features.names == ["embedding", *(f"layer{i + 1}" for i in range(n_blocks))]
    assert features.pooling == pooling
    expected = [by_hand(model, tokenizer, text, pooling) for text in TEXTS]
    for X, alone in zip(features, zip(*expected, strict=True), strict=True):
        assert X.dtype == np.float32
        np.testing.assert_allclose(X, np.stack(alone), atol=1e-5)
    assert tokenizer.padding_side == side


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_batch_size_does_not_matter(bert, make_tokenizer, batch_size):
    settings = {"processor": make_tokenizer(), "progress": False}
    expected = extract_layers(bert, TEXTS, **settings)
    features = extract_layers(bert, TEXTS, batch_size=batch_size, **settings)
    for X, Z in zip(features, expected, strict=True):
        np.testing.assert_allclose(X, Z, atol=1e-5)


def test_auto_pooling_is_the_mean(bert, make_tokenizer):
    settings = {"processor": make_tokenizer(), "progress": False}
    features = extract_layers(bert, TEXTS, **settings)
    assert features.pooling == "mean"
    mean = extract_layers(bert, TEXTS, pooling="mean", **settings)
    np.testing.assert_array_equal(features[3], mean[3])


def test_the_first_token_of_a_decoder_is_left_out_unless_it_is_the_only_one(models, make_tokenizer):
    settings = {"processor": make_tokenizer(special=False), "progress": False}
    features = extract_layers(models["gpt2"], ["the", "the cat", "the cat sat"], **settings)
    assert features.pooling == "mean_without_first"
    for row, text in enumerate(["the", "the cat", "the cat sat"]):
        ids = torch.tensor([settings["processor"](text)["input_ids"]])
        with torch.no_grad():
            states = models["gpt2"].eval()(ids, output_hidden_states=True).hidden_states
        for X, state in zip(features, states, strict=True):
            expected = state[0, 1:].mean(0) if row else state[0, 0]
            np.testing.assert_allclose(X[row], expected, atol=1e-5)


@pytest.mark.parametrize("kind", [tuple, np.array, iter])
def test_any_sequence_of_texts_will_do(bert, make_tokenizer, kind):
    settings = {"processor": make_tokenizer(), "progress": False}
    features = extract_layers(bert, kind(TEXTS), **settings)
    np.testing.assert_array_equal(features[3], extract_layers(bert, TEXTS, **settings)[3])


def test_a_folder_without_a_tokenizer_is_refused(models, tmp_path):
    """Transformers may make an empty one up, which reads every word as unknown."""
    models["bert"].save_pretrained(tmp_path)
    with pytest.raises((ValueError, OSError), match="tokenizer"):
        extract_layers(tmp_path, ["a cat", "a dog"])


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_saved_model_is_loaded_with_its_tokenizer(models, make_tokenizer, family, tmp_path):
    models[family].save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    expected = extract_layers(models[family], TEXTS, processor=make_tokenizer(), progress=False)
    for folder in (tmp_path, str(tmp_path)):
        features = extract_layers(folder, TEXTS, progress=False)
        assert isinstance(features, LayerFeatures)
        for X, Z in zip(features, expected, strict=True):
            np.testing.assert_allclose(X, Z, atol=1e-6)


LONG = "the cat sat on mat a dog ran far away " * 5


@pytest.mark.parametrize(
    ("options", "max_length", "limit"),
    [
        ({}, None, 16),  # the model's positions
        ({"model_max_length": 9}, None, 9),
        ({"model_max_length": 99}, None, 16),
        ({"model_max_length": 9}, 5, 5),
        ({"model_max_length": 9}, 99, 9),
        ({}, 99, 16),
    ],
)
def test_long_texts_are_cut_at_the_lowest_limit(models, make_tokenizer, options, max_length, limit):
    model, tokenizer = models["gpt2"], make_tokenizer(special=False, **options)
    features = extract_layers(
        model,
        [LONG],
        processor=tokenizer,
        max_length=max_length,
        pooling="mean",
        progress=False,
    )
    cut = by_hand(model, make_tokenizer(special=False), LONG, "mean", limit)
    np.testing.assert_allclose(features[2][0], cut[2], atol=1e-5)
    longer = by_hand(model, make_tokenizer(special=False), LONG, "mean", limit - 1)
    assert np.abs(features[2][0] - longer[2]).max() > 1e-3


def test_a_model_without_a_limit_reads_the_whole_text(models, make_tokenizer):
    tokenizer = make_tokenizer(special=False)
    features = extract_layers(models["t5"], [LONG], processor=tokenizer, progress=False)
    whole = by_hand(models["t5"], tokenizer, LONG, "mean", limit=50)
    np.testing.assert_allclose(features[2][0], whole[2], atol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("mean", [[2.0], [3.5], [7.0]]),
        ("cls", [[1.0], [3.0], [7.0]]),
        ("last", [[3.0], [4.0], [7.0]]),
        ("mean_without_first", [[2.5], [4.0], [7.0]]),
    ],
)
def test_pooling_looks_at_true_tokens_on_either_side(pooling, expected):
    nan = float("nan")  # padding may hold anything
    hidden = torch.tensor([[1.0, 2, 3, nan], [9, 9, 3, 4], [9, nan, 7, 9]]).unsqueeze(-1)
    mask = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1], [0, 0, 1, 0]])
    assert pool_tokens(hidden, mask, pooling).tolist() == expected
    assert pool_tokens(hidden, mask.bool(), pooling).tolist() == expected


@pytest.mark.parametrize("pooling", ["mean", "mean_without_first"])
def test_half_precision_is_summed_in_full(pooling):
    hidden = torch.full((1, 3001, 1), 100.0, dtype=torch.float16)  # a sum of 300,100 > 65,504
    mask = torch.ones(1, 3001, dtype=torch.bool)
    pooled = pool_tokens(hidden, mask, pooling)
    assert pooled.dtype == torch.float32
    assert pooled.item() == 100
    assert pool(hidden, None, "mean").item() == 100


def test_axes_say_how_a_layer_is_pooled():
    vectors, tokens = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(2, 2, 3)
    maps = torch.arange(48.0).view(2, 3, 2, 4)
    torch.testing.assert_close(pool(vectors, None, "mean"), vectors)
    torch.testing.assert_close(
        pool(tokens, None, "mean"), torch.tensor([[1.5, 2.5, 3.5], [7.5, 8.5, 9.5]])
    )
    torch.testing.assert_close(pool(tokens, None, "mean", special=1), tokens[:, 1])
    torch.testing.assert_close(pool(tokens, None, "cls", special=1), tokens[:, 0])
    torch.testing.assert_close(
        pool(maps, None, "mean"), torch.tensor([[3.5, 11.5, 19.5], [27.5, 35.5, 43.5]])
    )


def test_modes_are_restored_after_success_and_failure(bert, make_tokenizer):
    frozen = bert.encoder.layer[1].eval()
    before = [module.training for module in bert.modules()]
    assert bert.training
    assert not frozen.training
    extract_layers(bert, TEXTS, processor=make_tokenizer(), progress=False)
    assert [module.training for module in bert.modules()] == before

    def fail(*_):
        raise RuntimeError("no memory")

    handle = frozen.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="no memory"):
        extract_layers(bert, TEXTS, processor=make_tokenizer(), progress=False)
    handle.remove()
    assert [module.training for module in bert.modules()] == before
    frozen.train()


def test_progress_is_shown_when_asked_for_only(bert, make_tokenizer, capfd):
    extract_layers(bert, TEXTS, processor=make_tokenizer(), progress=False)
    assert capfd.readouterr() == ("", "")
    extract_layers(bert, TEXTS, processor=make_tokenizer())
    assert "5/5" in capfd.readouterr().err


def test_device_is_where_the_model_runs(bert, make_tokenizer):
    settings = {"processor": make_tokenizer(), "progress": False}
    features = extract_layers(bert, TEXTS, device="cpu", **settings)
    np.testing.assert_array_equal(features[3], extract_layers(bert, TEXTS, **settings)[3])


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ("one text", TypeError, "sequence of texts, .*; got one str"),
        (b"one text", TypeError, "sequence of texts, .*; got one bytes"),
        (None, TypeError, "sequence of texts, .*; got one NoneType"),
        ({"text": ["a"]}, TypeError, "got one dict. Pass a list of .* its columns"),
        (
            pd.DataFrame({"text": ["a"]}),
            TypeError,
            "got one DataFrame. Pass a list of .* its columns",
        ),
        (pd.Series(["a"]), TypeError, "got one Series. Pass a list of its values"),
        ({"a", "b"}, TypeError, "sequence of texts, .*; got one set"),
        (["a", None], TypeError, "sequence of texts, .*; got NoneType in it"),
        ([["the", "cat"]], TypeError, "sequence of texts, .*; got list in it"),
        ([], ValueError, "inputs is empty; pass at least one sample"),
        (["cat", ""], ValueError, r"inputs\[1\] \(''\) has no token; leave it out"),
        (["cat", "mat", "  "], ValueError, r"inputs\[2\] \('  '\) has no token"),
    ],
)
def test_bad_inputs_are_refused(bert, make_tokenizer, inputs, error, message):
    with pytest.raises(error, match=message):
        extract_layers(bert, inputs, processor=make_tokenizer(special=False), progress=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooling": "max"}, r"pooling must be one of \('auto', 'mean', .*; got 'max'"),
        ({"final_norm": "maybe"}, r"final_norm must be one of \('as_is', .*; got 'maybe'"),
        ({"shard_size": 0}, "shard_size must be a whole number >= 1; got 0"),
        ({"dtype": "float16"}, r"dtype is for loading .*; call model.to\(dtype\) instead"),
        ({"batch_size": 0}, "batch_size must be a whole number >= 1; got 0"),
        ({"batch_size": 2.5}, "batch_size must be a whole number >= 1; got 2.5"),
        ({"batch_size": True}, "batch_size must be a whole number >= 1; got True"),
        ({"max_length": 0}, "max_length must be a whole number >= 1; got 0"),
        ({"max_length": -1}, "max_length must be a whole number >= 1; got -1"),
        ({"max_length": 1}, "max_length=1 leaves no room .* 2 special tokens .* to 3 or more"),
        ({"max_length": 2}, "max_length=2 leaves no room .* 2 special tokens .* to 3 or more"),
        ({"pooling": lambda H, mask: H}, r"must return .*\(5, width\); <lambda> returned Tensor"),
        ({"pooling": lambda H, mask: H.sum(1)[0]}, r"must return .* returned Tensor \(16,\)"),
        ({"pooling": lambda H, mask: H.sum(1)[:1]}, r"must return .* returned Tensor \(1, 16\)"),
        ({"pooling": lambda H, mask: None}, r"must return .* returned NoneType \(\)"),
    ],
)
def test_bad_settings_are_refused(bert, make_tokenizer, settings, message):
    with pytest.raises(ValueError, match=message):
        extract_layers(bert, TEXTS, processor=make_tokenizer(), progress=False, **settings)


def test_a_missing_processor_is_named(bert):
    with pytest.raises(ValueError, match=r"pass processor=\.\.\., or pass the model's folder"):
        extract_layers(bert, TEXTS)


def test_texts_are_padded_without_a_padding_token(models, make_tokenizer):
    settings = {"pooling": "mean", "progress": False}
    without = make_tokenizer(pad_token=None)
    for family in ("gpt2", "bert"):
        features = extract_layers(models[family], TEXTS, processor=without, **settings)
        for row, text in enumerate(TEXTS):
            alone = by_hand(models[family], without, text, "mean")
            for X, Z in zip(features, alone, strict=True):
                np.testing.assert_allclose(X[row], Z, atol=1e-5)


@pytest.mark.parametrize("model", [None, 3, torch.nn.Linear])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(TypeError, match="model must be a transformers model, the folder or hub id"):
        extract_layers(model, TEXTS)


@pytest.mark.parametrize(("dtype", "weight"), [(torch.float16, 6e4), (torch.float32, float("nan"))])
def test_features_that_are_not_finite_name_their_layer(make_tokenizer, dtype, weight):
    torch.manual_seed(0)
    model = AutoModel.from_config(CONFIGS["gpt2"])
    with torch.no_grad():
        model.h[0].mlp.c_proj.weight.fill_(weight)
        model.h[0].mlp.c_fc.bias.fill_(1.0)  # so that what c_proj multiplies is not near zero
    message = rf"layer1 has non-finite features \({dtype} on cpu\).* Load the model in float32"
    with pytest.raises(ValueError, match=message):
        extract_layers(model.to(dtype), TEXTS, processor=make_tokenizer(), progress=False)


def test_real_sentences_lie_nearer_to_their_paraphrase():
    model, tokenizer = zoo.load("minilm")
    sentences = [
        "A man is playing the guitar on stage.",
        "Someone performs music with a guitar in front of an audience.",
        "The central bank raised interest rates again.",
        "Borrowing money became more expensive after the bank's decision.",
        "Penguins cannot fly but swim very well.",
    ]
    features = extract_layers(model, sentences, processor=tokenizer, progress=False)
    assert [X.shape for X in features] == [(5, 384)] * 7
    unit = features[-1] / np.linalg.norm(features[-1], axis=1, keepdims=True)
    similarity = unit @ unit.T - 2 * np.eye(5)
    assert similarity[:4].argmax(1).tolist() == [1, 0, 3, 2]
    unrelated = similarity[np.ix_([0, 1], [2, 3, 4])]
    assert min(similarity[0, 1], similarity[2, 3]) > unrelated.max() + 0.2


@pytest.fixture
def cached(bert, make_tokenizer, tmp_path):
    """Return the settings of an extraction of five texts in three shards, and a counter."""
    passes = []
    handle = bert.register_forward_hook(lambda _, args, output: passes.append(1))
    yield (
        {
            "processor": make_tokenizer(),
            "cache": tmp_path / "features",
            "shard_size": 2,
            "progress": False,
        },
        passes,
    )
    handle.remove()


def test_shards_are_consecutive_and_make_up_the_whole(bert, cached):
    settings, _ = cached
    whole = extract_layers(bert, TEXTS, **settings | {"cache": None, "shard_size": 99})
    shards = list(stream_layers(bert, TEXTS, **settings))
    assert [rows for rows, _ in shards] == [slice(0, 2), slice(2, 4), slice(4, 5)]
    for rows, features in shards:
        assert features.names == whole.names
        for X, Z in zip(features, whole, strict=True):
            np.testing.assert_allclose(X, Z[rows], atol=1e-5)
    ((rows, features),) = stream_layers(bert, TEXTS, shards=[1], **settings)
    np.testing.assert_array_equal(features[3], shards[1][1][3])
    with pytest.raises(ValueError, match=r"shards must be among 0 \.\.\. 2; got \[3, -1\]"):
        stream_layers(bert, TEXTS, shards=[0, 3, -1], **settings)


def test_finished_shards_are_not_computed_again(bert, cached, capfd):
    settings, passes = cached
    next(stream_layers(bert, TEXTS, shards=[1], **settings))
    assert len(passes) == 1
    features = extract_layers(bert, TEXTS, **settings)
    assert len(passes) == 3
    again = extract_layers(bert, TEXTS, **settings | {"batch_size": 1, "device": "cpu"})
    assert len(passes) == 3
    for X, Z in zip(again, features, strict=True):
        np.testing.assert_array_equal(X, Z)
    capfd.readouterr()
    extract_layers(bert, TEXTS, **settings | {"progress": True})
    assert "5/5" in capfd.readouterr().err


def test_the_rate_is_that_of_what_was_computed(bert, cached, monkeypatch):
    settings, _ = cached
    list(stream_layers(bert, TEXTS, shards=[0, 1], **settings))
    bars = []

    class Bar(tqdm):
        def close(self):
            bars.append((self.initial, self.n, self.total, self.unit, self.desc))
            super().close()

    monkeypatch.setattr(extract, "tqdm", Bar)
    extract_layers(bert, TEXTS, **settings | {"progress": True})
    assert bars[0] == (4, 5, 5, "text", "mean")


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("pooling", {"pooling": "cls"}),
        ("max_length", {"max_length": 4}),
        ("shard_size", {"shard_size": 3}),
        ("modules", {"modules": ["encoder.layer.0"]}),
        ("inputs", {"inputs": [*TEXTS[:4], "cat cat"]}),
        ("n", {"inputs": TEXTS[:4]}),
    ],
)
def test_a_cache_of_something_else_is_refused(bert, cached, key, change):
    settings, passes = cached
    extract_layers(bert, TEXTS, **settings)
    passes.clear()
    with pytest.raises(ValueError, match=rf"something else \(.*\b{key}: had .*, wanted "):
        extract_layers(bert, **{"inputs": TEXTS, **settings, **change})
    assert not passes


def test_a_cache_knows_the_weights_and_the_tokenizer(bert, cached, make_tokenizer):
    settings, _ = cached
    extract_layers(bert, TEXTS, **settings)
    other = make_tokenizer(special=False)
    with pytest.raises(ValueError, match=r"processor: had .*, wanted "):
        extract_layers(bert, TEXTS, **settings | {"processor": other})
    with torch.no_grad():
        bert.embeddings.word_embeddings.weight[5, 3] += 1
    with pytest.raises(ValueError, match=r"weights: had .*, wanted "):
        extract_layers(bert, TEXTS, **settings)
    with torch.no_grad():
        bert.embeddings.word_embeddings.weight[5, 3] -= 1


def test_a_processor_is_known_by_its_settings(make_tokenizer):
    tokenizer = make_tokenizer()
    before = describe_processor(tokenizer)
    tokenizer(TEXTS, truncation=True, max_length=3, padding=True)  # leaves its traces
    assert describe_processor(tokenizer) == before == describe_processor(make_tokenizer())
    assert describe_processor(make_tokenizer(model_max_length=9)) != before
    sizes = [ViTImageProcessorPil(size={"height": s, "width": s}) for s in (16, 16, 20)]
    first, second, third = map(describe_processor, sizes)
    assert first == second != third
    assert describe_processor(by_hand) == "by_hand"


def test_the_model_is_as_it_was_between_shards(bert, cached):
    settings, _ = cached
    stream = stream_layers(bert, TEXTS, **settings)
    next(stream)
    assert bert.training
    assert not torch.is_inference_mode_enabled()


def test_arguments_are_checked_before_the_first_shard(bert, make_tokenizer):
    with pytest.raises(TypeError, match="got int in it"):
        stream_layers(bert, [*TEXTS, 3], processor=make_tokenizer())


# A pooling of one's own, and the curvature that is measured by one


def test_a_function_may_pool(bert, make_tokenizer):
    def largest(hidden, mask):
        return hidden.masked_fill(~mask.bool().unsqueeze(-1), -torch.inf).amax(1)

    settings = {"processor": make_tokenizer(), "progress": False}
    features = extract_layers(bert, TEXTS, pooling=largest, batch_size=2, **settings)
    assert features.pooling == "largest"
    ids = make_tokenizer()(TEXTS[1], return_tensors="pt")
    with torch.no_grad():
        states = bert.eval()(**ids, output_hidden_states=True).hidden_states
    for X, state in zip(features, states, strict=True):
        np.testing.assert_allclose(X[1], state[0].amax(0), atol=1e-5)


def test_curvature_is_that_of_angles_by_hand(bert, make_tokenizer):
    texts = [*TEXTS, "on the far mat"]
    found = token_curvature(bert, texts, processor=make_tokenizer(), progress=False, batch_size=2)
    expected = np.zeros((4, len(texts)))
    for i, text in enumerate(texts):
        ids = make_tokenizer()(text, return_tensors="pt")
        with torch.no_grad():
            states = bert.eval()(**ids, output_hidden_states=True).hidden_states
        for layer, state in enumerate(states):
            steps = np.diff(state[0].double().numpy(), axis=0)
            angles = [
                np.arccos(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
                for a, b in zip(steps[1:], steps[:-1], strict=True)
            ]
            expected[layer, i] = np.mean(angles)
    np.testing.assert_allclose(found, expected.mean(1), atol=1e-4)


def test_a_straight_path_does_not_turn_and_one_back_and_forth_turns_by_pi():
    line = torch.arange(5.0)[None, :, None] * torch.tensor([1.0, 2.0])
    zigzag = (torch.arange(5) % 2)[None, :, None] * torch.tensor([1.0, 2.0])
    mask = torch.ones(1, 5)
    assert turning(line, mask).tolist() == [[pytest.approx(0, abs=1e-3), 1]]
    assert turning(zigzag, mask).tolist() == [[pytest.approx(np.pi, abs=1e-3), 1]]
    mask[0, 2:] = 0
    assert turning(zigzag, mask).tolist() == [[0, 0]]


def test_texts_too_short_to_turn_are_left_out(bert, make_tokenizer):
    settings = {"processor": make_tokenizer(special=False), "progress": False}
    both = token_curvature(bert, ["the cat sat", "cat"], **settings)
    np.testing.assert_allclose(both, token_curvature(bert, ["the cat sat"], **settings), atol=1e-5)
    with pytest.raises(ValueError, match="three tokens"):
        token_curvature(bert, ["cat"], **settings)


def test_a_text_may_be_cut_to_one_token(bert, make_tokenizer):
    settings = {"processor": make_tokenizer(), "progress": False}
    features = extract_layers(bert, ["the cat sat"], max_length=3, **settings)
    np.testing.assert_allclose(features[3], extract_layers(bert, ["the"], **settings)[3], atol=1e-6)


# Weights that are not there


@pytest.fixture
def checkpoint(models, make_tokenizer, tmp_path):
    """Return a function that saves a model without some weights, and its configuration changed."""

    def save(family, without="no weight", **config):
        folder = tmp_path / family
        models[family].save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)
        weights = load_file(folder / "model.safetensors")
        kept = {name: value for name, value in weights.items() if without not in name}
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
        settings = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(settings | config))
        return folder

    return save


@pytest.mark.parametrize(
    ("family", "without", "config", "missing"),
    [
        ("bert", "no weight", {"num_hidden_layers": 5}, "encoder.layer.3.attention"),
        ("bert", "layer.1.output.dense.bias", {}, "encoder.layer.1.output.dense.bias"),
        ("t5", "encoder.block.1", {}, "encoder.block.1"),
        ("gpt2", "ln_f", {}, "ln_f.bias"),
    ],
)
def test_weights_that_layers_need_must_be_there(checkpoint, family, without, config, missing):
    folder = checkpoint(family, without, **config)
    with pytest.raises(ValueError, match=f"{family} are incomplete: .* such as {missing}"):
        extract_layers(folder, TEXTS, progress=False)


@pytest.mark.parametrize(("family", "without"), [("bert", "pooler"), ("t5", "decoder.block")])
def test_weights_that_no_layer_needs_may_be_missing(models, checkpoint, family, without, tmp_path):
    settings = {"progress": False, "cache": tmp_path / "cache"}
    features = extract_layers(checkpoint(family, without), TEXTS, **settings)
    processor = AutoTokenizer.from_pretrained(tmp_path / family)
    expected = extract_layers(models[family], TEXTS, processor=processor, progress=False)
    for X, Z in zip(features, expected, strict=True):
        np.testing.assert_array_equal(X, Z)
    torch.rand(1)  # another state of the generator, by which the missing ones would be drawn
    extract_layers(tmp_path / family, TEXTS, **settings)  # from the cache: the same model again

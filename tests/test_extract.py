"""Features of tiny models with random weights, against one text at a time, pooled by hand."""

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModel, BartConfig, BertConfig, GPT2Config, LlamaConfig, T5Config

from loes import LayerFeatures, extract_layers, zoo
from loes.extract import pool_tokens

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
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("family", CONFIGS)
def test_features_are_those_of_each_text_alone(models, make_tokenizer, family, pooling, side):
    model, tokenizer = models[family], make_tokenizer(padding_side=side)
    features = extract_layers(
        model, TEXTS, tokenizer=tokenizer, pooling=pooling, batch_size=3, progress=False
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
    settings = {"tokenizer": make_tokenizer(), "progress": False}
    expected = extract_layers(bert, TEXTS, **settings)
    features = extract_layers(bert, TEXTS, batch_size=batch_size, **settings)
    for X, Z in zip(features, expected, strict=True):
        np.testing.assert_allclose(X, Z, atol=1e-5)


def test_auto_pooling_is_the_mean(bert, make_tokenizer):
    settings = {"tokenizer": make_tokenizer(), "progress": False}
    features = extract_layers(bert, TEXTS, **settings)
    assert features.pooling == "mean"
    mean = extract_layers(bert, TEXTS, pooling="mean", **settings)
    np.testing.assert_array_equal(features[3], mean[3])


@pytest.mark.parametrize("kind", [tuple, np.array, iter])
def test_any_sequence_of_texts_will_do(bert, make_tokenizer, kind):
    settings = {"tokenizer": make_tokenizer(), "progress": False}
    features = extract_layers(bert, kind(TEXTS), **settings)
    np.testing.assert_array_equal(features[3], extract_layers(bert, TEXTS, **settings)[3])


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_saved_model_is_loaded_with_its_tokenizer(models, make_tokenizer, family, tmp_path):
    models[family].save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    expected = extract_layers(models[family], TEXTS, tokenizer=make_tokenizer(), progress=False)
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
        model, [LONG], tokenizer=tokenizer, max_length=max_length, progress=False
    )
    cut = by_hand(model, make_tokenizer(special=False), LONG, "mean", limit)
    np.testing.assert_allclose(features[2][0], cut[2], atol=1e-5)
    longer = by_hand(model, make_tokenizer(special=False), LONG, "mean", limit - 1)
    assert np.abs(features[2][0] - longer[2]).max() > 1e-3


def test_a_model_without_a_limit_reads_the_whole_text(models, make_tokenizer):
    tokenizer = make_tokenizer(special=False)
    features = extract_layers(models["t5"], [LONG], tokenizer=tokenizer, progress=False)
    whole = by_hand(models["t5"], tokenizer, LONG, "mean", limit=50)
    np.testing.assert_allclose(features[2][0], whole[2], atol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [("mean", [[2.0], [3.5]]), ("cls", [[1.0], [3.0]]), ("last", [[3.0], [4.0]])],
)
def test_pooling_looks_at_true_tokens_on_either_side(pooling, expected):
    hidden = torch.tensor([[1.0, 2, 3, 9], [9, 9, 3, 4]]).unsqueeze(-1)
    mask = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1]])
    assert pool_tokens(hidden, mask, pooling).tolist() == expected
    assert pool_tokens(hidden, mask.bool(), pooling).tolist() == expected


def test_modes_are_restored_after_success_and_failure(bert, make_tokenizer):
    frozen = bert.encoder.layer[1].eval()
    before = [module.training for module in bert.modules()]
    assert bert.training
    assert not frozen.training
    extract_layers(bert, TEXTS, tokenizer=make_tokenizer(), progress=False)
    assert [module.training for module in bert.modules()] == before

    def fail(*_):
        raise RuntimeError("no memory")

    handle = frozen.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="no memory"):
        extract_layers(bert, TEXTS, tokenizer=make_tokenizer(), progress=False)
    handle.remove()
    assert [module.training for module in bert.modules()] == before
    frozen.train()


def test_progress_is_shown_when_asked_for_only(bert, make_tokenizer, capfd):
    extract_layers(bert, TEXTS, tokenizer=make_tokenizer(), progress=False)
    assert capfd.readouterr() == ("", "")
    extract_layers(bert, TEXTS, tokenizer=make_tokenizer())
    assert "5/5" in capfd.readouterr().err


def test_device_is_where_the_model_runs(bert, make_tokenizer):
    settings = {"tokenizer": make_tokenizer(), "progress": False}
    features = extract_layers(bert, TEXTS, device="cpu", **settings)
    np.testing.assert_array_equal(features[3], extract_layers(bert, TEXTS, **settings)[3])


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ("one text", TypeError, "sequence of texts, .*; got one str"),
        (b"one text", TypeError, "sequence of texts, .*; got one bytes"),
        (None, TypeError, "sequence of texts, .*; got one NoneType"),
        ({"text": ["a"]}, TypeError, "got one dict. Pass one of its columns"),
        (pd.DataFrame({"text": ["a"]}), TypeError, "got one DataFrame. Pass one of its columns"),
        ({"a", "b"}, TypeError, "sequence of texts, .*; got one set"),
        (["a", None], TypeError, "sequence of texts, .*; got NoneType in it"),
        ([["the", "cat"]], TypeError, "sequence of texts, .*; got list in it"),
        ([], ValueError, "inputs is empty; pass at least one text"),
        (["cat", ""], ValueError, r"inputs\[1\] \(''\) has no token; leave it out"),
        (["cat", "mat", "  "], ValueError, r"inputs\[2\] \('  '\) has no token"),
    ],
)
def test_bad_inputs_are_refused(bert, make_tokenizer, inputs, error, message):
    with pytest.raises(error, match=message):
        extract_layers(bert, inputs, tokenizer=make_tokenizer(special=False), progress=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooling": "max"}, r"'auto' or one of \('mean', 'cls', 'last'\); got 'max'"),
        ({"batch_size": 0}, "batch_size must be a whole number >= 1; got 0"),
        ({"batch_size": 2.5}, "batch_size must be a whole number >= 1; got 2.5"),
        ({"batch_size": True}, "batch_size must be a whole number >= 1; got True"),
        ({"max_length": 0}, "max_length must be a whole number >= 1; got 0"),
        ({"max_length": -1}, "max_length must be a whole number >= 1; got -1"),
    ],
)
def test_bad_settings_are_refused(bert, make_tokenizer, settings, message):
    with pytest.raises(ValueError, match=message):
        extract_layers(bert, TEXTS, tokenizer=make_tokenizer(), progress=False, **settings)


def test_a_missing_tokenizer_or_padding_token_is_named(bert, make_tokenizer):
    with pytest.raises(ValueError, match=r"pass tokenizer=\.\.\., or pass the model's folder"):
        extract_layers(bert, TEXTS)
    with pytest.raises(ValueError, match=r"no padding token.*set tokenizer.pad_token ="):
        extract_layers(bert, TEXTS, tokenizer=make_tokenizer(pad_token=None))


def test_a_module_that_is_no_transformers_model_is_refused(make_tokenizer):
    with pytest.raises(TypeError, match=r"transformers model, or the folder .*; got Linear"):
        extract_layers(torch.nn.Linear(2, 2), TEXTS, tokenizer=make_tokenizer())


@pytest.mark.parametrize(("dtype", "weight"), [(torch.float16, 6e4), (torch.float32, float("nan"))])
def test_features_that_are_not_finite_name_their_layer(make_tokenizer, dtype, weight):
    torch.manual_seed(0)
    model = AutoModel.from_config(CONFIGS["gpt2"])
    with torch.no_grad():
        model.h[0].mlp.c_proj.weight.fill_(weight)
        model.h[0].mlp.c_fc.bias.fill_(1.0)  # so that what c_proj multiplies is not near zero
    message = rf"layer1 has non-finite features \({dtype} on cpu\).* Load the model in float32"
    with pytest.raises(ValueError, match=message):
        extract_layers(model.to(dtype), TEXTS, tokenizer=make_tokenizer(), progress=False)


def test_real_sentences_lie_nearer_to_their_paraphrase():
    model, tokenizer = zoo.load("minilm")
    sentences = [
        "A man is playing the guitar on stage.",
        "Someone performs music with a guitar in front of an audience.",
        "The central bank raised interest rates again.",
        "Borrowing money became more expensive after the bank's decision.",
        "Penguins cannot fly but swim very well.",
    ]
    features = extract_layers(model, sentences, tokenizer=tokenizer, progress=False)
    assert [X.shape for X in features] == [(5, 384)] * 7
    unit = features[-1] / np.linalg.norm(features[-1], axis=1, keepdims=True)
    similarity = unit @ unit.T - 2 * np.eye(5)
    assert similarity[:4].argmax(1).tolist() == [1, 0, 3, 2]
    unrelated = similarity[np.ix_([0, 1], [2, 3, 4])]
    assert min(similarity[0, 1], similarity[2, 3]) > unrelated.max() + 0.2

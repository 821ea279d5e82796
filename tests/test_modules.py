"""Outputs of any torch module, by forward hooks."""

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from loes import extract_layers

MAPS = [torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(n)) for n in range(5)]


class Network(nn.Module):
    """Layers of unequal width; works in place, returns tuples, and leaves one module out."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(4, 6, 3)
        self.rnn = nn.GRU(6, 5, batch_first=True)
        self.head = nn.Linear(5, 2)
        self.unused = nn.Linear(5, 2)
        self.dropout = nn.Dropout(0.9)

    def forward(self, pixels):
        maps = self.conv2(self.relu(self.conv1(pixels)))
        tokens, _ = self.rnn(maps.flatten(2).transpose(1, 2))
        return self.head(self.dropout(tokens[:, -1]))


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Network()


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_outputs_are_pooled_by_their_axes(network, batch_size):
    names = ["head", "conv1", "rnn", "conv2"]
    features = extract_layers(network, MAPS, modules=names, batch_size=batch_size, progress=False)
    assert features.names == names
    assert [X.shape for X in features] == [(5, 2), (5, 4), (5, 5), (5, 6)]
    assert network.training  # and no dropout while features were read
    for row, pixels in enumerate(MAPS):
        with torch.no_grad():
            conv1 = network.conv1(pixels[None])
            conv2 = network.conv2(conv1.relu())
            tokens, _ = network.rnn(conv2.flatten(2).transpose(1, 2))
            head = network.head(tokens[:, -1])
        expected = [head[0], conv1[0].mean((1, 2)), tokens[0].mean(0), conv2[0].mean((1, 2))]
        for X, wanted in zip(features, expected, strict=True):
            np.testing.assert_allclose(X[row], wanted, atol=1e-6)


def test_any_callable_prepares_the_inputs(network):
    def prepare(numbers):
        return {"pixels": torch.stack([MAPS[n] for n in numbers])}

    features = extract_layers(network, [4, 0], processor=prepare, modules=["conv1"], progress=False)
    expected = extract_layers(network, MAPS, modules=["conv1"], progress=False)
    np.testing.assert_allclose(features[0], expected[0][[4, 0]], atol=1e-6)


def test_inputs_take_the_precision_of_the_module(network):
    """NumPy's arrays are float64 unless one asks, and most modules are not."""
    arrays = [pixels.double().numpy() for pixels in MAPS]
    features = extract_layers(network, arrays, modules=["conv1"], progress=False)
    expected = extract_layers(network, MAPS, modules=["conv1"], progress=False)
    np.testing.assert_array_equal(features[0], expected[0])


def test_modules_of_transformers_look_at_true_tokens(make_tokenizer):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = BertForSequenceClassification(
        BertConfig(**sizes, vocab_size=14, intermediate_size=32)
    ).eval()
    tokenizer, names = make_tokenizer(), ["bert.encoder.layer.0.attention", "classifier"]
    texts = ["the cat", "a dog ran far away on the mat", "sat"]
    features = extract_layers(model, texts, processor=tokenizer, modules=names, progress=False)
    assert [X.shape for X in features] == [(3, 16), (3, 2)]
    for row, text in enumerate(texts):
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.no_grad():
            logits = model(ids).logits
            attention = model.bert.encoder.layer[0].attention(model.bert.embeddings(ids))[0]
        np.testing.assert_allclose(features[0][row], attention[0].mean(0), atol=1e-5)
        np.testing.assert_allclose(features[1][row], logits[0], atol=1e-5)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (None, r"Network is in no family .*modules=\[\.\.\.\]\. It has conv1, relu, conv2"),
        (["conv3"], r"there is no module 'conv3'; did you mean one of \['conv2', 'conv1'\]"),
        ("conv1", "modules must be a list of names; got 'conv1'"),
        ([], r"modules must be a list of names; got \[\]"),
        (["conv1", "unused"], "unused took no part in the forward pass"),
    ],
)
def test_modules_that_cannot_be_taken_are_named(network, modules, message):
    with pytest.raises(ValueError, match=message):
        extract_layers(network, MAPS, modules=modules, progress=False)


def test_outputs_that_cannot_be_pooled_are_named(network):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.none, self.flat, self.whole = nn.Identity(), nn.Flatten(0), nn.Identity()

        def forward(self, x):
            return self.none(None), self.flat(x), self.whole(x[0])

    for name, shape in (("none", "no tensor"), ("flat", r"\(384,\)"), ("whole", r"\(3, 8, 8\)")):
        with pytest.raises(ValueError, match=rf"{name} gives {shape} for 2 samples; wanted \(n, d"):
            extract_layers(Odd(), MAPS[:2], modules=[name], progress=False)


def test_settings_of_hidden_states_are_refused(network, make_tokenizer):
    with pytest.raises(ValueError, match="final_norm='skip' is for hidden states"):
        extract_layers(network, MAPS, modules=["conv1"], final_norm="skip")
    with pytest.raises(ValueError, match="nothing tells what the tokens are"):
        extract_layers(network, MAPS, modules=["conv1"], pooling="cls")
    with pytest.raises(
        TypeError, match="Network needs its own callable as processor; got TokenizersBackend"
    ):
        extract_layers(network, MAPS, modules=["conv1"], processor=make_tokenizer())

"""What data/efficiency.py counts, against formulas; and the result that the book reads."""

import numpy as np
import pytest
import torch
from transformers import AutoModel, BertConfig

import efficiency
from loes import FusedEncoder, LayerFeatures, examples

WIDTH, BLOCKS = 16, 4
TEXTS = ["the cat sat on the mat", "a dog ran far away", "the dog sat", "a cat"]


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=16, hidden_size=WIDTH, num_hidden_layers=BLOCKS, num_attention_heads=2,
        intermediate_size=4 * WIDTH, max_position_embeddings=16,
    )  # fmt: skip
    return AutoModel.from_config(config).eval()


@pytest.fixture
def extraction(model, make_tokenizer):
    return {"model": model, "processor": make_tokenizer(), "device": "cpu"}


def test_runs_are_timed_in_turns():
    order = []
    runs = {name: lambda name=name: order.append(name) for name in "ab"}
    times = efficiency.seconds(runs, repeats=2)
    assert order == ["a", "b", "a", "b"]
    assert [len(values) for values in times.values()] == [2, 2]


def test_flops_are_those_of_the_formula_at_every_height(model, extraction):
    found = efficiency.forward(model, extraction, TEXTS[:1] * 3)
    t, d = 8, WIDTH  # six words and two special tokens
    block, pooler = 24 * t * d**2 + 4 * t**2 * d, 2 * d**2
    assert found["flops"] == [max(h, 1) * block + pooler for h in range(BLOCKS + 1)]
    assert set(found["seconds"]) == {"1", "2", "3", "4"}
    weights = np.diff(found["parameters"])
    assert weights.tolist() == [0] + [12 * d**2 + 13 * d] * (BLOCKS - 1)


def test_saved_bytes_are_what_the_backward_pass_reads_without_the_parameters():
    linear = torch.nn.Linear(5, 3)
    X = torch.randn(7, 5)
    squares = efficiency.saved_bytes(lambda: linear(X).square().sum(), linear.parameters())
    assert squares == 4 * (7 * 5 + 7 * 3)  # X for the weights, and what is squared
    with torch.no_grad():
        assert efficiency.saved_bytes(lambda: linear(X).sum(), linear.parameters()) == 0


def test_a_step_moves_the_probe_and_a_frozen_backbone_not(model, extraction):
    y = torch.tensor([0, 1, 0, 1])
    batches = efficiency.read(model, extraction, TEXTS)
    for frozen in (True, False):
        encoder = FusedEncoder(model, [2, 3], 2, frozen=frozen)
        before = {name: value.clone() for name, value in encoder.state_dict().items()}
        efficiency.learn(encoder, batches, y)
        moved = {
            name.split(".")[0]
            for name, value in encoder.state_dict().items()
            if not torch.equal(value, before[name])
        }
        assert moved == ({"probe"} if frozen else {"probe", "backbone"})


def test_training_of_half_a_model_keeps_less_and_learns_less(model, extraction):
    found = efficiency.training(model, extraction, TEXTS, np.array([0, 1, 0, 1]))
    kept, parameters = found["saved bytes"], found["parameters"]
    assert kept["frozen"] < kept["tuned, half"] < kept["tuned"]
    assert parameters["frozen"]["trained"] < parameters["tuned, half"]["trained"]
    assert parameters["tuned"]["trained"] == parameters["tuned"]["all"]


@pytest.mark.filterwarnings("ignore::loes.SelectionWarning")  # three layers of noise
def test_selection_and_subsets_look_at_the_same_picks():
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    arrays = [rng.normal(size=(120, 6)) + k * np.eye(6)[y] for k in range(5)]
    layers = LayerFeatures([f"layer{k}" for k in range(5)], arrays, "mean")
    chosen = efficiency.selection(layers, y)
    searched = efficiency.subsets(layers, y, 3)
    assert searched["subsets"] == 10
    for criterion in efficiency.CRITERIA:
        assert len(chosen[criterion]["picks"]) == 3
        assert set(chosen[criterion]["seconds"]) == {"true", "noise", "shuffled"}
        assert chosen[criterion]["flops"] > 5 * 120 * 6**2  # the Gram matrices alone
        assert searched[criterion]["gap"] >= 0
        assert (searched[criterion]["gap"] == 0) == (searched[criterion]["rank"] == 0)


@pytest.mark.parametrize("name", efficiency.NAMES)
def test_the_result_agrees_with_the_models_and_the_comparison(name):
    found = examples.result("efficiency")["examples"][name]
    names = examples.result(f"compare-{name}-plain")["about"]["names"]
    assert found["layers"] == len(names) == len(found["forward"]["flops"])
    work = np.array(found["forward"]["flops"])
    assert work[0] == work[1]  # one block is always kept
    steps = np.diff(work[1:])
    np.testing.assert_allclose(steps, steps[0], rtol=1e-9)  # blocks of one shape
    assert np.isin(["paper", "bounded"], list(found["selection"])).all()
    for criterion in efficiency.CRITERIA:
        assert set(found["selection"][criterion]["picks"]) <= set(range(found["layers"]))

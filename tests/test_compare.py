"""data/compare.py writes each comparison under its own name, and the page of all of them."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

import compare
from loes import LayerFeatures, baselines


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "RESULTS", tmp_path)
    return tmp_path


def test_the_page_is_the_one_that_the_stored_results_make(results):
    stored = (compare.Path(compare.__file__).parent / "results").glob("compare-*.json")
    for path in stored:
        shutil.copy(path, results)
    compare.report()
    page = compare.Path(compare.__file__).parent / "results/README.md"
    assert (results / "README.md").read_text("utf-8") == page.read_text("utf-8")


def test_another_number_of_layers_has_a_file_of_its_own_and_is_not_on_the_page(
    results, monkeypatch, capsys
):
    rows, rng = np.arange(120), np.random.default_rng(0)
    task = SimpleNamespace(
        labels=rows % 2,
        groups=rows,
        train=rows[:60],
        validation=rows[60:80],
        test=rows[80:],
        modality="image",
        chance=0.5,
    )
    layers = LayerFeatures(
        ["embedding", "layer1", "layer2"], [rng.normal(size=(120, 4)) for _ in range(3)]
    )
    monkeypatch.setattr(compare.examples, "load", lambda *_, **__: (task, layers, 1.0, {}))
    monkeypatch.setattr(compare.tasks, "trivial_baseline", lambda task: 0.5)
    methods = {"last layer": baselines.METHODS["last layer"], "last k": baselines.METHODS["last k"]}
    evaluate = compare.evaluate
    monkeypatch.setattr(
        compare, "evaluate", lambda *a, **k: evaluate(*a, methods=methods, progress=False, **k)
    )
    compare.compare("topics", ["plain"], range(1), 2)
    compare.compare("topics", ["plain"], range(1))
    picked = {
        name: [
            run["layers"]
            for run in json.loads((results / name).read_text())["runs"]
            if run["method"] == "last k"
        ]
        for name in ("compare-topics-plain-2-layers.json", "compare-topics-plain.json")
    }
    assert [len(layers) for (layers,) in picked.values()] == [2, 3]
    assert sorted(path.name for path in results.iterdir()) == sorted(picked)
    compare.report()
    assert (results / "README.md").read_text("utf-8").count("\n## ") == 1

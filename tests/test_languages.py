"""What data/languages.py measures, on names and layers whose answers are known; its result."""

import json
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from babel import Locale

import languages
from loes import LayerFeatures, examples, tasks


def test_names_leaves_out_what_two_items_share():
    locale = Locale.parse("en")
    assert locale.languages["bn"] == locale.scripts["Beng"]  # as in "Bangla"
    counts = Counter(name for kind in languages.KINDS for name in getattr(locale, kind).values())
    found = languages.names("en")
    assert sorted(found) == sorted(name for name, count in counts.items() if count == 1)
    assert languages.names("ur")["territories PK"] == "پاکستان"
    assert languages.names("de")["currencies DKK"] == "Dänische Krone"


@pytest.fixture(scope="module")
def common():
    return languages.common_items(["ur", "sw"])


def test_common_items_have_their_kind_their_part_and_a_name_in_each_language(common):
    assert common.index.is_unique
    for key, row in common.sample(50, random_state=0).iterrows():
        kind, code = key.split()
        assert row["kind"] == kind
        for language in ("en", "ur", "sw"):
            assert row[language] == getattr(Locale.parse(language), kind)[code]
    for language in ("en", "ur"):  # the parts are those of the task that readers load
        task = tasks.load("names", language=language)
        for part in languages.PARTS:
            known = common[common[language].isin({task.inputs[row] for row in getattr(task, part)})]
            assert len(known) > 30
            assert set(known["part"]) == {part}
    assert (common.groupby("group")["part"].nunique() == 1).all()


def test_tasks_differ_in_their_inputs_only(common):
    urdu, swahili = (languages.task_in(language, common) for language in ("ur", "sw"))
    assert urdu.inputs == common["ur"].tolist()
    assert swahili.inputs == common["sw"].tolist()
    for task in (urdu, swahili):
        assert [task.classes[label] for label in task.labels] == common["kind"].tolist()
        parts = [getattr(task, part) for part in languages.PARTS]
        assert sorted(np.concatenate(parts)) == list(range(len(common)))
        assert (common["part"].iloc[task.test] == "test").all()


def test_found_is_the_nearest_of_all():
    rng = np.random.default_rng(0)
    queries = rng.normal(size=(30, 2))
    targets = queries + 0.3 * rng.normal(size=(30, 2))
    distances = np.linalg.norm(queries[:, None] - targets, axis=2)
    expected = [distances[i].argmin() == i for i in range(30)]
    assert 0 < sum(expected) < 30
    np.testing.assert_array_equal(languages.found(queries, targets), expected)


N = 90


@pytest.fixture
def items():
    """Items of three kinds, a third of them spelled alike in both languages but for case."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghijklm"), 8)) for _ in range(N)]
    other = [
        w.title() if i % 3 == 0 else w[::-1].translate({97: 1575}) for i, w in enumerate(words)
    ]
    return pd.DataFrame(
        {
            "en": words,
            "ur": other,
            "kind": np.array(languages.KINDS)[np.arange(N) // 3 % 3],
            "part": np.repeat(languages.PARTS, [40, 20, 30]),
            "group": [f"item {i}" for i in range(N)],
        }
    )


def test_centring_takes_an_offset_away_and_spelling_counts_only_where_it_differs(items):
    rng = np.random.default_rng(0)
    E = rng.normal(size=(N, 6))
    E /= np.linalg.norm(E, axis=1, keepdims=True)
    offset = np.eye(6)[0]
    layers = LayerFeatures(["same", "moved"], [3 * E, E + offset])
    english = LayerFeatures(["same", "moved"], [E, E - offset])
    result = languages.retrieval("ur", items, layers, english)
    assert result["counted"] == 20
    for direction in ("to English", "from English"):
        same, moved = result[direction]["as they are"]
        assert same == 1
        assert moved < 0.7
        assert min(result[direction]["centred"]) > 0.9
        assert len(result[direction]["spelling"]) == 1
    items["ur"] = items["en"] + "a"  # spelled nearly alike
    close = languages.retrieval("ur", items, layers, english)
    assert close["counted"] == 30
    assert close["to English"]["spelling"] == [1]


def test_the_mean_is_that_of_the_development_items(items):
    rng = np.random.default_rng(1)
    E = rng.normal(size=(N, 16))
    E /= np.linalg.norm(E, axis=1, keepdims=True)
    test = (items["part"] == "test").to_numpy()
    X = E.copy()
    X[test] = -E[test]  # nothing of this is in the means
    result = languages.retrieval(*("ur", items), *(LayerFeatures(["a"], [Z]) for Z in (X, E)))
    own = E[test] - E[~test].mean(0)
    theirs = X[test] - X[~test].mean(0)
    nearest = np.linalg.norm(theirs[:, None] - own, axis=2).argmin(1) == np.arange(30)
    differ = items["ur"].str.lower()[test] != items["en"][test]
    assert result["to English"]["centred"] == [nearest[differ.to_numpy()].mean()]


class Tokenizer:
    """One token a character."""

    def __call__(self, text, add_special_tokens):
        assert not add_special_tokens
        return SimpleNamespace(input_ids=list(text))


@pytest.fixture
def known(items, monkeypatch):
    """Layer 1 knows the kinds; no model is loaded."""
    labels = pd.factorize(items["kind"], sort=True)[0]

    def extract(language, items):
        rng = np.random.default_rng(len(language))
        noise, tells = (rng.normal(size=(N, 6)).astype(np.float32) for _ in range(2))
        tells[:, :3] += 8 * np.eye(3, dtype=np.float32)[labels]
        return LayerFeatures(["embedding", "layer1", "layer2"], [noise, tells, noise[:, ::-1] ** 3])

    monkeypatch.setattr(languages, "extract", extract)
    monkeypatch.setattr(languages.zoo, "load", lambda name: (None, Tokenizer()))
    monkeypatch.setattr(languages, "LEARNING_RATE", 1e-2)


@pytest.mark.filterwarnings("ignore::loes.SelectionWarning")
def test_measure_finds_the_layer_that_knows(items, known):
    result = json.loads(json.dumps(languages.measure("ur", items, range(2)), default=float))
    assert (result["name"], result["script"], result["GiB"]) == ("Urdu", "Arab", 5.7)
    assert result["tokens"] == 8  # letters
    assert result["chance"] == pytest.approx(1 / 3, abs=0.1)
    assert np.argmax(result["depth"]) == 1
    assert set(result["plain"]) - {"chance", "last layer, shuffled labels"} == {*languages.CHOICES}
    for kind in languages.TRAINING:
        table = result[kind]
        assert table["last layer"]["layers"] == [[2], [2]]
        assert table["LOES bounded"]["low"] > 0.2
        gains = np.subtract(table["LOES bounded"]["accuracy"], table["last layer"]["accuracy"])
        assert table["LOES bounded"]["difference"] == pytest.approx(gains.mean(), abs=1e-9)
    assert result["plain"]["best single (validation)"]["layers"] == [[1], [1]]
    assert languages.measure("en", items, range(2))["retrieval"] is None


def test_main_goes_on_where_it_stopped(items, monkeypatch, tmp_path, capsys):
    asked = []

    def measure(language, items, seeds):
        asked.append(language)
        return {"seeds": len(seeds), "time": len(asked)}

    monkeypatch.setattr(languages, "RESULT", tmp_path / "languages.json")
    monkeypatch.setattr(languages, "LANGUAGES", {"en": 3.0, "ur": 2.0, "sw": 1.0})
    monkeypatch.setattr(languages, "common_items", lambda _: items)
    monkeypatch.setattr(languages, "measure", measure)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["languages.py", *arguments])
        asked.clear()
        languages.main()
        return json.loads(languages.RESULT.read_text())["results"]

    assert [*run("sw")] == ["sw"]
    assert [*run()] == ["en", "ur", "sw"]  # in the order of the table
    assert asked == ["en", "ur"]
    assert run("ur")["ur"] == {"seeds": 5, "time": 1}
    assert [*run("--seeds", "2", "ur")] == ["ur"]  # other settings: nothing is kept
    with pytest.raises(SystemExit):
        run("xx")
    assert "xx" in capsys.readouterr().err


def test_the_stored_result_is_complete():
    content = examples.result("languages")
    about, results = content["about"], content["results"]
    assert [*results] == [*languages.LANGUAGES] == about["languages"]
    n_test = about["items"]["part"].count("test")
    layers = 13
    for language, result in results.items():
        assert result["GiB"] == languages.LANGUAGES[language]
        assert len(result["depth"]) == layers
        for kind, (choices, _) in languages.TRAINING.items():
            for choice in choices:
                row = result[kind][choice]
                assert len(row["accuracy"]) == len(row["layers"]) == len(about["seeds"])
                assert all(set(picked) <= set(range(layers)) for picked in row["layers"])
                # Shares of the test part, whole numbers of items.
                right = n_test * np.array(row["accuracy"])
                np.testing.assert_allclose(right, right.round(), atol=1e-4)
        if language == languages.REFERENCE:
            assert result["retrieval"] is None
            continue
        assert 100 < result["retrieval"]["counted"] <= n_test
        for direction in ("to English", "from English"):
            for kind in ("as they are", "centred"):
                assert len(result["retrieval"][direction][kind]) == layers

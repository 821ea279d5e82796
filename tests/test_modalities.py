"""What data/modalities.py compares: alignments against all pairings, unions whose rows agree."""

import json
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

import modalities
from loes import LayerFeatures, examples
from loes.baselines import Calibration, Choice
from loes.tasks import Task

ALL = [np.array(order) for order in permutations(range(6))]
KINDS = np.array([0, 1, 0, 2, 1, 0])  # of three, two and one


@pytest.fixture
def layers():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(6, 3)) for _ in range(2)], [rng.normal(size=(6, 4)) for _ in range(3)]


def debiased_cka(X, Y):
    """Debiased CKA by the estimator of Song et al. (2012), Eq. 5, on kernels without diagonals."""

    def hsic(K, L):
        one = np.ones(n)
        whole = (one @ K @ one) * (one @ L @ one) / ((n - 1) * (n - 2))
        return np.trace(K @ L) + whole - 2 / (n - 2) * (one @ K @ L @ one)

    n = len(X)
    K, L = (M @ M.T * (1 - np.eye(n)) for M in (X, Y))
    return hsic(K, L) / np.sqrt(hsic(K, K) * hsic(L, L))


def test_kernels_give_debiased_cka(layers):
    A, B = layers
    found = modalities.align(modalities.kernels(A), modalities.kernels(B))
    np.testing.assert_allclose(found, [[debiased_cka(X, Y) for Y in B] for X in A])


def test_neighbours_give_the_share_that_is_mutual(layers):
    A, B = layers

    def nearest(X, i):
        X = X - X.mean(0)
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        return set(np.argsort(-(X @ X[i]))[1:3])  # the first is i itself

    found = modalities.align(modalities.neighbours(A, 2), modalities.neighbours(B, 2))
    shares = [
        [np.mean([len(nearest(X, i) & nearest(Y, i)) / 2 for i in range(6)]) for Y in B] for X in A
    ]
    np.testing.assert_allclose(found, shares)


def mean_over(pairings, A, B):
    return np.mean([modalities.align(A, B[:, pi][:, :, pi]) for pi in pairings], axis=0)


@pytest.mark.parametrize("kinds", [np.zeros(6, dtype=int), KINDS], ids=["all", "kinds"])
def test_averaged_is_the_mean_over_all_pairings_within_kinds(kinds):
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(2, 6, 6)), rng.normal(size=(3, 6, 6))  # not even symmetric
    within = [pi for pi in ALL if (kinds[pi] == kinds).all()]
    assert len(within) == (720 if kinds.max() == 0 else 12)
    expected = modalities.align(A, modalities.averaged(B, kinds))
    np.testing.assert_allclose(expected, mean_over(within, A, B))


def test_chance_is_zero_for_kernels_and_k_of_the_others_for_neighbours(layers):
    A, B = layers
    everything = np.zeros(6, dtype=int)
    for represent, chance in (
        (modalities.kernels, 0),
        (lambda X: modalities.neighbours(X, 2), 2 / 5),
    ):
        expected = modalities.align(represent(A), modalities.averaged(represent(B), everything))
        np.testing.assert_allclose(expected, chance, atol=1e-12)


def test_pairings_keep_the_kind_and_hang_on_the_seed():
    first, again, other = (list(modalities.pairings(KINDS, 20, seed)) for seed in (0, 0, 1))
    assert all((KINDS[pi] == KINDS).all() and sorted(pi) == list(range(6)) for pi in first)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_items_that_share_no_more_than_their_category_are_aligned_by_category_only():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 15)
    centres = 3 * rng.normal(size=(4, 8))
    left, right = (centres[labels] + rng.normal(size=(60, 8)) for _ in range(2))
    twin = left + 0.1 * rng.normal(size=left.shape)
    kinds = {"all": np.zeros(60, dtype=int), "category": labels}
    found = modalities.aligned([left], [right, twin], kinds, count=50)
    for measure, chance in (("CKA", 0), ("neighbours", 10 / 59)):
        (alone, same), within = found[measure]["map"][0], found[measure]["within"]
        np.testing.assert_allclose(within["all"]["expected"][0], chance, atol=1e-4)
        assert alone > within["all"]["largest"][2] + 0.1
        assert abs(alone - within["category"]["expected"][0][0]) < 0.04
        assert same > within["category"]["largest"][2] + 0.02


def some_task(n=96):
    labels = np.arange(n) % 3
    thirds = np.array_split(np.arange(n), 3)
    return Task(
        inputs=list(range(n)),
        labels=labels,
        classes=["a", "b", "c"],
        train=thirds[0],
        validation=thirds[1],
        test=thirds[2],
        licence="none",
        source="none",
        modality="image",
        groups=np.array([f"item {i}" for i in range(n)]),
    )


def some_layers(task, seed, count=2, width=4):
    rng = np.random.default_rng(seed)
    arrays = [
        (np.eye(width)[task.labels] + 0.5 * rng.normal(size=(len(task.labels), width)))
        for _ in range(count)
    ]
    return LayerFeatures([f"layer{l}" for l in range(count)], [X.astype("f4") for X in arrays])


@pytest.fixture
def both():
    task = some_task()
    seen, read = (
        examples.Loaded(task, some_layers(task, seed, 2 + seed), 0.0, {}) for seed in (0, 1)
    )
    return seen, read


def calibrate(layers):
    y = np.zeros(len(layers[0]), dtype=int)
    return Calibration(layers, y, layers.take(slice(5)), y[:5], "classification", 0)


def test_methods_see_the_part_they_are_meant_to(both):
    layers = modalities.union(*(each.layers for each in both))
    assert layers.names == [
        *("picture layer0", "picture layer1", "name layer0", "name layer1", "name layer2")
    ]
    np.testing.assert_array_equal(layers[4], both[1].layers[2])
    seen = []

    def first_and_last(calibration, k):
        assert len(calibration.layers) == len(calibration.validation_layers)
        seen.append(calibration.layers.names)
        return Choice([len(calibration.layers) - 1, 0][:k], "concat")

    of_names = modalities.of_part("name", first_and_last)(calibrate(layers), 2)
    assert of_names == Choice([4, 2], "concat")
    assert seen == [layers.names[2:]]
    of_each = modalities.of_each(modalities.twice(first_and_last))(calibrate(layers), 1)
    assert of_each.layers == [1, 0, 4, 2]


def test_strangers_are_of_one_category_and_one_part(both):
    task, names = both[0].task, LayerFeatures(["rows"], [np.arange(96.0)[:, None]])
    row = modalities.strangers(both[0].layers, names, task)[-1][:, 0].astype(int)
    assert (task.labels[row] == task.labels).all()
    for part in (task.train, task.validation, task.test):
        assert sorted(row[part]) == sorted(part)
        assert (row[part] != part).any()


def test_layers_of_one_size_are_measured_on_the_rows_given():
    X = np.random.default_rng(0).normal(size=(20, 3)) * [1, 5, 9]
    (scaled,) = modalities.of_one_size(LayerFeatures(["a"], [X]), np.arange(10))
    assert np.isclose(scaled[:10].var(0).sum(), 1)
    assert not np.isclose(scaled.var(0).sum(), 1)
    np.testing.assert_allclose(scaled / X, scaled[0, 0] / X[0, 0])


def test_pictures_and_names_are_of_the_same_items(monkeypatch):
    items = [f"{code}{twin}" for code in "abcdefgh" for twin in ("", "+")]  # two of each group
    rows = np.random.default_rng(0).permutation(16)
    lost = {"pictures": {"b+"}, "names": {"c", "e", "e+"}}

    def example(of):
        kept = [row for row in rows if items[row] not in lost[of]]
        task = some_task(len(kept))
        groups = np.array([items[row].rstrip("+") for row in kept])
        parts = {  # by group, as in a true task
            part: np.flatnonzero(np.isin(groups, list(members)))
            for part, members in {"train": "abch", "validation": "de", "test": "fg"}.items()
        }
        task = replace(task, inputs=[items[row] for row in kept], groups=groups, **parts)
        return examples.Loaded(task, LayerFeatures(["row"], [np.array(kept)[:, None]]), 0.0, {})

    given = {}

    def load(name, **options):
        given[name] = options
        return example("pictures" if name == "emoji-pictures" else "names")

    monkeypatch.setattr(examples, "load", load)
    seen, read = modalities.load("ur", names=False)
    size = {"per_class": modalities.PER_CLASS}
    assert given["emoji-pictures"] == size | {"pretrained": True}
    assert given["emoji-names"] == size | {"pretrained": False, "language": "ur"}
    assert seen.task.inputs == read.task.inputs
    assert sorted(seen.task.inputs) == [item for item in items if item[0] not in "bce"]
    for each in (seen, read):
        assert [items[row] for row in each.layers[0][:, 0]] == each.task.inputs
        assert set(each.task.groups[each.task.train]) == {"a", "h"}
        assert set(each.task.groups[each.task.test]) == {"f", "g"}
        assert len(each.task.labels) == len(each.task.inputs) == 10


def test_subcategories_are_those_of_the_source(tmp_path, monkeypatch):
    monkeypatch.setenv("LOES_CACHE", str(tmp_path))
    folder = tmp_path / "npm" / "emoji-datasource-twitter-16.0.0"
    folder.mkdir(parents=True)
    codes = {"1F412": "animal", "1F469-200D-1F373": "role", "1F9A7": "animal"}
    items = [{"unified": code, "subcategory": fine} for code, fine in codes.items()]
    (folder / "emoji.json").write_text(json.dumps(items))
    found = modalities.subcategories(["1F412", "1F9D1-200D-1F373", "1F9A7"])
    assert found.tolist() == [0, 1, 0]


@pytest.mark.parametrize("kind", ["", "noise", "one size", "strangers"])
def test_selection_judges_the_union(both, monkeypatch, kind):
    monkeypatch.setattr(modalities, "load", lambda **_: both)
    monkeypatch.setattr(modalities, "trivial", lambda *_: [0.5, 0.5])
    methods = {name: modalities.FEW[name] for name in ("last layer", "last of each")}
    found = modalities.selection(methods=methods, kind=kind, settings={"seeds": [0, 1]})
    first = int(kind == "noise")
    assert found["about"]["names"][0] == ("noise" if first else "picture layer0")
    rows = {row["method"]: row for row in found["summary"]}
    assert {*methods} < {*rows}
    assert rows["last layer"]["layers"] == [[first + 4]] * 2
    assert rows["last of each"]["layers"] == [[first + 1, first + 4]] * 2
    assert rows["last of each"]["mean"] > rows["chance"]["mean"] + 0.3
    gain = rows["last of each"]["difference"]
    assert np.isclose(gain, -rows["last layer"]["difference, last of each"], atol=1e-4)
    assert np.isclose(gain, rows["last of each"]["mean"] - rows["last layer"]["mean"], atol=2e-4)


def test_pairs_hold_every_pair_and_every_layer(both, monkeypatch):
    monkeypatch.setattr(modalities, "load", lambda **_: both)
    found = modalities.pairs()
    losses = np.array(found["losses"])
    assert found["n"] == 32
    assert losses.shape == (5, 5)
    np.testing.assert_array_equal(losses, losses.T)
    assert (losses > 0).all()
    assert losses[0, 2] < min(losses[0, 0], losses[2, 2])  # two looks at one label


@pytest.mark.filterwarnings("ignore::loes.SelectionWarning")
def test_picks_are_asked_for_with_true_and_with_shuffled_labels(both, monkeypatch):
    monkeypatch.setattr(modalities, "load", lambda **_: both)
    monkeypatch.setattr(modalities, "K", 2)
    monkeypatch.setattr(
        modalities, "CRITERIA", {"loss": modalities.CRITERIA["bounded, Loss alone"]}
    )
    found = modalities.picks()
    assert [row["seed"] for row in found["rows"]] == list(range(5))
    for row in found["rows"]:
        for labels in ("true", "shuffled"):
            assert len(set(row[labels])) == 2
            assert set(row[labels]) <= set(range(len(found["names"])))
    assert any(row["true"] != row["shuffled"] for row in found["rows"])


def test_every_part_can_be_asked_for():
    assert len(modalities.jobs()) == len(modalities.ALIGNMENTS) + len(modalities.SELECTIONS) + 2


def test_the_stored_result_has_the_chance_levels_that_are_known():
    found = examples.result("modalities")
    assert [*found] == [*modalities.jobs()]
    for condition in modalities.ALIGNMENTS:
        each = found[f"alignment.{condition}"]
        chance = modalities.NEIGHBOURS / (each["n"] - 1)
        for measure, expected in (("CKA", 0), ("neighbours", chance)):
            within = each[measure]["within"]
            np.testing.assert_allclose(within["all"]["expected"], expected, atol=1e-4)
            assert np.max(each[measure]["map"]) <= 1

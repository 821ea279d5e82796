"""The protocol: what it measures, and the leaks it refuses."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq

from loes import LOES, LayerFeatures, RankWarning, baselines
from loes.baselines import METHODS, Calibration, Choice, Unavailable
from loes.evaluation import CHANCE, SHUFFLED, Evaluation, equal_error_rate, evaluate

QUICK = {"epochs": 6, "learning_rate": 1e-2, "adapter_width": 8, "progress": False}
FEW = {name: METHODS[name] for name in ("last layer", "LOES bounded", "random k")}


def problem(n=300, n_classes=3, n_layers=5, seed=0):
    """Return layers of which the third tells most, in groups of two samples."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(n // 2) % n_classes, 2)
    signal = rng.normal(size=(n_classes, 6))[y]
    strengths = [0.1, 0.7, 2.0, 0.5, 0.3][:n_layers]
    arrays = [s * signal + rng.normal(size=(n, 6)) for s in strengths]
    names = [f"layer{l}" for l in range(n_layers)]
    layers = LayerFeatures(names, [X.astype(np.float32) for X in arrays])
    groups = np.repeat(np.arange(n // 2), 2)
    return layers, y, {"development": np.arange(200), "test": np.arange(200, n), "groups": groups}


def calibration_of(layers, y, task="classification", **others):
    rows, held_out = np.arange(150), np.arange(150, 200)
    return Calibration(
        layers.take(rows), y[rows], layers.take(held_out), y[held_out], task, seed=0, **others
    )


# Methods


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("last layer", Choice([4])),
        ("last k", Choice([2, 3, 4])),
        ("last k, mean", Choice([2, 3, 4], "mean")),
        ("all layers", Choice([0, 1, 2, 3, 4])),
        ("all, mixing", Choice([0, 1, 2, 3, 4], "mixing")),
        ("best single (validation)", Choice([2])),
    ],
)
def test_plain_methods_choose_what_their_names_say(name, expected):
    layers, y, _ = problem()
    assert METHODS[name](calibration_of(layers, y), 3) == expected


@pytest.mark.parametrize(
    "name",
    [
        "LOES bounded",
        "residual only",
        "greedy (validation)",
        "exhaustive (validation)",
        "group lasso",
    ],
)
@pytest.mark.filterwarnings("ignore::loes.SelectionWarning")
def test_methods_that_look_at_the_target_find_the_layer_that_holds_it(name):
    layers, y, _ = problem()
    chosen = METHODS[name](calibration_of(layers, y), 2).layers
    assert len(chosen) == len(set(chosen)) == 2
    assert 2 in chosen


@pytest.mark.filterwarnings("ignore::loes.SelectionWarning")
@pytest.mark.parametrize("criterion", ["paper", "bounded"])
def test_loes_is_that_of_the_calibration_part(criterion):
    layers, y, _ = problem()
    rows = np.arange(150)
    expected = LOES(3, criterion=criterion).fit(layers.take(rows), y[rows]).selected_
    assert METHODS[f"LOES {criterion}"](calibration_of(layers, y), 3).layers == expected


# At the third step no layer explains more: all Losses are 1, and redundancy decides.
@pytest.mark.filterwarnings("ignore::loes.TermDominanceWarning")
def test_components_let_loes_go_on_where_samples_are_few():
    """Five layers of 60 features, 150 samples: two picks would span everything."""
    rng = np.random.default_rng(0)
    layers, y, _ = problem()
    wide = [np.hstack([X, 0.3 * rng.normal(size=(300, 54))]) for X in layers]
    calibration = calibration_of(LayerFeatures(layers.names, wide), y)
    with pytest.warns(RankWarning, match="stopped after"):
        assert len(METHODS["LOES bounded"](calibration, 4).layers) < 4
    chosen = METHODS["LOES bounded, PCA"](calibration, 4).layers
    assert len(chosen) == 4
    assert chosen[0] == 2


def test_group_lasso_takes_regression_targets():
    layers, _, _ = problem()
    target = layers[2] @ np.ones(6)
    assert METHODS["group lasso"](calibration_of(layers, target, "regression"), 1).layers == [2]


def test_greedy_and_exhaustive_agree_on_one_layer():
    layers, y, _ = problem()
    calibration = calibration_of(layers, y)
    assert baselines.greedy_validation(calibration, 1) == baselines.exhaustive_validation(
        calibration, 1
    )


def test_random_layers_follow_the_seed():
    layers, y, _ = problem()
    calibration = calibration_of(layers, y)
    draws = [baselines.random_k(calibration._replace(seed=s), 2).layers for s in range(20)]
    assert draws[3] == baselines.random_k(calibration._replace(seed=3), 2).layers
    assert {l for draw in draws for l in draw} == set(range(5))


def test_entropy_and_curvature_rank_as_their_sources_do():
    rng = np.random.default_rng(0)
    flat, line = rng.normal(size=(200, 6)), rng.normal(size=(200, 6)) * [9, 1, 0.1, 0.1, 0.1, 0.1]
    layers = LayerFeatures(["line", "flat"], [line, flat])
    calibration = calibration_of(layers, np.arange(200) % 2, curvature=np.array([0.5, 1.5]))
    assert baselines.entropy(calibration, 1).layers == [1]
    assert baselines.curvature(calibration, 1).layers == [0]
    with pytest.raises(Unavailable, match="token"):
        baselines.curvature(calibration._replace(curvature=None), 1)


def test_intrinsic_dimension_prefers_the_fuller_layer():
    pytest.importorskip("skdim", reason="optional: pip install scikit-dimension")
    rng = np.random.default_rng(0)
    plane = rng.normal(size=(200, 2)) @ rng.normal(size=(2, 6))
    layers = LayerFeatures(["plane", "full"], [plane, rng.normal(size=(200, 6))])
    calibration = calibration_of(layers, np.arange(200) % 2)
    assert baselines.intrinsic_dimension(calibration, 2).layers == [1, 0]


def test_too_many_subsets_are_not_tried():
    layers = LayerFeatures([str(l) for l in range(40)], [np.ones((200, 1))] * 40)
    with pytest.raises(Unavailable, match="9880 subsets"):
        baselines.exhaustive_validation(calibration_of(layers, np.arange(200) % 2), 3)


# The protocol


@pytest.fixture(scope="module")
def evaluation():
    layers, y, parts = problem()
    return evaluate(layers, y, **parts, methods=FEW, n_layers=2, seeds=[0, 1, 2], **QUICK)


def test_every_method_is_there_with_every_seed_and_the_controls(evaluation):
    counts = evaluation.runs.groupby("method")["seed"].agg(list)
    assert set(counts.index) == {CHANCE, SHUFFLED, *FEW}
    assert all(seeds == [0, 1, 2] for seeds in counts)


def test_the_informed_method_beats_the_last_layer_and_the_controls_fail(evaluation):
    summary = evaluation.summary()
    assert summary.loc["LOES bounded", "low"] > 0.1
    assert summary.loc[CHANCE, "mean"] == pytest.approx(1 / 3, abs=0.05)
    assert summary.loc[SHUFFLED, "mean"] < 0.5
    assert np.isnan(summary.loc["last layer", "difference"])


def test_the_summary_is_what_the_runs_say(evaluation):
    runs, summary = evaluation.runs, evaluation.summary()
    accuracy = runs.pivot(index="seed", columns="method", values="accuracy")
    for method in FEW:
        assert summary.loc[method, "mean"] == pytest.approx(accuracy[method].mean())
        assert summary.loc[method, "spread"] == pytest.approx(accuracy[method].std())
    difference = (accuracy["random k"] - accuracy["last layer"]).mean()
    assert summary.loc["random k", "difference"] == pytest.approx(difference)
    assert summary.loc["random k", "low"] <= difference <= summary.loc["random k", "high"]


def test_copies_within_a_group_do_not_narrow_the_interval():
    rng = np.random.default_rng(0)
    runs = pd.DataFrame({"method": ["last layer", "other"], "seed": 0, "accuracy": 0.5})
    runs[["selection_seconds", "training_seconds"]] = 0.0
    y = rng.integers(0, 2, 60)
    predictions = {("last layer", 0): rng.integers(0, 2, 60), ("other", 0): y}

    def interval(copies):
        groups = np.repeat(np.arange(60), copies)
        repeated = {key: np.repeat(value, copies) for key, value in predictions.items()}
        about = {"seeds": [0], "task": "classification"}
        table = Evaluation(runs, {}, about, np.repeat(y, copies), groups, repeated).summary()
        return table.loc["other", ["difference", "low", "high"]].tolist()

    assert interval(5) == pytest.approx(interval(1))
    difference, low, high = interval(1)
    error = (difference * (1 - difference) / 60) ** 0.5  # a difference here is 0 or 1
    assert (low, high) == pytest.approx(
        (difference - 1.96 * error, difference + 1.96 * error), abs=0.04
    )


def test_methods_see_no_test_sample_and_groups_stay_whole():
    layers, y, parts = problem()
    marked = LayerFeatures(layers.names, [X.copy() for X in layers])
    for X in marked.arrays:
        X[:, 0] = np.arange(300)  # every sample carries its number
    seen = []

    def spy(calibration, k):
        train = calibration.layers[0][:, 0].astype(int)
        held_out = calibration.validation_layers[0][:, 0].astype(int)
        seen.append((calibration.seed, set(train), set(held_out)))
        assert set(parts["groups"][train]).isdisjoint(parts["groups"][held_out])
        return Choice([0])

    evaluate(marked, y, **parts, methods={"last layer": spy}, seeds=[0, 1], **QUICK)
    for _, train, held_out in seen:
        assert train | held_out == set(range(200))
        assert not train & held_out
    assert seen[0][2] != seen[1][2]


def test_test_labels_do_not_move_a_choice_or_a_prediction():
    layers, y, parts = problem()
    other = y.copy()
    other[200:] = np.random.default_rng(0).permutation(other[200:])
    settings = {"methods": FEW, "n_layers": 2, "seeds": [0]} | QUICK
    first = evaluate(layers, y, **parts, **settings)
    second = evaluate(layers, other, **parts, **settings)
    assert first.runs["layers"].tolist() == second.runs["layers"].tolist()
    for key, predicted in first._predictions.items():
        np.testing.assert_array_equal(predicted, second._predictions[key])


def test_regression_is_judged_by_r2():
    layers, _, parts = problem()
    target = layers[2] @ np.ones(6)
    evaluation = evaluate(
        layers, target, **parts, methods=FEW, n_layers=2, seeds=[0], **(QUICK | {"epochs": 20})
    )
    summary = evaluation.summary()
    assert summary.loc["LOES bounded", "mean"] > 0.5
    assert summary.loc[CHANCE, "mean"] <= 0


def test_equal_width_reduces_all_methods_to_as_many_components():
    layers, y, parts = problem()
    evaluation = evaluate(
        layers, y, **parts, methods={"last layer": baselines.last, "all": baselines.all_layers},
        width=4, seeds=[0], **QUICK,
    )  # fmt: skip
    assert evaluation.about["width"] == 4
    assert evaluation.summary().loc["all", "mean"] > 0.5


def test_a_result_is_saved_with_its_provenance(evaluation, tmp_path):
    evaluation.save(tmp_path / "result.json")
    content = json.loads((tmp_path / "result.json").read_text())
    assert content["about"]["seeds"] == [0, 1, 2]
    assert {"loes", "torch"} <= set(content["about"]["versions"])
    assert len(content["runs"]) == 15
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_methods_that_cannot_be_had_are_named():
    layers, y, parts = problem()
    methods = {"last layer": baselines.last, "curvature": baselines.curvature}
    evaluation = evaluate(layers, y, **parts, methods=methods, seeds=[0], **QUICK)
    assert evaluation.skipped == {"curvature": "curvature needs token sequences"}


# Leaks


def leak(kind):
    layers, y, parts = problem()
    if kind == "test samples among the development ones":
        parts["development"] = np.arange(201)
    elif kind == "a group in both parts":
        parts["groups"] = parts["groups"].copy()
        parts["groups"][250] = parts["groups"][10]
    elif kind == "an input twice":
        for X in layers.arrays:
            X[250] = X[10]
    elif kind == "an input twice, up to rounding":
        for X in layers.arrays:
            X[250] = X[10] * (1 + 1e-6)
    elif kind == "the label as a feature":
        layers.arrays[1][:, 3] = np.array([0.5, -2, 7])[y]
    elif kind == "the target as a feature":
        y = layers[2] @ np.ones(6)
        layers.arrays[1][:, 3] = 5 - 2 * y
    return layers, y, parts


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("test samples among the development ones", "share 1 samples, such as 200"),
        ("a group in both parts", "1 groups have samples"),
        ("an input twice", "1 test samples, such as 250"),
        ("an input twice, up to rounding", "1 test samples, such as 250"),
        ("the target as a feature", "feature 3 of layer1 is the target"),
        ("the label as a feature", "feature 3 of layer1 .* is the label"),
    ],
)
def test_leaks_are_refused_before_anything_runs(kind, message):
    layers, y, parts = leak(kind)

    def never(calibration, k):
        raise AssertionError("a method ran")

    with pytest.raises(ValueError, match=message):
        evaluate(layers, y, **parts, methods={"last layer": never}, **QUICK)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": []}, "test must hold at least one row number"),
        ({"test": [400]}, "from 0 to 299"),
        ({"development": [-1, 3]}, "from 0 to 299"),
        ({"development": [3, 3]}, "different row numbers"),
        ({"development": np.ones(7, bool)}, "boolean mask of 300"),
        ({"n_layers": 6}, "n_layers must be a whole number from 1 to 5.* got 6"),
        ({"n_layers": 2.0}, "n_layers must be a whole number from 1 to 5.* got 2.0"),
        ({"groups": ["a", *[None] * 299]}, "groups holds missing names"),
        ({"groups": np.where(np.arange(300) < 3, np.nan, 1.0)}, "groups holds missing names"),
        ({"seeds": []}, "at least one seed"),
        ({"methods": {}}, "one method"),
        ({"development": np.arange(200)[np.arange(200) // 2 % 3 != 0]}, "no sample of 1 classes"),
        ({"groups": np.arange(9)}, "one group a sample"),
        ({"seeds": [0, 0]}, "seeds must differ"),
        ({"methods": {"chance": baselines.last}}, "no method be named"),
        ({"validation_share": 0.9}, r"in \(0, 0.5\]"),
        ({"width": 0}, "width must be"),
        ({"width": 7}, "from 1 to 6"),
        ({"methods": {"odd": lambda c, k: Choice([True, False])}}, "of different layers"),
        ({"methods": {"odd": lambda c, k: Choice([1, 1])}}, "of different layers"),
        ({"curvature": [0.1, 0.2]}, "one finite number a layer, 5"),
        ({"methods": {"odd": lambda c, k: Choice([9])}}, r"layers from 0 to 4; got Choice"),
        ({"methods": {"odd": lambda c, k: [1]}}, "must return Choice"),
        ({"task": "ranking"}, "'ranking'"),
        ({"groups": np.arange(300) // 100}, "2 groups, .* 5 folds"),
        ({"seeds": [0.5]}, "each of seeds must be a whole number >= 0; got 0.5"),
        ({"development": [0, 2, 4, 6, 8, 10]}, "at most 2 samples of a class, .* 5 folds"),
    ],
)
def test_what_cannot_be_judged_is_refused(change, message):
    layers, y, parts = problem()
    with pytest.raises(ValueError, match=message):
        evaluate(layers, y, **({"methods": FEW} | parts | QUICK | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ["last layer"]}, "methods must map names to methods.*; got list"),
        ({"seeds": 3}, r"seeds must be a sequence, such as range\(3\); got 3"),
        ({"georeg": 0.1}, "georeg must be a GeoReg, .*, or None; got float"),
        ({"methods": {"mine": None}}, "the method 'mine' must be a function .*k; got NoneType"),
    ],
)
def test_arguments_of_another_type_are_refused(change, message):
    layers, y, parts = problem()
    with pytest.raises(TypeError, match=message):
        evaluate(layers, y, **({"methods": FEW} | parts | QUICK | change))


def test_a_constant_layer_is_refused_by_name():
    layers, y, parts = problem()
    layers.arrays[0][:200] = 1.0
    with pytest.raises(ValueError, match="layer0 is the same for all development samples"):
        evaluate(layers, y, **parts, methods=FEW, **QUICK)


def test_an_error_names_the_method_that_it_comes_from():
    layers, y, parts = problem()
    methods = {"last layer": baselines.last, "odd": lambda c, k: 1 / 0}
    with pytest.raises(ZeroDivisionError) as raised:
        evaluate(layers, y, **parts, methods=methods, seeds=[3], **QUICK)
    assert raised.value.__notes__ == ["This is method 'odd' with seed 3."]


def test_a_constant_test_target_has_no_r2():
    layers, _, parts = problem()
    target = layers[2] @ np.ones(6)
    target[200:] = 1.0
    with pytest.raises(ValueError, match="target is constant over the test part"):
        evaluate(layers, target, **parts, methods=FEW, **QUICK)


def test_a_test_part_of_one_class_has_no_equal_error_rate():
    layers, y, parts = problem(n_classes=2)
    parts["test"] = np.flatnonzero(y == 1)[-40:]
    found = evaluate(layers, y, **parts, methods=FEW, seeds=[0], **QUICK)
    assert "equal_error_rate" not in found.runs


def test_samples_that_agree_in_one_layer_only_are_no_twins():
    layers, y, parts = problem()
    layers.arrays[-1][250] = layers.arrays[-1][10]
    evaluate(layers, y, **parts, methods=FEW, seeds=[0], **QUICK)


def test_a_method_cannot_change_what_the_next_one_sees():
    def vandal(calibration, k):
        calibration.layers[0][:] = 0
        return Choice([0])

    layers, y, parts = problem()
    with pytest.raises(ValueError, match="read-only"):
        evaluate(layers, y, **parts, methods={"vandal": vandal}, seeds=[0], **QUICK)


def test_a_method_that_gives_up_later_has_no_runs(tmp_path):
    def moody(calibration, k):
        if calibration.seed:
            raise Unavailable("not today")
        return Choice([0])

    layers, y, parts = problem()
    methods = {"last layer": baselines.last, "moody": moody}
    found = evaluate(layers, y, **parts, methods=methods, seeds=np.arange(2), **QUICK)
    assert found.skipped == {"moody": "not today"}
    assert "moody" not in found.summary().index
    found.save(tmp_path / "found.json")  # also with numpy's numbers in it


def test_layers_of_unequal_width_are_not_averaged():
    layers, y, parts = problem()
    layers.arrays[0] = layers.arrays[0][:, :4]
    methods = {name: METHODS[name] for name in ("last layer", "all, mixing", "last k, mean")}
    found = evaluate(layers, y, **parts, methods=methods, seeds=[0], **QUICK)
    assert set(found.skipped) == {"all, mixing", "last k, mean"}


def test_one_test_group_has_no_interval():
    layers, y, parts = problem()
    parts["groups"] = np.where(np.arange(300) < 200, np.arange(300), 999)
    found = evaluate(layers, y, **parts, methods=FEW, n_layers=2, seeds=[0], **QUICK)
    row = found.summary().loc["LOES bounded"]
    assert row[["low", "high"]].isna().all()
    assert row["difference"] > 0


def test_masks_will_do_for_row_numbers(evaluation):
    layers, y, parts = problem()
    parts |= {"development": np.arange(300) < 200, "test": np.arange(300) >= 200}
    again = evaluate(layers, y, **parts, methods=FEW, n_layers=2, seeds=[0], **QUICK)
    expected = evaluation.runs.query("seed == 0")["accuracy"].tolist()
    assert again.runs["accuracy"].tolist() == expected


def test_a_reference_without_runs_is_answered_with_those_there_are(evaluation):
    with pytest.raises(ValueError, match=r"no runs of 'entropy'; take one of \['chance'"):
        evaluation.summary("entropy")


# Equal error rate


def test_equal_error_rate_of_two_normal_distributions():
    from scipy.stats import norm

    rng = np.random.default_rng(0)
    scores = np.concatenate([rng.normal(size=40_000), rng.normal(1.5, 2, size=40_000)])
    y = np.repeat([0, 1], 40_000)
    threshold = brentq(lambda t: norm.sf(t) - norm.cdf(t, 1.5, 2), -5, 5)
    assert equal_error_rate(y, scores) == pytest.approx(norm.sf(threshold), abs=0.005)


@pytest.mark.parametrize(
    ("scores", "rate"),
    [([0, 1, 2, 3], 0.0), ([2, 3, 0, 1], 1.0), ([0, 2, 1, 3], 0.5), ([1] * 4, 0.5)],
)
def test_equal_error_rate_by_hand(scores, rate):
    assert equal_error_rate([0, 0, 1, 1], scores) == pytest.approx(rate)

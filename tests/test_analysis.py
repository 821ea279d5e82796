"""Stability, sensitivity and exhaustive search against refits of everything, one by one."""

import warnings
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import torch

import loes
from loes import LOES, LayerFeatures, analysis, terms

both_criteria = pytest.mark.parametrize("criterion", ["paper", "bounded"])
pytestmark = pytest.mark.filterwarnings("ignore::loes.selection.SelectionWarning")
TARGETS = ["classes", "values", "none"]


def problem(seed=0, n=60, widths=(3, 5, 4, 2, 3), target="classes"):
    """Layers that say the same in part, and a target that each explains a little."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(n, 3))
    layers = [
        common @ rng.normal(size=(3, d)) + 1.5 * rng.normal(size=(n, d)) + rng.normal(size=d)
        for d in widths
    ]
    y = {"classes": common.argmax(1), "values": common[:, :2], "none": None}[target]
    return LayerFeatures([f"block {l}" for l in range(len(widths))], layers), y


# Stability


@both_criteria
@pytest.mark.parametrize("target", TARGETS)
def test_stability_counts_what_refits_pick(criterion, target):
    layers, y = problem(target=target)
    result = loes.stability(layers, y, 12, seed=3, progress=False, criterion=criterion, n_layers=2)
    samples, _ = LOES()._samples(layers, y)
    refits = [
        LOES(2, criterion=criterion).fit(layers.take(rows), None if y is None else y[rows])
        for rows in map(np.asarray, analysis._resamples(samples, 12, 3))
    ]
    assert result.selected == LOES(2, criterion=criterion).fit(layers, y).selected_
    assert result.resampled == [refit.selected_ for refit in refits]
    assert list(result.frequency.columns) == [1, 2, "selected"]
    assert list(result.frequency.index) == layers.names
    for layer, name in enumerate(layers.names):
        for step in (1, 2):
            share = np.mean([refit.selected_[step - 1] == layer for refit in refits])
            assert result.frequency.loc[name, step] == pytest.approx(share)
        share = np.mean([layer in refit.selected_ for refit in refits])
        assert result.frequency.loc[name, "selected"] == pytest.approx(share)


def test_resample_holds_each_sample_once_and_every_class():
    y = np.repeat(["a", "b", "c", "d"], [1, 2, 37, 560])
    samples, _ = LOES()._samples([np.random.default_rng(0).normal(size=(600, 2))], y)
    draws = [rows.numpy() for rows in analysis._resamples(samples, 200, 0)]
    assert all((np.diff(rows) > 0).all() for rows in draws)
    assert all(set(y[rows]) == set("abcd") for rows in draws)
    assert np.mean([len(rows) for rows in draws]) / 600 == pytest.approx(1 - 1 / np.e, abs=0.01)
    assert len({rows.tobytes() for rows in draws}) == 200
    for rows in draws[:5]:
        counts = analysis._take(samples, torch.from_numpy(rows)).counts
        assert counts.tolist() == pd.Series(y[rows]).value_counts().sort_index().tolist()


def test_seed_decides_the_resamples():
    layers, y = problem()
    runs = [loes.stability(layers, y, 8, seed=s, progress=False).resampled for s in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


def test_near_ties_are_rivals_in_a_tenth_of_the_resamples():
    frequency = pd.DataFrame(
        {1: [0.85, 0.1, 0.05], 2: [0.1, 0.3, 0.6], "selected": [0.95, 0.4, 0.65]}, list("abc")
    )
    ties = analysis.Stability([0, 1], [], frequency).near_ties
    assert ties.to_numpy().tolist() == [[1, "a", "b", 0.1], [2, "b", "c", 0.6], [2, "b", "a", 0.1]]


def test_stability_passes_parameters_on():
    layers, y = problem()
    parameters = {"include": [3], "exclude": [0], "standardize": True, "n_layers": 3}
    result = loes.stability(layers, y, 6, progress=False, **parameters)
    assert result.frequency.loc["block 3", 1] == 1
    assert result.frequency.loc["block 0", "selected"] == 0
    flat = np.hstack(layers.arrays)
    sizes = [X.shape[1] for X in layers]
    flat = loes.stability(flat, y, 6, progress=False, layer_sizes=sizes, **parameters)
    assert flat.resampled == result.resampled


def test_stability_stops_where_automatic_selection_stops():
    layers, y = problem()
    result = loes.stability(layers, y, 6, progress=False, criterion="bounded", n_layers="auto")
    longest = max(len(s) for s in [result.selected, *result.resampled])
    assert list(result.frequency.columns) == [*range(1, longest + 1), "selected"]
    picks = sum(len(s) for s in result.resampled)
    assert result.frequency["selected"].sum() * 6 == pytest.approx(picks)


@pytest.mark.filterwarnings("always::loes.selection.SelectionWarning")
def test_each_kind_of_warning_is_raised_once():
    layers, y = problem(n=40, widths=(30, 30, 30))
    with pytest.warns(loes.RankWarning) as caught:
        loes.stability(layers, y, 5, progress=False, n_layers=2)
    ranks = [str(w.message) for w in caught if w.category is loes.RankWarning]
    assert len(ranks) == 1
    assert ranks[0].startswith("in 6 of 6 selections (1 on all samples, 5 on resamples)")
    assert caught[0].filename == __file__


@pytest.mark.parametrize("n_boot", [0, -1, 2.0, True, "5"])
def test_bad_number_of_resamples_is_refused(n_boot):
    with pytest.raises(ValueError, match=f"n_boot must be a whole number >= 1; got {n_boot!r}"):
        loes.stability(*problem(), n_boot)


def test_resample_without_variation_is_named():
    layers, y = problem()
    rare = np.zeros((60, 2))
    rare[7] = 1
    with pytest.raises(ValueError, match=r"resample \d+ holds \d+ of the 60.*layer 1 is constant"):
        loes.stability([layers[0], rare], y, progress=False, n_layers=1)
    with pytest.raises(ValueError, match=r"resample \d+ holds .* the target is constant there"):
        loes.stability(layers, rare[:, 0], progress=False, task="regression")


# Sensitivity

GRIDS = {"alphas": [0, 0.25, 3], "gammas": [0, 1], "etas": [0, 0.1, 20]}


@both_criteria
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "parameters", [{}, {"include": [2], "exclude": [1], "standardize": True, "ridge": 5.0}]
)
def test_sensitivity_equals_a_refit_for_every_weighting(criterion, target, parameters):
    layers, y = problem(target=target)
    parameters = {"criterion": criterion, **parameters}
    table = loes.sensitivity(layers, y, **GRIDS, progress=False, **parameters)
    assert len(table) == 18
    assert len(set(table["selected"])) > 2 or "include" in parameters
    for row in table.itertuples():
        weights = {"alpha": row.alpha, "gamma": row.gamma, "eta": row.eta}
        refit = LOES(3, **weights, **parameters).fit(layers, y)
        assert row.selected == tuple(refit.selected_), row
        assert row.names == tuple(layers.names[l] for l in refit.selected_)


@both_criteria
def test_default_weights_are_in_the_default_grid(criterion):
    layers, y = problem()
    table = loes.sensitivity(layers, y, criterion=criterion, progress=False)
    assert len(table) == 6**3
    assert (table[["alpha", "gamma", "eta"]].min() == 0).all()
    (own,) = table[table["default"]].itertuples()
    assert own.selected == tuple(LOES(criterion=criterion).fit(layers, y).selected_)


def test_statistics_are_opened_once_and_shared(monkeypatch):
    layers, y = problem()
    opened, picked = [], []
    primal = analysis.Primal
    monkeypatch.setattr(
        analysis, "open_stack", lambda *a, f=analysis.open_stack: opened.append(1) or f(*a)
    )
    monkeypatch.setattr(
        primal, "pick", lambda self, *a, f=primal.pick: picked.append(a[0]) or f(self, *a)
    )
    table = loes.sensitivity(layers, y, progress=False)
    prefixes = {s[:k] for s in table["selected"] for k in (1, 2)}
    assert len(opened) == 1
    assert len(picked) == len(prefixes) < len(table)


@pytest.mark.filterwarnings("always::loes.selection.SelectionWarning")
@pytest.mark.parametrize(
    ("n", "criterion", "message"),
    [(25, "bounded", "stopped before 3 layers"), (70, "paper", "picked a layer with at least")],
)
def test_sensitivity_warns_once_of_too_few_samples(n, criterion, message):
    layers, y = problem(n=n, widths=(30, 30, 30))
    with pytest.warns(loes.RankWarning, match=f"of 18 weightings {message}") as caught:
        loes.sensitivity(layers, y, **GRIDS, criterion=criterion, progress=False)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_sensitivity_says_what_is_wrong():
    layers, y = problem()
    with pytest.raises(TypeError, match="takes alphas, a sequence of weights, not alpha"):
        loes.sensitivity(layers, y, alpha=1.0)
    with pytest.raises(ValueError, match=r"gamma must be a finite number >= 0; got .*-1"):
        loes.sensitivity(layers, y, gammas=[0, -1])
    with pytest.raises(ValueError, match="at least one weight each"):
        loes.sensitivity(layers, y, etas=[])
    with pytest.raises(ValueError, match="selections of one size; give n_layers as a number"):
        loes.sensitivity(layers, y, n_layers="auto")
    with pytest.raises(ValueError, match=r"n_layers=9 .* 5 layers"):
        loes.sensitivity(layers, y, n_layers=9)
    with pytest.raises(ValueError, match="block 0 is constant"):
        loes.sensitivity(LayerFeatures(["block 0"], [np.ones((60, 2))]), y, n_layers=1)
    copied = LayerFeatures(["a", "b", "c"], [layers[0], layers[0], layers[1]])
    with pytest.raises(ValueError, match="include names b, which holds nothing beyond"):
        loes.sensitivity(copied, y, n_layers=2, include=[0, 1])


# Exhaustive search


def joint_loss(layers, y, subset, criterion):
    X = np.hstack([layers[l] for l in subset])
    Y = pd.get_dummies(y).to_numpy(float) if y.ndim == 1 else y
    return terms.ridge_loss(X, Y) if criterion == "paper" else terms.loo_loss(X, Y)[0]


@both_criteria
@pytest.mark.parametrize("target", ["classes", "values"])
@pytest.mark.parametrize("widths", [(3, 5, 4, 2, 3), (30, 25, 40, 35)])  # primal, dual
def test_exhaustive_equals_one_probe_a_subset(criterion, target, widths):
    layers, y = problem(widths=widths, target=target)
    table = loes.exhaustive(layers, y, 2, criterion=criterion, progress=False)
    assert sorted(table["selected"]) == list(combinations(range(len(widths)), 2))
    for row in table.itertuples():
        expected = joint_loss(layers, y, row.selected, criterion)
        assert row.loss == pytest.approx(expected, rel=1e-6, abs=1e-12)
        assert row.names == tuple(layers.names[l] for l in row.selected)
    assert table["loss"].is_monotonic_increasing
    assert table["gap"].tolist() == (table["loss"] - table["loss"][0]).tolist()
    (greedy,) = table[table["greedy"]].itertuples()
    assert set(greedy.selected) == set(LOES(2, criterion=criterion).fit(layers, y).selected_)


@both_criteria
def test_exhaustive_with_one_layer_is_the_first_step_by_loss(criterion):
    layers, y = problem()
    weights = {"alpha": 0.0, "criterion": criterion}
    table = loes.exhaustive(layers, y, 1, progress=False, **weights)
    path = LOES(1, **weights).fit(layers, y).path_.sort_values("loss")
    assert [s for (s,) in table["selected"]] == path["layer"].tolist()
    np.testing.assert_allclose(table["loss"], path["loss"], rtol=1e-9)
    assert table["greedy"].tolist() == [True, False, False, False, False]


def test_exhaustive_keeps_to_include_exclude_and_standardize():
    layers, y = problem()
    table = loes.exhaustive(
        layers, y, 3, include=[4, 1], exclude=[0], standardize=True, progress=False
    )
    assert sorted(table["selected"]) == [(1, 2, 4), (1, 3, 4)]
    scaled = [X / X.std(0) for X in layers]
    for row in table.itertuples():
        assert row.loss == pytest.approx(joint_loss(scaled, y, row.selected, "paper"))


def test_exhaustive_takes_mixed_precision():
    layers, y = problem()
    mixed = [torch.tensor(X).float() if l % 2 else torch.tensor(X) for l, X in enumerate(layers)]
    table = loes.exhaustive(mixed, y, 2, criterion="bounded", progress=False)
    for row in table.itertuples():
        assert row.loss == pytest.approx(joint_loss(layers, y, row.selected, "bounded"), rel=1e-4)


@pytest.mark.filterwarnings("always::loes.selection.SelectionWarning")
def test_exhaustive_warns_when_any_subset_fits_anything():
    layers, y = problem(n=60, widths=(30, 30, 30))
    with pytest.warns(loes.RankWarning, match="up to 60 features, no fewer than the 59") as caught:
        loes.exhaustive(layers, y, 2, progress=False)
    assert {w.filename for w in caught} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error", loes.RankWarning)
        loes.exhaustive(layers, y, 2, criterion="bounded", progress=False)


def test_exhaustive_says_what_is_wrong():
    layers, y = problem()
    with pytest.raises(ValueError, match="how they explain y; give both"):
        loes.exhaustive(layers, None, 2)
    with pytest.raises(ValueError, match="subsets of one size"):
        loes.exhaustive(layers, y, "auto")
    with pytest.raises(ValueError, match=r"n_layers=6 .* 5 layers"):
        loes.exhaustive(layers, y, 6)
    many = [layers[0]] * 31
    with pytest.raises(ValueError, match="31465 subsets of 4 of 31 layers, more than the 5000"):
        loes.exhaustive(many, y, 4)


# All


@both_criteria
@pytest.mark.parametrize("n", [60, 8])  # primal, dual
def test_redundancies_are_those_of_the_terms(criterion, n):
    layers, _ = problem(n=n, widths=(10, 9, 12))
    table = analysis.redundancies(layers, criterion)
    for i, j in np.ndindex(3, 3):
        value = (
            terms.redundancy(layers[i], [layers[j]])
            if criterion == "paper"
            else terms.cka(layers[i], layers[j])
        )
        assert table.iloc[i, j] == pytest.approx(value, rel=1e-6)
    assert list(table.index) == list(table.columns) == layers.names


@pytest.mark.parametrize("function", [loes.stability, loes.sensitivity, loes.exhaustive])
def test_all_check_their_input_as_fit_does(function):
    layers, y = problem()
    for bad, labels, message in (
        (layers[0], y, "must have the shape|must be"),
        ([layers[0], layers[1][:9]], y, "60 rows and layer 1 has 9"),
        ([], y, "no layers to choose from"),
        (layers, y[:9], "60 samples, y of shape"),
        (layers, np.zeros(60, int), "one class only"),
        ([X[:1] for X in layers], y[:1], "at least two samples"),
    ):
        with pytest.raises(ValueError, match=message):
            function(bad, labels, progress=False)
    with pytest.raises(ValueError, match="criterion must be one of"):
        function(layers, y, criterion="Paper", progress=False)
    with pytest.raises(TypeError, match="ridges"):
        function(layers, y, ridges=1, progress=False)


@pytest.mark.parametrize("function", [loes.stability, loes.sensitivity, loes.exhaustive])
def test_progress_false_is_silent_and_input_unchanged(function, capsys):
    layers, y = problem()
    before = [X.copy() for X in layers]
    function(layers, y, **({"n_boot": 2} if function is loes.stability else {}), progress=False)
    assert capsys.readouterr() == ("", "")
    for X, same in zip(layers, before, strict=True):
        np.testing.assert_array_equal(X, same)

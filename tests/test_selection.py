"""LOES against a second implementation, its invariances, and what it says to bad input."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import TARGETS, assert_same_path, oracle, problem
from scipy.stats import ortho_group
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from loes import (
    LOES,
    LayerFeatures,
    RankWarning,
    TermDominanceWarning,
    extract_layers,
    stability,
    tasks,
    zoo,
)
from loes.selection import PATH

criteria = st.sampled_from(["paper", "bounded"])
# Where a test is about something else than the balance of the terms.
unbalanced = pytest.mark.filterwarnings("ignore::loes.TermDominanceWarning")
no_freedom = pytest.mark.filterwarnings("ignore:at step .* in-sample:loes.RankWarning")
both_criteria = pytest.mark.parametrize("criterion", ["paper", "bounded"])
seeds = st.integers(0, 10**6)


# The second implementation


@unbalanced
@both_criteria
@pytest.mark.parametrize("target", TARGETS)
def test_path_is_that_of_the_oracle(criterion, target):
    layers, y = problem(0, target=target)
    model = LOES(3, criterion=criterion).fit(layers, y)
    selected, path = oracle(layers, y, criterion, 3)
    assert list(model.path_.columns) == PATH
    assert_same_path(model.path_, path)
    assert model.selected_ == selected


@unbalanced
@given(
    seeds,
    criteria,
    st.lists(st.integers(2, 6), min_size=3, max_size=5),
    st.integers(30, 50),
    st.sampled_from(["classes", "values", "several values", "none"]),
)
def test_path_is_that_of_the_oracle_on_any_problem(seed, criterion, widths, n, target):
    layers, y = problem(seed, widths, n, target)
    model = LOES(3, criterion=criterion).fit(layers, y)
    selected, path = oracle(layers, y, criterion, 3)
    assert model.selected_ == selected
    assert_same_path(model.path_, path)


@unbalanced
@no_freedom
@both_criteria
def test_path_is_that_of_the_oracle_with_fewer_samples_than_features(criterion):
    layers, y = problem(1, widths=(30, 40, 30, 35), n=25, rank=5)
    model = LOES(3, criterion=criterion).fit(layers, y)
    selected, path = oracle(layers, y, criterion, 3)
    assert model.selected_ == selected
    assert_same_path(model.path_, path)


@unbalanced
@pytest.mark.parametrize("ridge", [1e-2, 1.0, 100.0])
def test_ridge_is_the_probes(ridge):
    layers, y = problem(2)
    path = LOES(3, ridge=ridge).fit(layers, y).path_
    assert_same_path(path, oracle(layers, y, "paper", 3, ridge=ridge)[1])


@unbalanced
def test_stages_without_ridge_are_the_joint_fit():
    """Frisch, Waugh and Lovell: what is left after stage k is what the joint fit leaves."""
    layers, y = problem(3, widths=(3, 4, 2), n=60, target="several values")
    model = LOES(3, ridge=0).fit(layers, y)
    for step, loss in model.path_.query("chosen")[["step", "loss"]].itertuples(index=False):
        joint = np.c_[np.ones(60), *(layers[j] for j in model.selected_[:step])]
        error = y - joint @ np.linalg.lstsq(joint, y, rcond=None)[0]
        assert loss == pytest.approx(np.mean(error**2))


@pytest.mark.parametrize("copies", [1, 2])
def test_layers_that_share_or_repeat_features_need_no_ridge(copies):
    """What is left of the second layer has half its rank: rounding must not be fitted."""
    rng = np.random.default_rng(0)
    first, extra = rng.normal(size=(200, 6)), rng.normal(size=(200, 3))
    y = first[:, 0] + extra[:, 2] + rng.normal(size=200)
    layers = [np.tile(X, copies) for X in (first, np.c_[first[:, :3], extra])]
    model = LOES(2, ridge=0).fit(layers, y)
    joint = np.c_[np.ones(200), first, extra]
    error = y - joint @ np.linalg.lstsq(joint, y, rcond=None)[0]
    assert model.path_.loss.iloc[-1] == pytest.approx(np.mean(error**2))


def test_layers_of_one_feature_are_forward_selection():
    """The example of fastcan 0.2.6 (pypi.org/project/fastcan/0.2.6), with its published scores."""
    X = np.array(
        [[0.87, -1.34, 0.31], [-2.79, -0.02, -0.85], [-1.34, -0.48, -2.55], [1.92, 1.48, 0.65]]
    )
    y = np.array([0.0, 1.0, 0.0, 1.0])
    model = LOES(2, alpha=0, gamma=0, eta=0, ridge=0, task="regression").fit(X[:, :, None], y)
    assert model.selected_ == [1, 0]
    left = [y.var(), *model.path_.query("chosen").loss]
    assert -np.diff(left) / y.var() == pytest.approx([0.64276838, 0.09498243], abs=1e-8)


# Invariances


@unbalanced
@given(seeds, criteria)
def test_order_of_samples_layers_and_classes_does_not_matter(seed, criterion):
    layers, y = problem(seed)
    rng = np.random.default_rng(seed)
    model = LOES(3, criterion=criterion).fit(layers, y)

    samples = rng.permutation(len(y))
    shuffled = LOES(3, criterion=criterion).fit([X[samples] for X in layers], y[samples])
    assert_same_path(shuffled.path_, model.path_)

    names = rng.permutation(["ant", "bee", "cat"])
    assert_same_path(LOES(3, criterion=criterion).fit(layers, names[y]).path_, model.path_)

    order = rng.permutation(len(layers))
    moved = LOES(3, criterion=criterion).fit([layers[j] for j in order], y)
    assert [order[j] for j in moved.selected_] == model.selected_
    assert_same_path(moved.path_.assign(layer=order[moved.path_.layer]), model.path_)


@unbalanced
@given(seeds, criteria)
def test_rotating_a_layer_does_not_matter(seed, criterion):
    layers, y = problem(seed)
    rotated = [X @ ortho_group.rvs(X.shape[1], random_state=seed) for X in layers]
    path = LOES(3, criterion=criterion).fit(layers, y).path_
    assert_same_path(LOES(3, criterion=criterion).fit(rotated, y).path_, path, rtol=1e-7)


@unbalanced
@given(seeds, st.floats(0.01, 100), st.sampled_from(["classes", "values"]))
def test_bounded_terms_are_shares_free_of_units(seed, scale, target):
    layers, y = problem(seed, target=target)
    path = LOES(3, criterion="bounded").fit(layers, y).path_
    shares = path[["loss", "iso", "red", "tri"]].fillna(0).stack()
    assert shares.between(0, 1 + 1e-12).all()
    moved = [scale * layers[0] + 3, *layers[1:]]
    y = y if target == "classes" else scale * y - 1
    assert_same_path(LOES(3, criterion="bounded").fit(moved, y).path_, path, rtol=1e-6)


@unbalanced
def test_paper_terms_have_units():
    layers, y = problem(0)
    layers_in_mm = [1000 * X for X in layers]
    tri, tri_in_mm = (LOES(2).fit(X, y).path_.tri.max() for X in (layers, layers_in_mm))
    assert tri_in_mm > 1e5 * tri


# What the criteria are for


def with_noise(signal):
    """Three layers of steep spectrum that hold four classes, `signal` apart; then white noise."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 100)
    steep = np.geomspace(3, 0.03, 24)
    layers = [signal * np.eye(4, 24)[y] + rng.normal(size=(400, 24)) * steep for _ in range(3)]
    return [*layers, rng.normal(size=(400, 24))], y


@unbalanced
def test_a_layer_of_noise_wins_the_paper_criterion_and_not_the_bounded_one():
    layers, y = with_noise(signal=5)
    assert LOES(1).fit(layers, y).selected_ == [3]
    assert LOES(1, criterion="bounded").fit(layers, y).selected_ != [3]


def test_a_layer_of_noise_wins_the_bounded_criterion_where_little_is_explained():
    """The limit: isotropy buys up to alpha of explained variance, and none without alpha."""
    layers, y = with_noise(signal=1)
    model = LOES(1, criterion="bounded").fit(layers, y)
    assert model.selected_ == [3]
    path = model.path_.set_index("layer")
    assert path.loss[3] == pytest.approx(1, abs=0.02)
    explained = path.loss[3] - path.loc[:2, "loss"].min()
    assert 0.01 < explained < 0.25 * (path.iso[3] - path.loc[:2, "iso"].max())
    assert LOES(1, criterion="bounded", alpha=0).fit(layers, y).selected_ != [3]


@unbalanced
@both_criteria
def test_weights_weigh_their_term(criterion):
    layers, y = problem(0)
    path = LOES(3, criterion=criterion, alpha=2, gamma=3, eta=4).fit(layers, y).path_
    late = path[path.step > 1]
    score = late.loss + 2 * (1 - late.iso) + 3 * late.red - 4 * late.tri
    assert late.score.to_numpy() == pytest.approx(score.to_numpy())
    first = path[path.step == 1]
    assert first.score.to_numpy() == pytest.approx((first.loss + 2 * (1 - first.iso)).to_numpy())


# What enters and what comes out


@unbalanced
@both_criteria
def test_path_holds_one_row_a_step_and_candidate(criterion):
    layers, y = problem(0)
    model = LOES(3, criterion=criterion).fit(layers, y)
    assert model.path_.groupby("step").size().to_dict() == {1: 4, 2: 3, 3: 2}
    chosen = model.path_.query("chosen")
    assert chosen.layer.tolist() == model.selected_
    assert chosen.step.tolist() == [1, 2, 3]
    lowest = model.path_.loc[model.path_.groupby("step").score.idxmin()]
    assert lowest.chosen.all()
    is_first = model.path_.step == 1
    assert (model.path_.red.isna() == is_first).all()
    assert (model.path_.tri.isna() == is_first).all()


@unbalanced
@pytest.mark.parametrize(
    ("target", "empty"), [("values", ["tri"]), ("none", ["loss", "tri"]), ("classes", [])]
)
def test_terms_without_a_meaning_are_nan(target, empty):
    layers, y = problem(0, target=target)
    path = LOES(2).fit(layers, y).path_
    late = path[path.step == 2]
    assert [name for name in ("loss", "iso", "red", "tri") if late[name].isna().all()] == empty


@unbalanced
def test_two_classes_have_no_triangles():
    layers, y = problem(0, target="two classes")
    late = LOES(2).fit(layers, y).path_.query("step == 2")
    assert (late.tri == 0).all()


@unbalanced
@both_criteria
def test_transform_concatenates_the_selected_layers(criterion):
    layers, y = problem(0)
    model = LOES(3, criterion=criterion)
    Z = model.fit_transform(layers, y)
    np.testing.assert_array_equal(Z, np.hstack([layers[j] for j in model.selected_]))
    unseen, _ = problem(1, n=7)
    assert model.transform(unseen).shape == (7, Z.shape[1])


@unbalanced
@pytest.mark.parametrize(
    "form",
    [
        lambda X: [*X.transpose(1, 0, 2)],
        lambda X: tuple(X.transpose(1, 0, 2)),
        lambda X: [layer.tolist() for layer in X.transpose(1, 0, 2)],
        lambda X: [pd.DataFrame(layer) for layer in X.transpose(1, 0, 2)],
        lambda X: [torch.tensor(layer, requires_grad=True) for layer in X.transpose(1, 0, 2)],
        lambda X: torch.tensor(X),
        lambda X: torch.tensor(X).bfloat16(),  # X holds numbers that bfloat16 holds exactly
        lambda X: X.astype(np.float32),
        lambda X: LayerFeatures(list("abcd"), [*X.transpose(1, 0, 2)]),
    ],
)
def test_any_form_of_the_same_layers_gives_the_same(form):
    X = np.random.default_rng(0).integers(-8, 9, size=(30, 4, 3)).astype(float)
    y = np.arange(30) % 3
    expected = LOES(2).fit(X, y)
    model = LOES(2).fit(form(X), y)
    pd.testing.assert_frame_equal(model.path_, expected.path_)
    np.testing.assert_array_equal(model.transform(form(X)), expected.transform(X))


@unbalanced
@pytest.mark.parametrize(
    "form",
    [
        lambda y: y.tolist(),
        torch.tensor,
        pd.Series,
        lambda y: pd.Series(np.array(["a", "b", "c"])[y]),
        lambda y: pd.Categorical.from_codes(y, ["a", "b", "c"]),
    ],
)
def test_any_form_of_the_same_labels_gives_the_same(form):
    layers, y = problem(0)
    pd.testing.assert_frame_equal(LOES(2).fit(layers, form(y)).path_, LOES(2).fit(layers, y).path_)


@unbalanced
def test_booleans_are_two_classes():
    layers, y = problem(0)
    late = LOES(2).fit(layers, y == 0).path_.query("step == 2")
    assert (late.tri == 0).all()


@unbalanced
def test_task_settles_what_whole_numbers_in_float_are():
    layers, y = problem(0)
    classes = LOES(2, task="classification").fit(layers, y.astype(float)).path_
    pd.testing.assert_frame_equal(classes, LOES(2).fit(layers, y).path_)
    assert LOES(2, task="regression").fit(layers, y.astype(float)).path_.tri.isna().all()


@unbalanced
def test_names_are_those_of_the_features():
    layers, y = problem(0)
    features = LayerFeatures(["embedding", "layer1", "layer2", "layer3"], layers)
    assert LOES(1).fit(features, y).names_ == features.names


@unbalanced
def test_fit_leaves_its_input_alone():
    layers, y = problem(0)
    before = [X.copy() for X in layers]
    LOES(3).fit(layers, y)
    for X, copy in zip(layers, before, strict=True):
        np.testing.assert_array_equal(X, copy)


def test_estimator_follows_scikit_learn():
    model = LOES(2, criterion="bounded", alpha=0.5)
    layers, y = problem(0)
    copy = clone(model.fit(layers, y))
    assert copy.get_params() == model.get_params()
    assert copy.get_params()["alpha"] == 0.5
    assert not hasattr(copy, "selected_")
    assert len(copy.set_params(n_layers=1).fit(layers, y).selected_) == 1


# Exhaustion


@unbalanced
@both_criteria
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_copy_of_a_layer_is_not_picked_with_it(criterion, dtype):
    layers, y = problem(0, widths=(6, 6), n=50)
    first, second = (X.astype(dtype) for X in layers)
    rotated = first @ ortho_group.rvs(6, random_state=0).astype(dtype)
    candidates = [first, first.copy(), 100 * rotated, second]
    model = LOES(2, criterion=criterion).fit(candidates, y)
    assert sorted(min(j, 3) // 3 for j in model.selected_) == [0, 1]
    with pytest.warns(RankWarning, match=r"stopped after 2 of 3 layers: the 12 features .* n=50"):
        model = LOES(3, criterion=criterion).fit(candidates, y)
    assert len(model.selected_) == 2


@unbalanced
@no_freedom
@both_criteria
def test_selection_stops_when_the_samples_are_exhausted(criterion):
    rng = np.random.default_rng(0)
    layers = [rng.normal(size=(30, 20)) for _ in range(4)]
    y = np.arange(30) % 3
    LOES(2, criterion=criterion).fit(layers, y)
    with pytest.warns(
        RankWarning,
        match=r"stopped after 2 of 4 layers: the 40 features .* n=30 .*Use more samples, reduce "
        "the layers by PCA, or ask for fewer layers",
    ):
        model = LOES(4, criterion=criterion).fit(layers, y)
    assert len(model.selected_) == 2
    assert model.path_.step.max() == 2
    assert model.transform(layers).shape == (30, 40)


# Bad input


LAYERS, Y = problem(0)


def with_value(value):
    X = LAYERS[1].copy()
    X[3, 2] = value
    return [LAYERS[0], X]


@pytest.mark.parametrize(
    ("layers", "error", "message"),
    [
        (with_value(np.nan), ValueError, r"layer 1 holds 1 NaN or infinite .* extract it again"),
        (with_value(np.inf), ValueError, "layer 1 holds 1 NaN or infinite"),
        (
            [LAYERS[0], np.ones((40, 2))],
            ValueError,
            r"layer 1 is constant.* 40 samples.*leave it out, in a selection by exclude=\[1\]",
        ),
        (
            [LAYERS[0], (np.pi + 1e-7 * LAYERS[1]).astype(np.float32)],
            ValueError,
            "layer 1 is constant, up to rounding",
        ),
        ([LAYERS[0], LAYERS[1] * 1e200], ValueError, "layer 1 are too large: .* float64; rescale"),
        ([np.float32(X) * np.float32(1e25) for X in LAYERS], ValueError, "too large: .* float32"),
        ([np.float32(X) * np.float32(1e-25) for X in LAYERS], ValueError, "too small: .* float32"),
        ([LAYERS[0], LAYERS[1][:30]], ValueError, "layer 0 has 40 rows and layer 1 has 30"),
        ([], ValueError, "no layers to choose from"),
        (np.empty((40, 0, 3)), ValueError, "no layers to choose from"),
        (LayerFeatures([], []), ValueError, "no layers to choose from"),
        ([np.empty((0, 3))], ValueError, r"n, d >= 1; got shape \(0, 3\)"),
        ([np.empty((40, 0))], ValueError, r"n, d >= 1; got shape \(40, 0\)"),
        (LAYERS[0], ValueError, r"shape \(n, L, d\); got \(40, 3\).*pass a list: \[X\]"),
        ([LAYERS[0][:, 0]], ValueError, r"numeric \(n, d\) matrix.* got shape \(40,\)"),
        ([LAYERS[0].astype(str)], ValueError, "numeric .* matrix.* of <U"),
        ([LAYERS[0].astype(object)], ValueError, "numeric .* matrix.* of object"),
        ([LAYERS[0] * 1j], ValueError, "numeric .* matrix.* of complex128"),
        ([torch.eye(40).to_sparse()], ValueError, r"layer 0 is a torch.sparse_coo .*to_dense\(\)"),
        ([torch.ones(40, 2, device="meta")], ValueError, "layer 0 is a .* tensor on meta"),
        (None, TypeError, "sequence of .* matrices.*; got NoneType"),
        ("minilm", TypeError, "sequence of .* matrices.*; got str"),
        ({"a": LAYERS[0]}, TypeError, "sequence of .* matrices.*; got dict"),
    ],
)
def test_bad_layers_are_refused(layers, error, message):
    with pytest.raises(error, match=message):
        LOES(1).fit(layers, Y)


def test_one_sample_is_refused():
    with pytest.raises(ValueError, match="at least two samples; got 1"):
        LOES(1).fit([X[:1] for X in LAYERS], Y[:1])


HALF_LABELLED = np.array(["a", None] * 20, dtype=object)


@pytest.mark.parametrize(
    ("y", "task", "message"),
    [
        (Y[:30], "auto", r"40 samples, y of shape \(30,\)"),
        (3, "auto", r"40 samples, y of shape \(\)"),
        ([], "auto", r"40 samples, y of shape \(0,\)"),
        (np.zeros(40, int), "auto", "one class only.*'0'.*y=None for label-free"),
        (np.full(40, "a"), "auto", "one class only.*'a'"),
        (np.arange(40), "auto", "40 classes of one sample each.*task='regression'"),
        (np.arange(40).astype(str), "classification", "40 classes of one sample each"),
        (np.eye(3)[Y], "auto", r"\(40, 3\) looks one-hot; pass .*y.argmax\(1\)"),
        (torch.eye(3)[Y], "auto", "looks one-hot"),
        (np.eye(3)[Y], "classification", r"shape \(40, 3\).*y.argmax\(1\) if y is one-hot"),
        (Y[:, None], "auto", r"shape \(40, 1\), one column of labels; pass y.ravel\(\)"),
        (Y[:, None], "classification", r"pass y.ravel\(\)"),
        (Y.astype(float), "auto", "task='classification' or task='regression'"),
        (LAYERS[0][:, 0], "classification", "wants .* class labels; got continuous.*'regression'"),
        (np.where(Y > 0, np.nan, 0.5), "auto", "NaN or infinite targets; drop"),
        (np.where(Y > 0, np.inf, 0.5), "auto", "NaN or infinite targets; drop"),
        (HALF_LABELLED, "auto", "got NoneType .* Drop samples without a label"),
        (HALF_LABELLED, "classification", "got NoneType .* Drop samples without a label"),
        ([float("nan"), *["a", "b", "a"] * 13], "auto", "mixes text and numbers"),
        ([np.float64("nan"), *["a", "b", "a"] * 13], "auto", "mixes text and numbers"),
        ([True, *["a", "b", "a"] * 13], "classification", "mixes text and numbers"),
        (np.ma.masked_equal(Y, 1), "auto", "y holds masked values; drop those samples"),
        ([None] * 40, "auto", "got NoneType .* Drop samples without a label"),
        (["a", np.nan] * 20, "regression", "wants numeric .*; got <U"),
        (np.array(["a", 1], dtype=object)[Y % 2], "auto", r"got int .* y.astype\(str\)"),
        (Y.astype("datetime64[D]"), "auto", "got datetime64"),
        (np.array([b"a", b"b"])[Y % 2], "auto", "got bytes_"),
        (Y * 1j, "auto", "got complex128"),
        (np.full(40, 0.5), "auto", "constant target.*leave it out"),
        (np.c_[LAYERS[0], np.ones(40)], "regression", "constant target.*leave it out"),
        (np.zeros((40, 2, 2)) + 0.5, "auto", r"\(n, c\) targets; got float64 \(40, 2, 2\)"),
        (np.array(["a", "b"])[Y % 2], "regression", "wants numeric.*task='classification'"),
    ],
)
def test_bad_targets_are_refused(y, task, message):
    with pytest.raises(ValueError, match=message):
        LOES(1, task=task).fit(LAYERS, y)


@pytest.mark.parametrize("value", [0, -1, 5, 2.0, True, "2", None])
def test_bad_budget_is_refused(value):
    with pytest.raises(ValueError, match=f"n_layers={value!r} .* 4 layers; .* 1 <= n_layers <= 4"):
        LOES(value).fit(LAYERS, Y)


@unbalanced
def test_budget_may_be_a_numpy_integer():
    assert len(LOES(np.int64(2)).fit(LAYERS, Y).selected_) == 2


@pytest.mark.parametrize("name", ["alpha", "gamma", "eta", "ridge"])
@pytest.mark.parametrize("value", [-1, np.nan, np.inf, "1"])
@both_criteria
def test_bad_weight_is_refused(name, value, criterion):
    with pytest.raises(ValueError, match=f"{name} must be a finite number >= 0; got {value!r}"):
        LOES(1, criterion=criterion, **{name: value}).fit(LAYERS, Y)


def test_unknown_criterion_and_task_are_refused():
    with pytest.raises(ValueError, match=r"criterion .* \['paper', 'bounded'\]; got 'Paper'"):
        LOES(1, criterion="Paper").fit(LAYERS, Y)
    with pytest.raises(ValueError, match=r"task must be one of \['auto', .*; got 'ranking'"):
        LOES(1, task="ranking").fit(LAYERS, Y)


@unbalanced
def test_transform_wants_the_layers_that_fit_saw():
    model = LOES(2)
    with pytest.raises(NotFittedError, match="not fitted"):
        model.transform(LAYERS)
    model.fit(LAYERS, Y)
    with pytest.raises(ValueError, match=r"fit saw 4 layers; got 2\. Pass all layers"):
        model.transform(LAYERS[:2])
    with pytest.raises(ValueError, match=r"widths \[3, 5, 4, 2\]; got \[2, 4, 5, 3\]"):
        model.transform(LAYERS[::-1])
    with pytest.raises(ValueError, match="layer 2 holds 160 NaN"):
        model.transform([*LAYERS[:2], np.nan * LAYERS[2], LAYERS[3]])


# LayerFeatures


def test_features_are_a_sequence_of_their_arrays():
    features = LayerFeatures(["a", "b", "c", "d"], LAYERS, "mean")
    assert len(features) == len(list(features)) == 4
    assert features[-1] is LAYERS[3]
    assert repr(features) == "LayerFeatures(4 layers, n=40, width=2/3/4/5, pooling='mean')"
    assert "0 layers, n=0" in repr(LayerFeatures([], []))


@pytest.mark.parametrize("samples", [[3, 1], np.arange(40) < 7])
def test_take_keeps_layers_and_picks_samples(samples):
    part = LayerFeatures(["a", "b", "c", "d"], LAYERS, "mean").take(samples)
    assert (part.names, part.pooling) == (["a", "b", "c", "d"], "mean")
    for X, whole in zip(part, LAYERS, strict=True):
        np.testing.assert_array_equal(X, whole[samples])


def test_features_want_one_name_a_layer():
    with pytest.raises(ValueError, match="got 1 names for 4 arrays"):
        LayerFeatures(["a"], LAYERS)


# Rank


@unbalanced
@both_criteria
def test_path_tells_the_dimensions_that_are_left(criterion):
    """n - 1 for the centred samples, less what the picks span: 3, once each, for the copy too."""
    rng = np.random.default_rng(0)
    layers = [rng.normal(size=(30, d)) for d in (4, 6, 5)]
    layers[1] = layers[1][:, :3] @ rng.normal(size=(3, 6))
    model = LOES(3, criterion=criterion, include=[0, 1, 2]).fit(layers, np.arange(30) % 3)
    assert model.path_.groupby("step")["rank"].unique().tolist() == [29, 25, 22]


@unbalanced
@pytest.mark.parametrize(("criterion", "says"), [("paper", True), ("bounded", False)])
def test_an_empty_loss_is_said(criterion, says):
    rng = np.random.default_rng(0)
    layers, y = [rng.normal(size=(30, 12)) for _ in range(4)], np.arange(30) % 3
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RankWarning)
        LOES(2, criterion=criterion).fit(layers, y)  # 29 and 17 dimensions are free
        assert not caught
        LOES(3, criterion=criterion).fit(layers, y)  # 5
    said = [str(warning.message) for warning in caught if warning.category is RankWarning]
    assert len(said) == says
    if says:
        assert "at step 3 the picked layer has at least as many features as the n=30" in said[0]


def test_constant_layers_may_be_excluded():
    layers, y = problem(0)
    model = LOES(1, criterion="bounded", exclude=[1]).fit([layers[0], np.ones((40, 2))], y)
    assert model.selected_ == [0]


@unbalanced
@both_criteria
def test_a_class_may_have_one_sample(criterion):
    layers, y = problem(0)
    y = y.copy()
    y[0] = 3
    selected, path = oracle(layers, y, criterion, 3)
    model = LOES(3, criterion=criterion).fit(layers, y)
    assert_same_path(model.path_, path)
    assert model.selected_ == selected


@unbalanced
@pytest.mark.parametrize("criterion", ["paper", "bounded"])
def test_triangles_of_the_authors_are_fewer(criterion):
    layers, y = problem(0)
    y = y + 3 * (np.arange(40) % 2)  # six classes
    distinct, authors = (
        LOES(2, criterion=criterion, triangles=name, include=[0]).fit(layers, y).path_.tri
        for name in ("distinct", "authors")
    )
    assert authors.dropna().to_numpy() == pytest.approx(5 * 4 / 36 * distinct.dropna().to_numpy())


@unbalanced
@given(seeds, st.tuples(*[st.floats(0.01, 100)] * 4))
def test_bounded_is_free_of_the_scale_of_each_layer(seed, scales):
    layers, y = problem(seed)
    path = LOES(3, criterion="bounded").fit(layers, y).path_
    scaled = [scale * X for scale, X in zip(scales, layers, strict=True)]
    assert_same_path(LOES(3, criterion="bounded").fit(scaled, y).path_, path)


# One term that decides alone


def spread_out(iso, n=200):
    """Two layers that explain the classes alike, as isotropic as `iso` has it; two that differ."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    noise = [np.linalg.qr(rng.normal(size=(n, 6)))[0] for _ in range(3)]
    return [np.eye(3, 6)[y] * 0.1 + noise[0] * np.geomspace(1, iso, 6), noise[1], noise[2]], y


def test_a_loss_that_is_the_same_for_all_is_named():
    """Every sample has a twin in the other class, so that no layer explains anything."""
    rng = np.random.default_rng(0)
    layers = [np.tile(rng.normal(size=(50, 3)) * [1, 1, scale], (2, 1)) for scale in (1, 2, 3)]
    with pytest.warns(TermDominanceWarning, match=r"iso at step 1 \(Loss is the same for all\)"):
        model = LOES(1, criterion="bounded").fit(layers, np.repeat([0, 1], 50))
    assert (model.path_.loss == 1).all()


def test_a_term_that_outweighs_the_loss_is_said_with_a_way_out():
    layers, y = spread_out(iso=1e-3)
    said = (
        r"one term decided alone: iso at step 1 \(\d+ times\).* exceed that of Loss; see "
        r"dominance_.*criterion='bounded'.*simplefilter\('ignore', loes.TermDominanceWarning\)"
    )
    with pytest.warns(TermDominanceWarning, match=said) as caught:
        model = LOES(1).fit(layers, y)
    assert caught[0].filename == __file__
    row = model.dominance_.loc[0]
    parts = model.path_.assign(iso=1 - model.path_.iso)[["loss", "iso"]]
    spread = parts.max() - parts.min()
    assert list(model.dominance_) == ["step", "loss", "iso", "decided_by", "ratio"]
    assert (row.step, row.decided_by) == (1, "iso")
    assert row.ratio == pytest.approx(spread.iso / spread.loss)
    assert f"({row.ratio:.0f} times)" in str(caught[0].message)


@pytest.mark.parametrize("ratio", [19, 21])
def test_twenty_times_the_spread_of_the_loss_is_too_much(ratio):
    layers, y = problem(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spread = LOES(1).fit(layers, y).dominance_.loc[0]
    alpha = ratio * spread.loss / spread.iso
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = LOES(1, alpha=alpha).fit(layers, y)
    assert model.dominance_.ratio[0] == pytest.approx(ratio)
    assert [w.category for w in caught] == [TermDominanceWarning] * (ratio > 20)


def test_without_a_target_the_other_term_is_what_counts():
    layers, _ = problem(0)
    with pytest.warns(TermDominanceWarning, match=r"iso at step 2 .*exceed that of the other term"):
        model = LOES(2, gamma=1e-3).fit(layers)
    assert list(model.dominance_) == ["step", "iso", "decided_by", "ratio", "red"]
    assert np.isnan(model.dominance_.ratio[0])  # Iso is alone at step 1
    LOES(2, criterion="bounded").fit(layers)


# A layer of noise


@pytest.mark.filterwarnings("ignore::loes.SelectionWarning")
@pytest.mark.parametrize("n", [300, 60])
@pytest.mark.parametrize("seed", range(3))
def test_noise_does_not_win_the_bounded_criterion_whatever_n_and_d(n, seed):
    rng = np.random.default_rng(seed)
    d, y = 100, np.arange(n) % 4
    steep = np.geomspace(1, 0.01, d)
    layers = [
        3 * rng.normal(size=(4, d))[y] * steep + rng.normal(size=(n, d)) * steep for _ in range(3)
    ]
    layers.append(rng.normal(size=(n, d)))
    assert LOES(1, criterion="bounded").fit(layers, y).selected_ != [3]
    assert LOES(1).fit(layers, y).selected_ == [3]


@pytest.fixture(scope="module")
def newsgroups():
    task = tasks.load("20newsgroups", per_class=12)
    model, tokenizer = zoo.load("minilm")
    texts = [task.inputs[i] for i in task.train]
    return extract_layers(model, texts, processor=tokenizer), task.labels[task.train]


@pytest.mark.filterwarnings("ignore::loes.SelectionWarning")
def test_noise_beside_the_layers_of_a_model(newsgroups):
    """What the paper's criterion does with it is the reason for the bounded one."""
    layers, y = newsgroups
    noise = np.random.default_rng(0).normal(size=layers[0].shape).astype(np.float32)
    candidates = [*layers, noise]
    assert LOES(1).fit(candidates, y).selected_ == [len(layers)]
    assert LOES(3, criterion="bounded").fit(candidates, y).selected_[0] != len(layers)


# Parameters of the selection


@unbalanced
@both_criteria
def test_included_layers_come_first_and_excluded_ones_never(criterion):
    layers, y = problem(0)
    model = LOES(3, criterion=criterion, include=[3, 0], exclude=[1]).fit(layers, y)
    assert model.selected_ == [3, 0, 2]
    _, path = oracle(layers, y, criterion, 3, order=[3, 0, 2])
    assert_same_path(model.path_, path[path.layer != 1])


def test_include_may_be_any_collection():
    layers, y = problem(0)
    for include in (np.array([2]), {2}, pd.Series([2], index=[7])):
        selected = LOES(2, criterion="bounded", include=include).fit(layers, y).selected_
        assert selected[0] == 2
        assert {type(layer) for layer in selected} == {int}


def test_masked_features_are_refused():
    layers, y = problem(0)
    layers[1] = np.ma.masked_greater(layers[1], 1)
    with pytest.raises(ValueError, match="layer 1 holds masked values; drop those samples"):
        LOES(2).fit(layers, y)


def test_layers_that_are_not_there_cannot_be_left_out():
    features = LayerFeatures(["a", "b"], [np.eye(3), np.eye(3)])
    assert features.without([0]).names == ["b"]
    with pytest.raises(ValueError, match=r"no layers \[-1, 2\]; take indices from 0 to 1"):
        features.without([2, -1])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (dict(include=[4]), r"include must hold distinct .* from 0 to 3; got \[4\]"),
        (dict(include=[-1]), "include must hold distinct"),
        (dict(include=[1, 1]), r"include must hold distinct .*; got \[1, 1\]"),
        (dict(exclude=["a"]), "exclude must hold distinct"),
        (dict(include=[1, 2], exclude=[0, 2]), r"layers \[2\] are in include and exclude"),
        (dict(exclude=[0, 1, 2]), "n_layers=2 .* 1 layers; .* 1 <= n_layers <= 1"),
        (dict(exclude=range(4)), r"exclude=\[0, 1, 2, 3\] leaves no layer to pick"),
        (dict(include=[0, 1, 2]), r"include=\[0, 1, 2\] holds more layers than n_layers=2"),
        (dict(include=1), "include must hold distinct .* got 1"),
        (dict(include=None), "include must hold distinct .* got None"),
        (dict(include=[1.0]), r"include must hold distinct .* got \[1.0\]"),
        (dict(include=iter([1])), "include must hold distinct .* got <list_iterator"),
        (dict(exclude=[True]), r"exclude must hold distinct .* got \[True\]"),
        (dict(standardize="no"), r"standardize must be one of \[True, False\]; got 'no'"),
        (dict(layer_sizes=[5.0, 3.0]), "each of layer_sizes must be a whole number >= 1; got 5.0"),
        (dict(triangles="all"), r"triangles must be one of \['distinct', 'authors'\]; got 'all'"),
    ],
)
def test_bad_choices_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        LOES(2, **parameters).fit(LAYERS, Y)


def test_auto_needs_a_layer_to_pick():
    with pytest.raises(ValueError, match="leaves no layer to pick"):
        LOES("auto", exclude=range(4)).fit(LAYERS, Y)
    with pytest.raises(ValueError, match="leaves no layer to pick"):
        stability(LAYERS, Y, n_layers="auto", exclude=range(4), progress=False)


@unbalanced
def test_one_class_of_two_samples_is_enough_to_learn_from():
    assert len(LOES(1, criterion="bounded").fit(LAYERS, [0, *range(39)]).selected_) == 1


@unbalanced
def test_including_a_layer_that_holds_nothing_new_is_refused():
    with pytest.raises(ValueError, match="include names layer 1, which holds nothing beyond"):
        LOES(3, include=[0, 1]).fit([LAYERS[0], 2 * LAYERS[0], LAYERS[2]], Y)


def planted(k, n=400):
    """Six layers, the first k of which explain a class each, alike; the others nothing."""
    rng = np.random.default_rng(k)
    values = rng.normal(size=(n, k))
    layers = [rng.normal(size=(n, 4)) for _ in range(6)]
    for l in range(k):
        layers[l][:, 0] = values[:, l] + 0.3 * rng.normal(size=n)
    return layers, values.sum(1)


@unbalanced
def test_automatic_selection_of_noise_stops_after_the_first():
    """One layer is always picked; a second by accident only, whatever the first has fitted."""
    picked = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        layers = [rng.normal(size=(120, 20)) for _ in range(5)]
        model = LOES("auto", criterion="bounded").fit(layers, np.arange(120) % 4)
        picked.append(len(model.selected_))
    assert np.mean(np.array(picked) > 1) <= 0.2


@unbalanced
@both_criteria
@pytest.mark.parametrize("k", [1, 2, 4])
def test_automatic_number_of_layers_is_the_planted_one(k, criterion):
    layers, y = planted(k)
    model = LOES("auto", criterion=criterion, alpha=0).fit(layers, y)
    assert sorted(model.selected_) == list(range(k))
    assert model.path_.step.max() == k + 1  # the step that gained nothing is in the path
    assert model.path_.chosen.sum() == k
    forced = LOES("auto", criterion=criterion, alpha=0, include=[5, 4]).fit(layers, y)
    assert len(forced.selected_) == k + 2


def test_automatic_number_of_layers_wants_a_target():
    with pytest.raises(ValueError, match="n_layers='auto' needs a target; pass y, or a number"):
        LOES("auto").fit(LAYERS)


@unbalanced
@both_criteria
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_standardizing_is_fitting_standard_scores(criterion, dtype):
    layers, y = problem(0)
    layers[0] = (layers[0] * np.geomspace(0.01, 100, 3)).astype(dtype)
    layers[1] = np.c_[layers[1], np.full(40, 0.1)].astype(dtype)  # a feature that does not vary
    scores = [(X - X.mean(0)) / X.std(0) for X in map(np.float64, (layers[0], layers[1][:, :5]))]
    scores.append(np.zeros((40, 1)))
    scores = [scores[0], np.hstack(scores[1:]), *((X - X.mean(0)) / X.std(0) for X in layers[2:])]
    path = LOES(3, criterion=criterion, standardize=True).fit(layers, y).path_
    expected = LOES(3, criterion=criterion).fit(scores, y).path_
    assert_same_path(path, expected, rtol=1e-8 if dtype == np.float64 else 1e-5)


# scikit-learn


@pytest.fixture
def matrix():
    layers, y = problem(0, n=80)
    return np.hstack(layers), y, [X.shape[1] for X in layers]


@unbalanced
def test_selector_works_in_a_pipeline_and_a_grid_search(matrix):
    X, y, sizes = matrix
    steps = make_pipeline(LOES(2, layer_sizes=sizes), LogisticRegression(max_iter=1000))
    grid = [
        {"loes__n_layers": [1, 3]},
        {"loes__alpha": [0, 0.5], "loes__criterion": ["paper", "bounded"]},
    ]
    search = GridSearchCV(steps, grid, cv=2, error_score="raise").fit(X, y)
    assert search.best_score_ > 0.6
    best = search.best_estimator_
    assert best[0].selected_ == clone(best[0]).fit(X, y).selected_
    assert len(best[0].selected_) == search.best_params_.get("loes__n_layers", 2)


@unbalanced
@both_criteria
def test_one_matrix_of_layers_side_by_side_is_the_layers(matrix, criterion):
    X, y, sizes = matrix
    layers = np.split(X, np.cumsum(sizes)[:-1], axis=1)
    model = LOES(2, criterion=criterion, layer_sizes=sizes)
    Z = model.fit_transform(X, y)
    plain = LOES(2, criterion=criterion).fit(layers, y)
    assert_same_path(model.path_, plain.path_)
    np.testing.assert_array_equal(Z, plain.transform(layers))
    assert model.n_features_in_ == X.shape[1]
    names = [f"layer {l}_{j}" for l in model.selected_ for j in range(sizes[l])]
    assert model.get_feature_names_out().tolist() == names
    frame = model.set_output(transform="pandas").transform(X)
    assert isinstance(frame, pd.DataFrame)
    assert frame.columns.tolist() == names
    np.testing.assert_array_equal(frame, Z)


@pytest.mark.parametrize("X", [np.ones((40, 13)), np.ones((40, 14, 1))])
def test_other_widths_than_the_layer_sizes_are_refused(X):
    with pytest.raises(ValueError, match=r"layer_sizes=\[3, 5, 4, 2\] wants one \(n, 14\) matrix"):
        LOES(1, layer_sizes=[3, 5, 4, 2]).fit(X, Y)


# Types and devices


@unbalanced
def test_tensors_come_back_as_tensors_where_they_were(device):
    tensors = [torch.tensor(X, device=device) for X in LAYERS]
    for form in (tensors, torch.stack([tensors[0]] * 4, dim=1)):
        Z = LOES(1).fit_transform(form, Y)
        assert isinstance(Z, torch.Tensor)
        assert Z.device.type == device
    assert isinstance(LOES(2).fit(LAYERS, Y).transform(LAYERS), np.ndarray)


@unbalanced
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32, torch.int8])
def test_any_numeric_type_is_worked_on_as_its_numbers(dtype, device):
    tensors = [torch.tensor(10 * X).to(dtype) for X in LAYERS]
    _, path = oracle([X.double().numpy() for X in tensors], Y, "paper", 3)
    rtol = 1e-5 if dtype.is_floating_point else 1e-8  # half precision becomes float32
    assert_same_path(LOES(3).fit([X.to(device) for X in tensors], Y).path_, path, rtol)

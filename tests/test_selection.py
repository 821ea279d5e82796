"""LOES against a second implementation, its invariances, and what it says to bad input."""

import warnings
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ortho_group
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from loes import LOES, LayerFeatures
from loes.selection import WEIGHTS
from loes.terms import RIDGE_GRID

COLUMNS = ["step", "layer", "loss", "iso", "red", "tri", "score", "chosen"]
criteria = st.sampled_from(["paper", "bounded"])
both_criteria = pytest.mark.parametrize("criterion", ["paper", "bounded"])
seeds = st.integers(0, 10**6)


def problem(seed, widths=(3, 5, 4, 2), n=40, target="classes", rank=None):
    """Layers that share some of their variance, off the origin, and a target they explain."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(n, 3))
    layers = []
    for d in widths:
        X = common @ rng.normal(size=(3, d)) + rng.normal(size=(n, d)) * np.geomspace(2, 0.5, d)
        if rank:
            X = X[:, :rank] @ rng.normal(size=(rank, d))
        layers.append(X + rng.normal(size=d))
    signal = common + 0.5 * rng.normal(size=(n, 3))
    y = {
        "classes": signal.argmax(1),
        "two classes": np.where(signal[:, 0] > 0, "yes", "no"),
        "values": signal[:, 0],
        "several values": signal,
        "none": None,
    }[target]
    return layers, y


def area(p, q, r):
    """Half the product of the singular values of two edges; the zero row is for d = 1."""
    edges = np.pad(np.stack([q - p, r - p], axis=1), ((0, 1), (0, 0)))
    return np.prod(np.linalg.svd(edges, compute_uv=False)) / 2


def oracle(layers, y, criterion, n_layers, ridge=1e-3):
    """LOES anew at every step: candidates are regressed jointly on all layers picked so far."""
    paper, n = criterion == "paper", len(layers[0])
    alpha, gamma, eta = WEIGHTS[criterion].values()
    H = np.eye(n) - 1 / n
    kernels = [X @ X.T if paper else H @ X @ X.T @ H for X in layers]
    residual, labels = None, None
    if y is not None:
        labels = y if y.dtype.kind in "iU" else None
        targets = pd.get_dummies(y).to_numpy(float) if labels is not None else y.reshape(n, -1)
        residual = H @ targets

    def hats(X):
        """Yield the hat matrix of each ridge probe, by its kernel; the authors' has one ridge."""
        K = X @ X.T
        for multiple in RIDGE_GRID if not paper else [None]:
            penalty = ridge if paper else multiple * np.trace(K) / min(X.shape)
            bounded = K if np.isfinite(penalty) else 0 * K
            penalty = penalty if np.isfinite(penalty) else 1.0
            yield 1 / n + np.linalg.solve(K + penalty * np.eye(n), bounded)

    def probe(X):
        """Return the loss and the fitted values of the best probe."""
        fits = []
        for hat in hats(X):
            error = residual - hat @ residual
            if paper:
                loss = np.mean(error**2)
            else:
                left_out = np.sum((error / (1 - np.diag(hat))[:, None]) ** 2)
                loss = left_out / np.sum((residual * n / (n - 1)) ** 2)
            fits.append((loss, hat @ residual))
        return min(fits, key=lambda fit: fit[0])

    selected, rows = [], []
    for step in range(1, n_layers + 1):
        fits = {}
        for layer in set(range(len(layers))) - set(selected):
            X = layers[layer] - layers[layer].mean(0)
            variances = np.linalg.svd(X, compute_uv=False) ** 2 / n
            d = X.shape[1]
            variances = np.pad(variances, (0, d - len(variances)))
            if paper:
                iso = variances.mean() / (variances.std() + 1e-6)
            else:
                iso = -np.log(np.sum((variances / variances.sum()) ** 2)) / np.log(d)
            loss, red, tri = np.nan, np.nan, np.nan
            if selected:
                S = H @ np.concatenate([layers[j] for j in selected], axis=1)
                X = X - S @ np.linalg.lstsq(S, X, rcond=1e-9)[0]
                if paper:
                    red = max(
                        np.sqrt(
                            np.sum(kernels[layer] * kernels[j])
                            / (np.trace(kernels[layer]) * np.trace(kernels[j]))
                        )
                        for j in selected
                    )
                else:
                    vectors = [K.ravel() / np.linalg.norm(K) for K in kernels]
                    red = max(vectors[layer] @ vectors[j] for j in selected)
            if residual is not None:
                loss, fits[layer] = probe(X)
            if selected and labels is not None:
                centroids = pd.DataFrame(X).groupby(labels).mean().to_numpy()
                areas = [area(*corners) for corners in combinations(centroids, 3)]
                tri = np.mean(areas) if areas else 0.0
                if not paper:
                    c = len(centroids)
                    tri /= np.sqrt(0.75) * c / (c - 1) * np.trace(np.cov(X.T, bias=True))
            score = alpha * (1 - iso)
            score += 0 if np.isnan(loss) else loss
            score += 0 if np.isnan(red) else gamma * red
            score -= 0 if np.isnan(tri) else eta * tri
            rows.append([step, layer, loss, iso, red, tri, score])
        step_rows = [row for row in rows if row[0] == step]
        pick = min(step_rows, key=lambda row: row[-1])[1]
        for row in step_rows:
            row.append(row[1] == pick)
        selected.append(pick)
        if residual is not None:
            residual = residual - fits[pick]
    return selected, pd.DataFrame(rows, columns=COLUMNS)


def assert_same_path(path, expected, rtol=1e-8):
    order = ["step", "layer"]
    pd.testing.assert_frame_equal(
        path.sort_values(order, ignore_index=True),
        expected.sort_values(order, ignore_index=True),
        check_dtype=False,
        rtol=rtol,
        atol=1e-10,
    )


# The second implementation


@both_criteria
@pytest.mark.parametrize("target", ["classes", "two classes", "values", "several values", "none"])
def test_path_is_that_of_the_oracle(criterion, target):
    layers, y = problem(0, target=target)
    model = LOES(3, criterion=criterion).fit(layers, y)
    selected, path = oracle(layers, y, criterion, 3)
    assert list(model.path_.columns) == COLUMNS
    assert_same_path(model.path_, path)
    assert model.selected_ == selected


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


@both_criteria
def test_path_is_that_of_the_oracle_with_fewer_samples_than_features(criterion):
    layers, y = problem(1, widths=(30, 40, 30, 35), n=25, rank=5)
    model = LOES(3, criterion=criterion).fit(layers, y)
    selected, path = oracle(layers, y, criterion, 3)
    assert model.selected_ == selected
    assert_same_path(model.path_, path)


@pytest.mark.parametrize("ridge", [1e-2, 1.0, 100.0])
def test_ridge_is_the_probes(ridge):
    layers, y = problem(2)
    path = LOES(3, ridge=ridge).fit(layers, y).path_
    assert_same_path(path, oracle(layers, y, "paper", 3, ridge=ridge)[1])


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


@given(seeds, criteria)
def test_rotating_a_layer_does_not_matter(seed, criterion):
    layers, y = problem(seed)
    rotated = [X @ ortho_group.rvs(X.shape[1], random_state=seed) for X in layers]
    path = LOES(3, criterion=criterion).fit(layers, y).path_
    assert_same_path(LOES(3, criterion=criterion).fit(rotated, y).path_, path, rtol=1e-7)


@given(seeds, st.floats(0.01, 100), st.sampled_from(["classes", "values"]))
def test_bounded_terms_are_shares_free_of_units(seed, scale, target):
    layers, y = problem(seed, target=target)
    path = LOES(3, criterion="bounded").fit(layers, y).path_
    shares = path[["loss", "iso", "red", "tri"]].fillna(0).stack()
    assert shares.between(0, 1 + 1e-12).all()
    moved = [scale * layers[0] + 3, *layers[1:]]
    y = y if target == "classes" else scale * y - 1
    assert_same_path(LOES(3, criterion="bounded").fit(moved, y).path_, path, rtol=1e-6)


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


@pytest.mark.parametrize(
    ("target", "empty"), [("values", ["tri"]), ("none", ["loss", "tri"]), ("classes", [])]
)
def test_terms_without_a_meaning_are_nan(target, empty):
    layers, y = problem(0, target=target)
    path = LOES(2).fit(layers, y).path_
    late = path[path.step == 2]
    assert [name for name in ("loss", "iso", "red", "tri") if late[name].isna().all()] == empty


def test_two_classes_have_no_triangles():
    layers, y = problem(0, target="two classes")
    late = LOES(2).fit(layers, y).path_.query("step == 2")
    assert (late.tri == 0).all()


@both_criteria
def test_transform_concatenates_the_selected_layers(criterion):
    layers, y = problem(0)
    model = LOES(3, criterion=criterion)
    Z = model.fit_transform(layers, y)
    np.testing.assert_array_equal(Z, np.hstack([layers[j] for j in model.selected_]))
    unseen, _ = problem(1, n=7)
    assert model.transform(unseen).shape == (7, Z.shape[1])


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


def test_booleans_are_two_classes():
    layers, y = problem(0)
    late = LOES(2).fit(layers, y == 0).path_.query("step == 2")
    assert (late.tri == 0).all()


def test_task_settles_what_whole_numbers_in_float_are():
    layers, y = problem(0)
    classes = LOES(2, task="classification").fit(layers, y.astype(float)).path_
    pd.testing.assert_frame_equal(classes, LOES(2).fit(layers, y).path_)
    assert LOES(2, task="regression").fit(layers, y.astype(float)).path_.tri.isna().all()


def test_names_are_those_of_the_features():
    layers, y = problem(0)
    features = LayerFeatures(["embedding", "layer1", "layer2", "layer3"], layers)
    assert LOES(1).fit(features, y).names_ == features.names


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


@both_criteria
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_copy_of_a_layer_is_not_picked_with_it(criterion, dtype):
    layers, y = problem(0, widths=(6, 6), n=50)
    first, second = (X.astype(dtype) for X in layers)
    rotated = first @ ortho_group.rvs(6, random_state=0).astype(dtype)
    candidates = [first, first.copy(), 100 * rotated, second]
    model = LOES(2, criterion=criterion).fit(candidates, y)
    assert sorted(min(j, 3) // 3 for j in model.selected_) == [0, 1]
    with pytest.warns(UserWarning, match=r"stopped after 2 of 3 layers: the 12 features .* n=50"):
        model = LOES(3, criterion=criterion).fit(candidates, y)
    assert len(model.selected_) == 2


@both_criteria
def test_selection_stops_when_the_samples_are_exhausted(criterion):
    rng = np.random.default_rng(0)
    layers = [rng.normal(size=(30, 20)) for _ in range(4)]
    y = np.arange(30) % 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LOES(2, criterion=criterion).fit(layers, y)
    with pytest.warns(UserWarning, match=r"Use more samples, reduce .* or ask for fewer layers"):
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
            "layer 1 is constant.* 40 samples.*leave it out",
        ),
        (
            [LAYERS[0], (np.pi + 1e-7 * LAYERS[1]).astype(np.float32)],
            ValueError,
            "layer 1 is constant, up to rounding",
        ),
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
    with pytest.raises(ValueError, match=r"task must be 'auto', .*; got 'ranking'"):
        LOES(1, task="ranking").fit(LAYERS, Y)


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

"""Each term against another way of computing it, and against values known from geometry."""

from functools import partial
from itertools import combinations, product
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ortho_group
from sklearn.linear_model import Ridge

from loes import terms

seeds = st.integers(0, 10**6)
DEFINED = [(40, 6), (12, 30), (25, 1)]  # n > d, n < d, one feature


def data(seed, n, d, c=3):
    """Anisotropic features off the origin, and targets that they explain in part."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * np.geomspace(3, 0.3, d) + rng.normal(size=d)
    return X, X @ rng.normal(size=(d, c)) + rng.normal(size=(n, c))


def heron(p, q, r):
    a, b, c = np.linalg.norm(q - r), np.linalg.norm(p - r), np.linalg.norm(p - q)
    s = (a + b + c) / 2
    return sqrt(max(s * (s - a) * (s - b) * (s - c), 0))


# Loss


@pytest.mark.parametrize(("n", "d"), DEFINED)
@pytest.mark.parametrize("ridge", [1e-3, 1.0, 1e3])
def test_ridge_loss_is_the_training_error_of_sklearns_ridge(n, d, ridge):
    X, R = data(0, n, d)
    probe = Ridge(alpha=ridge, fit_intercept=True).fit(X, R)
    expected = np.mean((R - probe.predict(X)) ** 2)
    assert terms.ridge_loss(X, R, ridge=ridge) == pytest.approx(expected, rel=1e-8)


def test_ridge_loss_of_repeated_features_is_that_of_the_features_once():
    X, R = data(0, 50, 4)
    once = terms.ridge_loss(X, R, ridge=0)
    assert terms.ridge_loss(np.c_[X, X, X[:, :1]], R, ridge=0) == pytest.approx(once)
    # 1e7: the default ridge is then below the rounding of the Gram matrix
    assert terms.ridge_loss(1e7 * np.c_[X, X], R) == pytest.approx(once)


def test_ridge_loss_is_empty_when_there_are_more_features_than_samples():
    rng = np.random.default_rng(0)
    noise, labels = rng.normal(size=(20, 200)), np.eye(2)[np.arange(20) % 2]
    assert terms.ridge_loss(noise, labels) < 1e-6


def leave_one_out(X, R, ridge):
    """Refit without each sample in turn: the summed squared error of predicting it."""
    total = 0.0
    for i in range(len(X)):
        rest = np.arange(len(X)) != i
        if np.isinf(ridge):
            prediction = R[rest].mean(0)
        else:
            # LOO leaves out the sample from the centring as well: sklearn centres the rest.
            probe = Ridge(alpha=ridge, fit_intercept=True, solver="svd").fit(X[rest], R[rest])
            prediction = probe.predict(X[[i]])[0]
        total += np.sum((R[i] - prediction) ** 2)
    return total


@pytest.mark.parametrize(("n", "d"), DEFINED)
@pytest.mark.parametrize("multiple", [1e-4, 1e-2, 1.0, 1e3, np.inf])
def test_loo_loss_is_brute_force_leave_one_out_for_each_ridge(n, d, multiple):
    X, R = data(1, n, d)
    centred = X - X.mean(0)
    ridge = multiple * np.trace(centred.T @ centred) / min(n, d)
    expected = leave_one_out(X, R, ridge) / leave_one_out(X, R, np.inf)
    loss, chosen = terms.loo_loss(X, R, grid=[multiple])
    assert loss == pytest.approx(expected, rel=1e-8)
    assert chosen == pytest.approx(ridge)


@pytest.mark.parametrize("ridge", [0.1, 10.0])
def test_loo_loss_counts_the_leverage_of_the_probes_before(ridge):
    """The second half of the features, after the first: brute force over both."""
    X, R = data(2, 40, 8)
    R = R - R.mean(0)
    Z, W = np.split(X - X.mean(0), 2, axis=1)
    W = W - Z @ np.linalg.lstsq(Z, W, rcond=None)[0]
    H = Z @ np.linalg.solve(Z.T @ Z + ridge * np.eye(4), Z.T)
    multiple = 0.5
    second = multiple * np.mean(np.linalg.svd(W)[1] ** 2)
    both = np.hstack([Z, W * np.sqrt(ridge / second)])  # one ridge for all
    expected = leave_one_out(both, R, ridge) / leave_one_out(Z, R, ridge)
    loss, _ = terms.loo_loss(W, R - H @ R, leverage=np.diag(H), grid=[multiple])
    assert loss == pytest.approx(expected, rel=1e-8)


def test_loo_loss_takes_the_best_ridge_of_the_grid():
    X, R = data(1, 30, 8)
    each = [terms.loo_loss(X, R, grid=[multiple]) for multiple in terms.RIDGE_GRID]
    assert terms.loo_loss(X, R) == min(each)
    assert min(each)[0] < 0.9 * max(each)[0]


def test_loo_loss_of_noise_is_one_and_its_ridge_infinite():
    rng = np.random.default_rng(3)
    loss, ridge = terms.loo_loss(rng.normal(size=(60, 300)), rng.normal(size=(60, 4)))
    assert loss == pytest.approx(1)
    assert ridge == np.inf


@given(seeds, st.integers(4, 30), st.integers(1, 12), st.floats(0.01, 100))
def test_loo_loss_is_a_share_free_of_units(seed, n, d, scale):
    X, R = data(seed, n, d)
    loss, _ = terms.loo_loss(X, R)
    assert 0 <= loss <= 1 + 1e-12
    moved = terms.loo_loss(scale * X + 1, scale * R - 2)[0]
    assert moved == pytest.approx(loss, rel=1e-6)


# Iso


@given(seeds, st.integers(3, 40), st.integers(2, 20))
def test_isotropy_follows_from_the_participation_ratio(seed, n, d):
    X, _ = data(seed, n, d)
    eigenvalues = np.zeros(d)
    singular = np.linalg.svd(X - X.mean(0), compute_uv=False)
    eigenvalues[: len(singular)] = singular**2 / n
    expected = eigenvalues.mean() / (eigenvalues.std() + 1e-6)
    assert terms.isotropy(X) == pytest.approx(expected, rel=1e-8)
    ratio = eigenvalues.sum() ** 2 / (eigenvalues**2).sum()
    assert terms.isotropy(X, eps=0) == pytest.approx(sqrt(ratio / (d - ratio)), rel=1e-8)
    assert terms.spectral_entropy(X) == pytest.approx(log(ratio) / log(d), rel=1e-8, abs=1e-12)


def test_isotropy_of_white_noise_is_about_the_root_of_n_over_d():
    X = np.random.default_rng(0).normal(size=(3000, 120))
    assert terms.isotropy(X) == pytest.approx(sqrt(3000 / 120), rel=0.02)


@pytest.mark.parametrize(("k", "d"), [(1, 5), (2, 5), (4, 16), (7, 7), (1, 1)])
def test_spectral_entropy_of_k_equal_axes(k, d):
    X = np.zeros((2 * k, d))
    X[:k, :k], X[k:, :k] = np.eye(k), -np.eye(k)
    assert terms.spectral_entropy(X) == pytest.approx(log(k) / log(d) if d > 1 else 1, abs=1e-12)


# Red


def test_redundancy_is_the_largest_sum_over_pairs_of_features():
    rng = np.random.default_rng(0)
    X, *selected = (rng.normal(size=(15, d)) + 1 for d in (4, 3, 6))
    expected = [
        sqrt(sum((x @ z) ** 2 for x in X.T for z in Z.T)) / sqrt((X**2).sum() * (Z**2).sum())
        for Z in selected
    ]
    assert terms.redundancy(X, selected) == pytest.approx(max(expected))
    assert terms.redundancy(X, selected[::-1]) == pytest.approx(max(expected))
    assert min(expected) < 0.99 * max(expected)


def test_redundancy_with_itself_is_one_only_at_rank_one():
    column = np.arange(1.0, 9)[:, None]
    assert terms.redundancy(column, [column]) == pytest.approx(1)
    axes = np.eye(25)
    assert terms.redundancy(axes, [axes]) == pytest.approx(1 / 5)


def test_redundancy_with_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one selected layer"):
        terms.redundancy(np.eye(3), [])


@given(seeds, st.integers(3, 30), st.integers(1, 8), st.integers(1, 8))
def test_cka_is_the_cosine_between_centred_kernels_and_invariant(seed, n, d, e):
    X, Y = data(seed, n, d, c=e)
    H = np.eye(n) - 1 / n
    K, L = H @ X @ X.T @ H, H @ Y @ Y.T @ H
    value = terms.cka(X, Y)
    assert value == pytest.approx(np.sum(K * L) / sqrt(np.sum(K * K) * np.sum(L * L)), abs=1e-9)
    assert 0 <= value <= 1 + 1e-12
    assert terms.cka(Y, X) == pytest.approx(value)
    assert terms.cka(X, X) == pytest.approx(1)
    rotation = ortho_group.rvs(d, random_state=seed) if d > 1 else -np.eye(1)
    assert terms.cka(7 * X @ rotation + 3, Y) == pytest.approx(value)
    assert terms.cka(X, 7 * X @ rotation + 3) == pytest.approx(1)


# Tri


@given(seeds, st.integers(3, 6), st.integers(1, 5))
def test_triangle_area_is_the_mean_of_herons_formula(seed, c, d):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(c), rng.integers(1, 4, size=c)))
    X = rng.normal(size=(len(labels), d))
    centroids = [X[labels == k].mean(0) for k in range(c)]
    expected = np.mean([heron(*corners) for corners in combinations(centroids, 3)])
    # Heron's formula takes the root of a difference: flat triangles keep half the digits.
    assert terms.triangle_area(X, labels) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("c", [3, 4, 10])
def test_one_hot_vertices_are_a_regular_simplex(c):
    labels = np.repeat(np.arange(c), 2)
    X = np.eye(c)[labels] - 1 / c
    assert np.linalg.norm(X[0] - X[-1]) == pytest.approx(sqrt(2))
    assert terms.triangle_area(X, labels) == pytest.approx(sqrt(3) / 2)
    assert terms.triangle_share(X, labels) == pytest.approx(1)
    assert terms.triangle_share(5 * X + 2, labels) == pytest.approx(1)


def test_triangle_area_under_the_authors_sampling():
    """Triples drawn with replacement: our mean times the share of triples that are distinct."""
    c, rng = 5, np.random.default_rng(0)
    X, labels = rng.normal(size=(c, 4)), np.arange(c)
    drawn = np.mean([heron(*X[list(triple)]) for triple in product(range(c), repeat=3)])
    factor = (c - 1) * (c - 2) / c**2
    assert drawn == pytest.approx(factor * terms.triangle_area(X, labels), rel=1e-6)


def test_triangle_share_counts_the_spread_within_classes_against_it():
    labels = np.repeat(np.arange(4), 50)
    spread = np.random.default_rng(0).normal(size=(200, 4))
    for k in range(4):
        spread[labels == k] -= spread[labels == k].mean(0)
    simplex = np.eye(4)[labels]
    variance = {name: X.var(0).sum() for name, X in (("within", spread), ("between", simplex))}
    expected = variance["between"] / (variance["between"] + variance["within"])
    assert terms.triangle_share(simplex + spread, labels) == pytest.approx(expected)


@given(seeds, st.integers(3, 6), st.integers(2, 5))
def test_triangle_share_is_a_share_free_of_units(seed, c, d):
    rng = np.random.default_rng(seed)
    labels = np.r_[np.arange(c), rng.integers(0, c, size=10)]
    X = rng.normal(size=(len(labels), d))
    share = terms.triangle_share(X, labels)
    assert 0 <= share <= 1
    assert terms.triangle_share(10 * X - 4, labels) == pytest.approx(share)


def test_triangle_share_is_cut_at_one_for_very_unequal_classes():
    labels = np.r_[np.zeros(100, int), 1, 2]
    assert terms.triangle_share(np.eye(3)[labels], labels) == 1


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 0, 1]])
def test_fewer_than_three_classes_span_no_triangle(labels):
    X = np.random.default_rng(0).normal(size=(4, 3))
    assert terms.triangle_area(X, labels) == terms.triangle_share(X, labels) == 0


def test_collapsed_centroids_span_no_triangle():
    assert terms.triangle_share(np.ones((6, 2)), [0, 1, 2, 0, 1, 2]) == 0


X = np.random.default_rng(0).normal(size=(6, 2))


@pytest.mark.parametrize(
    ("term", "inputs", "message"),
    [
        (terms.isotropy, (np.where(X > 0, np.nan, X),), "finite"),
        (terms.isotropy, (np.ones(6),), r"\(n, d\) .* got shape \(6,\)"),
        (terms.ridge_loss, (X[:0], X[:0]), r"n, d >= 1.* got shape \(0, 2\)"),
        (terms.spectral_entropy, (np.ones((6, 2)),), "constant"),
        (terms.cka, (X, np.full((6, 2), 0.1)), "constant"),
        (terms.loo_loss, (np.ones((6, 2)), X), "constant"),
        (terms.loo_loss, (X, np.ones((6, 2))), "constant"),
        (partial(terms.loo_loss, grid=[-1.0]), (X, X), "ridges >= 0"),
        (partial(terms.loo_loss, grid=[]), (X, X), "ridges >= 0"),
        (terms.triangle_area, (X, None), r"one class a sample, \(6,\); got shape \(\)"),
        (terms.triangle_share, (X, [0, 1, 2]), r"one class a sample, \(6,\); got shape \(3,\)"),
    ],
)
def test_what_a_term_is_not_defined_for_is_refused(term, inputs, message):
    with pytest.raises(ValueError, match=message):
        term(*inputs)

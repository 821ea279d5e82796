"""The fast solver against the textbook in sample space, on data that make it hard."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import REGIMES, TARGETS, assert_same_path, oracle, problem, regime
from sklearn.linear_model import Ridge

import loes.selection
from loes import LOES, terms
from loes.criteria import CRITERIA, mean_triangle_area
from loes.selection import candidate_terms
from loes.solver import RIDGE_GRID, Dual, Primal, Samples, open_stack, solve_ridge

pytestmark = pytest.mark.filterwarnings("ignore::loes.SelectionWarning")
both_criteria = pytest.mark.parametrize("criterion", ["paper", "bounded"])
both_stacks = pytest.mark.parametrize("stack", [Primal, Dual])


def samples(layers, Y=None, counts=None):
    """Open tensors of arrays."""
    tensor = torch.tensor
    return Samples.of(
        [tensor(X) for X in layers],
        None if Y is None else tensor(Y),
        None if counts is None else tensor(counts),
    )


def assert_follows_oracle(layers, y, criterion, device="cpu", rtol=1e-8):
    """Same terms, scores and ranks as the oracle on the same way; and no other way to go."""
    if layers[0].dtype == np.float32:
        rtol = 1e-4  # products of float32 features carry seven digits, of which three may be lost
    model = LOES(len(layers), criterion=criterion)
    model.fit([torch.tensor(X, device=device) for X in layers], y)
    selected, path = oracle(layers, y, criterion, len(model.selected_), order=model.selected_)
    assert_same_path(model.path_, path, rtol)
    for _, step in path.groupby("step"):
        scores = step.score.sort_values().to_numpy()
        if len(scores) > 1 and scores[1] - scores[0] > 1e-6 * np.abs(scores).max():
            assert step.chosen[step.score.idxmin()]
    assert selected == model.selected_
    assert model.path_.step.max() == len(selected)


@both_criteria
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", REGIMES)
def test_path_is_that_of_the_oracle(name, dtype, criterion, device):
    for target in ("classes", "several values"):
        layers, y = regime(name, 0, target)
        assert_follows_oracle([X.astype(dtype) for X in layers], y, criterion, device)


@given(
    st.sampled_from(REGIMES),
    st.integers(0, 10**6),
    st.sampled_from(TARGETS),
    st.sampled_from(["paper", "bounded"]),
    st.sampled_from(["float32", "float64"]),
)
def test_path_is_that_of_the_oracle_on_any_problem(name, seed, target, criterion, dtype):
    layers, y = regime(name, seed, target)
    assert_follows_oracle([X.astype(dtype) for X in layers], y, criterion)


@both_criteria
@both_stacks
@pytest.mark.parametrize("name", REGIMES)
def test_both_forms_agree_whatever_n_and_d(name, stack, criterion, monkeypatch):
    """The dual form of n > d holds n - d zero eigenvalues, whose rounding a small ridge sees."""
    monkeypatch.setattr(loes.selection, "open_stack", stack.open)
    layers, y = regime(name, 1)
    assert_follows_oracle(layers, y, criterion, rtol=1e-6 if stack is Dual else 1e-8)


def test_the_smaller_form_is_opened():
    rng = np.random.default_rng(0)
    for n, d, expected in [(30, 10, Primal), (10, 30, Dual)]:
        moments = samples([rng.normal(size=(n, d)) for _ in range(3)])
        assert type(open_stack(moments, [0, 1, 2])) is expected


@both_criteria
def test_blocks_of_samples_add_up(criterion, monkeypatch):
    layers, y = regime("residual stream 0.001", 0)
    whole = LOES(3, criterion=criterion).fit(layers, y).path_
    monkeypatch.setattr(loes.solver, "BLOCK", 7)
    assert_same_path(LOES(3, criterion=criterion).fit(layers, y).path_, whole, rtol=1e-9)


def test_a_stack_is_not_changed_by_its_picks():
    layers, y = regime("residual stream 0.0001", 0)
    for open_ in (Primal.open, Dual.open):
        stack = open_(samples(layers, np.eye(3)[y], np.bincount(y).astype(float)), range(4))
        before = candidate_terms(stack, CRITERIA["bounded"]())
        branches = [candidate_terms(stack.pick(l, 1.0), CRITERIA["bounded"]()) for l in (0, 3)]
        assert not branches[0].loc[[1, 2]].equals(branches[1].loc[[1, 2]])
        assert candidate_terms(stack, CRITERIA["bounded"]()).equals(before)


@pytest.mark.parametrize("rank", [6, 4])
@pytest.mark.parametrize("ridge", [0.0, 1e-12, 1e-3, 10.0, float("inf")])
def test_solve_ridge_is_the_pseudo_inverse(rank, ridge):
    """Of A + ridge I; a ridge below the rounding of A, on short rank, leaves A's own."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, rank)) @ rng.normal(size=(rank, 6))
    b = X.T @ rng.normal(size=(50, 2))
    _, s, Vt = np.linalg.svd(X, full_matrices=False)
    kept = s > 1e-8 * s[0]
    expected = Vt[kept].T @ (Vt[kept] @ b / (s[kept, None] ** 2 + ridge))
    W = solve_ridge(torch.tensor(X.T @ X), torch.tensor(b), ridge)
    np.testing.assert_allclose(W, expected, rtol=1e-8, atol=1e-10)


# Leave-one-out


def gains_of_refits(X, R, ridge):
    """Refit without each sample in turn: how much better than the mean of the others it does."""
    gains = []
    for i in range(len(X)):
        rest = np.arange(len(X)) != i
        mean = R[rest].mean(0)
        guess = mean
        if np.isfinite(ridge):
            probe = Ridge(alpha=ridge, solver="svd").fit(X[rest], R[rest])
            guess = probe.predict(X[[i]])[0]
        gains.append(np.sum((R[i] - mean) ** 2) - np.sum((R[i] - guess) ** 2))
    return np.array(gains)


@both_stacks
@pytest.mark.parametrize(("n", "d"), [(30, 5), (12, 30)])
@pytest.mark.parametrize("multiple", RIDGE_GRID[::3])
def test_leave_one_out_is_that_of_refits_for_each_ridge(stack, n, d, multiple, monkeypatch):
    """Loss, and its standard error: that of a mean, over the samples, of what each one gains."""
    monkeypatch.setattr(loes.solver, "RIDGE_GRID", [multiple])
    (X, *_), R = problem(0, (d,), n, "several values")
    fit = stack.open(samples([X], R), [0]).loo([0])[0]
    ridge = multiple * len(X) * X.var(0).sum() / min(n, d)
    gains = gains_of_refits(X, R, ridge)
    total = np.sum(((R - R.mean(0)) * n / (n - 1)) ** 2)
    assert fit.ridge == pytest.approx(ridge)
    assert fit.loss == pytest.approx(1 - gains.sum() / total, rel=1e-8)
    assert fit.error == pytest.approx(np.sqrt(n) * gains.std() / total, rel=1e-7, abs=1e-15)


@both_stacks
def test_leave_one_out_takes_the_best_ridge_of_one_factorisation(stack, monkeypatch):
    layers, R = problem(0, (8, 6), 40, "several values")
    calls = []
    eigh = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda A: calls.append(1) or eigh(A))
    fits = stack.open(samples(layers, R), [0, 1]).loo([0, 1])
    assert len(calls) == 2
    for layer, X in enumerate(layers):
        assert (fits[layer].loss, fits[layer].ridge) == pytest.approx(terms.loo_loss(X, R))


def errors_of_refits(parts, ridges, R):
    """Refit a probe without each sample in turn, each part of the features with a ridge of its own.

    Features over the root of their ridge, and a ridge of 1: scikit-learn has one for all.
    """
    X = np.hstack([X / np.sqrt(ridge) for X, ridge in zip(parts, ridges, strict=True)])
    squares = 0.0
    for i in range(len(X)):
        rest = np.arange(len(X)) != i
        probe = Ridge(alpha=1.0, solver="svd").fit(X[rest], R[rest])
        squares += np.sum((R[i] - probe.predict(X[[i]])[0]) ** 2)
    return squares


@both_stacks
@pytest.mark.parametrize("n", [40, 14])
def test_leave_one_out_leaves_the_sample_out_of_the_picks_too(stack, n, monkeypatch):
    layers, R = problem(1, (4, 5, 3), n, "several values")
    opened = stack.open(samples(layers, R), [0, 1, 2]).pick(0, 3.0).pick(1, 0.5)
    monkeypatch.setattr(loes.solver, "RIDGE_GRID", [0.1])
    fit = opened.loo([2])[2]
    parts = [X - X.mean(0) for X in layers]  # orthogonalised by QR, the oracle's is by SVD
    basis = np.empty((n, 0))
    for k, X in enumerate(parts):
        parts[k] = X - basis @ (basis.T @ X)
        basis = np.hstack([basis, np.linalg.qr(parts[k])[0]])
    before = errors_of_refits(parts[:2], [3.0, 0.5], R)
    after = errors_of_refits(parts, [3.0, 0.5, fit.ridge], R)
    assert fit.loss == pytest.approx(after / before, rel=1e-8)


@both_stacks
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_losses_multiply_to_the_leave_one_out_share_of_all_picks(stack, dtype):
    """The mean's error times the losses is that of the probe of all picks, left out as one."""
    layers, R = problem(2, (4, 5, 3), 60, "several values")
    layers = [X.astype(dtype) for X in layers]
    opened, product = stack.open(samples(layers, R), [0, 1, 2]), 1.0
    parts, ridges, basis = [], [], np.empty((60, 0))
    for layer in (1, 0, 2):
        fit = opened.loo([layer])[layer]
        product *= fit.loss
        opened = opened.pick(layer, fit.ridge) if opened.candidates != [layer] else opened
        X = layers[layer].astype(float) - layers[layer].astype(float).mean(0)
        parts.append(X - basis @ (basis.T @ X))
        ridges.append(min(fit.ridge, 1e12))
        basis = np.hstack([basis, np.linalg.qr(parts[-1])[0]])
    total = np.sum(((R - R.mean(0)) * 60 / 59) ** 2)
    expected = errors_of_refits(parts, ridges, R) / total
    assert product == pytest.approx(expected, rel=1e-8 if dtype == np.float64 else 1e-5)


@both_stacks
def test_noise_explains_nothing_at_any_step(stack):
    rng = np.random.default_rng(0)
    n, d = 120, 25
    y = np.arange(n) % 4
    layers = [rng.normal(size=(n, d)) + (k == 0) * 3 * np.eye(d)[y] for k in range(4)]
    opened = stack.open(samples(layers, np.eye(4)[y]), range(4))
    assert opened.loo([0])[0].loss < 0.8
    for pick in range(3):
        opened = opened.pick(pick, 1.0)  # as far as the noise can be fitted, it is
        assert all(fit.loss > 0.99 for fit in opened.loo(opened.candidates).values())


# The terms of one layer, as the textbook has them


@both_criteria
@given(seed=st.integers(0, 10**6), n=st.integers(10, 40), d=st.integers(1, 20))
def test_terms_are_those_of_the_textbook(criterion, seed, n, d):
    (X, Z), _ = problem(seed, (d, 4), n)
    y = np.arange(n) % 4
    S = np.c_[np.ones(n), Z]
    left = X - S @ np.linalg.lstsq(S, X, rcond=None)[0]
    textbook = {
        "paper": (terms.isotropy, lambda X, Z: terms.redundancy(X, [Z]), terms.triangle_area),
        "bounded": (terms.spectral_entropy, terms.cka, terms.triangle_share),
    }[criterion]
    stack = open_stack(samples([X, Z], np.eye(4)[y], np.bincount(y).astype(float)), [0, 1])
    rows = candidate_terms(stack.pick(1, 1.0), CRITERIA[criterion]())
    iso, red, tri = textbook
    assert rows.iso[0] == pytest.approx(iso(X), rel=1e-8, abs=1e-12)
    assert rows.red[0] == pytest.approx(red(X, Z), rel=1e-8)
    assert rows.tri[0] == pytest.approx(tri(left, y), rel=1e-7, abs=1e-7)


@given(st.integers(0, 10**6), st.integers(4, 30), st.integers(2, 40))
def test_isotropy_follows_from_the_participation_ratio(seed, n, d):
    """Iso = sqrt(PR / (m - PR)), up to the epsilon; without an eigendecomposition."""
    (X,), _ = problem(seed, (d,), n)
    for stack in (Primal, Dual):
        spectrum = stack.open(samples([X]), [0]).spectra[0]
        ratio = spectrum.trace**2 / spectrum.square_sum
        assert spectrum.width == d
        assert CRITERIA["paper"]().isotropy(spectrum, n) == pytest.approx(
            np.sqrt(ratio / (d - ratio)), rel=1e-4
        )
        eigenvalues = np.linalg.eigvalsh(np.cov(X.T, bias=True) * n)
        assert ratio == pytest.approx(eigenvalues.sum() ** 2 / np.sum(eigenvalues**2), rel=1e-8)


@both_stacks
def test_alignment_is_the_norm_of_cross_products(stack):
    """Features as they are, and centred: ||G||^2 + 2 n mu'G nu + n^2 |mu|^2 |nu|^2."""
    X, Z = problem(0, (6, 9), 30)[0]
    (alignment,) = stack.open(samples([X, Z]), [0, 1]).pick(0, None).alignments[1]
    assert alignment.pick == 0
    assert alignment.raw == pytest.approx(np.sum((X.T @ Z) ** 2))
    assert alignment.centred == pytest.approx(np.sum(((X - X.mean(0)).T @ (Z - Z.mean(0))) ** 2))


@pytest.mark.parametrize("c", [3, 5, 12])
def test_centred_one_hot_vertices_have_triangles_of_half_root_three(c):
    V = torch.eye(c, dtype=torch.float64) - 1 / c
    assert mean_triangle_area(V @ V.T) == pytest.approx(np.sqrt(3) / 2)


def test_very_many_triangles_are_sampled():
    points = torch.tensor(np.random.default_rng(0).normal(size=(120, 8)))  # 280,840 triples
    gram = points @ points.T
    i, j, k = (torch.tensor(t) for t in np.array([*np.ndindex(120, 120, 120)])[::7].T)
    u, v = points[j] - points[i], points[k] - points[i]
    square = (u * u).sum(1) * (v * v).sum(1) - (u * v).sum(1) ** 2
    distinct = (i != j) & (j != k) & (i != k)
    exact = 0.5 * square[distinct].clamp(min=0).sqrt().mean()
    assert mean_triangle_area(gram) == pytest.approx(float(exact), rel=5e-3)
    assert mean_triangle_area(gram) == mean_triangle_area(gram)

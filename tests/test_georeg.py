"""GeoReg against its eigenvalue formula, and where gradients could blow up."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loes import GeoReg
from loes.georeg import eigenvalue_variance


def batch(n=40, d=12, classes=5, seed=0, dtype=torch.float64):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    Z = rng.normal(size=(n, d)) * np.linspace(0.5, 2, d) + rng.normal(size=(classes, d))[y]
    return torch.tensor(Z, dtype=dtype), torch.tensor(y)


def by_definition(Z, y, weight=0.1, scale_free=False):
    """Return the published formula, with eigenvalues and one triangle after the other."""
    Z, y = Z.numpy(), y.numpy()
    eigenvalues = np.linalg.eigvalsh(np.cov(Z, rowvar=False) + 1e-4 * np.eye(Z.shape[1]))
    variance = eigenvalues.var(ddof=1)
    M = [Z[y == c].mean(0) for c in np.unique(y)]
    areas = []
    for i, j, k in combinations(range(len(M)), 3):
        u, v = M[j] - M[i], M[k] - M[i]
        areas.append(0.5 * np.sqrt(max((u @ u) * (v @ v) - (u @ v) ** 2, 0)))
    area = np.mean(areas)
    if scale_free:
        total = np.trace(np.cov(Z, rowvar=False))
        variance, area = variance / (total / Z.shape[1]) ** 2, area / total
    return weight * (variance - np.log(area + 1e-6)), variance, area


@pytest.mark.parametrize("scale_free", [False, True])
@pytest.mark.parametrize(("n", "d"), [(40, 12), (20, 20), (15, 60), (300, 2)])
@given(seed=st.integers(0, 2**31), classes=st.integers(3, 7))
def test_value_is_that_of_the_eigenvalues(n, d, scale_free, seed, classes):
    Z, y = batch(n, d, classes, seed)
    got = GeoReg(0.3, scale_free=scale_free)(Z, y)
    wanted = by_definition(Z, y, 0.3, scale_free)
    for value, expected in zip(got, wanted, strict=True):
        assert float(value) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("scale_free", [False, True])
@pytest.mark.parametrize(("n", "d"), [(9, 5), (6, 11)])
@pytest.mark.parametrize("labelled", [True, False])
def test_gradient_is_that_of_finite_differences(n, d, scale_free, labelled):
    Z, y = batch(n, d, classes=3)
    georeg = GeoReg(scale_free=scale_free)
    assert torch.autograd.gradcheck(
        lambda Z: georeg(Z, y if labelled else None).loss, Z.requires_grad_()
    )


def degenerate(kind):
    Z, y = batch(12, 8, classes=4, dtype=torch.float32)
    centroids = torch.stack([Z[y == c].mean(0) for c in range(4)])[y]
    if kind == "collapsed centroids":
        Z = Z - centroids
    elif kind == "centroids on a line":
        Z = Z - centroids + torch.arange(4.0)[y, None]
    elif kind == "all alike":
        Z = torch.ones_like(Z)
    elif kind == "repeated eigenvalues":
        Z = torch.cat([torch.eye(8), -torch.eye(8)])
        y = torch.arange(16) % 4
    elif kind == "far from zero":
        Z = Z + 1e4
    elif kind == "huge":
        Z = Z * 1e4
    elif kind == "minute":
        Z = Z * 1e-9
    return Z, y


@pytest.mark.parametrize("scale_free", [False, True])
@pytest.mark.parametrize(
    "kind",
    [
        "collapsed centroids",
        "centroids on a line",
        "all alike",
        "repeated eigenvalues",
        "far from zero",
        "huge",
        "minute",
    ],
)
def test_gradients_stay_finite(kind, scale_free):
    Z, y = degenerate(kind)
    Z.requires_grad_()
    parts = GeoReg(scale_free=scale_free)(Z, y)
    parts.loss.backward()
    assert all(part.isfinite() for part in parts)
    assert Z.grad.isfinite().all()


def test_collapsed_centroids_have_no_area():
    for kind in ("collapsed centroids", "centroids on a line"):
        assert float(GeoReg()(*degenerate(kind)).area) < 1e-4


@pytest.mark.parametrize("labels", [None, torch.zeros(40, dtype=int), torch.arange(40) % 2])
def test_fewer_than_three_classes_leave_the_spectral_part(labels):
    Z, _ = batch()
    parts = GeoReg(0.5)(Z, labels)
    assert float(parts.area) == 0
    assert float(parts.loss) == pytest.approx(0.5 * float(parts.variance))
    assert float(parts.variance) == pytest.approx(
        np.linalg.eigvalsh(np.cov(Z.numpy(), rowvar=False)).var(ddof=1)
    )


def test_labels_may_be_any_integers_in_any_order():
    Z, y = batch()
    names = torch.tensor([70, -3, 12, 5, 1000])
    torch.testing.assert_close(GeoReg()(Z, names[y]), GeoReg()(Z, y))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(GeoReg()(Z[order], y[order]), GeoReg()(Z, y))


def test_shrinking_lowers_the_paper_form_and_not_the_scale_free_one():
    Z, y = batch()
    Z = Z * 3  # where the variance outweighs the area
    paper, free = GeoReg(), GeoReg(scale_free=True)
    assert float(paper(Z / 2, y).loss) < float(paper(Z, y).loss)
    assert float(free(Z / 2, y).loss) == pytest.approx(float(free(Z, y).loss), rel=1e-4)


def test_one_triangle_is_the_authors_and_its_mean_ours():
    Z, y = batch(classes=5)
    single = GeoReg(max_triangles=1, seed=3)
    areas = torch.stack([single(Z, y).area for _ in range(4000)])
    assert len(areas.round(decimals=6).unique()) == 10  # triangles between five classes
    exact = float(GeoReg()(Z, y).area)
    assert float(areas.mean()) == pytest.approx(exact, abs=4 * float(areas.std()) / 4000**0.5)
    again = GeoReg(max_triangles=1, seed=3)
    torch.testing.assert_close(areas[:20], torch.stack([again(Z, y).area for _ in range(20)]))


def test_many_classes_are_sampled_near_the_exact_mean():
    Z, y = batch(n=400, d=20, classes=100)
    exact = float(GeoReg(max_triangles=10**6)(Z, y).area)
    assert float(GeoReg()(Z, y).area) == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_under_autocast(dtype):
    Z, y = batch(dtype=torch.float32)
    wanted = float(GeoReg()(Z, y).loss)
    half = Z.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parts = GeoReg()(half, y)
    assert parts.loss.dtype == torch.float32
    assert float(parts.loss.detach()) == pytest.approx(wanted, rel=0.03)
    parts.loss.backward()
    assert half.grad.isfinite().all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("scale_free", [False, True])
def test_a_loss_of_broken_features_is_broken_too(value, scale_free):
    Z = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    Z[3, 2] = value
    assert not GeoReg(0.1, scale_free=scale_free)(Z, torch.arange(12) % 4).loss.isfinite()


def test_variance_of_eigenvalues_survives_a_large_mean_eigenvalue():
    """Nearly isotropic: squared norm less squared trace would have no digit left."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(1000, 16)))[0]
    Z = torch.tensor(1e3 * (Q - Q.mean(0)))
    eigenvalues = np.linalg.svd((Z - Z.mean(0)).numpy(), compute_uv=False) ** 2 / 999
    assert float(eigenvalue_variance(Z)[0]) == pytest.approx(eigenvalues.var(ddof=1), rel=1e-6)


def test_training_with_it_evens_the_spectrum_and_spreads_the_centroids():
    Z, y = batch()
    Z = Z.clone().requires_grad_()
    georeg, optimizer = GeoReg(scale_free=True), torch.optim.Adam([Z], lr=0.05)
    before = georeg(Z, y)
    for _ in range(50):
        optimizer.zero_grad()
        georeg(Z, y).loss.backward()
        optimizer.step()
    after = georeg(Z, y)
    assert after.variance < before.variance / 2
    assert after.area > before.area


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (torch.ones(3), None, r"shape \(batch, D\).*got \(3,\)"),
        (torch.ones(1, 4), None, r"at least 2; got \(1, 4\)"),
        (torch.ones(4, 1), None, r"at least 2; got \(4, 1\)"),
        (torch.ones(4, 3), torch.zeros(3), r"shape \(4,\); got \(3,\)"),
        (torch.ones(4, 3), torch.zeros(4), "integer class labels; got torch.float32"),
        (torch.ones(4, 3), torch.zeros(4, 2), r"shape \(4,\); got \(4, 2\)"),
    ],
)
def test_bad_batches_are_refused(features, labels, message):
    with pytest.raises(ValueError, match=message):
        GeoReg()(features, labels)


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (np.ones((4, 3)), None, "as tensors; got ndarray and NoneType"),
        (torch.ones(4, 3), [0, 1, 2, 0], "as tensors; got Tensor and list"),
        (torch.ones(4, 3), np.arange(4), "as tensors; got Tensor and ndarray"),
    ],
)
def test_what_is_no_tensor_is_refused_in_words(features, labels, message):
    with pytest.raises(TypeError, match=message):
        GeoReg()(features, labels)


@pytest.mark.parametrize("settings", [{"weight": -1}, {"weight": np.nan}, {"max_triangles": 0}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        GeoReg(**settings)

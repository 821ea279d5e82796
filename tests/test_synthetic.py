"""The stacks are what they promise, and LOES finds what is in them."""

import warnings

import numpy as np
import pytest

from loes import LOES, synthetic, terms

LOSS_ONLY = {"alpha": 0, "gamma": 0, "eta": 0}


@pytest.mark.parametrize("criterion", ["paper", "bounded"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", [synthetic.planted, synthetic.duplicated, synthetic.noise])
def test_the_loss_finds_the_answer(make, seed, criterion):
    layers, y, answer = make(seed=seed)
    fitted = LOES(len(answer), criterion=criterion, **LOSS_ONLY).fit(layers, y)
    assert fitted.selected_ == answer


@pytest.mark.parametrize("informative", [[2], [0, 5], [3, 1, 2]])
def test_planted_layers_are_where_they_were_put(informative):
    layers, y, answer = synthetic.planted(informative=informative, seed=1)
    fitted = LOES(len(informative), criterion="bounded", **LOSS_ONLY).fit(layers, y)
    assert set(fitted.selected_) == set(answer) == set(informative)


def test_a_ranking_of_single_layers_takes_the_copy():
    layers, y, _ = synthetic.duplicated()
    losses = [terms.loo_loss(X, np.eye(4)[y])[0] for X in layers]
    assert np.argsort(losses).tolist() == [0, 1, 2]
    assert terms.cka(layers[0], layers[1]) > 0.9 > terms.cka(layers[0], layers[2])


def test_noise_wins_the_paper_and_not_the_bounded_criterion():
    layers, y, answer = synthetic.noise()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert LOES(1, criterion="paper").fit(layers, y).selected_ == [2]
        assert LOES(1, criterion="bounded").fit(layers, y).selected_ == answer[:1]
    centred = layers[2] - layers[2].mean(0)
    np.testing.assert_allclose(centred.T @ np.eye(3)[y], 0, atol=1e-9)


@pytest.mark.filterwarnings("ignore::loes.SelectionWarning")
@pytest.mark.parametrize("ranks", [(1, 4, 16), (16, 3), (5,)])
def test_collapsed_layers_have_the_rank_that_they_are_given(ranks):
    layers, y, answer = synthetic.collapsed(ranks=ranks)
    assert y is None
    for X, rank in zip(layers, ranks, strict=True):
        eigenvalues = np.linalg.eigvalsh(np.cov(X, rowvar=False, bias=True))
        np.testing.assert_allclose(
            np.sort(eigenvalues)[::-1], [1.0] * rank + [0.0] * (16 - rank), atol=1e-9
        )
        assert terms.spectral_entropy(X) == pytest.approx(np.log(rank) / np.log(16), abs=1e-9)
    assert LOES(1, criterion="bounded").fit(layers).selected_ == answer[:1]


@pytest.mark.parametrize("n_classes", [3, 4, 6])
def test_simplex_areas_are_exact(n_classes):
    layers, y, answer = synthetic.simplex(n_classes=n_classes)
    for X in layers:
        assert terms.triangle_area(X, y) == pytest.approx(np.sqrt(3) / 2)
    shares = [terms.triangle_share(X, y) for X in layers]
    assert np.argsort(shares)[::-1].tolist() == answer
    assert shares[answer[0]] == pytest.approx(1)


def test_the_same_seed_gives_the_same_layers():
    for make in (synthetic.planted, synthetic.duplicated, synthetic.noise, synthetic.simplex):
        first, second, other = make(seed=3), make(seed=3), make(seed=4)
        np.testing.assert_array_equal(first.layers[0], second.layers[0])
        assert not np.array_equal(first.layers[0], other.layers[0])


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (synthetic.planted, {"informative": []}, "different informative layers"),
        (synthetic.planted, {"informative": [1, 9]}, "different informative layers"),
        (synthetic.planted, {"informative": [1, 1]}, "different informative layers"),
        (synthetic.planted, {"informative": [0, 1, 2, 3]}, r"than classes \(4\)"),
        (synthetic.planted, {"n": 5}, "twice as many samples"),
        (synthetic.collapsed, {"ranks": [17]}, "from 1 to 16"),
        (synthetic.collapsed, {"n": 10, "ranks": [10]}, "from 1 to 9"),
        (synthetic.simplex, {"n_classes": 9}, "9 corners"),
    ],
)
def test_impossible_stacks_are_refused(make, settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings)

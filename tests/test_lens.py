"""What data/lens.py maps: samples whose attributes are apart, divisions that share nothing."""

import json
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chi2_contingency
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

import lens
from loes import LayerFeatures, examples

WORDS = np.repeat([f"{kind}/{number}" for kind in ("good", "bad") for number in range(10)], 12)
TEMPLATES = np.tile(
    [f"{form}/{number}" for form in ("plain", "negated") for number in range(6)], 20
)


@pytest.fixture(scope="module")
def verdicts():
    return lens.verdicts()


def levels(factor, rows):
    return set(factor[rows])


@pytest.mark.parametrize("factors", [(WORDS,), (WORDS, TEMPLATES)], ids=["one", "two"])
def test_no_level_of_a_factor_is_on_both_sides(factors):
    for train, test in lens.resamples(factors, 5):
        assert len(train)
        assert len(test)
        for factor in factors:
            assert not levels(factor, train) & levels(factor, test)
            for side in (train, test):  # every stratum is drawn by itself
                assert len({level.split("/")[0] for level in levels(factor, side)}) == 2


def test_a_resample_holds_the_share_that_a_bootstrap_draws():
    each = np.array([f"row/{row}" for row in range(1000)])
    sizes = [[len(train), len(test)] for train, test in lens.resamples([each], 20)]
    assert np.sum(sizes, axis=1).tolist() == [1000] * 20
    np.testing.assert_allclose(
        np.mean(sizes, axis=0) / 1000, [1 - np.exp(-1), np.exp(-1)], atol=0.01
    )


def test_resamples_hang_on_the_seed_alone():
    first, again, other = (
        [rows.tolist() for pair in lens.resamples([WORDS], 3, seed) for rows in pair]
        for seed in (0, 0, 1)
    )
    assert first == again != other


def test_control_labels_know_the_type_and_nothing_else():
    labels = np.repeat(["a", "b", "b", "c"], 300)
    types = np.arange(1200) // 2
    control = lens.control_labels(labels, types)
    assert (control[::2] == control[1::2]).all()
    assert chi2_contingency(pd.crosstab(labels, control)).pvalue > 0.01
    shares = pd.Series(control).value_counts(normalize=True)
    np.testing.assert_allclose(shares[["a", "b", "c"]], [0.25, 0.5, 0.25], atol=0.06)


def test_each_column_of_the_probe_is_a_ridge_of_its_own():
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(["a", "b", "c"], 40))
    X = rng.normal(size=(120, 8)) + (y == "b")[:, None]
    train, test = np.arange(80), np.arange(80, 120)
    scaler = StandardScaler().fit(X[train])
    A, B = scaler.transform(X[train]), scaler.transform(X[test])
    scores = []
    for kind in ("a", "b", "c"):
        target = (y == kind).astype(float)[train]
        errors = {}
        for penalty in lens.PENALTIES:  # leave-one-out by leaving out
            kept = [np.delete(np.arange(80), row) for row in range(80)]
            errors[penalty] = sum(
                (Ridge(penalty).fit(A[k], target[k]).predict(A[[row]])[0] - target[row]) ** 2
                for row, k in enumerate(kept)
            )
        penalty = min(errors, key=errors.get)
        scores.append(Ridge(penalty).fit(A, target).predict(B))
    expected = np.mean(np.array(["a", "b", "c"])[np.argmax(scores, axis=0)] == y[test])
    found = lens.judge(X, {"kind": y, "other": rng.permutation(y)}, train, test)
    assert found["kind"][0] == expected
    assert found["kind"][0] > 0.5 > found["other"][0]
    truth = (y[:, None] == ["a", "b", "c"]).astype(float)
    left = ((truth[test] - np.transpose(scores)) ** 2).sum()
    total = ((truth[test] - truth[train].mean(0)) ** 2).sum()
    assert found["kind"][1] == pytest.approx(left / total)
    assert found["kind"][1] < 1 < found["other"][1]


def test_depth_is_the_share_of_the_blocks():
    np.testing.assert_allclose(lens.depths(["embedding", "layer1", "layer2"]), [0, 0.5, 1])
    np.testing.assert_allclose(
        lens.depths(["blocks.0", "blocks.1", "blocks.2", "blocks.3"]), [0.25, 0.5, 0.75, 1]
    )


@pytest.mark.parametrize("kind", lens.TEXTURES)
def test_a_texture_is_half_white_and_another_one_for_each_draw(kind):
    rng = np.random.default_rng(0)
    drawn = [lens.texture(kind, rng) for _ in range(40)]
    assert drawn[0].shape == (lens.SIDE, lens.SIDE)
    assert np.mean(drawn) == pytest.approx(0.5, abs=0.02)
    assert all((a != b).mean() > 0.1 for a, b in combinations(drawn[:5], 2))


def test_the_textures_differ_and_the_silhouette_stays():
    sample = lens.silhouettes()
    shape, texture = (of for of, _ in sample.attributes.values())
    assert (pd.crosstab(shape, texture) == 13).all(axis=None)
    pictures = np.stack(sample.inputs).reshape(130, 5, lens.SIDE, lens.SIDE)
    assert set(np.unique(pictures)) == {0, 128, 255}
    for same in pictures:
        assert all(((same[0] == 128) == (other == 128)).all() for other in same)
        assert all((a != b).any() for a, b in combinations(same, 2))


def test_a_verdict_is_the_word_turned_round_by_the_negation(verdicts):
    verdict, word, negation, _ = (of for of, _ in verdicts.attributes.values())
    np.testing.assert_array_equal(verdict, (word == "good") ^ (negation == "negated"))
    for a, b in combinations((verdict, word, negation), 2):
        assert (pd.crosstab(a, b) == len(verdict) // 4).all(axis=None)
    assert len(set(verdicts.inputs)) == len(verdicts.inputs)
    row = verdicts.inputs.index(next(text for text in verdicts.inputs if "? No." in text))
    assert negation[row] == "negated"
    listed = {"good": lens.GOOD.split(), "bad": lens.BAD.split()}
    assert not set(listed["good"]) & set(listed["bad"])
    assert all(
        any(adjective in text for adjective in listed[of])
        for text, of in zip(verdicts.inputs, word, strict=True)
    )


def test_length_order_and_topic_of_a_post_do_not_tell_each_other():
    sample = lens.posts()
    labels = {name: of for name, (of, _) in sample.attributes.items()}
    lengths = np.array([len(text.split()) for text in sample.inputs])
    np.testing.assert_array_equal(lengths // 8, labels["length"])
    for a, b in combinations(("topic", "length", "word order"), 2):
        assert chi2_contingency(pd.crosstab(labels[a], labels[b])).pvalue > 0.01
    full = {" ".join(sorted(text.split())) for text in sample.inputs}
    assert len(full) == len(sample.inputs)


def test_loes_leaves_out_a_layer_that_is_constant():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 50)
    known = rng.normal(size=(100, 3)) + y[:, None]
    constant = np.ones((100, 3)) + 1e-7 * rng.normal(size=(100, 3))
    layers = LayerFeatures(["embedding", "layer1"], [np.float32(constant), np.float32(known)])
    pick, loss = lens.first_pick(layers, y, "bounded")
    assert pick == 1
    assert np.isnan(loss[0])
    assert 0 < loss[1] < 0.9


def test_a_row_tells_the_layer_that_knows(monkeypatch):
    monkeypatch.setitem(lens.RESAMPLES, "random", 4)
    rng = np.random.default_rng(0)
    kind = np.repeat(["a", "b"], 60)
    items = np.array([f"{of}/{row // 4}" for row, of in enumerate(kind)])
    of_item = rng.normal(size=(30, 40))[np.arange(120) // 4]
    layers = LayerFeatures(
        ["embedding", "layer1", "layer2"],
        [
            np.float32(X)
            for X in (
                rng.normal(size=(120, 40)),
                of_item,
                of_item + 2 * (kind == "a")[:, None],
            )
        ],
    )
    sample = lens.Sample("text", [""] * 120, {"item": items}, {"kind": (kind, ("item",))})
    (row,) = lens.look(lens.View("toy", "none", "random"), sample, layers)
    accuracy = np.array(row["accuracy"])
    assert accuracy.shape == (4, 3)
    noise, item, both = accuracy.mean(0)
    assert both > 0.9
    assert max(noise, item) < 0.7
    # Only items that were seen can be known by heart.
    assert row["control known"][1] > 0.85
    assert max(row["control"]) < 0.75
    # So can the Loss of LOES, which leaves out a row and keeps the others of its item.
    assert row["picks bounded"] == [1] * 4
    assert row["loss bounded"][1] < 0.2
    assert row["loss new"][2] < 0.6 < 0.8 < min(row["loss new"][:2])
    json.dumps(row)


def test_a_sample_that_there_is_not_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["lens.py", "poems"])
    with pytest.raises(SystemExit):
        lens.main()
    assert "no sample {'poems'}; choose of ['posts'" in capsys.readouterr().err


def test_the_result_has_every_view_and_every_attribute():
    rows = pd.DataFrame(examples.result("lens")["rows"])
    views = {tuple(view) for view in lens.VIEWS}
    assert set(rows[[*lens.View._fields]].itertuples(index=False, name=None)) == views
    assert not rows.duplicated([*lens.View._fields, "attribute"]).any()
    for _, row in rows.iterrows():
        accuracy = np.array(row["accuracy"])
        assert accuracy.shape == (lens.RESAMPLES[row["weights"]], len(row["layers"]))
        assert ((accuracy >= 0) & (accuracy <= 1)).all()

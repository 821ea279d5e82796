"""Statistics gathered batch by batch against a fit on all samples at once."""

import gc
import json
import os
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import TARGETS, assert_same_path, problem, regime
from safetensors.torch import load_file, save_file

from loes import LOES, LayerFeatures, LayerStatistics
from loes.statistics import FORMAT, KEYS

pytestmark = pytest.mark.filterwarnings("ignore::loes.SelectionWarning")
both_criteria = pytest.mark.parametrize("criterion", ["paper", "bounded"])


def split(layers, y, cuts):
    """Cut samples at some positions."""
    edges = [0, *sorted(cuts), len(layers[0])]
    return [
        ([X[a:b] for X in layers], None if y is None else y[a:b])
        for a, b in pairwise(edges)
        if a < b
    ]


def gathered(batches, task="auto"):
    statistics = LayerStatistics(task)
    for layers, y in batches:
        statistics.update(layers, y)
    return statistics


def assert_same_fit(statistics, batches, layers, y, rtol=1e-8, **parameters):
    expected = LOES(**parameters).fit(layers, y)
    model = LOES(**parameters).fit_statistics(statistics, batches=lambda: iter(batches))
    assert model.selected_ == expected.selected_
    assert_same_path(model.path_, expected.path_, rtol)


# The same result as a fit


@given(
    st.integers(0, 10**6),
    st.lists(st.integers(1, 39), max_size=8),
    st.sampled_from(TARGETS),
    st.sampled_from(["paper", "bounded"]),
    st.booleans(),
)
def test_any_split_into_batches_gives_the_fit(seed, cuts, target, criterion, standardize):
    layers, y = problem(seed, target=target)
    task = "regression" if "values" in target else "auto"
    batches = split(layers, y, cuts)
    statistics = gathered(batches, task)
    assert statistics.n == 40
    options = dict(n_layers=3, criterion=criterion, standardize=standardize, task=task)
    assert_same_fit(statistics, batches, layers, y, **options)


@both_criteria
def test_automatic_number_of_layers_is_that_of_the_fit(criterion):
    layers, y = problem(0, n=200)
    batches = split(layers, y, [50, 120])
    statistics = gathered(batches)
    assert_same_fit(statistics, batches, layers, y, n_layers="auto", criterion=criterion)


@both_criteria
@pytest.mark.parametrize("name", ["n < d", "residual stream 1e-05", "large means", "scaled layers"])
def test_hard_layers_give_the_fit_where_the_batches_can_be_read_again(name, criterion):
    layers, y = regime(name, 0)
    batches = split(layers, y, [11, 30])
    # 1e-7: with means 1e3 times the spread, the sums over batches hold five digits less.
    assert_same_fit(
        gathered(batches), batches, layers, y, rtol=1e-7, n_layers=2, criterion=criterion
    )


def test_paper_needs_no_second_reading():
    layers, y = problem(0)
    model = LOES(3).fit_statistics(gathered(split(layers, y, [9])))
    assert_same_path(model.path_, LOES(3).fit(layers, y).path_)


def test_names_are_those_of_the_features():
    layers, y = problem(0)
    statistics = LayerStatistics()
    statistics.update(LayerFeatures(list("abcd"), layers), y)
    assert LOES(1).fit_statistics(statistics).names_ == statistics.names == list("abcd")


def test_large_means_cost_no_digits():
    """Adding up X'X and subtracting n mu mu' would leave 1e16 * 1e-16: nothing."""
    layers, y = problem(0)
    far = [X + 1e6 for X in layers]
    path = LOES(2, gamma=0).fit_statistics(gathered(split(far, y, [5, 20]))).path_
    expected = LOES(2, gamma=0).fit(layers, y).path_
    for name in ("loss", "iso", "tri"):
        np.testing.assert_allclose(path[name], expected[name], rtol=1e-7)


# Classes in any order, merging


def moments(statistics):
    """Everything a selection would see."""
    m = statistics.moments()
    return [m.n, m.mean.numpy(), m.joint.numpy(), m.counts.numpy(), m.classes]


def assert_same_statistics(first, second):
    for a, b in zip(moments(first), moments(second), strict=True):
        if isinstance(a, list):
            assert a == b
        else:
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("names", [[0, 1, 2], ["bee", "ant", "cat"]])
def test_classes_may_turn_up_late_and_in_any_order(names):
    layers, y = problem(0)
    y = np.array(names)[y]
    whole = gathered([(layers, y)])
    by_class = [([X[y == name] for X in layers], y[y == name]) for name in names]  # one class each
    for order in ([0, 1, 2], [2, 0, 1]):
        statistics = gathered([by_class[k] for k in order])
        assert statistics.classes == sorted(names)
        assert_same_statistics(statistics, whole)
    assert_same_fit(statistics, by_class, layers, y, n_layers=3, criterion="bounded")


def test_workers_add_up_in_any_grouping():
    layers, y = problem(0)
    order = np.argsort(y, kind="stable")  # the workers see different classes
    a, b, c = (gathered([batch]) for batch in split([X[order] for X in layers], y[order], [10, 25]))
    assert len({tuple(w.classes) for w in (a, b, c)}) == 3

    def merged(*workers):
        total = LayerStatistics()
        for worker in workers:
            total.merge(worker)
        return total

    whole = gathered([(layers, y)])
    assert_same_statistics(merged(a, b, c), whole)
    assert_same_statistics(merged(c, LayerStatistics(), merged(b, a)), whole)
    assert (a.n, b.n, c.n) == (10, 15, 15)
    assert_same_statistics(merged(a, b, c), whole)  # merging has left the workers alone


# Files


@pytest.fixture
def stored(tmp_path):
    layers, y = problem(0)
    statistics = gathered([(LayerFeatures(["é", "b", "c", "d"], layers), np.array(list("abc"))[y])])
    path = tmp_path / "statistics.safetensors"
    statistics.save(path)
    return statistics, path


@both_criteria
def test_file_holds_everything(stored, criterion):
    statistics, path = stored
    loaded = LayerStatistics.load(path)
    assert (loaded.n, loaded.names, loaded.widths, loaded.classes, loaded.task) == (
        40, ["é", "b", "c", "d"], [3, 5, 4, 2], ["a", "b", "c"], "classification",
    )  # fmt: skip
    for a, b in zip(moments(loaded), moments(statistics), strict=True):
        np.testing.assert_array_equal(a, b)
    layers, y = problem(1)
    y = np.array(list("abc"))[y]
    layers = LayerFeatures(statistics.names, layers)
    for each in (statistics, loaded):
        each.update(layers, y)
    assert_same_statistics(loaded, statistics)


@pytest.mark.parametrize("fails", ["os.fsync", "os.replace"])
def test_failing_to_write_leaves_the_old_file(stored, monkeypatch, fails):
    statistics, path = stored
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "no space left")

    statistics.update(LayerFeatures(statistics.names, problem(1)[0]), np.array(["a", "b"] * 20))
    monkeypatch.setattr(fails, full)
    with pytest.raises(OSError, match="no space left"):
        statistics.save(path)
    assert os.listdir(path.parent) == [path.name]
    assert path.read_bytes() == before
    monkeypatch.undo()
    statistics.save(path)
    assert LayerStatistics.load(path).n == 80
    assert os.listdir(path.parent) == [path.name]


def foreign(path):
    save_file({"mean": torch.zeros(3)}, path, metadata={"format": "pt"})


def earlier(path):
    save_file({"mean": torch.zeros(3)}, path, metadata={"format": "loes.LayerStatistics/1"})


def without_metadata(path):
    save_file({"mean": torch.zeros(3)}, path)


def truncated(path):
    path.write_bytes(path.read_bytes()[:-100])


def text(path):
    path.write_text("layers and targets")


def incomplete(path):
    save_file({"mean": torch.zeros(3)}, path, metadata={"format": FORMAT, "task": '"auto"'})


def inconsistent(path):
    keys = dict(task='"auto"', n="9", names='["a"]', widths="[4]", classes="null", sha256="")
    arrays = {"mean": torch.zeros(3), "gram": torch.zeros(3, 3)}
    save_file(arrays, path, metadata={"format": FORMAT, **keys})


def one_bit(path):
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def not_finite(path):
    statistics = LayerStatistics.load(path)
    statistics._gram[0, 0] = np.nan
    statistics.save(path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (foreign, "holds pt, not loes.LayerStatistics/2; accumulate .* again"),
        (earlier, "holds loes.LayerStatistics/1, not loes.LayerStatistics/2"),
        (without_metadata, "holds something else, not loes"),
        (truncated, "is damaged or no statistics file"),
        (text, "is damaged or no statistics file"),
        (incomplete, "is damaged or no statistics file"),
        (inconsistent, "is damaged: its arrays and its description disagree"),
        (one_bit, "is damaged: its SHA-256 is another one"),
        (not_finite, "holds NaN or infinite moments"),
    ],
)
def test_other_files_are_refused_by_name(stored, spoil, message):
    _, path = stored
    spoil(path)
    with pytest.raises(ValueError, match=rf"statistics\.safetensors {message}"):
        LayerStatistics.load(path)


def test_every_part_of_a_file_is_digested(stored):
    statistics, path = stored
    about = {key: json.dumps(getattr(statistics, key)) for key in KEYS}
    about |= {"format": FORMAT, "sha256": statistics._fingerprint()}
    arrays = load_file(path)
    save_file(arrays, path, metadata=about)
    assert LayerStatistics.load(path).n == 40
    for change in ({"n": "41"}, {"names": '["e", "b", "c", "d"]'}, {"classes": '["a", "b", "d"]'}):
        save_file(arrays, path, metadata=about | change)
        with pytest.raises(ValueError, match="SHA-256"):
            LayerStatistics.load(path)


def test_a_folder_is_no_place_for_a_file(stored):
    statistics, path = stored
    with pytest.raises(IsADirectoryError, match="is a folder; name a file in it"):
        statistics.save(path.parent)
    assert os.listdir(path.parent) == [path.name]
    assert os.listdir(path.parent.parent).count(path.parent.name) == 1
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere; create it first"):
        statistics.save(path.parent / "nowhere" / "file")


# What is refused


LAYERS, Y = problem(0)


@pytest.mark.parametrize(
    ("layers", "y", "message"),
    [
        (LAYERS[:3], Y, r"do not add up: got .*layer 2 \(4\) with int labels, wanted .*layer 3"),
        (LAYERS[::-1], Y, r"do not add up: got layers layer 0 \(2\)"),
        (LayerFeatures(list("abcd"), LAYERS), Y, r"got layers a \(3\)"),
        (LAYERS, None, "with 0 target columns, wanted .* with int labels"),
        (LAYERS, Y.astype(str), "with str labels, wanted .* with int labels"),
        (LAYERS, Y + 0.5, "wants .* class labels; got continuous"),
        (LAYERS, Y[:7], r"40 samples, y of shape \(7,\)"),
        ([np.nan * X for X in LAYERS], Y, "layer 0 holds 120 NaN"),
    ],
)
def test_a_bad_batch_leaves_the_statistics_as_they_were(layers, y, message):
    statistics = gathered([(LAYERS, Y)])
    before = moments(statistics)
    with pytest.raises(ValueError, match=message):
        statistics.update(layers, y)
    for a, b in zip(before, moments(statistics), strict=True):
        np.testing.assert_array_equal(a, b)


def test_merging_anything_but_statistics_of_the_task_is_refused():
    with pytest.raises(TypeError, match="merge wants LayerStatistics; got NoneType"):
        LayerStatistics().merge(None)
    with pytest.raises(ValueError, match="got a task of classification, wanted regression"):
        LayerStatistics("regression").merge(gathered([(LAYERS, Y)]))


def test_statistics_that_say_nothing_are_refused():
    with pytest.raises(ValueError, match="at least two samples; got 0"):
        LOES(1).fit_statistics(LayerStatistics())
    with pytest.raises(ValueError, match=r"all samples are of one class .'a'.*leave y out"):
        LOES(1).fit_statistics(gathered([(LAYERS, np.full(40, "a"))]))
    constant = np.c_[LAYERS[0][:, 0], np.full(40, 0.1)]  # 0.1: its mean is rounded
    with pytest.raises(ValueError, match="a target is constant"):
        LOES(1).fit_statistics(gathered(split(LAYERS, constant, [7, 20]), "regression"))
    with pytest.raises(ValueError, match="40 samples are of different classes"):
        LOES(1).fit_statistics(gathered(split(LAYERS, np.arange(40), [7])))
    still = [LAYERS[0], np.full((40, 2), 0.1)]
    with pytest.raises(ValueError, match="layer 1 is constant, up to rounding"):
        LOES(1).fit_statistics(gathered(split(still, Y, [7, 20])))


@pytest.mark.parametrize("parameters", [dict(criterion="bounded"), dict(n_layers="auto")])
def test_leave_one_out_wants_the_batches_again(parameters):
    with pytest.raises(ValueError, match=r"pass batches=, a function .* or use criterion='paper'"):
        LOES(**parameters).fit_statistics(gathered([(LAYERS, Y)]))


def test_batches_must_be_the_ones_counted():
    batches = split(LAYERS, Y, [10])
    statistics = gathered(batches)
    with pytest.raises(ValueError, match=r"batches\(\) gave 30 samples; the statistics hold 40"):
        LOES(1, criterion="bounded").fit_statistics(statistics, batches=lambda: batches[1:])
    exhausted = iter(batches)
    with pytest.raises(ValueError, match=r"batches\(\) gave 0 samples"):
        LOES(2, criterion="bounded").fit_statistics(statistics, batches=lambda: exhausted)


def swapped(layers):
    """Two layers of equal widths in each other's place, as the layers of a model have."""
    return [layers[1], layers[0], *layers[2:]]


EVEN = [X[:, :2] for X in LAYERS]


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("target", ["labels", "values", "none"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda L, y: (L, y), None),
        (lambda L, y: ([X * (1 + 1e-6) for X in L], y), None),  # computed again
        (lambda L, y: (swapped(L), y), "other samples"),
        (lambda L, y: ([X[::-1].copy() for X in L], y), "targets in another order"),
        (lambda L, y: ([X + 0.01 for X in L], y), "other samples"),
        (lambda L, y: (L[:3], y), r"widths \[2, 2, 2\]; the statistics hold \[2, 2, 2, 2\]"),
    ],
)
def test_batches_must_hold_the_samples_counted(standardize, target, change, message):
    y = {"labels": Y, "values": LAYERS[3][:, 0], "none": None}[target]
    if target == "none" and message == "targets in another order":
        message = None  # there are none
    statistics = gathered([(EVEN, y)])
    batches = statistics.moments(lambda: [change(EVEN, y)])
    batches = batches.standardized() if standardize else batches
    if message is None:
        assert len(list(batches.blocks())) == 1
    else:
        with pytest.raises(ValueError, match=message):
            list(batches.blocks())


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([(LAYERS, Y)], TypeError, "batches must be a function .*; got list"),
        (lambda: [(LAYERS, Y + 1)], ValueError, r"not seen: \{3\}"),
        (lambda: [(LAYERS, np.roll(Y, 1))], ValueError, "targets in another order"),
        (lambda: [(LAYERS, np.where(Y == 2, 1, Y))], ValueError, "other samples"),
        (lambda: [(LAYERS, Y.astype(str))], ValueError, "not seen: "),
        (lambda: [LAYERS], ValueError, r"must give pairs \(layers, y\)"),
        (lambda: [LAYERS[0]], ValueError, r"must give pairs \(layers, y\)"),
        (lambda: [(LAYERS, None)], ValueError, r"y of shape \(\)"),
    ],
)
def test_batches_of_another_form_are_refused(batches, error, message):
    with pytest.raises(error, match=message):
        LOES(1, criterion="bounded").fit_statistics(gathered([(LAYERS, Y)]), batches)


def test_layers_are_no_statistics():
    with pytest.raises(TypeError, match=r"must be LayerStatistics; got list.*to fit"):
        LOES(1).fit_statistics(LAYERS)


# Memory


def peak_of_updates(n_batches):
    """Largest number of floats in tensors alive at once, over updates with random batches."""
    rng, statistics, peak = np.random.default_rng(0), LayerStatistics(), 0

    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal peak
            out = function(*args, **(kwargs or {}))
            alive = {
                t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
                for t in gc.get_objects()
                if type(t) is torch.Tensor
            }
            peak = max(peak, sum(alive.values()))
            return out

    gc.collect()
    gc.freeze()  # get_objects() then lists what is new, which is quick
    with Counting():
        for _ in range(n_batches):
            layers = [rng.normal(size=(50, 20)) for _ in range(3)]
            statistics.update(layers, rng.integers(0, 3, size=50))
    gc.unfreeze()
    return peak


def test_memory_does_not_grow_with_the_samples():
    few, many = peak_of_updates(3), peak_of_updates(30)
    assert 60 * 60 * 8 < few
    assert many == pytest.approx(few, rel=0.1)

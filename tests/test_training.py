"""Fusion by hand, and probes that learn what is there, the same way every time."""

import numpy as np
import pytest
import torch

from loes import GeoReg
from loes.fusion import FUSIONS, FusedProbe, Fusion
from loes.training import Targets, cosine_schedule, train_probe

QUIET = {"progress": False, "learning_rate": 1e-2, "adapter_width": 8, "epochs": 8}


@pytest.fixture
def layers():
    torch.manual_seed(0)
    return [torch.randn(6, 4), torch.randn(6, 4), torch.randn(6, 4)]


def problem(n=240, seed=0):
    """Return three layers of which the second tells three classes apart."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    means = 3 * rng.normal(size=(3, 6))
    return [rng.normal(size=(n, 5)), means[y] + rng.normal(size=(n, 6)), rng.normal(size=(n, 4))], y


def part(layers, rows):
    return [X[rows] for X in layers]


# Fusion


def test_concat_mean_and_sum_are_what_they_say(layers):
    stacked = torch.stack(layers)
    torch.testing.assert_close(Fusion([4] * 3, "concat")(layers), torch.cat(layers, 1))
    torch.testing.assert_close(Fusion([4] * 3, "mean")(layers), stacked.mean(0))
    torch.testing.assert_close(Fusion([4] * 3, "sum")(layers), stacked.sum(0))


def test_mixing_begins_as_the_mean_and_learns_softmax_weights(layers):
    fusion = Fusion([4] * 3, "mixing")
    torch.testing.assert_close(fusion(layers), torch.stack(layers).mean(0))
    with torch.no_grad():
        fusion.scores.copy_(torch.tensor([0.0, 1.0, -2.0]))
    weights = np.exp([0, 1, -2]) / np.exp([0, 1, -2]).sum()
    by_hand = sum(w * X for w, X in zip(weights, layers, strict=True))
    torch.testing.assert_close(fusion(layers), by_hand.float())


def test_adapters_are_norm_linear_gelu_for_each_layer():
    layers = [torch.randn(5, 3), torch.randn(5, 7)]
    fusion = Fusion([3, 7], "adapters", adapter_width=2)
    by_hand = []
    for X, (norm, linear, _) in zip(layers, fusion.adapters, strict=True):
        Z = (X - X.mean(1, keepdim=True)) / (X.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
        Z = (norm.weight * Z + norm.bias) @ linear.weight.T + linear.bias
        by_hand.append(Z * 0.5 * (1 + torch.erf(Z / 2**0.5)))
    torch.testing.assert_close(fusion(layers), torch.cat(by_hand, 1))


@pytest.mark.parametrize("kind", FUSIONS)
def test_width_is_that_of_the_embedding(layers, kind):
    probe = FusedProbe([4] * 3, 2, fusion=kind, adapter_width=5)
    outputs, embedding = probe(layers)
    assert embedding.shape == (6, probe.fusion.width)
    assert outputs.shape == (6, 2)


@pytest.mark.parametrize(
    ("widths", "kind", "message"),
    [
        ([4], "product", "fusion must be one of"),
        ([], "concat", "no layer to fuse"),
        ([4, 5], "mean", r"equal width; got \[4, 5\]"),
        ([4, 5], "mixing", "'adapters' or 'concat'"),
    ],
)
def test_impossible_fusions_are_refused(widths, kind, message):
    with pytest.raises(ValueError, match=message):
        Fusion(widths, kind)


# Training


@pytest.mark.parametrize("fusion", ["adapters", "concat"])
def test_a_probe_learns_what_the_layers_hold(fusion):
    layers, y = problem()
    train, test = np.arange(160), np.arange(160, 240)
    probe = train_probe(part(layers, train), y[train], fusion=fusion, **QUIET)
    accuracy = np.mean(probe.predict(part(layers, test)) == y[test])
    assert accuracy > 0.85
    shuffled = np.random.default_rng(0).permutation(y)
    control = train_probe(part(layers, train), shuffled[train], fusion=fusion, **QUIET)
    assert np.mean(control.predict(part(layers, test)) == shuffled[test]) < 0.55


def test_labels_may_be_anything_that_can_be_sorted():
    layers, y = problem()
    names = np.array(["red", "blue", "green"])
    probe = train_probe(layers, names[y], **QUIET)
    assert probe.targets.classes.tolist() == ["blue", "green", "red"]
    assert np.mean(probe.predict(layers) == names[y]) > 0.85


@pytest.mark.parametrize("columns", [1, 2])
def test_regression_gives_values_in_their_own_units(columns):
    layers, _ = problem()
    W = np.random.default_rng(1).normal(size=(6, columns))
    y = 1e3 + 50 * layers[1] @ W
    probe = train_probe(layers, y, **(QUIET | {"epochs": 30, "dropout": 0.0}))
    values = probe.predict(layers)
    assert values.shape == (240, columns)
    assert ((values - y) ** 2).mean() < 0.2 * y.var(0).mean()


def test_a_seed_decides_everything_and_leaves_the_callers_state_alone():
    layers, y = problem()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first = train_probe(layers, y, seed=1, **QUIET)
    torch.testing.assert_close(torch.rand(3), expected)
    again = train_probe(layers, y, seed=1, **QUIET)
    other = train_probe(layers, y, seed=2, **QUIET)
    torch.testing.assert_close(first.outputs(layers), again.outputs(layers), rtol=0, atol=0)
    assert not torch.equal(first.outputs(layers), other.outputs(layers))


def test_the_epoch_kept_is_the_first_best_one_on_validation():
    layers, y = problem(seed=3)
    train, held_out = np.arange(160), np.arange(160, 240)
    validation = part(layers, held_out), y[held_out]
    probe = train_probe(part(layers, train), y[train], validation=validation, **QUIET)
    scores = probe.history["validation"].to_numpy()
    assert probe.best_epoch == 1 + scores.argmax()
    assert np.mean(probe.predict(validation[0]) == y[held_out]) == scores.max()
    assert len(probe.history) == QUIET["epochs"]


def test_validation_does_not_change_the_training():
    layers, y = problem()
    plain = train_probe(layers, y, **QUIET)
    watched = train_probe(layers, y, validation=(layers, y), **QUIET)
    np.testing.assert_array_equal(plain.history["loss"], watched.history["loss"])


def test_georeg_enters_the_loss_and_the_history():
    layers, y = problem()
    plain = train_probe(layers, y, **QUIET)
    regularised = train_probe(layers, y, georeg=GeoReg(0.1, scale_free=True), **QUIET)
    assert {"variance", "area"} <= set(regularised.history) - set(plain.history)
    assert not torch.equal(plain.outputs(layers), regularised.outputs(layers))
    idle = train_probe(layers, y, georeg=GeoReg(0.0), **QUIET)
    torch.testing.assert_close(plain.outputs(layers), idle.outputs(layers))


def test_the_schedule_warms_up_and_falls_to_zero():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule, rates = cosine_schedule(optimizer, 100), []
    for _ in range(100):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates[5] == pytest.approx(0.5)
    assert max(rates) == rates[10] == 1
    assert rates[55] == pytest.approx(0.5)
    assert rates[99] < 1e-3


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"y": np.zeros(240, int)}, ValueError, "one class only"),
        ({"y": np.arange(10) % 3}, ValueError, "240 samples"),
        ({"validation": (None, np.arange(240) % 4)}, ValueError, r"has not seen: \[3\]"),
        ({"validation": (None, np.arange(9) % 3)}, ValueError, "240 samples"),
        ({"y": np.full(240, 0.5)}, ValueError, "constant target"),
        ({"fusion": "product"}, ValueError, "fusion must be one of"),
        ({"task": "ranking"}, ValueError, "'ranking'"),
        ({"epochs": 0}, ValueError, "epochs must be"),
        ({"batch_size": 0}, ValueError, "batch_size must be"),
        ({"adapter_width": 0}, ValueError, "adapter_width must be"),
        ({"georeg": 0.1}, TypeError, "georeg must be a GeoReg, .*; got float"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(change, error, message):
    layers, y = problem()
    settings = {"y": y} | change
    if "validation" in settings:
        settings["validation"] = layers, settings["validation"][1]
    with pytest.raises(error, match=message):
        train_probe(layers, **({"epochs": 10**9} | settings), progress=False)


def test_a_loss_that_explodes_is_not_returned_in_silence():
    layers, y = problem()
    layers[1] *= 1e38
    with pytest.raises(ValueError, match="diverged in epoch 1"):
        train_probe(layers, y, fusion="concat", **QUIET)


@pytest.mark.parametrize("batch_size", [16, 999])
def test_a_step_out_of_bounds_is_not_returned_in_silence(batch_size):
    layers, y = problem()
    settings = QUIET | {"learning_rate": 1e30, "epochs": 1, "batch_size": batch_size}
    with pytest.raises(ValueError, match="lower the learning rate"):
        train_probe(layers, y, **settings)


def test_validation_that_float32_cannot_hold_is_refused():
    layers, y = problem()
    held_out = [X.astype(np.float64) for X in layers]
    held_out[0][3, 1] = 1e39
    with pytest.raises(ValueError, match="too large for float32; rescale"):
        train_probe(layers, y, validation=(held_out, y), **QUIET)


def test_prediction_wants_the_layers_of_the_training():
    layers, y = problem()
    probe = train_probe(layers, y, **QUIET)
    with pytest.raises(ValueError, match=r"widths \[5, 6, 4\]; got \[5, 6\]"):
        probe.predict(layers[:2])
    with pytest.raises(ValueError, match="too large for float32"):
        probe.predict([X * 1e300 for X in layers])


def test_targets_come_back_as_they_went_in():
    y = np.array(["b", "a", "c", "a"])
    targets = Targets.of(y, 4, "auto")
    assert targets.encode(y, 4).tolist() == [1, 0, 2, 0]
    assert targets.decode(torch.eye(3)[[1, 0, 2, 0]]).tolist() == y.tolist()


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        (lambda layers, y: (layers,), r"validation must be a pair \(layers, targets\)"),
        (lambda layers, y: (layers, np.full(len(y), 0.5)), "validation has a constant target"),
    ],
)
def test_validation_that_cannot_be_scored_is_refused(validation, message):
    layers, _ = problem()
    y = np.random.default_rng(0).normal(size=240)
    with pytest.raises(ValueError, match=message):
        train_probe(layers, y, validation=validation(layers, y), epochs=10**9, progress=False)


@pytest.mark.parametrize("form", [torch.Tensor.bfloat16, torch.Tensor.requires_grad_])
def test_validation_targets_may_be_any_tensor(form):
    layers, _ = problem()
    y = torch.randn(240, generator=torch.Generator().manual_seed(0))
    held_out = layers, form(y.clone())
    probe = train_probe(layers, y, validation=held_out, epochs=1, progress=False)
    assert np.isfinite(probe.history["validation"]).all()

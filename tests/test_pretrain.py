"""The objectives of data/pretrain.py against their definitions; what is measured, kept, resumed."""

import json
from dataclasses import replace
from functools import partial
from math import exp, log

import numpy as np
import pytest
import torch
from safetensors import safe_open
from scipy.ndimage import center_of_mass, rotate
from transformers import AutoModel

import pretrain
from loes import extract_layers, tasks
from loes.features import LayerFeatures

TINY = {
    "image_size": 8,
    "patch_size": 2,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 0.1,
}


@pytest.fixture
def pictures():
    """Sixteen noisy pictures of four kinds: a bright band, which a mirror leaves where it is."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(16) % 4
    X = 0.3 * torch.rand(16, 1, 8, 8, generator=generator)
    for picture, label in zip(X, labels, strict=True):
        picture[:, 2 * label : 2 * label + 2] += 0.7
    return X, labels


@pytest.fixture
def still(monkeypatch):
    """Augmentation that does nothing but mirror."""
    for name in ("ROTATION", "ZOOM", "SHIFT"):
        monkeypatch.setattr(pretrain, name, 0.0)


def test_augmented_pictures_are_what_the_processor_makes_of_them(still):
    pictures = [np.random.default_rng(i).integers(0, 256, (28, 28), np.uint8) for i in range(8)]
    colour = [np.repeat(picture[..., None], 3, axis=-1) for picture in pictures]
    wanted = pretrain.processor()(colour, return_tensors="pt")["pixel_values"]
    torch.manual_seed(0)
    found = pretrain.augment(torch.from_numpy(np.stack(pictures))[:, None] / 255)
    mirrored = [not torch.allclose(a, b, atol=1e-4) for a, b in zip(found, wanted, strict=True)]
    assert 0 < sum(mirrored) < 8
    for a, b, flip in zip(found, wanted, mirrored, strict=True):
        torch.testing.assert_close(a, b.flip(-1) if flip else b, atol=1e-4, rtol=0)


def test_pictures_turn_as_rigid_bodies_do(still, monkeypatch):
    monkeypatch.setattr(pretrain, "ROTATION", 90.0)
    blurred = torch.nn.functional.avg_pool2d(torch.eye(28)[None, None] * 9, 5, 1, 2).clamp(max=1)
    bar = blurred * (torch.arange(28) < 20)
    torch.manual_seed(0)
    found = pretrain.augment(bar.repeat(12, 1, 1, 1))[:, 0] * pretrain.STD + pretrain.MEAN
    for picture in found.numpy():
        errors = [
            np.abs(rotate(candidate, angle, reshape=False, order=1) - picture).mean()
            for candidate in (bar[0, 0].numpy(), bar[0, 0].numpy()[:, ::-1])
            for angle in range(-90, 91)
        ]
        assert min(errors) < 0.01 < np.median(errors)


def test_pictures_move_within_the_limit_and_zoom(still, monkeypatch):
    blob = torch.zeros(64, 1, 28, 28)
    blob[:, :, 11:17, 11:17] = 1.0
    monkeypatch.setattr(pretrain, "SHIFT", 0.15)
    torch.manual_seed(0)
    moved = pretrain.augment(blob)[:, 0] * pretrain.STD + pretrain.MEAN
    away = np.abs([np.subtract(center_of_mass(p.numpy()), 13.5) for p in moved])
    assert 3.5 < away.max() <= 0.15 * 28 + 1e-3
    monkeypatch.setattr(pretrain, "SHIFT", 0.0)
    monkeypatch.setattr(pretrain, "ZOOM", 0.3)
    areas = (pretrain.augment(blob)[:, 0] * pretrain.STD + pretrain.MEAN).sum((1, 2)) / 36
    assert 0.7**2 * 0.9 < areas.min() < 0.8 < 1.2 < areas.max() < 1.3**2 * 1.1


def test_nt_xent_is_its_definition():
    a, b = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1))
    z = [v / v.norm() for v in (*a, *b)]
    total = 0.0
    for i in range(10):
        partner = (i + 5) % 10
        others = sum(exp(float(z[i] @ z[k]) / 0.3) for k in range(10) if k != i)
        total -= log(exp(float(z[i] @ z[partner]) / 0.3) / others)
    assert float(pretrain.nt_xent(a, b, 0.3)) == pytest.approx(total / 10, rel=1e-5)


def test_nt_xent_of_collapsed_views_says_nothing_and_of_perfect_ones_all():
    same = torch.ones(6, 4)
    assert float(pretrain.nt_xent(same, same, 0.2)) == pytest.approx(log(11), rel=1e-5)
    corners = torch.eye(6)
    best = -log(exp(1 / 0.2) / (exp(1 / 0.2) + 10))
    assert float(pretrain.nt_xent(corners, 3 * corners, 0.2)) == pytest.approx(best, rel=1e-5)


@pytest.fixture
def masked():
    torch.manual_seed(0)
    return pretrain.Masked(pretrain.initial(0, TINY), 4)


def test_masked_loss_is_the_error_at_hidden_patches_only(masked, pictures):
    X = pretrain.augment(pictures[0])
    noise = torch.rand(16, 16, generator=torch.Generator().manual_seed(2))
    found = masked.model(X, noise=noise)
    found.logits.retain_grad()
    found.loss.backward()
    errors = []
    for picture, order, painted, gradient in zip(
        X, noise.argsort(1), found.logits.detach(), found.logits.grad, strict=True
    ):
        visible = set(order[:4].tolist())  # a quarter of the 4 x 4 patches
        for patch in range(16):
            y, x = 2 * (patch // 4), 2 * (patch % 4)
            if patch in visible:
                assert not gradient[patch].any()
                continue
            assert gradient[patch].any()
            wanted = picture[:, y : y + 2, x : x + 2].permute(1, 2, 0).reshape(-1)
            errors.append(float(((painted[patch] - wanted) ** 2).mean()))
    assert len(errors) == 16 * 12
    assert found.loss.item() == pytest.approx(np.mean(errors), rel=1e-5)


def test_masked_encoder_sees_a_quarter_and_the_decoder_where_patches_belong(masked, pictures):
    seen = []
    masked.model.vit.layers[0].register_forward_hook(lambda m, args, out: seen.append(args[0]))
    masked(*pictures)
    assert seen[0].shape == (16, 1 + 4, 16)
    positions = masked.model.decoder.decoder_pos_embed[0, 1:]
    assert (torch.cdist(positions, positions) + torch.eye(16)).min() > 0.1


def test_masked_objective_trains_every_weight_of_the_encoder_but_the_pooler(pictures):
    encoder = pretrain.initial(0, TINY)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    trained, _ = pretrain.train("masked", 0, *pictures, epochs=2, config=TINY)
    for name, value in trained.state_dict().items():
        # the bias of keys adds the same to all logits of a query: its gradient is dust
        assert (
            torch.equal(before[name], value) == name.startswith("pooler") or "k_proj.bias" in name
        )


@pytest.mark.parametrize(
    ("objective", "fall"), [("supervised", 0.6), ("masked", 0.8), ("contrastive", 0.8)]
)
def test_losses_fall_on_one_batch(still, monkeypatch, pictures, objective, fall):
    monkeypatch.setattr(pretrain, "LEARNING_RATE", 5e-3)  # the network is tiny
    _, losses = pretrain.train(objective, 0, *pictures, epochs=60, config=TINY)
    assert np.mean(losses[-5:]) < fall * np.mean(losses[:5])


@pytest.mark.parametrize("objective", pretrain.OBJECTIVES)
def test_a_seed_decides_everything_and_labels_only_what_is_supervised(pictures, objective):
    X, labels = pictures
    state = torch.random.get_rng_state()

    def weights(seed, labels):
        encoder, losses = pretrain.train(objective, seed, X, labels, epochs=2, config=TINY)
        return torch.cat([p.detach().flatten() for p in encoder.parameters()]), losses

    (first, losses), (again, same) = weights(0, labels), weights(0, labels)
    assert torch.equal(first, again)
    assert losses == same
    assert torch.equal(state, torch.random.get_rng_state())
    assert not torch.equal(first, weights(1, labels)[0])
    relabelled = weights(0, labels.flip(0))[0]
    assert torch.equal(first, relabelled) == (objective != "supervised")


def test_a_checkpoint_is_read_like_any_other_vit(tmp_path, pictures):
    X, labels = pictures
    target = tmp_path / "supervised-0"
    with pretrain.tqdm(disable=True) as bar:
        pretrain.pretrain(
            "supervised", 0, target, bar, pictures=X, labels=labels, epochs=1, config=TINY
        )
    with safe_open(target / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float16}  # noqa: SIM118
    assert len(json.loads((target / "training.json").read_text())["losses"]) == 1
    inputs = [(255 * picture[0]).byte().numpy() for picture in X]
    layers = extract_layers(target, inputs, dtype="float32", progress=False)
    assert layers.pooling == "mean"
    assert [layer.shape for layer in layers] == [(16, 16)] * 3
    encoder, _ = pretrain.train("supervised", 0, X, labels, epochs=1, config=TINY)
    kept = AutoModel.from_pretrained(target).float()
    for a, b in zip(encoder.parameters(), kept.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


def test_what_is_there_is_not_trained_again_and_half_of_it_is_never_there(tmp_path, monkeypatch):
    calls = []

    def fail(*args, **options):
        calls.append(args)
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrain, "train", fail)
    target = tmp_path / "masked-1"
    with pretrain.tqdm(disable=True) as bar:
        with pytest.raises(KeyboardInterrupt):
            pretrain.pretrain("masked", 1, target, bar)
        assert not list(tmp_path.iterdir())
        target.mkdir()
        pretrain.pretrain("masked", 1, target, bar)
    assert len(calls) == 1


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Everything as it is, but small and elsewhere."""
    monkeypatch.setenv("LOES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pretrain, "CHECKPOINTS", tmp_path / "checkpoints")
    monkeypatch.setattr(pretrain, "RESULT", tmp_path / "pretrain.json")
    monkeypatch.setattr(pretrain, "SEEDS", range(2))
    monkeypatch.setattr(pretrain, "BATCH", 20)
    monkeypatch.setattr(
        pretrain, "OBJECTIVES", {name: (kind, 1) for name, (kind, _) in pretrain.OBJECTIVES.items()}
    )
    return {name: tasks.load(name, per_class=4) for name in pretrain.TASKS}


def test_pretraining_sees_the_train_part_and_what_follows_all_but_that(small, monkeypatch):
    task, seen = small["animals"], []
    monkeypatch.setattr(
        pretrain, "pretrain", lambda *a, pictures, labels: seen.append((pictures, labels))
    )
    pretrain.train_all(task)
    assert len(seen) == 6
    for pictures, labels in seen:
        np.testing.assert_array_equal(
            (255 * pictures[:, 0]).round().numpy(), [task.inputs[row] for row in task.train]
        )
        np.testing.assert_array_equal(labels, task.labels[task.train])
    development, test = pretrain.parts(task)
    assert not set(task.train) & {*development, *test}
    assert set(test) == set(task.test)
    digits = small["digits"]
    development, test = pretrain.parts(digits)
    assert set(development) == {*digits.train, *digits.validation}
    assert set(test) == set(digits.test)


def test_a_run_is_whole_and_goes_on_where_it_stopped(small, monkeypatch):
    def measure(layers, task, with_georeg):
        measured.append(len(layers))
        return {"layers": layers[-1].sum().item() / 3}  # more digits than are kept

    measured = []
    monkeypatch.setattr(pretrain, "measure", measure)
    pretrain.train_all(small["animals"])
    content = pretrain.measure_all(small)
    assert measured == [13] * 16  # four kinds, two seeds, two tasks
    names = [*pretrain.OBJECTIVES, "random"]
    assert [(m["objective"], m["seed"]) for m in content["models"]] == [
        (name, seed) for name in names for seed in (0, 1)
    ]
    assert len(content["models"][0]["losses"]) == 1
    assert "losses" not in content["models"][-1]
    assert all(len(m["pixels"]) == 13 for m in content["models"])
    assert {p.name for p in pretrain.CHECKPOINTS.iterdir()} == {
        f"{o}-0" for o in pretrain.OBJECTIVES
    }
    pairs = {(tuple(s["of"]), tuple(s["and"])) for s in content["similarities"]}
    assert len(pairs) == 4 + 2 * 6  # two seeds of four, and pairs of four within two seeds
    assert all((a[0] == b[0]) != (a[1] == b[1]) for a, b in pairs)
    random = next(s for s in content["similarities"] if s["of"][0] == s["and"][0] == "random")
    assert all(0 < cka < 1 for cka in random["cka"])

    monkeypatch.setattr(pretrain, "train", None)  # would fail
    pretrain.train_all(small["animals"])
    again = pretrain.measure_all(small)
    assert len(measured) == 16
    assert again["models"] == json.loads(pretrain.RESULT.read_text())["models"]
    pretrain.write(pretrain.RESULT, again | {"models": again["models"][:-1]})
    pretrain.measure_all(small)
    assert len(measured) == 18
    monkeypatch.setattr(pretrain, "BATCH", 19)  # other settings
    pretrain.measure_all(small)
    assert len(measured) == 34


@pytest.fixture
def known():
    """Three layers of 300 samples, of which the second knows nothing of the three classes."""
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 3
    knowing = np.eye(3)[labels] + 0.05 * rng.normal(size=(300, 3))
    arrays = [np.float32(X) for X in (knowing, rng.normal(size=(300, 3)), knowing[:, ::-1])]
    rows = rng.permutation(300)
    task = tasks.Task(
        inputs=[*np.float32(knowing)],
        labels=labels,
        classes=["a", "b", "c"],
        train=rows[:100],
        validation=rows[100:200],
        test=rows[200:],
        licence="",
        source="",
        modality="image",
        groups=np.arange(300),
    )
    return LayerFeatures(["embedding", "layer1", "layer2"], arrays), task


def test_a_layer_that_knows_is_told_from_one_that_does_not(known):
    layers, task = known
    first, second, third = pretrain.describe(layers, task)
    assert first["accuracy"] == third["accuracy"] == 1.0
    assert abs(second["accuracy"] - 1 / 3) < 0.15
    assert first["loo_loss"] < 0.1 < 0.9 < second["loo_loss"]
    assert first["triangle_share"] > 0.8 > 0.2 > second["triangle_share"]
    assert second["spectral_entropy"] > 0.9
    assert pretrain.pixel_probe(task) == 1.0


def test_what_pretraining_has_seen_is_not_learnt_from(known):
    layers, task = known
    spoilt = [X.copy() for X in layers]
    for X in spoilt:
        X[task.train] = np.random.default_rng(1).normal(size=(100, 3))
    unseen = replace(task, source="animal-mnist")
    spoilt = LayerFeatures(layers.names, spoilt)
    assert pretrain.describe(spoilt, unseen)[0]["accuracy"] == 1.0
    assert pretrain.describe(spoilt, task)[0]["loo_loss"] > 0.4


@pytest.mark.filterwarnings("ignore::loes.SelectionWarning")
def test_methods_and_all_sets_of_layers_are_judged(known, monkeypatch):
    monkeypatch.setattr(pretrain, "JUDGED", ("last layer", "random k", "LOES bounded"))
    monkeypatch.setattr(pretrain, "JUDGED_WITH_GEOREG", ("last layer", "LOES bounded"))
    monkeypatch.setattr(pretrain, "JUDGED_WHITENED", ("last layer", "LOES bounded"))
    monkeypatch.setattr(pretrain, "K", 1)
    shorter = partial(pretrain.evaluate, epochs=5, seeds=range(2))
    monkeypatch.setattr(pretrain, "evaluate", shorter)
    layers, task = known
    layers = LayerFeatures(
        layers.names, [layers[0], layers[2], layers[1]]
    )  # the last knows nothing
    found = pretrain.measure(layers, task, with_georeg=True)
    assert "GeoReg" not in pretrain.measure(layers, task, with_georeg=False)
    assert found["picks"]["LOES bounded"][0] in (0, 1)
    sets = found["concatenated"]
    assert len(sets["every set"]) == 3
    assert sets["every set"][:2] == [1.0, 1.0]
    assert sets["every set"][2] == sets["last layer"] < 0.5
    assert sets["LOES bounded"] == sets["all layers"] == 1.0
    for kind, others in (("plain", ["random k"]), ("whitened", []), ("GeoReg", [])):
        table = {row["method"]: row for row in found[kind]["scores"]}
        judged = ["last layer", *others, "LOES bounded"]
        assert [*table] == ["chance", "last layer, shuffled labels", *judged]
        assert table["LOES bounded"]["mean"] > 0.9
        assert len(table["LOES bounded"]["layers"]) == 2
        assert set(found[kind]) == {"scores", "last layer", *others}
        for reference in set(found[kind]) - {"scores"}:
            gains = {row["method"]: row for row in found[kind][reference]}
            assert [*gains] == [name for name in table if name != reference]
            gain = table["LOES bounded"]["mean"] - table[reference]["mean"]
            assert gains["LOES bounded"]["difference"] == pytest.approx(gain)
            assert gains["LOES bounded"]["low"] <= gain <= gains["LOES bounded"]["high"]


def test_whitened_directions_are_alike_and_those_of_rounding_are_gone():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)) @ rng.normal(size=(4, 6)) + 5  # four directions of six
    scaled = X * np.array([1, 10, 100, 1, 0.1, 1])
    rows = np.arange(300)
    task = tasks.Task([], rows % 2, ["a", "b"], rows[:100], rows[100:150], rows[150:], *"abc", rows)
    for source, known in (("b", rows[:150]), ("animal-mnist", rows[100:150])):
        layers = LayerFeatures(["embedding"], [scaled.astype(np.float32)])
        (found,) = pretrain.whitened(layers, replace(task, source=source))
        assert found.shape == (300, 4)
        np.testing.assert_allclose(np.cov(found[known].T), np.eye(4), atol=1e-3)
        assert np.abs(np.cov(found[150:].T) - np.eye(4)).max() > 0.02


def test_readable_pixels_are_all_of_them_before_any_block_and_none_behind_a_blank(small):
    encoder, task = pretrain.initial(0), small["animals"]
    shares = pretrain.readable_pixels(encoder, task)
    assert len(shares) == 13
    assert shares[0] > 0.99  # 64 numbers hold the 16 pixels of a patch
    for layer in encoder.layers:  # a network that writes over what it was given
        layer.register_forward_hook(lambda module, args, out: torch.zeros_like(out))
    # the state behind the first block is recorded before the hook
    assert max(pretrain.readable_pixels(encoder, task)[2:]) < 0.01

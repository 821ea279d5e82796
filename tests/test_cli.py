"""What the commands write and print, against the package's own functions; and what they refuse."""

import json
import re
import shutil
import warnings
from functools import wraps
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors import SafetensorError
from transformers import AutoModel, BertConfig, BertModel, ViTConfig, ViTImageProcessor, ViTModel

from loes import LOES, LayerFeatures, SelectionWarning, extract_layers, run, zoo
from loes.cli import app
from loes.store import fingerprint_inputs

ANIMALS = {"cat": ["the cat sat", "a cat ran"], "dog": ["the dog ran", "a dog sat"]}
PLACES = ["on the mat", "far away", "far on a mat", "away", "on a mat far away"]


def write_posts(path, n=40, **columns):
    """A table of n different sentences on two animals, each with a place, a length and a group."""
    rng = np.random.default_rng(0)
    labels = [list(ANIMALS)[row % 2] for row in range(n)]
    texts = [
        " ".join([ANIMALS[l][row % 3 % 2], *rng.choice(PLACES, 2)]) for row, l in enumerate(labels)
    ]
    length = [float(len(text)) + 0.5 for text in texts]
    author = [f"author {row // 2 % 10}" for row in range(n)]
    frame = pd.DataFrame({"text": texts, "animal": labels, "length": length, "author": author})
    frame.assign(**columns).to_csv(path, index=False)
    return texts, labels


@pytest.fixture(scope="module")
def tiny():
    """A BERT of three blocks of width 8: D = 32 over four layers."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
    # Large weights, or else all layers are the same up to rounding.
    config = BertConfig(vocab_size=14, num_hidden_layers=3, initializer_range=0.5, **sizes)
    return BertModel(config).eval()


@pytest.fixture
def folder(tmp_path, tiny, make_tokenizer, monkeypatch):
    """A working directory with the model, `posts.csv` and nothing else."""
    monkeypatch.chdir(tmp_path)
    tiny.save_pretrained("bert")
    make_tokenizer().save_pretrained("bert")
    write_posts("posts.csv")
    return tmp_path


@pytest.fixture
def loes(capsys):
    """Run a command; return its exit code, and what it wrote to stdout and stderr."""

    def call(*arguments):
        with pytest.raises(SystemExit) as exit:
            app([*map(str, arguments)], prog_name="loes")
        return exit.value.code, *capsys.readouterr()

    return call


TEXTS = ("--model", "bert", "--data", "posts.csv", "--text-column", "text", "--no-progress")
SELECT = ("select", *TEXTS, "--label-column", "animal", "--out", "out")
LAYERS = ("layers", *TEXTS, "--label-column", "animal", "--out", "out")


@pytest.fixture
def count_forward(monkeypatch):
    """Count the texts that go through the model."""
    seen = []
    forward = BertModel.forward

    @wraps(forward)
    def counted(self, *args, **kwargs):
        seen.extend(kwargs["input_ids"])
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(BertModel, "forward", counted)
    return seen


def test_select_writes_what_the_package_gives(folder, loes, tiny, make_tokenizer):
    code, out, err = loes(*SELECT, "-k", 2, "--criterion", "bounded")
    assert code == 0, err
    texts, labels = write_posts("posts.csv")
    features = extract_layers(tiny, texts, processor=make_tokenizer(), progress=False)
    expected = LOES(2, criterion="bounded").fit(features, labels)

    content = json.loads((folder / "out/selection.json").read_text())
    assert [layer["index"] for layer in content["selected"]] == expected.selected_
    names = [features.names[layer] for layer in expected.selected_]
    assert [layer["name"] for layer in content["selected"]] == names
    assert content["layers"] == ["embedding", "layer1", "layer2", "layer3"]
    assert content["criterion"] | {"alpha": 0.1, "name": "bounded"} == content["criterion"]
    assert content["data"]["classes"] == ["cat", "dog"]
    assert (content["data"]["n"], content["features"]["pooling"]) == (40, "mean")
    assert content["versions"]["torch"] == torch.__version__
    steps = [len(step["candidates"]) for step in content["steps"]]
    assert steps == [4, 3]
    first = content["steps"][0]["candidates"][0]
    assert first["loss"] == pytest.approx(expected.path_["loss"][0], rel=1e-6)
    assert "red" not in first  # there is no redundancy before the first pick

    path = pd.read_csv("out/path.csv")
    pd.testing.assert_frame_equal(path.drop(columns="name"), expected.path_, rtol=1e-5)
    for name in ("path.png", "redundancy.png"):
        with Image.open(folder / "out" / name) as figure:
            assert min(figure.size) > 200
    assert sorted(file.name for file in (folder / "out").iterdir()) == [
        *("features", "path.csv", "path.png", "redundancy.png", "selection.json")
    ]
    assert len(re.findall("pick", out)) == 2
    assert f"Selected: {names[0]} ({expected.selected_[0]})" in out
    assert "Task: classification of " in out


@pytest.mark.parametrize(
    ("criterion", "k", "target"),
    [
        ("paper", "2", "animal"),
        ("bounded", "auto", "animal"),
        ("bounded", "2", "length"),
        ("paper", "2", None),
    ],
)
def test_many_samples_are_streamed_to_the_same_selection(
    folder, loes, tiny, make_tokenizer, monkeypatch, criterion, k, target
):
    def in_memory(*_):
        raise AssertionError("100 samples are more than 2 D = 64")

    monkeypatch.setattr(run, "SHARD", 16)
    monkeypatch.setattr(LOES, "fit", in_memory)
    texts, labels = write_posts("posts.csv", n=100)
    lengths = pd.read_csv("posts.csv")["length"].to_numpy()
    label = [] if target is None else ["--label-column", target]
    code, _, err = loes("select", *TEXTS, *label, "--out", "out", "-k", k, "--criterion", criterion)
    assert code == 0, err
    assert len(list((folder / "out/features").glob("shard-*"))) == 7
    monkeypatch.undo()

    y = {"animal": labels, "length": lengths, None: None}[target]
    features = extract_layers(tiny, texts, processor=make_tokenizer(), progress=False)
    double = LayerFeatures(features.names, [X.astype(np.float64) for X in features])
    selector = LOES(int(k) if k != "auto" else k, criterion=criterion)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SelectionWarning)  # on a random model, iso decides
        expected = selector.fit(double, y)
    path = pd.read_csv(folder / "out/path.csv").drop(columns="name")
    pd.testing.assert_frame_equal(path, expected.path_, rtol=1e-6, check_dtype=False)


def test_a_second_run_reads_the_features(folder, loes, count_forward):
    assert loes(*SELECT)[0] == 0
    before = len(count_forward)
    first = (folder / "out/selection.json").read_bytes()
    assert before == 41  # one to see which layers there are
    assert loes(*SELECT)[0] == 0
    assert len(count_forward) == before + 1
    assert (folder / "out/selection.json").read_bytes() == first
    assert loes(*SELECT, "-k", 1)[0] == 0  # another selection from the same features
    assert len(json.loads((folder / "out/selection.json").read_text())["selected"]) == 1


def test_other_features_are_refused(folder, loes, count_forward):
    assert loes(*SELECT)[0] == 0
    before = (folder / "out/selection.json").read_bytes(), len(count_forward)
    code, _, err = loes(*SELECT, "--pooling", "cls")
    assert code == 2
    assert "pooling" in err
    assert (folder / "out/selection.json").read_bytes() == before[0]
    assert len(count_forward) == before[1] + 1


def test_results_without_their_features_are_taken_for_ours(folder, loes):
    assert loes(*SELECT)[0] == 0
    shutil.rmtree(folder / "out/features")
    assert loes(*SELECT, "--limit", 30)[0] == 0


def test_a_seed_is_not_negative(folder, loes):
    code, _, err = loes(*SELECT, "--seed", -1)
    assert code == 2
    assert "seed" in err


def test_a_failed_write_leaves_the_old_results(folder, loes, monkeypatch):
    assert loes(*SELECT)[0] == 0
    before = {file.name: file.read_bytes() for file in (folder / "out").iterdir() if file.is_file()}

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("loes.cli._draw", full)  # path.csv has been drafted before
    code, _, err = loes(*SELECT, "-k", 1)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "No space left on device: 'out'" in err
    after = {file.name: file.read_bytes() for file in (folder / "out").iterdir() if file.is_file()}
    assert after == before


EVERY = [word for layer in range(4) for word in ("--exclude", layer)]
FIRST = ["--include", "0", "--include", "1"]
# Arguments that come after SELECT and win over those there, and what the message has to name.
REFUSED = {
    "no such data": (["--data", "nothing.csv"], "'nothing.csv'"),
    "unknown format": (["--data", "notes.txt"], "notes.txt"),
    "unknown column": (["--text-column", "texts"], r"\['text', 'animal', 'length', 'author',"),
    "unknown label": (["--label-column", "animals"], "Did you mean 'animal'"),
    "one class": (["--label-column", "same"], "^Error: the label column .* or leave out --label"),
    "no class twice": (["--label-column", "price"], "40 classes .* --task regression if"),
    "a table has no splits": (["--split", "validation"], "'validation'.* leave out --split"),
    "an incomplete model": (["--model", "bert5"], r"bert5 are incomplete: 32 .*layer\.3"),
    "weights of another width": (["--model", "bert16"], "cannot load 'bert16'"),
    "nothing to pick": (["-k", "auto", *EVERY], "--exclude .* leaves no layer"),
    "a negative layer": (["--include", "-1"], r"--include must .* from 0; got \[-1\]"),
    "too many first": (["-k", "1", *FIRST], "--include .* than -k 1; raise -k to 2"),
    "no room": (["--max-length", "2"], "--max-length 2 leaves no room"),
    "missing label": (["--label-column", "gaps"], "'gaps'.*row"),
    "no column": (["--text-column", ""], "--text-column"),
    "two columns": (["--image-column", "animal"], "--text-column and --image-column"),
    "another kind": (["--text-column", "", "--audio-column", "text"], "--text-column"),
    "no such model": (["--model", "nowhere"], "'nowhere'.*minilm"),
    "empty model": (["--model", "empty"], "'empty'"),
    "too many layers": (["-k", "9"], "<= 4"),
    "no number": (["-k", "some"], "'some'"),
    "no layers": (["-k", "0"], "whole number from 1"),
    "no length": (["--max-length", "nan"], "--max-length must"),
    "endless": (["--max-length", "inf"], "--max-length must"),
    "half a letter": (["--data", "halves.jsonl"], r"inputs\[3\] is no text.*surrogates"),
    "criterion": (["--criterion", "papre"], "'papre'"),
    "weight": (["--alpha", "-1"], "alpha"),
    "task": (["--task", "ranking"], "'ranking'"),
    "unknown layer": (["--exclude", "7"], "exclude"),
    "pooling": (["--pooling", "max"], "'max'"),
    "pooling of frames": (["--final-norm", "twice"], "'twice'"),
    "device": (["--device", "abacus"], "'abacus'"),
    "length": (["--max-length", "-3"], "--max-length must"),
    "foreign folder": (["--out", "empty/.."], "other files"),
    "a file": (["--out", "notes.txt"], "notes.txt is a file"),
}


@pytest.mark.parametrize(("arguments", "named"), REFUSED.values(), ids=REFUSED)
def test_mistakes_cost_one_line_and_nothing_else(folder, loes, count_forward, arguments, named):
    write_posts("posts.csv", same="cat", gaps=["cat", *["dog"] * 38, ""], price=range(40))
    for name, change in (("bert5", {"num_hidden_layers": 5}), ("bert16", {"hidden_size": 16})):
        shutil.copytree("bert", name)
        config = json.loads((folder / name / "config.json").read_text()) | change
        (folder / name / "config.json").write_text(json.dumps(config))
    (folder / "empty").mkdir()
    (folder / "notes.txt").write_text("the cat sat")
    rows = [{"text": "a \ud800" if row == 3 else "cat", "animal": str(row % 2)} for row in range(9)]
    (folder / "halves.jsonl").write_text("\n".join(map(json.dumps, rows)))
    before = sorted(folder.rglob("*"))
    code, out, err = loes(*SELECT, *arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    assert re.search(named, err), err
    assert len(count_forward) <= 1
    assert sorted(folder.rglob("*")) == before


def test_a_constant_layer_can_be_excluded(folder, loes):
    """Under cls pooling, the embedding is the same for all texts."""
    code, _, err = loes(*SELECT, "--pooling", "cls")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "--exclude 0" in err
    code, out, err = loes(*SELECT, "--pooling", "cls", "-k", 2, "--exclude", 0)
    assert code == 0, err
    assert "redundancy.png" in out
    assert (folder / "out/redundancy.png").exists()
    assert json.loads((folder / "out/selection.json").read_text())["exclude"] == [0]


def test_a_figure_that_cannot_be_drawn_holds_no_result_up(folder, loes, monkeypatch):
    assert loes(*SELECT)[0] == 0

    def undrawable(*_, **__):
        raise ValueError("nothing to see")

    monkeypatch.setattr("loes.plots.plot_redundancy", undrawable)
    code, out, err = loes(*SELECT, "-k", 1)
    assert code == 0, err
    assert "Note: no redundancy.png: nothing to see" in err
    assert "redundancy.png" not in out
    assert not (folder / "out/redundancy.png").exists()  # that of the run before
    assert len(json.loads((folder / "out/selection.json").read_text())["selected"]) == 1


def test_notes_speak_of_options(folder, loes):
    code, _, err = loes(*SELECT, "--alpha", 1e6)  # isotropy decides alone
    assert code == 0
    assert "or use --criterion bounded." in err
    assert "warnings." not in err
    (note,) = json.loads((folder / "out/selection.json").read_text())["warnings"]
    assert "criterion='bounded'" in note


def test_auto_needs_labels(folder, loes, count_forward):
    code, _, err = loes("select", *TEXTS, "--out", "out", "-k", "auto")
    assert (code, len(err.splitlines()), count_forward) == (2, 1, [])
    assert "--label-column" in err


def test_bugs_keep_their_traceback(folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(run, "SHARD", None)
        with pytest.raises(TypeError, match="unsupported operand"):
            app([*SELECT])

    def bug(*_):
        return int("the machine, not the user")

    monkeypatch.setattr(run, "run_selection", bug)
    with pytest.raises(ValueError, match="invalid literal"):
        app([*SELECT])


def test_interruption(folder, loes, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_selection", interrupt)
    code, out, err = loes(*SELECT)
    assert (code, out, len(err.splitlines())) == (130, "", 1)
    assert "same command" in err


def test_without_the_plots_extra(folder, loes, monkeypatch):
    monkeypatch.setattr("loes.cli.find_spec", lambda name: None)
    code, _, err = loes(*SELECT, "--criterion", "bounded")
    assert code == 0
    assert "loes[plots]" in err.splitlines()[0]
    assert sorted(file.name for file in (folder / "out").iterdir()) == [
        *("features", "path.csv", "selection.json")
    ]


def test_limit_draws_a_sample_in_order(folder, loes):
    assert loes(*SELECT, "--limit", 12, "--seed", 3)[0] == 0
    content = json.loads((folder / "out/selection.json").read_text())
    assert (content["data"]["n"], content["data"]["seed"]) == (12, 3)
    source = run.Source.read("posts.csv", {"text": "text"}, "animal", limit=12, seed=3)
    whole = pd.read_csv("posts.csv")
    rows = np.sort(np.random.default_rng(3).choice(40, 12, replace=False))
    assert source.examples.inputs == whole["text"][rows].tolist()
    assert source.examples.labels.tolist() == whole["animal"][rows].tolist()


@pytest.mark.parametrize("command", ["select", "layers", "export"])
def test_help_has_an_example(loes, command):
    code, out, _ = loes(command, "--help")
    assert code == 0
    assert re.search(rf"Examples?:\n +loes {command} --", out)


def test_a_model_of_the_zoo_gets_its_prefix(folder, loes, tiny, make_tokenizer, monkeypatch):
    monkeypatch.setitem(zoo.MODELS, "tiny", SimpleNamespace(prefix="the dog ", modules=None))
    monkeypatch.setattr(zoo, "load", lambda name: (tiny, make_tokenizer()))
    assert loes(*SELECT, "--model", "tiny")[0] == 0
    texts, _ = write_posts("posts.csv")
    content = json.loads((folder / "out/selection.json").read_text())
    assert content["model"]["prefix"] == "the dog "
    prefixed = fingerprint_inputs(["the dog " + text for text in texts])
    assert content["features"]["inputs"] == prefixed


def test_images_in_class_folders(folder, loes):
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
    config = ViTConfig(num_hidden_layers=2, image_size=16, patch_size=8, **sizes)
    ViTModel(config).save_pretrained("vit")
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained("vit")
    rng = np.random.default_rng(0)
    for row in range(12):
        name = folder / "pictures" / ["cat", "dog"][row % 2] / f"{row}.png"
        name.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 100, (16, 16, 3)) + 100 * (row % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(name)
    pictures = ("select", "--model", "vit", "--data", "pictures", "--out", "out", "-k", 1)
    code, _, err = loes(*pictures, "--criterion", "bounded", "--no-progress")
    assert code == 0, err
    content = json.loads((folder / "out/selection.json").read_text())
    assert content["layers"] == ["embedding", "layer1", "layer2"]
    assert content["data"]["classes"] == ["cat", "dog"]

    (folder / "pictures/dog/1.png").write_bytes(b"no picture")
    code, _, err = loes(*pictures, "--no-progress", "--out", "other")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "dog/1.png" in err
    assert not (folder / "other").exists()
    code, _, err = loes(*pictures, "--label-column", "animal")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "class folders" in err

    whole = (folder / "pictures/dog/3.png").read_bytes()
    (folder / "pictures/dog/1.png").write_bytes(whole[:-30])  # its header is as it should be
    code, _, err = loes(*pictures, "--no-progress", "--out", "mended")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "dog/1.png" in err
    (folder / "pictures/dog/1.png").write_bytes(whole)
    assert loes(*pictures, "--no-progress", "--out", "mended", "--criterion", "bounded")[0] == 0


def test_splits_keep_groups_together_and_classes_even():
    y = np.repeat(["a", "b", "c"], [20, 40, 20])
    groups = np.arange(80) // 2 % 16
    for train, test in run.held_out_splits(y, groups, "classification"):
        assert not set(groups[train]) & set(groups[test])
        assert len(set(groups[test])) == 4
    splits = run.held_out_splits(y, None, "classification", n_splits=3, seed=1)
    assert len(splits) == 3
    for train, test in splits:
        assert sorted([*train, *test]) == list(range(80))
        assert np.unique(y[test], return_counts=True)[1].tolist() == [5, 10, 5]
    again = run.held_out_splits(y, None, "classification", n_splits=3, seed=1)
    assert all((a[1] == b[1]).all() for a, b in zip(splits, again, strict=True))
    assert not (splits[0][1] == splits[1][1]).all()


@pytest.mark.parametrize(
    ("y", "groups", "task", "message"),
    [
        (["a"] * 9 + ["b"] * 3, None, "classification", "'b' has 3"),
        (["a", "b"] * 9, ["x", "y", "z"] * 6, "classification", "at least 4 groups; got 3"),
        (
            ["a"] * 12 + ["b"] * 4,
            ["w", "x", "y", "z"] * 3 + ["v"] * 4,
            "classification",
            "one class",
        ),
        (np.arange(7.0), None, "regression", "at least 8 samples; got 7"),
    ],
)
def test_splits_that_cannot_be(y, groups, task, message):
    with pytest.raises(ValueError, match=message):
        run.held_out_splits(np.array(y), groups and np.array(groups), task)


def test_probes_tell_signal_from_noise():
    rng = np.random.default_rng(0)
    y = np.repeat(["a", "b", "c"], [60, 30, 30])
    codes = np.eye(3)[np.unique(y, return_inverse=True)[1]]
    layers = LayerFeatures(
        ["noise", "signal"],
        [rng.normal(size=(120, 3)), 1e3 + codes + 0.01 * rng.normal(size=(120, 3))],
    )
    splits = run.held_out_splits(y, None, "classification")
    table = run.probe_layers(layers, y, splits, "classification", progress=False)
    assert table.columns.tolist() == ["layer", "accuracy", "spread", "chance"]
    assert table["layer"].tolist() == ["noise", "signal"]
    assert table["chance"].tolist() == [0.5, 0.5]
    assert table["accuracy"][1] == 1
    assert table["spread"][1] == 0
    assert 0.3 < table["accuracy"][0] < 0.6
    target = 5 + layers[1][:, 0] + 2 * layers[1][:, 1]
    splits = run.held_out_splits(target, None, "regression")
    table = run.probe_layers(layers, target, splits, "regression", progress=False)
    assert table.columns[1] == "r2"
    assert table["r2"][1] > 0.999
    assert table["r2"][0] < 0.2
    assert -0.2 < table["chance"][0] <= 0


def test_layers_command(folder, loes, tiny, make_tokenizer):
    code, out, err = loes(*LAYERS, "--group-column", "author", "--splits", 3)
    assert code == 0, err
    texts, labels = write_posts("posts.csv")
    authors = pd.read_csv("posts.csv")["author"].to_numpy()
    features = extract_layers(tiny, texts, processor=make_tokenizer(), progress=False)
    splits = run.held_out_splits(np.array(labels), authors, "classification", 3)
    expected = run.probe_layers(
        features, np.array(labels), splits, "classification", progress=False
    )
    pd.testing.assert_frame_equal(pd.read_csv(folder / "out/layers.csv"), expected)
    with Image.open(folder / "out/layers.png") as figure:
        assert min(figure.size) > 200
    assert "for looking only" in out
    code, _, err = loes("layers", *TEXTS, "--out", "out")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "--label-column" in err


def test_export_keeps_what_the_selection_needs(folder, loes, tiny, make_tokenizer):
    assert loes(*SELECT, "-k", 1, "--include", 2)[0] == 0
    code, out, err = loes("export", "--selection", "out/selection.json", "--out", "small")
    assert code == 0, err
    small = AutoModel.from_pretrained("small")
    assert small.config.num_hidden_layers == 2
    assert "parameters" in out
    assert "loes.json" in out
    texts, _ = write_posts("posts.csv")
    mine = extract_layers(small, texts, processor=make_tokenizer(), progress=False)
    wanted = extract_layers(tiny, texts, processor=make_tokenizer(), progress=False)
    np.testing.assert_allclose(mine[2], wanted[2], atol=1e-6)


def test_export_refuses_other_weights_and_files(folder, loes):
    assert loes(*SELECT)[0] == 0
    content = json.loads((folder / "out/selection.json").read_text())
    del content["model"]
    (folder / "damaged.json").write_text(json.dumps(content))
    other = BertModel(AutoModel.from_pretrained("bert").config)
    other.save_pretrained("bert")
    export = ("export", "--out", "small", "--selection")
    for file, named in (
        ("out/selection.json", "other weights"),
        ("bert/config.json", "loes.selection/1"),
        ("posts.csv", "damaged"),
        ("nothing.json", "nothing.json"),
        ("damaged.json", "the selection is damaged, it lacks 'model'; run loes select again"),
    ):
        code, _, err = loes(*export, file)
        assert (code, len(err.splitlines())) == (2, 1), err
        assert named in err
    assert not (folder / "small").exists()


def test_export_names_a_full_disk(folder, loes, monkeypatch):
    assert loes(*SELECT, "-k", 1)[0] == 0

    def full(*_, **__):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(BertModel, "save_pretrained", full)
    code, _, err = loes("export", "--selection", "out/selection.json", "--out", "small")
    assert (code, len(err.splitlines())) == (2, 1), err
    assert "cannot write small: I/O error: No space left" in err
    assert not (folder / "small").exists()

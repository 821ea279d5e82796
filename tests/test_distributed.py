"""Two processes give what one gives, also after one of them was killed."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.multiprocessing
from transformers import BertConfig, BertModel

from loes import LayerStatistics, extract_layers, run
from loes.cli import app
from loes.distributed import Process, all_reduce, process_group
from loes.store import FeatureStore

NAMES = ["layer 0", "layer 1"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def in_process(rank, size, port, work):
    """Run `work(rank)` where torchrun would have started it."""
    os.environ |= {
        **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
    }
    torch.set_num_threads(1)
    work(rank)


def run_processes(work, size=2):
    """Run `work(rank)` in forked processes and return their exit codes."""
    context, port = torch.multiprocessing.get_context("fork"), free_port()
    workers = [
        context.Process(target=in_process, args=(rank, size, port, work)) for rank in range(size)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=300)
    return [worker.exitcode for worker in workers]


def results_of(work, folder, size=2):
    """Return what `work(rank)` gives in each of several connected processes."""

    def connected(rank):
        with process_group(torch.device("cpu")):
            np.save(folder / f"{rank}.npy", work(rank), allow_pickle=True)

    assert run_processes(connected, size) == [0] * size
    return [np.load(folder / f"{rank}.npy", allow_pickle=True).item() for rank in range(size)]


def make_samples(n=60, seed=0, offset=0.0):
    """Two layers of widths 3 and 2, far from the origin if `offset` is large."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, d)) + offset for d in (3, 2)]


def gather(layers, y, parts, task="auto"):
    """Return a function of the rank: the reduced statistics over its part of the samples."""

    def work(rank):
        statistics = LayerStatistics(task)
        rows = parts[rank]
        if len(rows):
            statistics.update([X[rows] for X in layers], None if y is None else y[rows])
        total = all_reduce(statistics)
        return {**vars(total), "_mean": total._mean.numpy(), "_gram": total._gram.numpy()}

    return work


def one_hot(y):
    return np.stack([y == label for label in sorted(set(y.tolist()))], axis=1).astype(float)


# Process 0 sees "b" and "c", process 1 "a" and "c"; the third case leaves one without samples.
LABELS = np.array(["b", "c"] * 15 + ["c", "a"] * 15)
HALVES = [np.arange(30), np.arange(30, 60)]
PARTS = {
    "halves": HALVES,
    "uneven": [np.arange(1), np.arange(1, 60)],
    "first has none": [np.arange(0), np.arange(60)],
    "last has none": [np.arange(60), np.arange(0)],
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_moments_are_those_of_all_samples(parts, tmp_path):
    layers = make_samples(offset=1e6)
    for total in results_of(gather(layers, LABELS, parts), tmp_path):
        Z = np.hstack([*layers, one_hot(LABELS)])
        assert total["n"] == 60
        assert total["classes"] == ["a", "b", "c"]
        assert (total["names"], total["widths"]) == (NAMES, [3, 2])
        np.testing.assert_allclose(total["_mean"], Z.mean(0), rtol=1e-14)
        # Not centred, entries of 1e13 would leave three digits.
        np.testing.assert_allclose(total["_gram"], np.cov(Z.T, bias=True) * 60, atol=1e-8)


def test_regression_targets_and_label_free(tmp_path):
    layers = make_samples()
    for y in (layers[0] @ [[1.0], [2.0], [3.0]] + 1e6, None):
        Z = np.hstack([*layers, *([] if y is None else [y])])
        for total in results_of(gather(layers, y, HALVES), tmp_path):
            assert total["classes"] is None
            np.testing.assert_allclose(total["_gram"], np.cov(Z.T, bias=True) * 60, atol=1e-8)


def test_without_any_sample_and_alone(tmp_path):
    nothing = [np.arange(0), np.arange(0)]
    for total in results_of(gather(make_samples(), LABELS, nothing), tmp_path):
        assert total["n"] == 0
    alone = LayerStatistics()
    assert all_reduce(alone) is alone


def test_different_layers_are_refused_by_all(tmp_path):
    def work(rank):
        statistics = LayerStatistics()
        statistics.update(make_samples()[: rank + 1], LABELS)
        with pytest.raises(ValueError, match=r"processes 0 and 1 saw different things: .*layer 1"):
            all_reduce(statistics)
        return "refused"

    assert results_of(work, tmp_path) == ["refused"] * 2


def test_shards_are_dealt_out():
    shares = [list(Process(rank, 3, rank).share(8)) for rank in range(3)]
    assert sorted(shares[0] + shares[1] + shares[2]) == list(range(8))
    assert max(map(len, shares)) - min(map(len, shares)) == 1
    assert list(Process(2, 3, 2).share(2)) == []


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert Process(3, 4, 1).device() == torch.device("cuda", 1)
    assert Process(0, 1, 0).device("cuda:1") == torch.device("cuda", 1)
    assert Process(0, 1, 0).device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="4 processes cannot share cuda:1"):
        Process(3, 4, 1).device("cuda:1")
    with pytest.raises(ValueError, match=r"GPU number 2 .* but 2 are there"):
        Process(2, 4, 2).device("cuda")


@pytest.fixture
def shared(tmp_path, make_tokenizer, monkeypatch):
    """Features of ten texts in shards of four."""
    monkeypatch.setattr(run, "SHARD", 4)
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertModel(BertConfig(vocab_size=14, num_hidden_layers=1, **sizes))
    texts = [f"{a} {b}" for a in ("cat", "dog") for b in ("sat", "ran", "on", "far", "away")]
    options = {"processor": make_tokenizer(), "progress": False}
    features = run.SharedFeatures(model, texts, tmp_path / "features", Process(0, 1, 0), options)
    assert [rows for rows, _ in features.own()] == [slice(0, 4), slice(4, 8), slice(8, 10)]
    return features


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_every_so_many_samples(shared, every):
    whole = extract_layers(shared.model, shared.inputs, **shared.options)
    thinned = shared.load(every)
    assert thinned.names == whole.names
    for X, Y in zip(thinned, whole, strict=True):
        np.testing.assert_allclose(X, Y[::every], atol=1e-6)
    rows = [np.arange(10)[part] for part, _ in shared.stored(every)]
    assert np.concatenate(rows).tolist() == list(range(0, 10, every))


def test_a_missing_shard_says_what_to_share(shared):
    (shared.folder / "shard-00001.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"shard 1 is missing .* file system that they"):
        shared.load()


def torchrun(*arguments):
    port = str(free_port())
    launcher = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", port]
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *launcher, *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )


def die_after_a_shard(monkeypatch):
    """Let process 1 be killed as soon as it has finished a shard."""
    write = FeatureStore.write

    def write_and_die(self, shard, features):
        write(self, shard, features)
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(FeatureStore, "write", write_and_die)


def test_two_processes_select_as_one_and_resume(tmp_path, make_tokenizer, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=14, num_hidden_layers=2, initializer_range=0.5, **sizes)
    BertModel(config).save_pretrained("bert")
    make_tokenizer().save_pretrained("bert")
    # Three shards, sorted by class: one process never sees "a", the other never "c".
    labels = np.repeat(["a", "b", "c"], [900, 1100, 400])
    rng = np.random.default_rng(0)
    words = {"a": ["cat", "sat", "far"], "b": ["dog", "ran", "far"], "c": ["mat", "on", "far"]}
    texts = [" ".join(rng.choice(words[label], 6)) for label in labels]
    pd.DataFrame({"text": texts, "label": labels}).to_csv("posts.csv", index=False)
    arguments = ["select", "--model", "bert", "--data", "posts.csv", "--text-column", "text"]
    arguments += ["--label-column", "label", "-k", "2", "--criterion", "bounded", "--no-progress"]

    with monkeypatch.context() as patch:
        die_after_a_shard(patch)
        codes = run_processes(lambda rank: app([*arguments, "--out", "two"]))
    assert codes == [1, -signal.SIGKILL]  # the other one ends as well, with an error
    assert not Path("two/selection.json").exists()
    shard = Path("two/features/shard-00001.safetensors")
    finished = shard.stat().st_mtime_ns

    rerun = torchrun("-m", "loes", *arguments, "--out", "two")
    assert rerun.returncode == 0, rerun.stderr
    assert rerun.stdout.count("Selected:") == 1
    assert shard.stat().st_mtime_ns == finished

    with pytest.raises(SystemExit) as end:
        app([*arguments, "--out", "one"])
    assert end.value.code == 0, capfd.readouterr().err
    one, two = (pd.read_csv(f"{folder}/path.csv") for folder in ("one", "two"))
    pd.testing.assert_frame_equal(one, two, rtol=1e-8)
    layers = ["layers", *arguments[1:9], "--no-progress", "--out"]
    assert run_processes(lambda rank: app([*layers, "two"])) == [0, 0]
    assert run_processes(lambda rank: app([*layers, "one"]), 1) == [0]
    assert Path("one/layers.csv").read_bytes() == Path("two/layers.csv").read_bytes()
    for number in range(3):
        name = f"features/shard-{number:05d}.safetensors"
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes()

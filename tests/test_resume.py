"""An extraction that is killed (SIGKILL) goes on where it was, and leaves the same bytes."""

import os
import time
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

from loes import extract_layers
from loes.extract import stream_layers

WORDS = ["the", "cat", "sat", "on", "mat", "a", "dog", "ran", "far", "away"]
TEXTS = [" ".join(WORDS[i % 7 : i % 7 + 1 + i % 3]) + f" {WORDS[i % 10]}" for i in range(22)]
SETTINGS = {"pooling": "mean", "batch_size": 2, "shard_size": 4, "progress": False}
N_SHARDS = 6  # of 4 texts, and 2 in the last
# Imports the libraries once and then starts a process at once, which `spawn` does not.
CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["loes.extract"])


@contextmanager
def counted_samples(stop_after=float("inf")):
    """Yield the batch sizes that went through the model; hang once there were more samples."""
    sizes = []

    def count(module, args, output):
        if isinstance(module, BertModel):
            sizes.append(len(output[0]))
            if sum(sizes) > stop_after:
                time.sleep(600)

    hook = register_module_forward_hook(count)
    try:
        yield sizes
    finally:
        hook.remove()


def extract_until(model, cache, stop_after, unfinished):
    """Extract in a process of its own, which hangs at some point and waits to be killed."""
    torch.set_num_threads(1)
    fsync = os.fsync

    def stop_in_the_middle(descriptor):
        if len(shards_in(cache)) == unfinished:
            os.truncate(descriptor, 100)
            time.sleep(600)
        fsync(descriptor)

    if unfinished is not None:
        os.fsync = stop_in_the_middle
    with counted_samples(stop_after):
        extract_layers(model, TEXTS, cache=cache, **SETTINGS)


def shards_in(cache):
    return sorted(cache.glob("shard-*.safetensors"))


def temporaries_in(cache):
    return sorted(cache.glob(".*.tmp"))


def contents(cache):
    """Return the bytes of all files but those that a killed process could not finish."""
    return {p.name: p.read_bytes() for p in cache.iterdir() if p not in temporaries_in(cache)}


def identity(paths):
    return [(path.stat().st_ino, path.stat().st_mtime_ns) for path in paths]


def killed(model, cache, reached, stop_after=float("inf"), unfinished=None):
    """Extract, kill the process when `reached()`, and return the shards that it had finished."""
    arguments = (model, cache, stop_after, unfinished)
    process = CONTEXT.Process(target=extract_until, args=arguments)
    process.start()
    deadline = time.monotonic() + 240
    try:
        while not reached():
            assert process.is_alive(), "the extraction ended before it could be killed"
            assert time.monotonic() < deadline, "the extraction did not get so far"
            time.sleep(0.005)
    finally:
        process.kill()
        process.join()
    assert process.exitcode == -9
    return shards_in(cache)


@pytest.fixture
def model(tmp_path, make_tokenizer):
    """The folder of a tiny BERT and its tokenizer."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=14,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    AutoModel.from_config(config).save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "features"


@pytest.fixture
def whole(model, tmp_path):
    """The folder of an extraction that nobody interrupted."""
    with counted_samples() as sizes:
        extract_layers(model, TEXTS, cache=tmp_path / "whole", **SETTINGS)
    assert sum(sizes) == len(TEXTS)
    assert len(shards_in(tmp_path / "whole")) == N_SHARDS
    return tmp_path / "whole"


def assert_equal_features(found, wanted):
    assert (found.names, found.pooling) == (wanted.names, wanted.pooling)
    for X, Z in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(X, Z)


def assert_resumes(model, cache, finished, whole):
    """Extract once more: what is finished is not touched, the end is that of a whole run."""
    before = identity(finished)
    with counted_samples() as sizes:
        features = extract_layers(model, TEXTS, cache=cache, **SETTINGS)
    assert sum(sizes) == len(TEXTS) - 4 * len(finished)
    assert identity(finished) == before
    assert contents(cache) == contents(whole)
    assert_equal_features(features, extract_layers(model, TEXTS, **SETTINGS))


@pytest.mark.parametrize("n_finished", [0, 1, 3, 5])
def test_a_killed_run_goes_on(model, cache, whole, n_finished):
    finished = killed(
        model,
        cache,
        reached=lambda: cache.exists() and len(shards_in(cache)) == n_finished,
        stop_after=4 * n_finished,
    )
    assert len(finished) == n_finished
    assert_resumes(model, cache, finished, whole)


@pytest.mark.parametrize("n_finished", [0, 2])
def test_a_run_killed_while_writing_goes_on(model, cache, whole, n_finished):
    def half_written():
        return [path.stat().st_size for path in temporaries_in(cache)] == [100]

    finished = killed(model, cache, reached=half_written, unfinished=n_finished)
    left = temporaries_in(cache)
    assert len(left) == 1
    assert_resumes(model, cache, finished, whole)


def test_a_run_killed_twice_goes_on(model, cache, whole):
    for n_finished in (1, 2):
        finished = killed(
            model, cache, lambda n=n_finished: len(shards_in(cache)) == n, stop_after=4
        )
    assert_resumes(model, cache, finished, whole)


def test_a_finished_run_computes_nothing(model, whole):
    before = identity(shards_in(whole))
    with counted_samples() as sizes:
        features = extract_layers(model, TEXTS, cache=whole, **SETTINGS)
    assert not sizes
    assert identity(shards_in(whole)) == before
    assert_equal_features(features, extract_layers(model, TEXTS, **SETTINGS))


def test_features_with_a_cache_are_those_without(model, whole):
    options = {"pooling": "mean", "progress": False}
    alone = extract_layers(model, TEXTS, batch_size=1, **options)
    cached = extract_layers(model, TEXTS, cache=whole, **SETTINGS)
    for X, Z in zip(cached, alone, strict=True):
        np.testing.assert_allclose(X, Z, atol=1e-6)


def test_shards_may_be_computed_in_any_order_and_parts(model, cache, whole):
    for part in ([4, 1], [5], [0, 2, 3]):
        with counted_samples() as sizes:
            stream = stream_layers(model, TEXTS, cache=cache, shards=part, **SETTINGS)
            rows = [(samples.start, samples.stop) for samples, _ in stream]
        assert rows == [(4 * shard, min(4 * shard + 4, len(TEXTS))) for shard in part]
        assert sum(sizes) == sum(stop - start for start, stop in rows)
    assert contents(cache) == contents(whole)


def changed_weight(folder):
    model = AutoModel.from_pretrained(folder)
    model.encoder.layer[1].output.dense.bias.data[0] += 1e-3
    model.save_pretrained(folder)


def changed_tokenizer(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["sat on"])
    tokenizer.save_pretrained(folder)


def nothing(folder):
    pass


@pytest.mark.parametrize(
    ("change", "texts", "settings"),
    [
        (nothing, [*TEXTS[:-1], "the dog"], {}),
        (nothing, [TEXTS[1], TEXTS[0], *TEXTS[2:]], {}),
        (nothing, TEXTS[:-1], {}),
        (changed_weight, TEXTS, {}),
        (changed_tokenizer, TEXTS, {}),
        (nothing, TEXTS, {"pooling": "cls"}),
        (nothing, TEXTS, {"max_length": 3}),
        (nothing, TEXTS, {"shard_size": 5}),
        (nothing, TEXTS, {"dtype": torch.bfloat16}),
    ],
    ids=[
        "text",
        "order",
        "fewer",
        "weight",
        "tokenizer",
        "pooling",
        "max_length",
        "shard_size",
        "dtype",
    ],
)
def test_a_cache_of_something_else_is_refused_before_any_work(
    model, whole, change, texts, settings
):
    before = contents(whole)
    change(model)
    with (
        counted_samples() as sizes,
        pytest.raises(ValueError, match=r"something else \(.*: had .*, wanted") as refused,
    ):
        extract_layers(model, texts, cache=whole, **{**SETTINGS, **settings})
    assert str(whole) in str(refused.value)
    for name in settings:
        assert f"{name}: had" in str(refused.value)
    assert not sizes
    assert contents(whole) == before


def test_a_damaged_shard_is_refused_by_name_and_computed_anew(model, whole):
    before = contents(whole)
    path = shards_in(whole)[2]
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=rf"{path.name} is damaged.*Delete it and run again"):
        extract_layers(model, TEXTS, cache=whole, **SETTINGS)
    path.unlink()
    with counted_samples() as sizes:
        extract_layers(model, TEXTS, cache=whole, **SETTINGS)
    assert sum(sizes) == 4
    assert contents(whole) == before


def test_a_folder_of_something_else_is_refused_before_any_work(model, cache):
    cache.mkdir()
    Path(cache / "thesis.tex").write_text("mine")
    with counted_samples() as sizes, pytest.raises(ValueError, match=r"thesis\.tex"):
        extract_layers(model, TEXTS, cache=cache, **SETTINGS)
    assert not sizes
    assert [path.name for path in cache.iterdir()] == ["thesis.tex"]

"""The folder of shards: what is written is what is read, or it is refused by name."""

import copy
import io
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoModel, BertConfig

from loes import store
from loes.features import LayerFeatures
from loes.store import FeatureStore, fingerprint_inputs, fingerprint_model

ABOUT = {"inputs": "abc", "pooling": "mean", "modules": None, "shard_size": 4, "sizes": [1, 2]}
NAMES = ["embedding", "layer1"]
SHARDS = ["shard-00000.safetensors", "shard-00001.safetensors"]


def features(seed=0, n=4, names=NAMES, widths=(3, 5), pooling="mean"):
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(n, width)).astype(np.float32) for width in widths]
    return LayerFeatures(list(names), arrays, pooling)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_same(found, wanted):
    assert (found.names, found.pooling) == (wanted.names, wanted.pooling)
    for X, Z in zip(found, wanted, strict=True):
        assert X.dtype == np.float32
        np.testing.assert_array_equal(X, Z)


@pytest.fixture
def folder(tmp_path):
    """A store with two shards, the second shorter."""
    filled = FeatureStore(tmp_path / "features", ABOUT)
    filled.write(0, features(0))
    filled.write(1, features(1, n=2))
    return tmp_path / "features"


def test_what_was_written_is_read(folder):
    opened = FeatureStore(folder, ABOUT)
    assert_same(opened.read(0), features(0))
    assert_same(opened.read(1), features(1, n=2))
    assert opened.read(2) is None
    assert sorted(contents(folder)) == ["manifest.json", *SHARDS]


def test_arrays_in_another_order_and_layers_beyond_ten(tmp_path):
    wide = features(widths=range(1, 13), names=[f"layer{i}" for i in range(12)])
    strided = LayerFeatures(wide.names, [np.asfortranarray(X) for X in wide], "cls")
    FeatureStore(tmp_path, {}).write(0, strided)
    found = FeatureStore(tmp_path, {}).read(0)
    for X, Z in zip(found, wide, strict=True):
        np.testing.assert_array_equal(X, Z)
        X += 1  # an array of one's own, not a view of the file


@pytest.mark.parametrize("repeat", range(5))  # safetensors orders some things by chance
def test_another_order_of_writing_leaves_the_same_bytes(folder, tmp_path, repeat):
    again = FeatureStore(tmp_path / "again", dict(reversed(ABOUT.items())))
    again.write(1, features(1, n=2))
    again.write(0, features(0))
    assert contents(tmp_path / "again") == contents(folder)


def test_manifest_is_readable(folder):
    assert json.loads((folder / "manifest.json").read_text()) == {"format": 1, "about": ABOUT}


def test_reopening_writes_nothing(folder):
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    FeatureStore(folder, {**ABOUT, "sizes": (1, 2)}).read(0)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_files_have_the_permissions_of_any_other(folder, tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    mode = (tmp_path / "plain").stat().st_mode
    assert {path.stat().st_mode for path in folder.iterdir()} == {mode}


def test_several_may_open_and_fill_a_folder_at_once(tmp_path):
    # Threads stand for processes: nothing in the store tells them apart.
    barrier = Barrier(8)

    def work(shard):
        barrier.wait()
        FeatureStore(tmp_path / "new", ABOUT).write(shard, features(shard))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    opened = FeatureStore(tmp_path / "new", ABOUT)
    for shard in range(8):
        assert_same(opened.read(shard), features(shard))
    assert len(contents(tmp_path / "new")) == 9


# Refusals


def test_features_of_something_else_name_each_key(folder):
    about = {**ABOUT, "pooling": "cls", "device": "cpu"}
    del about["shard_size"]
    with pytest.raises(ValueError, match="something else") as refused:
        FeatureStore(folder, about)
    message = str(refused.value)
    assert 'pooling: had "mean", wanted "cls"' in message
    assert 'device: had nothing, wanted "cpu"' in message
    assert "shard_size: had 4, wanted nothing" in message
    assert "inputs" not in message
    assert "Pass another folder, or delete" in message


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b"{}", b'{"format": 1}', b'{"about": 3, "format": 1}'],
)
def test_damaged_manifest(folder, content):
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        FeatureStore(folder, ABOUT)
    assert (folder / "manifest.json").read_bytes() == content


def test_manifest_of_another_version(folder):
    (folder / "manifest.json").write_text(json.dumps({"about": ABOUT, "format": 2}))
    with pytest.raises(ValueError, match="has format 2, this version reads 1"):
        FeatureStore(folder, ABOUT)


@pytest.mark.parametrize("name", ["thesis.tex", SHARDS[0], ".hidden.tmp"])
def test_a_folder_of_something_else_is_left_alone(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match="other files") as refused:
        FeatureStore(tmp_path, ABOUT)
    assert name in str(refused.value)
    assert contents(tmp_path) == {name: b"mine"}


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match="file is a file"):
        FeatureStore(tmp_path / "file", ABOUT)


@pytest.mark.parametrize("length", [0, 7, 100, -1])
def test_truncated_shard(folder, length):
    path = folder / SHARDS[1]
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match=rf"{SHARDS[1]} is damaged.*Delete it and run again"):
        FeatureStore(folder, ABOUT).read(1)
    assert_same(FeatureStore(folder, ABOUT).read(0), features(0))


def test_any_changed_bit_is_noticed(folder):
    path = folder / SHARDS[1]
    intact = path.read_bytes()
    opened = FeatureStore(folder, ABOUT)
    opened.read(1)
    for position in range(len(intact)):
        damaged = bytearray(intact)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=SHARDS[1]):
            opened.read(1)


def test_a_folder_in_place_of_a_shard(folder):
    path = folder / "shard-00007.safetensors"
    path.mkdir()
    with pytest.raises(ValueError, match=r"shard-00007\.safetensors is a folder\. Delete it"):
        FeatureStore(folder, ABOUT).read(7)


def test_a_file_that_is_no_shard(folder):
    (folder / SHARDS[1]).write_bytes(store.save({"0": np.ones((2, 3), np.float32)}))
    with pytest.raises(ValueError, match=rf"{SHARDS[1]} is damaged or no shard"):
        FeatureStore(folder, ABOUT).read(1)


def test_a_shard_of_another_extraction_or_number(folder, tmp_path):
    other = FeatureStore(tmp_path / "other", {**ABOUT, "inputs": "xyz"})
    other.write(0, features(0))
    (folder / SHARDS[1]).write_bytes((folder / SHARDS[0]).read_bytes())
    (folder / SHARDS[0]).write_bytes((tmp_path / "other" / SHARDS[0]).read_bytes())
    for shard in (0, 1):
        with pytest.raises(ValueError, match=rf"{SHARDS[shard]} belongs to another extraction"):
            FeatureStore(folder, ABOUT).read(shard)


@pytest.mark.parametrize(
    ("differing", "change"),
    [
        (r"names .*'a'", {"names": ["embedding", "a"]}),
        (r"widths \[3, 6\] instead of \[3, 5\]", {"widths": (3, 6)}),
        (r"pooling cls instead of mean", {"pooling": "cls"}),
    ],
)
def test_shards_with_other_layers(folder, differing, change):
    FeatureStore(folder, ABOUT).write(1, features(1, **change))  # nothing seen to compare with
    opened = FeatureStore(folder, ABOUT)
    opened.read(0)
    with pytest.raises(ValueError, match=rf"{SHARDS[1]} and {SHARDS[0]} .*{differing}"):
        opened.read(1)
    with pytest.raises(ValueError, match=differing):
        opened.write(2, features(2, **change))
    assert opened.read(2) is None


# Interrupted writing


def test_a_failed_write_leaves_nothing(folder, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")  # a full disk names no file

    before = contents(folder)
    monkeypatch.setattr(store.os, "fsync", full)
    with pytest.raises(OSError, match=rf"No space left on device: .*{SHARDS[1]}"):
        FeatureStore(folder, ABOUT).write(1, features(9))
    assert contents(folder) == before


def test_what_a_killed_process_left_is_ignored_and_removed_once_old(folder):
    fresh, old = (folder / f".{SHARDS[1]}.{i}.tmp" for i in (1, 2))
    mine = folder / ".mine.tmp"
    for path in (fresh, old, mine):
        path.write_bytes(b"half")
    for path in (old, mine):
        os.utime(path, times=(time.time() - 2 * store.ABANDONED,) * 2)
    assert_same(FeatureStore(folder, ABOUT).read(1), features(1, n=2))
    assert fresh.exists()  # a process may be writing it
    assert not old.exists()
    assert mine.exists()


def test_a_manifest_that_was_never_finished(tmp_path):
    (tmp_path / ".manifest.json.1.tmp").write_bytes(b"{")
    FeatureStore(tmp_path, ABOUT).write(0, features(0))
    assert_same(FeatureStore(tmp_path, ABOUT).read(0), features(0))


def test_a_run_without_a_shard_binds_nobody(tmp_path):
    first = FeatureStore(tmp_path, ABOUT)
    second = FeatureStore(tmp_path, {**ABOUT, "inputs": "xyz"})
    second.write(0, features(0))
    with pytest.raises(ValueError, match="something else"):
        first.write(1, features(1))
    assert second.read(1) is None


# Fingerprints


def distinct(*values):
    return len(set(values)) == len(values)


def test_texts_and_their_order_and_borders_count():
    lists = [["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], ["ab", "c", ""], [], [""], ["AB", "c"]]
    assert distinct(*map(fingerprint_inputs, lists))
    same = [["ab", "c"], ("ab", "c"), np.array(["ab", "c"]), iter(["ab", "c"])]
    assert len(set(map(fingerprint_inputs, same))) == 1


def test_the_fingerprint_is_the_same_on_another_day():
    # Written down once: a change means that all folders of features are computed anew.
    assert fingerprint_inputs(["the cat", "наука"]).startswith("f1df670a109b7a2b")


@given(st.lists(st.text()), st.lists(st.text()))
def test_only_equal_texts_have_equal_fingerprints(first, second):
    assert (fingerprint_inputs(first) == fingerprint_inputs(second)) == (first == second)


nested = st.recursive(
    st.text(max_size=2) | st.binary(max_size=2) | st.integers(0, 3),
    lambda children: st.lists(children, max_size=3),
    max_leaves=6,
)


@given(nested, nested)
def test_nesting_is_part_of_the_fingerprint(first, second):
    assert (fingerprint_inputs([[first]]) == fingerprint_inputs([[second]])) == (first == second)


def test_the_content_of_files_counts_and_not_their_name(tmp_path):
    for name, content in (("a.wav", b"one"), ("b.wav", b"one"), ("c.wav", b"two")):
        (tmp_path / name).write_bytes(content)
    a, b, c = (fingerprint_inputs([tmp_path / f"{name}.wav"]) for name in "abc")
    assert a == b != c
    assert distinct(a, fingerprint_inputs([b"one"]), fingerprint_inputs(["one"]))
    assert a != fingerprint_inputs([str(tmp_path / "a.wav")])  # a text like any other


def test_a_missing_file_is_named(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"inputs\[1\]: there is no file .*b\.wav"):
        fingerprint_inputs([tmp_path / "a.wav", tmp_path / "b.wav"])


def test_arrays_and_tensors_count_by_type_shape_and_values():
    X = np.arange(6, dtype=np.float32)
    kinds = [X, X.reshape(2, 3), X.reshape(3, 2), X.astype(np.float64), X + 1, X.view(np.int32)]
    assert distinct(*(fingerprint_inputs([kind]) for kind in kinds))
    assert distinct(*(fingerprint_inputs([torch.from_numpy(kind)]) for kind in kinds))
    strided = np.zeros((6, 2), np.float32)
    strided[:, 1] = X
    assert fingerprint_inputs([strided[:, 1]]) == fingerprint_inputs([X])
    transposed = torch.from_numpy(X.reshape(3, 2).T.copy()).T
    assert fingerprint_inputs([transposed]) == fingerprint_inputs([torch.from_numpy(kinds[2])])
    assert fingerprint_inputs([np.float32(1.0), np.array(1)])  # no dimension
    bfloat = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    assert fingerprint_inputs([bfloat]) != fingerprint_inputs([bfloat.half()])


def test_images_count_by_what_a_model_sees():
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3)
    grey = Image.fromarray(pixels)
    other, coloured = grey.copy(), grey.convert("P")
    other.putpixel((0, 0), 9)
    coloured.putpalette([9, 8, 7] * 256)
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    grey.save(file, "PNG", exif=exif)
    images = [grey, other, coloured, Image.fromarray(pixels.reshape(3, 2)), Image.open(file)]
    assert distinct(*(fingerprint_inputs([image]) for image in images))
    assert fingerprint_inputs([grey]) == fingerprint_inputs([grey.convert("RGB")])


def test_audio_counts_with_its_rate(tmp_path):
    wave = np.arange(4, dtype=np.float32)
    assert distinct(*(fingerprint_inputs([(wave, rate)]) for rate in (8000, 16000)))
    assert fingerprint_inputs([(wave, 8000)]) == fingerprint_inputs([(wave, np.int64(8000))])
    audio = {"array": wave, "sampling_rate": 8000}
    # Where the file lay on somebody's machine says nothing beside the samples themselves.
    assert fingerprint_inputs([audio]) == fingerprint_inputs([{**audio, "path": "gone.wav"}])
    assert fingerprint_inputs([audio]) != fingerprint_inputs([{**audio, "sampling_rate": 16000}])
    path = tmp_path / "a.wav"
    prints = []
    for content in (b"one", b"two"):
        path.write_bytes(content)
        prints.append(fingerprint_inputs([{"path": str(path), "bytes": None}]))
        prints.append(fingerprint_inputs([{"path": None, "bytes": content}]))
    assert distinct(*prints)


@pytest.mark.parametrize("item", [object(), None, {1, 2}, np.array([object()])])
def test_what_has_no_fingerprint_is_named(item):
    with pytest.raises(TypeError, match=r"inputs\[1\]: .* has no fingerprint"):
        fingerprint_inputs([np.zeros(3), item])


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=14,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    return AutoModel.from_config(config).eval()


def test_a_model_saved_and_loaded_is_the_same(bert, tmp_path):
    wanted = fingerprint_model(copy.deepcopy(bert))
    bert.save_pretrained(tmp_path / "here")
    loaded = AutoModel.from_pretrained(tmp_path / "here")
    assert fingerprint_model(loaded) == wanted == fingerprint_model(bert.train())
    assert fingerprint_model(loaded.requires_grad_(False)) == wanted


def test_any_weight_name_precision_or_setting_makes_another_model(bert):
    prints = [fingerprint_model(bert), fingerprint_model(copy.deepcopy(bert).bfloat16())]
    for name, tensor in bert.state_dict().items():
        changed = copy.deepcopy(bert)
        flat = changed.state_dict()[name].view(-1)
        flat[-1] += 1
        assert not torch.equal(flat, tensor.view(-1))
        prints.append(fingerprint_model(changed))
    heads = copy.deepcopy(bert.config)
    heads.num_attention_heads = 4  # the weights have the same shapes
    other = AutoModel.from_config(heads)
    other.load_state_dict(bert.state_dict())
    assert distinct(*prints, fingerprint_model(other))


def test_any_module_has_a_fingerprint():
    torch.manual_seed(0)
    linear = torch.nn.Linear(3, 3)
    swapped = copy.deepcopy(linear)
    swapped.weight.data = linear.weight.data.T
    assert fingerprint_model(linear) != fingerprint_model(swapped)
    assert fingerprint_model(linear) == fingerprint_model(copy.deepcopy(linear))

"""The full profile, on stand-ins of the same architectures and schemas in place of the hub's."""

import io

import datasets
import numpy as np
import pytest
import soundfile
import transformers as hf
from PIL import Image
from test_families import CONFIGS, SPEECH, TEXT, make_model, make_processor, make_tokenizer

from loes import examples, tasks
from loes.examples import Example

pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")

FAMILY = {  # of each model that the paper uses
    "dinov2": "dinov2",
    "clip": "clip",
    "mae": "vit_mae",
    "vit": "vit",
    "deit": "deit",
    "bert": "bert",
    "modernbert": "modernbert",
    "wav2vec2": "wav2vec2",
    "hubert": "hubert",
    "wavlm": "wavlm",
}
STAND_INS = CONFIGS | {
    "clip": hf.CLIPConfig(  # both towers, as on the hub
        text_config=CONFIGS["clip_text_model"].to_dict(),
        vision_config=CONFIGS["clip_vision_model"].to_dict(),
        projection_dim=8,
    )
}
FULL = {name: example for entries in examples.HUB.values() for name, example in entries.items()}
RNG = np.random.default_rng(0)
RATE = 16_000
WORDS = ["the", "cat", "sat", "on", "mat", "a", "dog", "ran", "far", "away"]


def picture():
    return Image.fromarray(RNG.integers(0, 256, (16, 16, 3), np.uint8))


def clip():
    file = io.BytesIO()
    soundfile.write(file, 0.1 * RNG.normal(size=1600), RATE, format="WAV")
    return {"bytes": file.getvalue(), "path": None}


def sentence():
    return " ".join(RNG.choice(WORDS, size=6))


def write_set(folder, *, inputs="text", labels="label", modality="text", n=(40, 16), **columns):
    """Write two classes as parquet files, as a data set of the hub has them."""
    make = {"text": sentence, "image": picture, "audio": clip}[modality]
    kind = {
        "image": datasets.Image(),
        "audio": datasets.Audio(decode=False),
        "text": datasets.Value("string"),
    }
    folder.mkdir(exist_ok=True, parents=True)
    label = datasets.Value("string") if labels == "label_text" else datasets.ClassLabel(names="ba")
    features = datasets.Features({inputs: kind[modality], labels: label})
    for part, size in zip(("train", "test"), n, strict=True):
        values = list("ba") if labels == "label_text" else [0, 1]
        rows = {inputs: [make() for _ in range(size)], labels: values * (size // len(values))}
        if modality == "audio":  # encoded already, and torchcodec may be missing
            data = datasets.Dataset.from_dict(rows).cast(features)
        else:
            data = datasets.Dataset.from_dict(rows, features=features)
        for name, column in columns.items():
            data = data.add_column(name, [column(part, row) for row in range(size)])
        data.to_parquet(folder / f"{part}.parquet")
    return str(folder)


@pytest.fixture(autouse=True)
def own_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("LOES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


@pytest.mark.parametrize("name", FULL)
def test_an_example_of_the_full_profile_loads_from_its_stand_in(name, tmp_path, monkeypatch):
    example = FULL[name]
    family = FAMILY[name.split("-")[-1]]
    make_model(STAND_INS[family]).save_pretrained(tmp_path / "model")
    make_processor(family, STAND_INS[family]).save_pretrained(tmp_path / "model")
    if family == "clip":  # a model of two towers comes with what prepares each one's inputs
        make_tokenizer().save_pretrained(tmp_path / "model")
    options = {key: value for key, value in example.options.items() if key != "config"}
    if example.task == "emoji":  # read as in the offline profile: here it is about the towers
        options.setdefault("modality", "image")
    columns = {key: value for key, value in options.items() if key not in ("dataset", "groups")}
    if "groups" in options:
        columns[options["groups"]] = lambda part, row: f"{part} {row // 4}"
    options["dataset"] = write_set(tmp_path / "data", **columns)
    stand_in = Example(str(tmp_path / "model"), "hub", example.per_class, options)
    monkeypatch.setattr(examples, "find", lambda _: stand_in)
    task, layers, seconds, _ = examples.load(name, per_class=8)
    wanted = "text" if family in TEXT or name.startswith("texts") else "image"
    assert task.modality == ("audio" if family in SPEECH else wanted)
    assert task.classes == ["a", "b"]
    assert [len(X) for X in layers] == [len(task.inputs)] * len(layers)
    assert np.ptp(layers[-1], axis=0).max() > 0.01  # the samples differ
    assert seconds > 0
    control = examples.load(name, per_class=8, pretrained=False).layers
    assert len(control) == len(layers)
    assert not np.allclose(control[-1], layers[-1])


def test_every_model_of_the_paper_has_a_stand_in():
    assert {name.split("-")[-1] for name in FULL} == set(FAMILY)


def test_splits_are_as_published_and_validation_comes_from_train(tmp_path):
    folder = write_set(tmp_path / "data")
    task = tasks.load("hub", dataset=folder, per_class=12)
    published = {
        part: set(datasets.load_dataset(folder, split=part)["text"]) for part in ("train", "test")
    }
    texts = np.array(task.inputs)
    assert set(texts[task.test]) <= published["test"] - published["train"]
    assert set(texts[[*task.train, *task.validation]]) <= published["train"]
    assert len(set(texts)) == len(texts)
    assert len(task.train) == 24
    assert len(task.validation) == 6
    again = tasks.load("hub", dataset=folder, per_class=12)
    assert again.inputs == task.inputs
    other = tasks.load("hub", dataset=folder, per_class=12, seed=1)
    assert other.inputs != task.inputs


def test_no_group_is_in_two_parts(tmp_path):
    speakers = {"train": lambda row: row // 4, "test": lambda row: 9 + row // 4}
    folder = write_set(tmp_path / "data", speaker=lambda part, row: f"s{speakers[part](row)}")
    task = tasks.load("hub", dataset=folder, per_class=8, groups="speaker")
    parts = [set(task.groups[rows]) for rows in (task.train, task.validation, task.test)]
    assert all(parts)
    assert not parts[0] & parts[1]
    assert not (parts[0] | parts[1]) & parts[2]  # s9 is in both published splits: kept in test
    assert "s9" in parts[2]


def test_a_fifth_of_the_speakers_is_held_out_where_each_speaks_in_every_class(tmp_path):
    # ten clips a speaker, of both classes in turn: twenty speakers to train and four to test
    folder = write_set(
        tmp_path / "data", n=(200, 40), speaker=lambda part, row: f"{part} {row // 10}"
    )
    task = tasks.load("hub", dataset=folder, per_class=72, groups="speaker")
    speakers = [set(task.groups[rows]) for rows in (task.train, task.validation, task.test)]
    assert [len(those) for those in speakers] == [16, 4, 4]


def test_a_text_said_twice_is_kept_once_and_a_text_of_two_classes_never(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names="ba")}
    )
    for part, size in (("train", 60), ("test", 20)):
        rows = {"text": [f"{part} {row}" for row in range(size)], "label": [0, 1] * (size // 2)}
        if part == "test":
            rows["text"] += ["test 0", "test 1"]  # the former of its class, the latter not
            rows["label"] += [0, 0]
        datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / f"{part}.parquet")
    task = tasks.load("hub", dataset=str(folder), per_class=24)  # and so all of test
    kept = [task.inputs[row] for row in task.test]
    assert sorted(kept) == sorted(f"test {row}" for row in range(20) if row != 1)


def test_duplicates_across_splits_are_left_out(tmp_path):
    folder = write_set(tmp_path / "data", inputs="image", modality="image")
    train = datasets.load_dataset(folder, split="train")
    test = datasets.load_dataset(folder, split="test")
    datasets.concatenate_datasets([test, train.select([0, 1])]).to_parquet(
        tmp_path / "data/test.parquet"
    )
    task = tasks.load("hub", dataset=folder, inputs="image", modality="image", per_class=16)
    pixels = [picture.tobytes() for picture in task.inputs]
    assert len(set(pixels)) == len(pixels)
    assert task.inputs[-1].tobytes() == pixels[-1]
    assert train[0]["image"].tobytes() not in pixels


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": "words"}, r"no column 'words'; its columns are \['text', 'label'\]"),
        ({"labels": "topic"}, "no column 'topic'"),
        ({"groups": "speaker"}, "no column 'speaker'"),
        ({"test": "dev"}, r'Unknown split "dev".* name other splits by train= and test='),
        ({"modality": "video"}, r"modality must be one of .*'video'"),
        ({"per_class": 2}, "per_class must be a whole number >= 4"),
        ({"per_class": 17}, "4 <= per_class <= 16; got 17"),
    ],
)
def test_wrong_options_are_named(options, message, tmp_path):
    folder = write_set(tmp_path / "data")
    with pytest.raises(ValueError, match=message):
        tasks.load("hub", **{"dataset": folder} | options)


def test_what_is_no_folder_of_tables_is_refused_with_the_way_out(tmp_path):
    table = tmp_path / "posts.csv"
    table.write_text("text,label\nthe cat,cat\n")
    with pytest.raises(ValueError, match=r"posts.csv is a file; name a folder"):
        tasks.load("hub", dataset=str(table))
    other = tmp_path / "model"
    other.mkdir()
    for number, content in enumerate(['{"a": 1}', '{"b": {"c": 2}}']):
        (other / f"{number}.json").write_text(content)
    with pytest.raises(ValueError, match=r"model cannot be read: .*split of the same columns"):
        tasks.load("hub", dataset=str(other))


def test_a_set_that_cannot_be_reached_points_to_the_offline_profile(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"nowhere/at-all is neither .*LOES_PROFILE=offline"
    ):
        tasks.load("hub", dataset="nowhere/at-all")


def test_the_profile_says_which_examples_a_chapter_has(monkeypatch):
    monkeypatch.delenv("LOES_PROFILE", raising=False)
    assert examples.profile() == "offline"
    for chapter in examples.CHAPTERS:
        assert set(examples.names(chapter)) <= set(examples.EXAMPLES)
    monkeypatch.setenv("LOES_PROFILE", "full")
    assert examples.names("vision") == tuple(examples.HUB["vision"])
    monkeypatch.setenv("LOES_PROFILE", "gpu")
    with pytest.raises(ValueError, match=r"LOES_PROFILE must be one of .*'gpu'"):
        examples.names("vision")
    with pytest.raises(ValueError, match="unknown chapter 'music'"):
        examples.names("music")

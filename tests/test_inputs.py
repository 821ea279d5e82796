"""What is read is what was written, and what cannot be read is named."""

import builtins
import json
from io import BytesIO

import datasets
import numpy as np
import pandas as pd
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from loes.inputs import (
    modality_of,
    read_audio,
    read_dataset,
    read_image,
    read_image_folder,
    read_table,
)

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def pixels(item):
    image = read_image(item)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.fixture
def without(monkeypatch):
    """Return a function after which a library cannot be imported."""

    def block(library):
        real = builtins.__import__

        def fake(name, *args, **kwargs):
            if name == library:
                raise ImportError(name)
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", fake)

    return block


# Images


def test_transparency_lies_on_white(tmp_path):
    half = Image.new("RGBA", (1, 1), (255, 0, 0, 128))
    # 128 / 255 of red over white: the other channels keep 127 / 255 of white
    assert pixels(half).tolist() == [[[255, 127, 127]]]
    assert pixels(Image.new("RGBA", (1, 1), (9, 9, 9, 0))).tolist() == [[[255, 255, 255]]]
    assert pixels(Image.new("LA", (1, 1), (10, 255))).tolist() == [[[10, 10, 10]]]
    palette = Image.new("P", (2, 1))
    palette.putpalette([*RED, *GREEN])
    palette.putdata([0, 1])
    palette.save(tmp_path / "palette.png", transparency=1)
    assert pixels(tmp_path / "palette.png").tolist() == [[[255, 0, 0], [255, 255, 255]]]


def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path):
    grey = np.array([[0, 257, 128 * 257, 65535]], dtype=np.uint16)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    assert pixels(tmp_path / "grey.png")[0, :, 0].tolist() == [0, 1, 128, 255]
    assert pixels(Image.fromarray(grey.astype(np.int32)))[0, :, 0].tolist() == [0, 1, 128, 255]
    with pytest.raises(ValueError, match=r"\[0, 1\]; got float64 in \[0, 1\.00008\]"):
        read_image(Image.fromarray(np.array([[0, 65540]], dtype=np.int32)))
    floats = Image.fromarray(np.array([[0, 0.2, 1]], dtype=np.float32))
    assert pixels(floats)[0, :, 0].tolist() == [0, 51, 255]


def test_cmyk_and_grey_become_rgb(tmp_path):
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "red.jpg", quality=100)
    assert np.abs(pixels(tmp_path / "red.jpg").astype(int) - RED).max() <= 2
    assert pixels(Image.new("L", (1, 1), 7)).tolist() == [[[7, 7, 7]]]
    assert pixels(Image.new("1", (1, 1), 1)).tolist() == [[[255, 255, 255]]]


def test_exif_orientation_turns_the_image(tmp_path):
    image = Image.new("RGB", (3, 1), RED)
    image.putpixel((2, 0), BLUE)
    exif = Image.Exif()
    exif[0x0112] = 6  # the top of the picture is on the right: turn it clockwise
    image.save(tmp_path / "turned.png", exif=exif)
    upright = pixels(tmp_path / "turned.png")
    assert upright.shape == (3, 1, 3)
    assert upright[:, 0].tolist() == [[*RED], [*RED], [*BLUE]]
    with Image.open(tmp_path / "turned.png") as opened:
        assert (pixels(opened) == upright).all()


@given(arrays(np.uint8, (6, 5, 3)))
def test_any_order_of_channels_gives_the_same_image(array):
    assert (pixels(array) == array).all()
    assert (pixels(torch.from_numpy(array).permute(2, 0, 1)) == array).all()
    assert (pixels(array / 255) == array).all()
    assert (pixels(torch.from_numpy(array / np.float32(255)).requires_grad_()) == array).all()
    assert (pixels(array[..., 0]) == array[..., :1]).all()
    assert (pixels(array[..., :1].transpose(2, 0, 1)) == array[..., :1]).all()


def test_alpha_of_an_array_lies_on_white():
    assert pixels(np.array([[[9, 9, 9, 0]] * 2] * 2, np.uint8)).min() == 255


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 8, 3), np.uint8), r"\(3, 8, 3\) has two axes that could be channels"),
        (np.zeros((1, 8, 4), np.uint8), "two axes that could be"),
        (np.zeros((5, 6, 7), np.uint8), r"\(5, 6, 7\) has no axis of 1, 3 or 4 channels"),
        (np.zeros(9, np.uint8), r"must have the shape .* got \(9,\)"),
        (np.zeros((2, 3, 8, 8), np.uint8), r"must have the shape .* got \(2, 3, 8, 8\)"),
        (np.zeros((0, 8, 3), np.uint8), r"got \(0, 8, 3\)"),
        (np.array([[0.0, 255.0]]), r"float in \[0, 1\]; got float64 in \[0, 255\]"),
        (np.array([[-2.1, 1.0]]), r"got float64 in \[-2\.1, 1\]"),
        (np.array([[np.nan, 1.0]]), r"in \[nan, nan\]"),
        (np.array([[0, 300]]), r"got int64 in \[0, 300\]"),
    ],
)
def test_arrays_that_do_not_say_what_they_show_are_refused(array, message):
    with pytest.raises(ValueError, match=message):
        read_image(array)


def test_an_image_without_pixels_is_refused():
    with pytest.raises(ValueError, match=r"size \(0, 5\) has no pixels"):
        read_image(Image.new("RGB", (0, 5)))


def test_bad_image_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file '.*missing\.png'"):
        read_image(tmp_path / "missing.png")
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(ValueError, match=r"cannot read .*text\.png as an image"):
        read_image(str(tmp_path / "text.png"))
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)
    Image.fromarray(noise).save(tmp_path / "whole.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "whole.png").read_bytes()[:4000])
    with pytest.raises(ValueError, match=r"half\.png as an image: .*truncated"):
        read_image(tmp_path / "half.png")
    with pytest.raises(ValueError, match="an item given as bytes as an image"):
        read_image({"bytes": b"no image", "path": None})
    with pytest.raises(ValueError, match="neither bytes nor a path"):
        read_image({"bytes": None, "path": None})
    with pytest.raises(TypeError, match="must be a path, a PIL image or an array; got int"):
        read_image(3)


def test_an_image_can_come_as_bytes():
    file = BytesIO()
    Image.new("RGB", (2, 2), BLUE).save(file, "PNG")
    assert pixels({"bytes": file.getvalue(), "path": "in/an/archive.png"})[0, 0].tolist() == [*BLUE]


# Audio


def tone(rate, seconds=0.5, frequency=440):
    return np.sin(2 * np.pi * frequency * np.arange(int(rate * seconds)) / rate).astype(np.float32)


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_files_are_averaged_over_channels(tmp_path, suffix):
    stereo = np.stack([np.full(800, 0.5), np.full(800, -0.25)], 1)
    soundfile.write(tmp_path / f"clip.{suffix}", stereo, 8000, subtype="PCM_16")
    clip = read_audio(tmp_path / f"clip.{suffix}", 8000)
    assert clip.dtype == np.float32
    assert clip.tolist() == [0.125] * 800


def test_resampling_keeps_a_tone():
    clip = read_audio((tone(44100), 44100), 16000)
    assert clip.shape == (8000,)
    # Away from the ends, where the filter sees silence.
    np.testing.assert_allclose(clip[500:-500], tone(16000)[500:-500], atol=1e-3)
    assert (read_audio((tone(16000), 16000.0), 16000) == tone(16000)).all()


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (np.array([-(2**15), 2**14], np.int16), [-1, 0.5]),
        (np.array([-(2**31), 2**30], np.int32), [-1, 0.5]),
        (np.array([0, 128, 192], np.uint8), [-1, 0, 0.5]),
        (torch.tensor([-0.5, 0.5], dtype=torch.bfloat16), [-0.5, 0.5]),
        ([-0.5, 0.5], [-0.5, 0.5]),
        (np.array([[1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]]), [0.5, 0, -0.5]),
        (np.array([[1.0, 0.0, -1.0], [0.0, 0.0, 0.0]]), [0.5, 0, -0.5]),
        (np.array([[0.25, 0.5, 0.25]]), [0.25, 0.5, 0.25]),
    ],
)
def test_arrays_are_scaled_and_averaged(samples, expected):
    assert read_audio((samples, 16000), 16000).tolist() == expected
    record = {"array": samples, "sampling_rate": 16000, "path": None}
    assert read_audio(record, 16000).tolist() == expected


def test_a_clip_can_come_as_bytes(tmp_path):
    soundfile.write(tmp_path / "clip.wav", tone(8000), 8000, subtype="FLOAT")
    record = {"bytes": (tmp_path / "clip.wav").read_bytes(), "path": "in/an/archive.wav"}
    assert (read_audio(record, 8000) == tone(8000)).all()
    assert (
        read_audio({"bytes": None, "path": str(tmp_path / "clip.wav")}, 8000) == tone(8000)
    ).all()


@pytest.mark.parametrize(
    ("item", "error", "message"),
    [
        (
            np.zeros(9),
            TypeError,
            r"shape \(9,\) came without its sampling rate; pass \(array, rate",
        ),
        (torch.zeros(9), TypeError, "without its sampling rate"),
        ((16000, np.zeros(9)), TypeError, r"the array first; got \(rate, array\)"),
        ("absent.wav", FileNotFoundError, r"no file 'absent\.wav'"),
        (3, TypeError, r"must be a path, \(array, rate\) or a record of both; got int"),
        ((np.zeros(9), 0), ValueError, r"must be a finite number > 0, in Hz; got 0"),
        ((np.zeros(9), None), ValueError, "in Hz; got None"),
        ((np.zeros(9), float("inf")), ValueError, "a finite number > 0, in Hz; got inf"),
        ((np.zeros(0), 16000), ValueError, "the clip is empty"),
        ((np.array([0, np.inf]), 16000), ValueError, "the clip holds samples that are NaN or inf"),
        ((np.zeros((2, 2)), 16000), ValueError, r"\(samples, channels\), more .*; got \(2, 2\)"),
        ((np.zeros((2, 2, 9)), 16000), ValueError, r"got \(2, 2, 9\)"),
        ((np.zeros(9, np.int64), 16000), ValueError, "int16, int32 or uint8; got int64"),
        ((np.zeros(1), 44100), ValueError, "no sample left at 16000 Hz"),
    ],
)
def test_clips_that_cannot_be_read_are_refused(item, error, message):
    with pytest.raises(error, match=message):
        read_audio(item, 16000)


def test_bad_audio_files_are_named(tmp_path):
    (tmp_path / "text.wav").write_text("no audio")
    with pytest.raises(ValueError, match=r"cannot read .*text\.wav as audio.*Convert it to wav"):
        read_audio(tmp_path / "text.wav", 16000)
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 16000)
    with pytest.raises(ValueError, match=r"empty\.wav is empty"):
        read_audio(tmp_path / "empty.wav", 16000)
    soundfile.write(tmp_path / "nan.wav", np.array([0, np.nan]), 16000, subtype="FLOAT")
    with pytest.raises(ValueError, match=r"nan\.wav holds samples that are NaN"):
        read_audio(tmp_path / "nan.wav", 16000)


def test_missing_libraries_are_named_with_the_command(tmp_path, without):
    soundfile.write(tmp_path / "clip.wav", tone(8000), 8000)
    without("soxr")
    with pytest.raises(ImportError, match=r"8000 to 16000 Hz needs soxr; run: pip install .*soxr"):
        read_audio(tmp_path / "clip.wav", 16000)
    assert read_audio(tmp_path / "clip.wav", 8000).shape == (4000,)
    without("soundfile")
    with pytest.raises(ImportError, match="needs soundfile; run: pip install soundfile"):
        read_audio(tmp_path / "clip.wav", 8000)


# Modality


@pytest.mark.parametrize(
    ("inputs", "modality"),
    [
        (["a text", "see cat.png"], "text"),
        (["end.", "..."], "text"),
        (["a/cat.PNG", "dog.jpeg"], "image"),
        (["a.wav", "b.m4a"], "audio"),
        ([Image.new("L", (1, 1))], "image"),
        (np.zeros((2, 4, 4, 3)), "image"),
        ([torch.zeros(3, 4, 4)], "image"),
        ([torch.zeros(9)], "audio"),
        ([(np.zeros(9), 16000)], "audio"),
        ([{"array": np.zeros(9), "sampling_rate": 16000}], "audio"),
        ([{"bytes": b"", "path": "x.flac"}], "audio"),
        ([{"bytes": b"no image", "path": None}], "audio"),
    ],
)
def test_modality_follows_from_the_items(inputs, modality):
    assert modality_of(inputs) == modality


def test_modality_of_paths_and_bytes(tmp_path):
    assert modality_of([tmp_path / "x.wav"]) == "audio"
    file = BytesIO()
    Image.new("L", (1, 1)).save(file, "PNG")
    assert modality_of([{"bytes": file.getvalue(), "path": None}]) == "image"
    with pytest.raises(TypeError, match=r"must be texts, images or audio clips.*got .*x\.txt"):
        modality_of([tmp_path / "x.txt"])


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ([], ValueError, "inputs is empty"),
        ("a text", TypeError, "must be a sequence; got one str"),
        ({"a": 1}, TypeError, "got one dict. Pass a list of .* its columns"),
        (pd.DataFrame({"a": ["x"]}), TypeError, "got one DataFrame. Pass a list of .* its columns"),
        ({"a"}, TypeError, "got one set"),
        (iter(["a"]), TypeError, "must be a sequence; got one list_iterator"),
        ([None], TypeError, "got NoneType"),
        ([3], TypeError, "got int"),
        (["a", None], TypeError, "holds texts and also NoneType"),
        (["a.png", "b.wav"], ValueError, "of one kind; got audio and image"),
        ([Image.new("L", (1, 1)), "a text"], ValueError, "got image and text"),
        (["a.png", "b.png", "c"], ValueError, "most inputs are paths .* not these: 1 item: 'c'"),
    ],
)
def test_inputs_of_no_modality_are_refused(inputs, error, message):
    with pytest.raises(error, match=message):
        modality_of(inputs)


def test_modality_looks_at_one_item_of_a_lazy_sequence():
    class Counting:
        read = 0

        def __len__(self):
            return 9

        def __getitem__(self, index):
            self.read += 1
            return Image.new("L", (1, 1))

    items = Counting()
    assert modality_of(items) == "image"
    assert items.read == 1


# Tables

ROWS = {
    "text": ["NA", "null, he said", 'a "quoted"\nline', " ü "],
    "label": [1, 2, 1, 3],
    "country": ["NA", "DE", "FR", "NA"],
    "speaker": ["007", "7", "x", "x"],
}


def write(folder, format, rows=ROWS):
    path = folder / f"table.{format}"
    frame = pd.DataFrame(rows)
    if format == "csv":
        frame.to_csv(path, index=False)
    elif format == "tsv":
        frame.to_csv(path, index=False, sep="\t")
    elif format == "parquet":
        frame.to_parquet(path)
    else:
        path.write_text("\n".join(json.dumps(row) for row in frame.to_dict("records")))
    return path


@pytest.mark.parametrize("format", ["csv", "tsv", "jsonl", "parquet"])
def test_every_format_gives_what_was_written(tmp_path, format):
    examples = read_table(write(tmp_path, format), "text", "label", "speaker")
    assert examples.inputs == ROWS["text"]
    assert examples.labels.dtype.kind == "i"
    assert examples.labels.tolist() == ROWS["label"]
    assert examples.groups.tolist() == ROWS["speaker"]
    examples = read_table(str(tmp_path / f"table.{format}"), "text", "country")
    assert examples.labels.tolist() == ROWS["country"]
    assert examples.groups is None


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\0")), min_size=1))
def test_csv_keeps_any_text(tmp_path_factory, texts):
    texts = [f"x{text}" for text in texts]  # empty ones are refused
    path = tmp_path_factory.mktemp("table") / "table.csv"
    pd.DataFrame({"text": texts, "n": range(len(texts))}).to_csv(path, index=False)
    assert read_table(path, "text").inputs == texts


def test_float_labels_are_numbers(tmp_path):
    path = write(tmp_path, "csv", {"text": ["a", "b"], "label": [0.1, 2]})
    labels = read_table(path, "text", "label").labels
    assert labels.dtype.kind == "f"
    assert labels.tolist() == [0.1, 2]


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_empty_cells_are_refused_with_their_rows(tmp_path, format):
    path = write(tmp_path, format, {"text": ["a", "b", None], "label": ["x", " ", "y"]})
    with pytest.raises(ValueError, match=r"'label' is empty in 1 row: 2 \(from 1, without"):
        read_table(path, "label")
    with pytest.raises(ValueError, match="'text' is empty in 1 row: 3"):
        read_table(path, "text")
    rows = {"text": list("abcde"), "label": [None, 1, None, None, None]}
    with pytest.raises(ValueError, match=r"'label' .* in 4 rows: 1, 3, 4 \.\.\. \(from 1"):
        read_table(write(tmp_path, format, rows), "text", "label")


@pytest.mark.parametrize("names", [["007", "7", "8"], [f"{10**22 + last}" for last in (1, 2)]])
def test_names_made_of_digits_stay_apart(tmp_path, names):
    rows = "".join(f"a text,{name}\n" for name in names)
    (tmp_path / "t.csv").write_text(f"text,label\n{rows}")
    assert read_table(tmp_path / "t.csv", "text", "label").labels.tolist() == names


def test_a_gap_in_a_column_of_numbers_is_no_class(tmp_path):
    (tmp_path / "t.csv").write_text("text,label\na,1\nb,NA\nc,3\n")
    with pytest.raises(ValueError, match="'label' holds numbers, but none in 1 row: 2"):
        read_table(tmp_path / "t.csv", "text", "label")
    (tmp_path / "t.csv").write_text("text,label\na,1\nb,NA\nc,other\n")
    assert read_table(tmp_path / "t.csv", "text", "label").labels.tolist() == ["1", "NA", "other"]


def test_labels_of_two_kinds_are_refused(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"text": "a", "label": 1}\n\n{"text": "b", "label": "1"}\n')
    with pytest.raises(ValueError, match="'label' mixes int and str"):
        read_table(path, "text", "label")
    path.write_text('{"text": "a", "label": [1]}')
    with pytest.raises(ValueError, match="must hold names or numbers; got list"):
        read_table(path, "text", "label")
    with pytest.raises(ValueError, match="must hold texts or paths; got list in row 1"):
        read_table(path, "label")


def test_columns_are_listed_and_the_closest_is_named(tmp_path):
    path = write(tmp_path, "csv")
    with pytest.raises(ValueError, match=r"no column 'txt'; it has \['text', .*mean 'text'\?"):
        read_table(path, "txt")
    with pytest.raises(ValueError, match=r"no column 'zzz'; it has \[.*'speaker'\]\.$"):
        read_table(path, "text", "zzz")
    path.write_text("text,text\na,b\n")
    with pytest.raises(ValueError, match="2 columns 'text'; rename them"):
        read_table(path, "text")


@pytest.mark.parametrize("content", ["", "text,label\n"])
def test_a_table_without_rows_is_refused(tmp_path, content):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(ValueError, match=r"t\.csv has no rows"):
        read_table(tmp_path / "t.csv", "text")


def test_malformed_tables_are_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,label\na,b,c\nd,e,f\n")
    with pytest.raises(ValueError, match=r"not well formed: .*Expected 2 fields in line 2, saw 3"):
        read_table(path, "text")
    path.write_bytes("text\ncafé\n".encode("latin1"))
    with pytest.raises(ValueError, match=r"not in UTF-8 .*iconv -f WINDOWS-1252 -t UTF-8 t\.csv"):
        read_table(path, "text")
    path.write_bytes("text\ncafé\n".encode("utf-8-sig"))
    assert read_table(path, "text").inputs == ["café"]
    path = tmp_path / "t.tsv"
    path.write_text('text\tlabel\n"a\tx\nb\ty\nc"\tz\n')
    with pytest.raises(ValueError, match=r"'text' holds tabs in 1 row: 1 .* Save the table as csv"):
        read_table(path, "text")
    path = tmp_path / "t.jsonl"
    path.write_text('{"text": "a"}\n{"text"\n')
    with pytest.raises(ValueError, match=r"line 2 of .*t\.jsonl is not JSON"):
        read_table(path, "text")
    path.write_text('["a"]\n')
    with pytest.raises(ValueError, match=r"line 1 of .* must be an object .*; got list"):
        read_table(path, "text")
    path.write_bytes(b'{"text": "\xe9"}')
    with pytest.raises(ValueError, match="not in UTF-8"):
        read_table(path, "text")
    path = tmp_path / "t.parquet"
    path.write_bytes(b"no parquet")
    with pytest.raises(ValueError, match=r"cannot read .*t\.parquet as parquet"):
        read_table(path, "text")


def test_tables_of_no_known_format_are_refused(tmp_path, without):
    with pytest.raises(ValueError, match=r"must be one of \.csv, .*; got 't\.xlsx'"):
        read_table(tmp_path / "t.xlsx", "text")
    with pytest.raises(FileNotFoundError, match=r"no table .*t\.csv"):
        read_table(tmp_path / "t.csv", "text")
    path = write(tmp_path, "parquet")
    without("pyarrow")
    with pytest.raises(ImportError, match="needs pyarrow; run: pip install pyarrow"):
        read_table(path, "text")


def test_paths_start_at_the_folder_of_the_table(tmp_path, monkeypatch):
    (tmp_path / "images").mkdir()
    for name in "ab":
        Image.new("L", (1, 1)).save(tmp_path / "images" / f"{name}.png")
    rows = {"file": ["images/a.png", str(tmp_path / "images" / "b.png")]}
    write(tmp_path, "csv", rows)
    monkeypatch.chdir(tmp_path)
    paths = read_table("table.csv", "file").inputs
    assert paths == [tmp_path.resolve() / "images" / f"{name}.png" for name in "ab"]
    assert pixels(paths[0]).tolist() == [[[0, 0, 0]]]


def test_missing_files_of_a_table_are_counted(tmp_path):
    path = write(tmp_path, "csv", {"file": [f"{i}.wav" for i in range(5)]})
    soundfile.write(tmp_path / "2.wav", tone(8000), 8000)
    with pytest.raises(
        FileNotFoundError, match=r"of 5 files, .*: 4 files: .*0\.wav, .*1\.wav, .*3\.wav \.\.\."
    ):
        read_table(path, "file")


def test_parquet_may_hold_the_images(tmp_path):
    file = BytesIO()
    Image.new("RGB", (1, 1), RED).save(file, "PNG")
    record = {"bytes": file.getvalue(), "path": None}
    path = write(tmp_path, "parquet", {"image": [record, record], "label": [True, False]})
    examples = read_table(path, "image", "label")
    assert modality_of(examples.inputs) == "image"
    assert pixels(examples.inputs[1]).tolist() == [[[*RED]]]
    assert examples.labels.tolist() == [True, False]


# Folders


@pytest.fixture
def image_folder(tmp_path):
    for name in ("dog/2.png", "dog/10.png", "cat/a/x.JPG", "cat/b.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (1, 1)).save(tmp_path / name)
    return tmp_path


def test_folders_are_classes(image_folder):
    for junk in (".hidden/x.png", "dog/.hidden.png", "dog/Thumbs.db", "__MACOSX/x.png", "README"):
        (image_folder / junk).parent.mkdir(exist_ok=True)
        (image_folder / junk).touch()
    inputs, labels, groups = read_image_folder(str(image_folder))
    files = ["cat/a/x.JPG", "cat/b.png", "dog/10.png", "dog/2.png"]
    assert inputs == [image_folder / file for file in files]
    assert modality_of(inputs) == "image"
    assert labels.tolist() == ["cat", "cat", "dog", "dog"]
    assert groups is None


def test_folders_of_something_else_are_refused(image_folder):
    with pytest.raises(NotADirectoryError, match=r"no folder .*absent"):
        read_image_folder(image_folder / "absent")
    with pytest.raises(ValueError, match="holds no class folders"):
        read_image_folder(image_folder / "dog")
    (image_folder / "cow").mkdir()
    with pytest.raises(ValueError, match="without an image: 1 folder: cow"):
        read_image_folder(image_folder)
    (image_folder / "cow" / "x.heic").touch()
    with pytest.raises(
        ValueError, match=r"images only \(\.avif.*\); got 1 other file: cow.x\.heic"
    ):
        read_image_folder(image_folder)
    (image_folder / "loose.png").touch()
    with pytest.raises(ValueError, match=r"outside the class folders: 1 file: loose\.png"):
        read_image_folder(image_folder)


def test_a_split_is_no_class(tmp_path):
    for part in ("train", "test"):
        (tmp_path / part / "cat").mkdir(parents=True)
    with pytest.raises(
        ValueError, match=r"parts of a split, \['test', 'train'\]; pass one: .*test"
    ):
        read_image_folder(tmp_path)


# The datasets library


@pytest.fixture
def clips(tmp_path):
    rows = []
    for i in range(3):
        soundfile.write(tmp_path / f"{i}.wav", tone(8000) * i / 2, 8000, subtype="FLOAT")
        rows.append(str(tmp_path / f"{i}.wav"))
    data = datasets.Dataset.from_dict(
        {"audio": rows, "label": [0, 1, 0], "speaker": ["a", "b", "a"]}
    )
    return data.cast_column("audio", datasets.Audio()).cast_column(
        "label", datasets.ClassLabel(names=["no", "yes"])
    )


def test_clips_are_decoded_without_torchcodec(clips):
    inputs, labels, groups = read_dataset(clips, "audio", "label", "speaker")
    assert len(inputs) == 3
    assert modality_of(inputs) == "audio"
    for i, item in enumerate(inputs):
        assert (read_audio(item, 8000) == tone(8000) * i / 2).all()
    assert [read_audio(item, 8000).max() > 0 for item in inputs[:2]] == [False, True]
    assert labels.tolist() == ["no", "yes", "no"]
    assert groups.tolist() == ["a", "b", "a"]


def test_images_are_decoded_when_asked_for(monkeypatch):
    array = np.arange(3 * 4 * 3, dtype=np.uint8).reshape(3, 4, 3)
    images = [Image.fromarray(array + i) for i in range(4)]
    features = datasets.Features({"image": datasets.Image(), "value": datasets.Value("float64")})
    data = datasets.Dataset.from_dict({"image": images, "value": [0.5, 1, 2, 3]}, features=features)
    decoded = []
    decode = datasets.Image.decode_example
    monkeypatch.setattr(
        datasets.Image,
        "decode_example",
        lambda self, value, **options: decoded.append(1) or decode(self, value, **options),
    )
    inputs, values, _ = read_dataset(data.with_format("torch").select([3, 1]), "image", "value")
    assert not decoded
    assert values.tolist() == [3, 1]
    assert modality_of(inputs) == "image"
    assert (pixels(inputs[np.int64(0)]) == array + 3).all()
    assert (pixels(inputs[-1]) == array + 1).all()
    assert len(decoded) == 3
    with pytest.raises(IndexError):
        inputs[2]


def test_texts_of_a_data_set_are_a_list():
    data = datasets.Dataset.from_dict({"text": ["NA", "b"], "label": [1, None], "ids": [[1], [2]]})
    assert read_dataset(data, "text").inputs == ["NA", "b"]
    with pytest.raises(ValueError, match="'label' is empty in 1 row: 2"):
        read_dataset(data, "text", "label")
    coded = data.cast_column("label", datasets.ClassLabel(names=["x", "y"]))
    with pytest.raises(ValueError, match="'label' is empty in 1 row: 2"):
        read_dataset(coded, "text", "label")
    with pytest.raises(ValueError, match="'ids' must hold texts, images or clips; got List"):
        read_dataset(data, "ids")
    with pytest.raises(ValueError, match=r"the data set has no column 'txt'.*mean 'text'\?"):
        read_dataset(data, "txt")
    with pytest.raises(ValueError, match="no rows"):
        read_dataset(data.select([]), "text")


def test_a_missing_image_is_named_by_its_row():
    data = datasets.Dataset.from_dict({"image": [None]}).cast_column("image", datasets.Image())
    with pytest.raises(ValueError, match="'image' is empty in 1 row: 1"):
        read_dataset(data, "image").inputs[0]


def test_other_data_sets_are_refused():
    data = datasets.Dataset.from_dict({"text": ["a"]})
    with pytest.raises(
        TypeError, match=r"splits \['train', 'test'\]; pass one: dataset\['train'\]"
    ):
        read_dataset(datasets.DatasetDict({"train": data, "test": data}), "text")
    with pytest.raises(TypeError, match="without streaming=True"):
        read_dataset(data.to_iterable_dataset(), "text")
    with pytest.raises(TypeError, match=r"must be a datasets\.Dataset; got str"):
        read_dataset("imdb", "text")

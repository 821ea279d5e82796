"""From files, tables and data sets to inputs a model reads: texts, images, clips, and labels."""

import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from io import BytesIO
from math import inf
from numbers import Real
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from PIL import Image, ImageOps

from loes.checks import as_numpy, check_sequence

IMAGE_SUFFIXES = frozenset(
    (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
)
AUDIO_SUFFIXES = frozenset(
    (".aif", ".aiff", ".au", ".caf", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".w64", ".wav")
) | {".aac", ".m4a", ".wma"}  # libsndfile cannot read these, but they are clips and no texts
# What spreadsheets and scripts write into a column of numbers where there is none.
NO_NUMBER = {"", "-", "?", "n/a", "na", "nan", "none", "null"}
SPLITS = {"test", "train", "training", "val", "valid", "validation"}
JUNK = {"thumbs.db", "desktop.ini"}
INSTALL = "pip install soundfile soxr"


class Examples(NamedTuple):
    """Inputs with what is known of them.

    Attributes
    ----------
    inputs : n texts, paths or items that `read_image` or `read_audio` read.
    labels : (n,) class names or numbers; None where none were asked for.
    groups : (n,) names of what belongs together, such as a speaker; None where none were asked for.
    """

    inputs: Sequence
    labels: np.ndarray | None = None
    groups: np.ndarray | None = None


def _some(items: Sequence, what: str) -> str:
    """Return "3 files: a, b, c ..." with the first three of them."""
    plural = what if len(items) == 1 else f"{what}s"
    more = " ..." if len(items) > 3 else ""
    return f"{len(items)} {plural}: {', '.join(map(str, items[:3]))}{more}"


def _is_path(item: Any) -> bool:
    return isinstance(item, (str, PathLike))


def _file_of(item: Any) -> Any:
    """Return what can be opened: a path, or the bytes of the datasets library's record."""
    if isinstance(item, Mapping):
        item = item.get("path") if item.get("bytes") is None else BytesIO(item["bytes"])
        if item is None:
            raise ValueError("an item of the inputs has neither bytes nor a path; leave it out.")
    if _is_path(item) and not Path(item).is_file():
        raise FileNotFoundError(f"there is no file {fspath(item)!r}.")
    return item


def _name_of(item: Any) -> str:
    if isinstance(item, Mapping):
        item = item.get("path") or "an item given as bytes"
    return fspath(item) if _is_path(item) else str(item)


def _from_array(array: np.ndarray) -> Image.Image:
    """Return an image of an array whose axes are told apart by their lengths."""
    shape = array.shape
    if array.ndim == 3:
        last, first = shape[2] in (1, 3, 4), shape[0] in (1, 3, 4)
        if last == first:
            which = "two axes that could be" if last else "no axis of 1, 3 or 4"
            raise ValueError(
                f"an image array of shape {shape} has {which} channels; pass (H, W, channels) or "
                "(channels, H, W) of a larger picture, or a PIL image."
            )
        array = array if last else np.moveaxis(array, 0, 2)
        array = array[..., 0] if array.shape[2] == 1 else array
    if array.ndim != 2 + (array.ndim == 3) or not array.size:
        raise ValueError(
            f"an image array must have the shape (H, W), (H, W, 3) or (3, H, W); got {shape}."
        )
    if array.dtype != np.uint8:
        low, high = array.min(), array.max()
        if array.dtype.kind != "f" or not (low >= 0 and high <= 1):
            raise ValueError(
                f"an image array must be uint8, or float in [0, 1]; got {array.dtype} in "
                f"[{low:g}, {high:g}]. Rescale it, and leave the normalisation to the processor."
            )
        array = (array * 255).round().astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(array))


def _as_rgb(image: Image.Image) -> Image.Image:
    """Return an image upright, in RGB, on white where it is transparent."""
    if 0 in image.size:
        raise ValueError(f"an image of size {image.size} has no pixels; leave it out.")
    image = ImageOps.exif_transpose(image)
    if image.mode == "I" or image.mode.startswith("I;16"):
        # PIL would clip at 255. Some decoders give 16 bits as mode I.
        image = _from_array(np.asarray(image).astype(np.float64) / 65535)
    elif image.mode == "F":
        image = _from_array(np.asarray(image))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def read_image(item: Any) -> Image.Image:
    """Read one image as RGB: upright as its EXIF tag says, transparent parts on white.

    Parameters
    ----------
    item : a path, a PIL image, the `datasets` record ``{"bytes": ..., "path": ...}``, or an array
        or tensor of shape (H, W), (H, W, 1 | 3 | 4) or (1 | 3 | 4, H, W), uint8 or float in [0, 1].

    Raises
    ------
    FileNotFoundError for a missing file; ValueError for a damaged one, an array in another range
    or of a shape that does not say which axis holds the channels; TypeError for anything else.
    """
    if isinstance(item, (np.ndarray, torch.Tensor)):
        return _as_rgb(_from_array(as_numpy(item)))
    if isinstance(item, Image.Image):
        return _as_rgb(item)
    if not (_is_path(item) or (isinstance(item, Mapping) and {"bytes", "path"} & item.keys())):
        raise TypeError(
            f"an image must be a path, a PIL image or an array; got {type(item).__name__}."
        )
    file = _file_of(item)
    try:
        with Image.open(file) as image:
            return _as_rgb(image)
    except Exception as error:  # a decoder may fail anywhere in a damaged file, and in its own way
        raise ValueError(f"cannot read {_name_of(item)} as an image: {error}") from error


def _decode(item: Any) -> tuple[np.ndarray, int]:
    """Return (samples, channels) in float32 and the rate of an audio file."""
    try:
        import soundfile
    except ImportError:
        raise ImportError(f"reading audio files needs soundfile; run: {INSTALL}") from None
    file = _file_of(item)
    try:
        return soundfile.read(file, dtype="float32", always_2d=True)
    except soundfile.SoundFileError as error:
        raise ValueError(
            f"cannot read {_name_of(item)} as audio: {error} "
            "Convert it to wav, flac, ogg or mp3 if it is in another format."
        ) from error


def _as_float(array: np.ndarray) -> np.ndarray:
    """Return PCM samples scaled to [-1, 1); floats as they are."""
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    if array.dtype not in (np.uint8, np.int16, np.int32):
        raise ValueError(
            f"samples must be float, or PCM in int16, int32 or uint8; got {array.dtype}."
        )
    full_scale = 2.0 ** (8 * array.itemsize - 1)
    middle = full_scale if array.dtype == np.uint8 else 0
    return ((array - middle) / full_scale).astype(np.float32)


def _as_channels(array: np.ndarray, name: str) -> np.ndarray:
    """Return (samples, channels); in a matrix, the shorter axis holds the channels."""
    if array.ndim == 1:
        return array[:, None]
    if array.ndim != 2 or array.shape[0] == array.shape[1]:
        raise ValueError(
            f"{name} must have the shape (samples,), (channels, samples) or (samples, channels), "
            f"more samples than channels; got {array.shape}."
        )
    return array if array.shape[0] > array.shape[1] else array.T


def read_audio(item: Any, rate: int) -> np.ndarray:
    """Read one clip as mono float32 at `rate` Hz: channels averaged, then resampled.

    Parameters
    ----------
    item : a path; a pair (array, its rate); or the `datasets` record ``{"array": ...,
        "sampling_rate": ...}`` or ``{"bytes": ..., "path": ...}``. An array is (samples,), or a
        matrix whose shorter axis holds the channels; float with full scale 1, or PCM in int16,
        int32 or uint8.
    rate : wanted sampling rate, Hz.

    Returns
    -------
    (samples,) float32 array.

    Raises
    ------
    FileNotFoundError for a missing file; ValueError for a damaged or empty clip, samples that are
    not finite or no rate; TypeError for anything else; ImportError without the audio libraries.
    """
    if _is_path(item):
        array, item_rate = _decode(item)
        name = _name_of(item)
    elif isinstance(item, Mapping) and {"array", "sampling_rate"} <= item.keys():
        array, item_rate = item["array"], item["sampling_rate"]
        name = item.get("path") or "the clip"
    elif isinstance(item, Mapping) and {"bytes", "path"} & item.keys():
        array, item_rate = _decode(item)
        name = _name_of(item)
    elif isinstance(item, (tuple, list)) and len(item) == 2 and np.ndim(item[1]) == 0:
        array, item_rate = item
        name = "the clip"
    elif isinstance(item, (tuple, list)) and len(item) == 2 and np.ndim(item[0]) == 0:
        raise TypeError("a clip must be (array, rate), the array first; got (rate, array).")
    elif isinstance(item, (np.ndarray, torch.Tensor)):
        raise TypeError(
            f"a clip of shape {tuple(item.shape)} came without its sampling rate; pass "
            "(array, rate) with the rate in Hz, such as (array, 16000)."
        )
    else:
        raise TypeError(
            f"a clip must be a path, (array, rate) or a record of both; got {type(item).__name__}."
        )
    for value in (item_rate, rate):
        if not isinstance(value, Real) or isinstance(value, bool) or not 0 < value < inf:
            raise ValueError(
                f"{name}: a sampling rate must be a finite number > 0, in Hz; got {value!r}."
            )
    array = as_numpy(array)
    if not array.size:
        raise ValueError(f"{name} is empty; leave it out.")
    samples = _as_channels(_as_float(array), name).mean(1)
    if not np.isfinite(samples).all():
        raise ValueError(f"{name} holds samples that are NaN or infinite; leave it out.")
    if item_rate != rate:
        try:
            import soxr
        except ImportError:
            raise ImportError(
                f"resampling from {item_rate} to {rate} Hz needs soxr; run: {INSTALL}"
            ) from None
        samples = soxr.resample(samples, item_rate, rate)
        if not samples.size:
            raise ValueError(f"{name} has no sample left at {rate} Hz; leave it out.")
    return samples


def _modality_of_path(path: str | PathLike) -> str:
    suffix = Path(path).suffix.lower()
    if suffix in IMAGE_SUFFIXES:
        return "image"
    return "audio" if suffix in AUDIO_SUFFIXES else "text"


def _modality_of_item(item: Any) -> str:
    if isinstance(item, Image.Image):
        return "image"
    if isinstance(item, (np.ndarray, torch.Tensor)):
        return "audio" if item.ndim == 1 else "image"
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return "audio"
    if isinstance(item, Mapping):
        if "array" in item:
            return "audio"
        if item.get("path") and (modality := _modality_of_path(item["path"])) != "text":
            return modality
        try:
            with Image.open(_file_of(item)):
                return "image"
        except OSError:
            return "audio"
    if isinstance(item, PathLike) and (modality := _modality_of_path(item)) != "text":
        return modality
    raise TypeError(
        "inputs must be texts, images or audio clips (as paths, PIL images, arrays or pairs "
        f"(array, rate)); got {_name_of(item) if _is_path(item) else type(item).__name__}."
    )


def modality_of(inputs: Sequence) -> str:
    """Return "text", "image" or "audio", by looking at the items.

    A string is a path if its suffix is that of an image or audio file, and all others are too. Of
    a sequence that reads its items when asked, only the first is looked at.

    Raises
    ------
    TypeError for items that are none of these; ValueError for no items or a mixture.
    """
    check_sequence(inputs, "a sequence", "__len__")
    if not len(inputs):
        raise ValueError("inputs is empty; pass at least one item.")
    first = inputs[0]
    if not isinstance(first, str):
        items = inputs if isinstance(inputs, (list, tuple)) else [first]
        found = {"text" if isinstance(item, str) else _modality_of_item(item) for item in items}
    else:
        others = [item for item in inputs if not isinstance(item, str)]
        if others:
            raise TypeError(f"inputs holds texts and also {type(others[0]).__name__}.")
        kinds = [_modality_of_path(item) for item in inputs]
        found = set(kinds)
        texts = [item for item, kind in zip(inputs, kinds, strict=True) if kind == "text"]
        # A text may end in ".png"; but where most are paths, the rest is more likely a mistake.
        if 2 * len(texts) >= len(kinds):
            return "text"
        if texts:
            raise ValueError(
                f"most inputs are paths of images or clips, but not these: "
                f"{_some([repr(text[:80]) for text in texts], 'item')}."
            )
    if len(found) > 1:
        raise ValueError(f"inputs must be of one kind; got {' and '.join(sorted(found))}.")
    return found.pop()


def _refuse(
    rows: Iterable[int], column: str, why: str, cure: str = "Fill in or drop them."
) -> None:
    """Raise if there are rows; counted from 1, without the header."""
    numbers = [int(row) + 1 for row in rows]
    if numbers:
        raise ValueError(
            f"column {column!r} {why} in {_some(numbers, 'row')} (from 1, without the header). "
            f"{cure}"
        )


def _check_columns(names: Sequence, wanted: Sequence[str | None], where: str) -> None:
    """Refuse a name that is not there, or is there twice."""
    names = [str(name) for name in names]
    for name in wanted:
        if name is None:
            continue
        if name not in names:
            close = get_close_matches(str(name), names, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"{where} has no column {name!r}; it has {names}.{hint}")
        if names.count(name) > 1:
            raise ValueError(f"{where} has {names.count(name)} columns {name!r}; rename them.")


def _refuse_empty(values: Sequence, column: str) -> None:
    def is_empty(value: Any) -> bool:
        if isinstance(value, str):
            return not value.strip()
        return value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value))

    _refuse((row for row, value in enumerate(values) if is_empty(value)), column, "is empty")


def _as_labels(values: Sequence, column: str) -> np.ndarray:
    """Return one label or group a row, numbers as numbers; refuse missing and mixed ones."""
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    _refuse_empty(values, column)
    kinds = {type(value).__name__ for value in values}
    if len(kinds) > 1 and kinds != {"int", "float"}:
        raise ValueError(f"column {column!r} mixes {' and '.join(sorted(kinds))}; write one kind.")
    if not kinds <= {"str", "int", "float", "bool"}:
        raise ValueError(f"column {column!r} must hold names or numbers; got {kinds.pop()}.")
    return np.array(values)


def _as_numbers(values: pd.Series, column: str) -> pd.Series:
    """Return numbers if all that is written are numbers; text is kept, "NA" as a class too.

    Names made of digits are text, too: 007 is not 7, and of long ones a number keeps the beginning.
    """
    numbers = pd.to_numeric(values, errors="coerce")
    others = values[numbers.isna()]
    written = values.str.strip()
    names = written.str.fullmatch(r"\d+").all() and numbers.nunique() < written.nunique()
    if len(others) == len(values) or names or written.str.fullmatch(r"0\d+").any():
        return values
    if others.str.strip().str.lower().isin(NO_NUMBER).all():
        _refuse(np.flatnonzero(numbers.isna()), column, "holds numbers, but none")
        return numbers
    return values


def _as_inputs(values: Sequence, column: str) -> list:
    """Return texts, paths or records as a list; refuse missing and empty ones."""
    values = list(values)
    _refuse_empty(values, column)
    for row, value in enumerate(values):
        if not isinstance(value, (str, Mapping)):
            raise ValueError(
                f"column {column!r} must hold texts or paths; got {type(value).__name__} in row "
                f"{row + 1}."
            )
    return values


def _resolve(inputs: list, folder: Path) -> list:
    """Return the paths of images and clips below `folder` as such, and texts as they are."""
    if not all(isinstance(item, str) for item in inputs) or modality_of(inputs) == "text":
        return inputs
    paths = [folder / item for item in inputs]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"of {len(paths)} files, these are missing: {_some(missing, 'file')}. "
            "Relative paths start at the table's folder."
        )
    return paths


def _read_csv(path: Path, separator: str) -> pd.DataFrame:
    """Read all cells as they are written; the first row holds the names."""
    try:
        # Without a header, so that pandas renames no column and makes none the index.
        frame = pd.read_csv(
            path, sep=separator, header=None, dtype=str, keep_default_na=False, encoding="utf-8-sig"
        )
    except pd.errors.EmptyDataError:
        return pd.DataFrame()
    except pd.errors.ParserError as error:
        raise ValueError(
            f"{path} is not well formed: {error}. Quote cells that hold separators or line breaks."
        ) from error
    return frame.iloc[1:].set_axis(frame.iloc[0].tolist(), axis=1)


def _read_jsonl(path: Path) -> pd.DataFrame:
    """Read one object a line. `pandas.read_json` would guess dates and round numbers."""
    records = []
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number} of {path} is not JSON: {error}.") from error
            if not isinstance(record, dict):
                raise ValueError(
                    f"line {number} of {path} must be an object such as "
                    f'{{"text": ..., "label": ...}}; got {type(record).__name__}.'
                )
            records.append(record)
    return pd.DataFrame(records, dtype=object)


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        import pyarrow
    except ImportError:
        raise ImportError("reading parquet needs pyarrow; run: pip install pyarrow") from None
    try:
        return pd.read_parquet(path, engine="pyarrow")
    except pyarrow.ArrowException as error:
        raise ValueError(f"cannot read {path} as parquet: {error}") from error


READERS = {
    ".csv": lambda path: _read_csv(path, ","),
    ".tsv": lambda path: _read_csv(path, "\t"),
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}


def read_table(
    path: str | PathLike, column: str, label: str | None = None, group: str | None = None
) -> Examples:
    """Read inputs and labels from the columns of a table.

    Text is taken as it is written ("NA" is a word). Labels that are all numbers become numbers.

    Parameters
    ----------
    path : a csv, tsv, jsonl or parquet file; in UTF-8, with the column names in the first row.
    column : the column of texts, or of paths of images or clips, relative to the table's folder.
    label, group : the columns of labels, and of what must not be split, such as a speaker.

    Returns
    -------
    Examples with a list of n texts, or of n `Path` objects.

    Raises
    ------
    FileNotFoundError for a missing table, image or clip; ValueError for an unknown format, a
    missing column, an empty table, empty cells or a mixture of kinds, with the rows concerned.
    """
    path = Path(path)
    if path.suffix.lower() not in READERS:
        raise ValueError(f"a table must be one of {', '.join(READERS)}; got {path.name!r}.")
    if not path.is_file():
        raise FileNotFoundError(f"there is no table {fspath(path)!r}.")
    try:
        frame = READERS[path.suffix.lower()](path)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not in UTF-8 ({error.reason} at byte {error.start}); save it so, or run: "
            f"iconv -f WINDOWS-1252 -t UTF-8 {path.name} > utf8-{path.name}"
        ) from error
    if not len(frame):
        raise ValueError(f"{path} has no rows.")
    _check_columns(frame.columns, (column, label, group), str(path))
    is_written = path.suffix.lower() in (".csv", ".tsv")
    if path.suffix.lower() == ".tsv":
        # The sign of a stray quotation mark, after which rows were read as one cell.
        swallowed = np.flatnonzero(frame[column].str.contains("\t"))
        _refuse(swallowed, column, "holds tabs", "Save the table as csv or jsonl.")
    inputs = _as_inputs(frame[column], column)
    labels = groups = None
    if label is not None:
        values = _as_numbers(frame[label], label) if is_written else frame[label]
        labels = _as_labels(values, label)
    if group is not None:
        groups = _as_labels(frame[group], group)
    return Examples(_resolve(inputs, path.resolve().parent), labels, groups)


def _is_hidden(path: Path) -> bool:
    """Say whether a path below a data folder is hidden, or left there by an operating system."""
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in path.parts)
    return hidden or path.name.lower() in JUNK


def read_image_folder(folder: str | PathLike) -> Examples:
    """Read images and their classes from a folder with one subfolder a class.

    Files are taken in the order of their names, those of deeper folders too. Hidden files and what
    operating systems leave behind are passed over, and so are files beside the class folders that
    are no images.

    Parameters
    ----------
    folder : the folder that holds the class folders.

    Returns
    -------
    Examples with a list of n `Path` objects and (n,) class names.

    Raises
    ------
    NotADirectoryError for no folder; ValueError for class folders that are missing, empty or the
    parts of a split, images outside them, and files inside them that are no images.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise NotADirectoryError(f"there is no folder {fspath(folder)!r}.")
    below = [path for path in sorted(folder.rglob("*")) if not _is_hidden(path.relative_to(folder))]
    names = [path.name for path in below if path.parent == folder and path.is_dir()]
    if not names:
        raise ValueError(f"{folder} holds no class folders, such as {folder / 'cat'}.")
    if {name.lower() for name in names} <= SPLITS:
        raise ValueError(
            f"{folder} holds the parts of a split, {names}; pass one: {folder / names[0]}."
        )
    images, others = [], []
    for path in below:
        if path.is_file():
            (images if _modality_of_path(path) == "image" else others).append(path)
    if loose := [path.name for path in images if path.parent == folder]:
        raise ValueError(
            f"{folder} holds images outside the class folders: {_some(loose, 'file')}."
        )
    if others := [path.relative_to(folder) for path in others if path.parent != folder]:
        raise ValueError(
            f"class folders must hold images only ({', '.join(sorted(IMAGE_SUFFIXES))}); got "
            f"{_some(others, 'other file')}."
        )
    labels = [path.relative_to(folder).parts[0] for path in images]
    if empty := sorted(set(names) - set(labels)):
        raise ValueError(f"{folder} has class folders without an image: {_some(empty, 'folder')}.")
    return Examples(images, np.array(labels))


class _Column(Sequence):
    """One column of a data set, each item decoded when it is asked for."""

    def __init__(self, dataset: Any, name: str):
        self.dataset, self.name = dataset, name

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        item = self.dataset[int(index)][self.name]
        if item is None:
            _refuse([index], self.name, "is empty")
        return item


def read_dataset(
    dataset: Any, column: str, label: str | None = None, group: str | None = None
) -> Examples:
    """Take inputs and labels from a `datasets.Dataset`.

    Images and clips are decoded one by one when they are read, so that memory stays flat. Clips
    are decoded by soundfile: torchcodec is not needed. Coded classes become their names.

    Parameters
    ----------
    dataset : one split of a data set.
    column : the column of texts, images or clips.
    label, group : the columns of labels, and of what must not be split, such as a speaker.

    Raises
    ------
    TypeError for several splits, a stream or no data set; ValueError for a missing column, no
    rows, empty cells or a column of another kind.
    """
    if isinstance(dataset, Mapping):
        splits = list(dataset)
        raise TypeError(f"dataset holds the splits {splits}; pass one: dataset[{splits[0]!r}].")
    if not (hasattr(dataset, "column_names") and hasattr(dataset, "features")):
        raise TypeError(f"dataset must be a datasets.Dataset; got {type(dataset).__name__}.")
    if not hasattr(dataset, "__len__"):
        raise TypeError("dataset is a stream; load it without streaming=True.")
    _check_columns(dataset.column_names, (column, label, group), "the data set")
    if not len(dataset):
        raise ValueError("the data set has no rows.")
    dataset = dataset.with_format(None)  # or a set format would give tensors

    def names_or_numbers(name: str | None) -> np.ndarray | None:
        if name is None:
            return None
        values = dataset.select_columns([name])[:][name]
        if classes := getattr(dataset.features[name], "names", None):
            # -1 marks a sample without a label
            values = [None if code in (None, -1) else classes[code] for code in values]
        return _as_labels(values, name)

    feature = dataset.features[column]
    kind = type(feature).__name__
    if kind == "Audio":
        rows = dataset.cast_column(column, type(feature)(decode=False)).select_columns([column])
        inputs = _Column(rows, column)
    elif kind == "Image":
        inputs = _Column(dataset.select_columns([column]), column)
    elif getattr(feature, "dtype", None) in ("string", "large_string"):
        inputs = _as_inputs(dataset.select_columns([column])[:][column], column)
    else:
        raise ValueError(f"column {column!r} must hold texts, images or clips; got {feature}.")
    return Examples(inputs, names_or_numbers(label), names_or_numbers(group))

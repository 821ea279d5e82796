"""A folder of shards, in which an extraction keeps what it has finished, and fingerprints."""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from numbers import Number
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from transformers import PretrainedConfig

from loes.features import LayerFeatures
from loes.inputs import read_image

FORMAT = 1
MANIFEST = "manifest.json"
ABANDONED = 3600  # seconds: nobody takes longer to write one file
# Set by saving, loading or casting a model (the weights' own dtypes are hashed): not what it does.
RECORDS = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"}


class FeatureStore:
    """Layer features on disk, one file a shard, so that a killed extraction can go on.

    A file appears under its name only when it is complete, and its content depends on nothing but
    the features: an interrupted and resumed run leaves the same bytes as one that ran through.
    Several processes may write different shards of one folder at the same time.

    Parameters
    ----------
    folder : where ``manifest.json`` and ``shard-00000.safetensors`` ... are; created when missing.
    about : what the features depend on (fingerprints, pooling, shard size ...), as JSON has it.

    Raises
    ------
    NotADirectoryError if `folder` is a file; ValueError if it holds features of something else
    (each differing key is named), a damaged manifest, or other files and no manifest.
    """

    def __init__(self, folder: str | os.PathLike, about: Mapping[str, object]):
        self.folder = Path(folder)
        self._about = about
        self._manifest = hashlib.sha256(_json(about)).hexdigest()
        self._layout: tuple[str, dict] | None = None  # of the first shard seen: its name, layers
        if self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(f"{folder} is a file; pass a folder for the features.")
        self.folder.mkdir(parents=True, exist_ok=True)
        manifest = self.folder / MANIFEST
        # Listed before looking for the manifest: another process writes it before its first shard.
        found = set(self.folder.iterdir()) - set(self._temporaries())
        if manifest.exists():
            _check_manifest(manifest, about)
        elif found:
            names = ", ".join(sorted(path.name for path in found)[:3])
            raise ValueError(
                f"{folder} holds other files ({names} ...) and no {MANIFEST}; pass a new or an "
                "empty folder for the features."
            )
        for path in self._temporaries():
            # A killed process left it; one still at work would have written to it lately.
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > ABANDONED:
                    path.unlink()

    def read(self, shard: int) -> LayerFeatures | None:
        """Return the features of a shard, or None if it is not there yet.

        Raises
        ------
        ValueError naming the file if it is damaged, of another extraction or shard, or has other
        layers than the shards before it.
        """
        path = self._path(shard)
        if path.is_dir():
            raise _damage(path, "is a folder")
        try:
            with safe_open(path, framework="numpy") as file:
                header = json.loads(file.metadata()["loes"])
                arrays = [file.get_tensor(str(layer)) for layer in range(len(header["names"]))]
            digest = header.pop("sha256")
        except FileNotFoundError:
            return None
        except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damage(path, f"is damaged or no shard at all ({error!r})") from error
        if digest != _digest_shard(header, arrays):
            raise _damage(path, "is damaged: its SHA-256 is another one")
        if header["manifest"] != self._manifest or header["shard"] != shard:
            raise _damage(path, f"belongs to another extraction, or is not shard {shard}")
        self._check_layout(path, header)
        return LayerFeatures(header["names"], arrays, header["pooling"])

    def write(self, shard: int, features: LayerFeatures) -> None:
        """Write the features of a shard: all of the file or nothing.

        Raises
        ------
        ValueError if the layers are other ones than in the shards read or written before.
        """
        path = self._path(shard)
        arrays = [np.ascontiguousarray(array, dtype=np.float32) for array in features]
        header = {
            "manifest": self._manifest,
            "names": features.names,
            "pooling": features.pooling,
            "shapes": [array.shape for array in arrays],
            "shard": shard,
        }
        self._check_layout(path, header)
        header["sha256"] = _digest_shard(header, arrays)
        # One entry for all: safetensors writes several in random order.
        metadata = {"loes": _json(header).decode()}
        manifest = self.folder / MANIFEST
        if manifest.exists():
            _check_manifest(manifest, self._about)
        else:  # as late as this: a run that fails before its first shard binds nobody
            write_whole(manifest, _json({"about": self._about, "format": FORMAT}, indent=2))
        write_whole(path, save({str(layer): array for layer, array in enumerate(arrays)}, metadata))

    def _path(self, shard: int) -> Path:
        return self.folder / f"shard-{shard:05d}.safetensors"

    def _temporaries(self) -> list[Path]:
        names = (MANIFEST, "shard-*.safetensors")
        return [path for name in names for path in self.folder.glob(f".{name}.*.tmp")]

    def _check_layout(self, path: Path, header: Mapping) -> None:
        """Refuse layers that are not those of the first shard seen."""
        widths = [shape[1] for shape in header["shapes"]]
        layout = {"names": list(header["names"]), "widths": widths, "pooling": header["pooling"]}
        first, wanted = self._layout = self._layout or (path.name, layout)
        differing = [
            f"{key} {layout[key]} instead of {wanted[key]}"
            for key in layout
            if layout[key] != wanted[key]
        ]
        if differing:
            raise _damage(path, f"and {first} have not the same layers: {'; '.join(differing)}")


def fingerprint_model(model: torch.nn.Module) -> str:
    """Return a SHA-256 over the class, the configuration and every weight of a model.

    The same on every device; another one after any change of a weight, its name or its precision.
    """
    config = getattr(model, "config", None)
    settings = None
    if isinstance(config, PretrainedConfig):
        settings = json.loads(config.to_json_string(use_diff=False), object_hook=_without_records)
    total = hashlib.sha256(_digest(type(model).__name__, _json(settings)))
    for name, tensor in sorted(model.state_dict().items()):
        total.update(_digest("weight", name.encode(), _digest_tensor(tensor)))
    return total.hexdigest()


def fingerprint_inputs(inputs: Iterable) -> str:
    """Return a SHA-256 over the samples, in their order.

    Parameters
    ----------
    inputs : texts, paths (a `Path`, since any string is a text; of a file, the content counts and
        not the name), PIL images, arrays, tensors, (array, rate) pairs, records of `datasets`.

    Raises
    ------
    FileNotFoundError, TypeError naming the first sample that is missing or of no known kind.
    """
    total = hashlib.sha256()
    for index, item in enumerate(inputs):
        try:
            total.update(_digest_item(item))
        except FileNotFoundError as error:
            raise FileNotFoundError(f"inputs[{index}]: there is no file {error.filename}") from None
        except TypeError as error:
            raise TypeError(f"inputs[{index}]: {error}") from None
    return total.hexdigest()


def _digest(kind: str, *parts: bytes | np.ndarray) -> bytes:
    """Hash what something is and its parts.

    Each part enters by its own digest, of one length, so that "ab", "c" is not "a", "bc".
    """
    digest = hashlib.sha256(kind.encode() + b"\0")
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.digest()


def _digest_item(item: object) -> bytes:
    """Hash one sample, or a part of one."""
    if isinstance(item, str):
        return _digest("text", item.encode("utf-8", "surrogatepass"))
    if isinstance(item, bytes):
        return _digest("bytes", item)
    if isinstance(item, os.PathLike):
        with open(item, "rb") as file:
            return _digest("file", hashlib.file_digest(file, "sha256").digest())
    if isinstance(item, Image.Image):
        return _digest("image", _digest_array(np.asarray(read_image(item))))  # as a model sees it
    if isinstance(item, torch.Tensor):
        return _digest_tensor(item)
    if isinstance(item, np.ndarray):
        return _digest_array(item)
    if isinstance(item, Number):
        return _digest("number", repr(float(item)).encode())
    if isinstance(item, Mapping):
        # As the datasets library gives audio and images: beside content, the path is a label.
        item = {key: value for key, value in item.items() if value is not None}
        if "array" in item or "bytes" in item:
            item.pop("path", None)
        elif "path" in item:
            item["path"] = Path(item["path"])
        return _digest(
            "mapping", *(_digest_item(part) for pair in sorted(item.items()) for part in pair)
        )
    if isinstance(item, Sequence):
        return _digest("list", *map(_digest_item, item))
    raise TypeError(
        f"{type(item).__name__} has no fingerprint; pass texts, paths, images, arrays or tensors."
    )


def _digest_array(array: np.ndarray) -> bytes:
    """Hash the type, shape and values of an array."""
    if array.dtype.hasobject:
        raise TypeError("an array of objects has no fingerprint; pass an array of numbers.")
    values = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return _digest(f"array {array.dtype.str} {array.shape}", values)


def _digest_tensor(tensor: torch.Tensor) -> bytes:
    """Hash the type, shape and values of a tensor, of a precision that numpy may not have."""
    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return _digest(f"tensor {tensor.dtype} {tuple(tensor.shape)}", values)


def _digest_shard(header: Mapping[str, object], arrays: Iterable[np.ndarray]) -> str:
    """Hash all of a shard."""
    return _digest("shard", _json(header), *map(_digest_array, arrays)).hex()


def _json(value: object, indent: int | None = None) -> bytes:
    return json.dumps(value, sort_keys=True, indent=indent).encode()


def _without_records(config: dict) -> dict:
    return {key: value for key, value in config.items() if key not in RECORDS}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Let what fails say where: a full disk names no file, and safetensors no OSError."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from error
    except OSError as error:
        if error.errno and not error.filename:
            error.filename = str(path)
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is there completely or not at all."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file in it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent}; create it first.")
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        with writing(path), temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Give a folder to fill beside `folder`, whose place it takes if nothing fails."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    drafting = TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.")
    with drafting as drafts, writing(folder):
        draft = Path(drafts, "draft")
        draft.mkdir()
        yield draft
        if folder.exists():
            folder.replace(Path(drafts, "replaced"))
        draft.replace(folder)


def _check_manifest(path: Path, wanted: Mapping[str, object]) -> None:
    """Refuse a manifest that is not JSON, of another version or about something else."""
    way_out = f"Pass another folder, or delete {path.parent}."
    try:
        found = json.loads(path.read_bytes())
        about, version = dict(found["about"]), found["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}). {way_out}") from error
    if version != FORMAT:
        raise ValueError(f"{path} has format {version!r}, this version reads {FORMAT}. {way_out}")
    differing = [
        f"{key}: had {_value(about, key)}, wanted {_value(wanted, key)}"
        for key in sorted(about.keys() | wanted.keys())
        if _value(about, key) != _value(wanted, key)
    ]
    if differing:
        raise ValueError(
            f"{path.parent} holds features of something else ({'; '.join(differing)}). {way_out}"
        )


def _value(about: Mapping[str, object], key: str) -> str:
    return _json(about[key]).decode() if key in about else "nothing"


def _damage(path: Path, what: str) -> ValueError:
    return ValueError(f"{path} {what}. Delete it and run again: the rest of the folder is kept.")

"""What converters share: checkpoint folders that are whole or not there, checked at every use."""

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from transformers import PretrainedConfig, PreTrainedModel

from loes.packages import locked_draft

SUMS = "SHA256SUMS"  # in the format of the command of that name: sha256sum -c SHA256SUMS


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_intact(folder: Path) -> bool:
    """Say whether a folder holds the files that were written, unchanged."""
    if not (folder / SUMS).is_file():
        return False
    sums = [line.split("  ", 1) for line in (folder / SUMS).read_text().splitlines()]
    return all((folder / name).is_file() and sha256(folder / name) == sum for sum, name in sums)


def write_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return `folder`, filled by `write` unless it is there and intact.

    `write` fills a folder beside it, which then takes its place: a process that is killed leaves
    nothing that could be taken for a result, and of several processes one writes for all.
    """
    if is_intact(folder):
        return folder
    with locked_draft(folder) as partial:
        if is_intact(folder):  # written while this process waited
            return folder
        write(partial)
        names = sorted(path.name for path in partial.iterdir())
        sums = "".join(f"{sha256(partial / name)}  {name}\n" for name in names)
        (partial / SUMS).write_text(sums)
        shutil.rmtree(folder, ignore_errors=True)  # if it is damaged
        os.replace(partial, folder)
    return folder


def save_model(
    architecture: type[PreTrainedModel],
    config: PretrainedConfig,
    weights: Mapping[str, np.ndarray],
    folder: Path,
    **options,
) -> None:
    """Write weights, under the names in which `architecture` is published, as a checkpoint.

    `options` are those of `from_pretrained`, by which it is read again.

    Raises
    ------
    ValueError if a tensor is missing or one too many; RuntimeError if one has another shape.
    """
    weights = {name: np.asarray(value, order="C") for name, value in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures = [architecture.__name__]
    config.save_pretrained(folder)
    _, report = architecture.from_pretrained(folder, output_loading_info=True, **options)
    for fault in ("missing", "unexpected"):
        if names := sorted(report[f"{fault}_keys"]):
            raise ValueError(f"{fault} weights of {architecture.__name__}: {', '.join(names)}.")


def save_image_processor(folder: Path, mean: Sequence[float], std: Sequence[float]) -> None:
    """Write the usual evaluation view of ImageNet: shorter side to 256, the middle 224 x 224.

    `mean` and `std` of the three colours are those of values in [0, 1].
    """
    config = {
        "image_processor_type": "BitImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": 256},
        "resample": 3,  # bicubic
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean),
        "image_std": list(std),
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(config, indent=2))


class Reader:
    """Reads little-endian values one after another; ValueError where the data end too early."""

    def __init__(self, data: bytes):
        self.data = data
        self.position = 0

    def bytes(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        start, self.position = self.position, self.position + count
        if self.position > len(self.data):
            raise ValueError(
                f"the file ends after {len(self.data)} bytes, where {self.position} were expected."
            )
        return self.data[start : self.position]

    def values(self, types: str) -> tuple:
        """Return the next values, one for each letter of the module struct in `types`."""
        return struct.unpack(f"<{types}", self.bytes(struct.calcsize(f"<{types}")))

    def array(self, dtype: np.dtype | str, count: int) -> np.ndarray:
        """Return the next `count` values of one dtype."""
        dtype = np.dtype(dtype)
        return np.frombuffer(self.bytes(count * dtype.itemsize), dtype)

"""Tasks of pictures: silhouettes, digits, drawings, and emoji as pictures or as names."""

import gzip
import json
import pickletools
import re
import struct
from importlib import metadata
from pathlib import Path

import numpy as np
import sklearn
from PIL import Image
from sklearn.datasets import load_digits

from loes.packages import debian_folder, debian_version, npm_folder, package_file
from loes.tasks.task import Task, build, choose

# Read off the pictures: the package gives numbers.
ANIMALS = ["bear", "bird", "cat", "cow", "dog", "elephant", "giraffe", "horse", "sheep", "zebra"]

CLIPART = [
    "animals",
    "buildings",
    "food",
    "office",
    "people",
    "plants",
    "recreation",
    "tools",
    "transportation",
]
# Two sets of signs and one of playing cards, near the same picture each.
SERIES = ["recreation/games/cards", "transportation/aiga-symbols", "transportation/roadsigns"]
SIDE = 128
LARGEST = 1_000_000  # pixels; few are larger, and those take most of the time to decode


def animals(per_class: int | None, seed: int) -> Task:
    """Ten kinds of animals as white silhouettes of 28 pixels."""
    folder = "animal_mnist/data/Animal_MNIST"
    pictures = _pickled_bytes(package_file("animal-mnist", f"{folder}/animal_data_version_3.gz"))
    labels = _pickled_bytes(package_file("animal-mnist", f"{folder}/animal_label_version_3.gz"))
    inputs = list(np.frombuffer(pictures, np.uint8).reshape(-1, 28, 28))
    return build(
        "animals",
        inputs,
        [ANIMALS[label] for label in np.frombuffer(labels, "<i8")],
        [f"picture {number}" for number in range(len(inputs))],
        per_class=per_class,
        seed=seed,
        modality="image",
        licence="MIT",
        source=f"animal-mnist {metadata.version('animal-mnist')}, repeated pictures left out",
    )


def _pickled_bytes(path: Path) -> bytes:
    """Return the numbers of a pickled array without unpickling, which would run what a file says.

    `numpy.load` reads no bare pickles. Both files hold one C-ordered array, whose numbers are the
    longest argument among the pickle's instructions; `pickletools` lists those and runs none.
    """
    arguments = (
        argument for _, argument, _ in pickletools.genops(gzip.decompress(path.read_bytes()))
    )
    return max((each for each in arguments if isinstance(each, bytes)), key=len)


def digits(per_class: int | None, seed: int) -> Task:
    """Handwritten digits of 8 pixels: the easy twin of `animals`; who wrote them is not known."""
    images, labels = (load_digits()[key] for key in ("images", "target"))
    return build(
        "digits",
        list((images * (255 / 16)).astype(np.uint8)),
        labels.astype(str).tolist(),
        [f"picture {number}" for number in range(len(images))],
        per_class=per_class,
        seed=seed,
        modality="image",
        licence="CC-BY-4.0 (data), BSD-3-Clause (packaging)",
        source="Optical Recognition of Handwritten Digits (Alpaydin and Kaynak, 1998), from "
        f"scikit-learn {sklearn.__version__}",
    )


def clipart(per_class: int | None, seed: int) -> Task:
    """Drawings of the Open Clip Art Library and what they show; on white, 128 pixels.

    Pictures of one name but for its number (the second of five dogs) stay together.
    """
    package = debian_folder("openclipart-png", megabytes=131, twin="uoft-cs/cifar100")
    root = package / "usr/share/openclipart/png"
    inputs, labels, groups = [], [], []
    for path in sorted(path for label in CLIPART for path in root.glob(f"{label}/**/*.png")):
        name = path.relative_to(root).as_posix()
        if name.startswith(tuple(f"{series}/" for series in SERIES)):
            continue
        # From the header: PIL itself refuses to open the largest ones.
        width, height = struct.unpack(">II", path.read_bytes()[16:24])
        if width * height > LARGEST:
            continue
        inputs.append(_on_white(path))
        labels.append(name.split("/")[0])
        groups.append(re.sub(r"[\d_]+", " ", path.stem))
    return build(
        "clipart",
        inputs,
        labels,
        groups,
        per_class=per_class,
        seed=seed,
        modality="image",
        licence="public domain",
        source=f"Debian package openclipart-png {debian_version(package)}",
    )


def _on_white(path: Path) -> Image.Image:
    """Read a picture into a square of at most SIDE pixels, white where it is transparent."""
    with Image.open(path) as file:
        picture = file.convert("RGBA")
    picture.thumbnail((SIDE, SIDE))
    side = max(picture.size)
    square = Image.new("RGBA", (side, side), "white")
    square.alpha_composite(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    return square.convert("RGB")


def emoji(
    per_class: int | None, seed: int, *, modality: str = "image", language: str = "en"
) -> Task:
    """Which of eight categories an emoji is in, from its picture or from its name.

    The pictures and the names of every language share their items, groups and splits. Men, women
    and persons who do the same stay together.
    """
    choose("modality", modality, ["image", "text"])
    names, english = _names(language), _names("en")
    pictures = npm_folder(
        "emoji-datasource-twitter",
        "16.0.0",
        "sha512-7F+uCuHH+7Qnrc15P5tnbvKkg9E6tlzi4MnT2uW1RlN4pLYTza6cP/dstIfSDMtpjFLWuZewWg8jBbuL2eyELQ==",
        megabytes=62,
    )
    items = json.loads((pictures / "emoji.json").read_text(encoding="utf-8"))
    items = [  # those that have an English name, in all languages and as pictures
        item
        for item in items
        if item["category"] not in ("Component", "Flags")
        and _characters(item["unified"]) in english
    ]
    if modality == "image":
        inputs = [_on_white(pictures / "img/twitter/64" / item["image"]) for item in items]
    else:
        inputs = [names.get(_characters(item["unified"])) for item in items]
    return build(
        f"emoji names in {language!r}" if modality == "text" else "emoji",
        inputs,
        [item["category"] for item in items],
        [_without_gender(item["unified"]) for item in items],
        per_class=per_class,
        seed=seed,
        modality=modality,
        licence="CC-BY-4.0 (Twemoji pictures)" if modality == "image" else "Unicode-3.0",
        source="emoji-datasource-twitter 16.0.0"
        if modality == "image"
        else f"cldr-annotations-full 48.2.0, language {language}, and the categories of "
        "emoji-datasource-twitter 16.0.0",
    )


def _names(language: str) -> dict[str, str]:
    """Return the short name of each emoji in one language."""
    folder = npm_folder(
        "cldr-annotations-full",
        "48.2.0",
        "sha512-DV7A+rEcgUSNTRsVGNGqBZRmAkGfwhGHO5Q1dRwzBoBnVrHWp804JP7/QJdEc66iHmx3+zLWVIMCFLm0lW7PUQ==",
        megabytes=7,
    )
    choose("language", language, sorted(path.name for path in (folder / "annotations").iterdir()))
    path = folder / "annotations" / language / "annotations.json"
    annotations = json.loads(path.read_text(encoding="utf-8"))["annotations"]["annotations"]
    return {key: entry["tts"][0] for key, entry in annotations.items() if "tts" in entry}


def _characters(unified: str) -> str:
    """Return the emoji of "2764-FE0F" as CLDR writes it, without the mark for colour (FE0F)."""
    return "".join(chr(int(code, 16)) for code in unified.split("-") if code != "FE0F")


def _without_gender(unified: str) -> str:
    """Return the code points of "1F469-200D-1F373" (woman cook) that her colleagues share."""
    return re.sub(r"-200D-264[02]-FE0F$", "", re.sub(r"1F46[89]|1F9D1", "1F9D1", unified))

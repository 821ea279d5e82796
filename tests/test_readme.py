"""What the README prints runs, and says what is in the way where it cannot."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
from transformers import AutoModel, BertConfig

from loes import LOES, LayerFeatures
from loes.baselines import METHODS

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


def test_first_python_block_is_short_and_runs(tmp_path):
    lines = [line for line in BLOCKS[0].splitlines() if line.strip()]
    assert len(lines) <= 12
    run = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", BLOCKS[0]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    picked = re.search(r"^\[(.*)\]$", run.stdout, re.MULTILINE)
    assert picked, run.stdout
    assert len(set(re.findall(r"'(?:embedding|layer\d)'", picked[1]))) == 3


def test_second_python_block_goes_on_from_the_first(capsys):
    """With small stand-ins for what the first leaves behind: the real ones take minutes."""
    rng = np.random.default_rng(0)
    labels = np.arange(160) % 20
    arrays = [
        rng.normal(size=(160, 8)) + 3 * rng.normal(size=(20, 8))[labels] * (layer == 1)
        for layer in range(4)
    ]
    features = LayerFeatures(["embedding", "layer1", "layer2", "layer3"], arrays)
    train = features.take(np.arange(80))
    config = BertConfig(
        hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=16
    )
    torch.manual_seed(0)
    names = {
        "task": SimpleNamespace(
            labels=labels,
            train=np.arange(80),
            validation=np.arange(80, 120),
            test=np.arange(120, 160),
        ),
        "features": features,
        "train": train,
        "selection": LOES(2, criterion="bounded").fit(train, labels[:80]),
        "model": AutoModel.from_config(config),
    }
    exec(BLOCKS[1], names)
    found = names["found"]
    assert {*found.summary().index} > {*METHODS} - set(found.skipped)
    assert "LOES bounded" in capsys.readouterr().out
    highest = max(1, *names["selection"].selected_)
    assert names["encoder"].backbone.config.num_hidden_layers == highest


def test_third_python_block_judges_a_table_of_ones_own(
    tmp_path, monkeypatch, capsys, make_tokenizer
):
    rng = np.random.default_rng(0)
    words = np.array(["cat", "dog", "mat"])
    topics = words[np.arange(120) % 3]
    others = ["the", "sat", "on", "a", "ran", "far", "away"]
    texts = [" ".join([topic, *rng.choice(others, 9)]) for topic in topics]  # no two the same
    authors = rng.integers(0, 20, 120)
    posts = pd.DataFrame({"text": texts, "topic": topics, "author": authors})
    posts.to_csv(tmp_path / "posts.csv", index=False)
    config = BertConfig(
        vocab_size=16,
        hidden_size=8,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=16,
    )
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(tmp_path / "my-model")
    make_tokenizer().save_pretrained(tmp_path / "my-model")
    monkeypatch.chdir(tmp_path)
    exec(BLOCKS[2], names := {})
    split = [set(posts["author"][names[part]]) for part in ("development", "test")]
    assert not split[0] & split[1]
    assert {*names["found"].summary().index} > {*METHODS} - set(names["found"].skipped)
    assert "difference" in capsys.readouterr().out  # no column is hidden


def test_without_latex_make_says_so_before_it_sets_anything_up(tmp_path):
    for tool in ("make", "sh"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    run = subprocess.run(
        ["make", "pdf", f"VENV={tmp_path / 'venv'}"],
        cwd=README.parent,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode
    assert "A PDF needs latexmk" in run.stdout
    assert not (tmp_path / "venv").exists()

"""``make chapter NAME`` writes a chapter that passes the checks of the book."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import chapter

ROOT = Path(__file__).parents[1]
PARTS = ["book", "tests", "_config.yml", "_toc.yml", "pyproject.toml"]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Return a copy of what the checks of the book read."""
    root = tmp_path_factory.mktemp("copy")
    unwanted = shutil.ignore_patterns("__pycache__", "mathjax")
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, root / part, ignore=unwanted)
        else:
            shutil.copy(source, root)
    return root


@pytest.mark.parametrize("name", ["Loss", "3d", "two words", "lens", "../x"])
def test_a_name_that_will_not_do_is_refused(copy, capsys, name):
    before = sorted(copy.rglob("*.md"))
    assert chapter.main([name, str(copy)]) == 1
    assert repr(name) in capsys.readouterr().err
    assert sorted(copy.rglob("*.md")) == before


def test_a_new_chapter_passes_the_structure_checks(copy):
    assert chapter.main(["my_topic", str(copy)]) == 0
    checks = [f"tests/test_{name}.py" for name in ("book", "lessons", "notation")]
    chosen = "my_topic or contents or every_source or sources_say or has_a_lesson"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *checks, "-k", chosen],
        cwd=copy,
        text=True,
        capture_output=True,
    )
    assert run.returncode == 0, run.stdout

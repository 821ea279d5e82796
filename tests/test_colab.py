"""Package and notebooks work without the checkout: as a wheel, and as Colab opens them."""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import nbformat
import pytest
import yaml

import sync

ROOT = Path(__file__).parents[1]
REPOSITORY = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]["url"]
NOTEBOOKS = sorted((ROOT / "book").glob("**/*.ipynb"))
# What Colab has before the set-up cell runs, of all that loes and the chapters need.
SHIPPED = ["torch", "transformers", "scikit-learn", "pandas", "seaborn", "ipython"]
# The first cell that does more than import and define: it asks for a model, data or a result.
REAL = re.compile(r"\b(examples|tasks|zoo)\.(load|result)\w*\(|synthetic\.\w+\(|extract_layers\(")


def run(*command, **options):
    """Run a command; show what it said where it fails."""
    done = subprocess.run([*map(str, command)], text=True, capture_output=True, **options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def pip(python, *arguments):
    """Install with the versions that are tested together."""
    options = ["-q", "--no-compile", "--disable-pip-version-check"]
    return run(python, "-m", "pip", *arguments, *options, "-c", ROOT / "constraints.txt")


def packages(environment):
    """Return the folder of an environment's packages."""
    (folder,) = environment.glob("lib/python*/site-packages")
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return the package as ``pip install`` builds it from the repository."""
    folder, source = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "loes", source / "loes", ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """Return an environment with what Colab has."""
    environment = tmp_path_factory.mktemp("colab") / "shipped"
    venv.create(environment, with_pip=True)
    pip(environment / "bin/python", "install", *SHIPPED)
    return environment


@pytest.fixture
def colab(shipped, tmp_path):
    """Return a fresh environment on top of that one: what one notebook installs, no other sees."""
    environment = tmp_path / "environment"
    venv.create(environment)
    (packages(environment) / "shipped.pth").write_text(f"{packages(shipped)}\n")
    return environment


def test_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    kept = {f"loes/{path.relative_to(ROOT / 'loes')}" for path in (ROOT / "loes").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == kept
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"loes"}
    assert "loes/py.typed" in names


def test_wheel_installs_where_there_is_nothing_but_what_it_asks_for(wheel, colab, tmp_path):
    python = colab / "bin/python"
    pip(python, "install", wheel)
    assert not list(packages(colab).glob("torch-*")), "torch was replaced"
    said = run(python, "-m", "loes", "--help", cwd=tmp_path)
    assert "select" in said
    assert "export" in said
    code = "import loes; print(loes.__version__, loes.__file__)"
    version, file = run(python, "-c", code, cwd=tmp_path).split()
    assert file.startswith(str(packages(colab)))
    assert wheel.name.startswith(f"loes-{version}-")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_first_cells_run_as_in_colab(path, wheel, colab, tmp_path):
    cells = [cell.source for cell in sync.code_cells(nbformat.read(path, as_version=4))]
    real = (number for number, source in enumerate(cells) if number and REAL.search(source))
    cells = cells[: 1 + next(real, 2)]  # problem sets ask for none of these
    assert f"git+{REPOSITORY}" in cells[0]
    cells[0] = cells[0].replace(f"git+{REPOSITORY}", wheel.as_uri())
    if "loes[" not in cells[0]:  # a bare address asks for no extras
        cells[0] = cells[0].replace(wheel.as_uri(), f"loes @ {wheel.as_uri()}")
    settings = {
        "CHECKOUT": str(ROOT),
        "MPLBACKEND": "agg",
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "PIP_NO_COMPILE": "1",
        "TQDM_DISABLE": "1",
    }
    said = run(
        colab / "bin/python",
        ROOT / "tests/colab.py",
        input=json.dumps(cells),
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | settings,
    )
    assert f"loes is from {packages(colab)}" in said
    assert not list(packages(colab).glob("torch-*")), "torch was replaced"

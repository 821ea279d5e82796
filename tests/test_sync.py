"""Notebooks are derived from their sources, and each run of one is recorded."""

import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nbformat
import numpy
import pytest
from nbformat.v4 import new_output

import sync

ROOT = Path(__file__).parents[1]

SOURCE = """\
# A chapter

```{code-cell} ipython3
print(6 * 7)
```

```{code-cell} ipython3
print(7)
```
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A book of one chapter, executed once."""
    book = tmp_path_factory.mktemp("book")
    (book / "src").mkdir()
    (book / "src/01_a.md").write_text(SOURCE)
    assert sync.main([str(book)]) == 0
    return book


@pytest.fixture
def executed(folder):
    """Its notebook, as text."""
    return (folder / "01_a.ipynb").read_text()


@pytest.fixture
def book(executed, tmp_path):
    """A copy of that book without its record, to break."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src/01_a.md").write_text(SOURCE)
    (tmp_path / "01_a.ipynb").write_text(executed)
    return tmp_path


def test_sync_gives_outputs_and_a_second_run_changes_nothing(book, executed):
    notebook = nbformat.reads(executed, as_version=4)
    nbformat.validate(notebook)
    assert [cell.outputs[0].text for cell in sync.code_cells(notebook)] == ["42\n", "7\n"]
    assert sync.main([str(book), "--check"]) == 0
    assert sync.main([str(book), "--all"]) == 0
    assert (book / "01_a.ipynb").read_text() == executed


def test_one_chapter_can_be_brought_up_to_date_alone(book):
    (book / "src/02_b.md").write_text(SOURCE)
    assert sync.main([str(book), "--check", "--only", "01"]) == 0
    assert sync.main([str(book), "--check", "--only", "02"]) == 1


def break_outputs(notebook):
    for cell in sync.code_cells(notebook):
        cell.outputs = []


def break_counts(notebook):
    notebook.cells[1].execution_count = 5


def break_stderr(notebook):
    notebook.cells[1].outputs.append(new_output("stream", name="stderr", text="a warning"))


def break_code(notebook):
    notebook.cells[1].source = "print(42)"


def break_prose(notebook):
    notebook.cells[0].source = "# Another title"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (break_outputs, "no outputs"),
        (break_counts, "execution counts"),
        (break_stderr, "stderr"),
        (break_code, "code differs"),
        (break_prose, "prose or metadata"),
    ],
)
def test_check_names_what_is_wrong_and_sync_repairs_it(book, executed, capsys, damage, message):
    path = book / "01_a.ipynb"
    notebook = nbformat.reads(executed, as_version=4)
    damage(notebook)
    path.write_text(nbformat.writes(notebook) + "\n")
    assert sync.main([str(book), "--check"]) == 1
    assert re.search(f"01_a.ipynb: .*{message}", capsys.readouterr().err)
    assert sync.main([str(book)]) == 0
    assert path.read_text() == executed


def test_check_names_a_missing_notebook(book, capsys):
    (book / "01_a.ipynb").unlink()
    assert sync.main([str(book), "--check"]) == 1
    assert "01_a.ipynb: it does not exist" in capsys.readouterr().err


def test_prose_alone_is_merged_without_a_run(book, monkeypatch):
    monkeypatch.setattr(sync, "execute", lambda *_: pytest.fail("executed"))
    (book / "src/01_a.md").write_text(SOURCE.replace("A chapter", "A better title"))
    assert sync.main([str(book)]) == 0
    notebook = nbformat.read(book / "01_a.ipynb", as_version=4)
    assert notebook.cells[0].source == "# A better title"
    assert notebook.cells[1].outputs[0].text == "42\n"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise ValueError('no such layer')", "no such layer"),
        ("import sys; print('careful', file=sys.stderr)", "careful"),
    ],
)
def test_a_run_that_fails_leaves_the_notebook(book, executed, capsys, code, message):
    (book / "src/01_a.md").write_text(SOURCE.replace("print(7)", code))
    assert sync.main([str(book)]) == 1
    assert message in capsys.readouterr().err
    assert (book / "01_a.ipynb").read_text() == executed
    assert [path.name for path in book.iterdir() if path.is_file()] == ["01_a.ipynb"]


@pytest.fixture
def recorded(folder, tmp_path, monkeypatch):
    """A copy of that book with its record; a run takes its outputs from it."""
    stored = nbformat.read(folder / "01_a.ipynb", as_version=4)

    def execute(notebook, folder):
        for new, old in zip(sync.code_cells(notebook), sync.code_cells(stored), strict=True):
            new.outputs, new.execution_count = old.outputs, old.execution_count

    monkeypatch.setattr(sync, "execute", execute)
    return shutil.copytree(folder, tmp_path / "book")


def test_a_run_is_recorded(recorded):
    (row,) = sync.read_status(recorded).values()
    assert list(row) == sync.COLUMNS
    assert all(row.values())
    executed = datetime.strptime(row["executed"], "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
    assert timedelta(0) <= datetime.now(UTC) - executed < timedelta(hours=1)
    assert re.fullmatch("[0-9a-f]{12}", row["hash"])
    assert row["numpy"] == numpy.__version__
    assert sync.main([str(recorded), "--check"]) == 0


def test_an_output_changed_by_hand_is_named_and_the_next_run_mends_it(recorded, capsys):
    path = recorded / "01_a.ipynb"
    fine = path.read_text()
    path.write_text(fine.replace("42", "43"))
    assert sync.main([str(recorded), "--check"]) == 1
    assert "01_a.ipynb: its code and outputs are not those of the run" in capsys.readouterr().err
    assert sync.main([str(recorded)]) == 0
    assert path.read_text() == fine


def test_a_missing_row_is_named(recorded, capsys):
    header, _ = (recorded / "status.csv").read_text().splitlines()
    (recorded / "status.csv").write_text(f"{header}\n")
    assert sync.main([str(recorded), "--check"]) == 1
    assert "01_a.ipynb: status.csv does not say when it was executed" in capsys.readouterr().err
    assert sync.main([str(recorded)]) == 0
    assert list(sync.read_status(recorded)) == ["01_a"]


def test_rows_of_others_stay_and_those_of_vanished_sources_go(recorded):
    (recorded / "src/02_b.md").write_text(SOURCE)
    assert sync.main([str(recorded), "--only", "02"]) == 0
    first, second = sync.read_status(recorded).values()
    assert (first["chapter"], second["chapter"]) == ("01_a", "02_b")
    (recorded / "src/01_a.md").unlink()
    assert sync.main([str(recorded), "--all"]) == 0
    assert list(sync.read_status(recorded)) == ["02_b"]


def test_prose_and_metadata_are_no_part_of_the_hash(recorded):
    before = (recorded / "status.csv").read_text()
    (recorded / "src/01_a.md").write_text(SOURCE.replace("A chapter", "A better title"))
    assert sync.main([str(recorded)]) == 0
    assert sync.main([str(recorded), "--check"]) == 0
    assert (recorded / "status.csv").read_text() == before


@pytest.mark.parametrize("folder", ["book", "book/teaching"])
def test_every_notebook_is_recorded(folder):
    notebooks = [path.stem for path in sorted((ROOT / folder).glob("*.ipynb"))]
    assert notebooks
    assert list(sync.read_status(ROOT / folder)) == notebooks
    assert sync.main([str(ROOT / folder), "--check"]) == 0

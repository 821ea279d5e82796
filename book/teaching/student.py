"""Write copies for students: the notebooks without their solutions (``make student``).

A copy has all cells of its notebook but those tagged ``solution``. Exercises, the cells just before
a solution, and checks have no output, so that nothing gives an answer away; other outputs stay.
Text is plain Markdown, since notebook programs show MyST as code: theorems and exercises have a
bold title, and the answers of the quiz are folded.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbformat.v4 import new_markdown_cell
from tqdm import tqdm

from slides import DIRECTIVE, Plain, called

ROOT = Path(__file__).parents[2]
FIRST_LINE = (
    "*This copy for students was made from `{path}`. The solution cells of which the text speaks "
    "are left out.*"
)


def tags(cell):
    """Return the tags of a cell."""
    return cell.metadata.get("tags", [])


def markdown(text, plain):
    """Return MyST as Markdown that notebook programs show.

    Parameters
    ----------
    text : of a cell.
    plain : a slides.Plain.
    """
    return plain(DIRECTIVE.sub(_without_fence, text))


def _without_fence(found):
    kind, title, body = found["kind"], found["title"], found["body"].strip()
    if kind == "dropdown":  # Markdown within HTML needs the empty lines
        folded = f"<details><summary>Answer</summary>\n\n{body}\n\n</details>"
        return f"**{title}**\n\n{folded}"
    if kind == "figure":  # its file is not beside the copy
        return f"*The book has a figure here.* {body}"
    name = title if kind == "admonition" else f"{called(kind, title)}."
    return f"**{name}**\n\n{body}"


def without_solutions(notebook, first_line, plain):
    """Return a copy of a notebook without its solutions, headed by a line of text.

    Parameters
    ----------
    notebook : a notebook whose cells are tagged ``solution`` and ``check``.
    first_line : Markdown that says where the copy comes from.
    plain : a slides.Plain.
    """
    copy = nbformat.from_dict(notebook)
    for cell, following in zip(copy.cells, [*copy.cells[1:], None], strict=True):
        exercise = following is not None and "solution" in tags(following)
        if cell.cell_type == "code" and (exercise or "check" in tags(cell)):
            cell.outputs, cell.execution_count = [], None
        if cell.cell_type == "markdown":
            cell.source = markdown(cell.source, plain)
    cells = [cell for cell in copy.cells if "solution" not in tags(cell)]
    copy.cells = [new_markdown_cell(first_line, id="student-copy"), *cells]
    nbformat.validate(copy)
    return copy


def sources(root):
    """Return the paths of the chapters and the problem sets of a checkout."""
    found = [*root.glob("book/[0-9]*.ipynb"), *root.glob("book/teaching/problems_*.ipynb")]
    if not found:
        raise FileNotFoundError(
            f"{root} has no notebooks in book/; wanted a checkout of the book: see --root."
        )
    return sorted(found)


def write_copies(root, out):
    """Write a copy of every notebook to a folder, which afterwards holds nothing else.

    Raises
    ------
    FileNotFoundError where there are no notebooks.
    FileExistsError where the folder holds something that is no student copy.
    """
    paths = sources(root)
    if strange := [path.name for path in out.glob("*") if not is_copy(path)]:
        raise FileExistsError(
            f"{out} holds {strange[0]}, which is no student copy, and would be emptied: "
            "name another folder with --out."
        )
    plain = Plain(root)
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent) as part:
        folder = Path(part) / out.name  # put in place when it is whole
        folder.mkdir()
        for path in tqdm(paths, desc="student copies"):
            line = FIRST_LINE.format(path=path.relative_to(root).as_posix())
            copy = without_solutions(nbformat.read(path, as_version=4), line, plain)
            nbformat.write(copy, folder / path.name)
        shutil.rmtree(out, ignore_errors=True)
        os.replace(folder, out)


def is_copy(path):
    """Say whether a file was written by this script."""
    return path.suffix == ".ipynb" and '"id": "student-copy"' in path.read_text(encoding="utf-8")


def main(arguments=None):
    """Write the copies; return 1 if that was refused."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="a checkout of the book")
    parser.add_argument("--out", type=Path, help="where to (default: _build/student of --root)")
    options = parser.parse_args(arguments)
    out = options.out or options.root / "_build/student"
    try:
        write_copies(options.root, out)
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"student copies are in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

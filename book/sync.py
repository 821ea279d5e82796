"""Derive the book's notebooks from their sources (``make chapters``).

``book/src/NN_name.md`` is what people edit; ``book/NN_name.ipynb`` holds the same cells, executed.
A notebook is executed when its code changed; when only prose or cell metadata did, it keeps its
outputs. Running this twice changes no byte: cell ids are hashes, and neither timings nor versions
are stored. A run that fails or writes to stderr leaves the notebook as it was.
"""

import argparse
import os
import sys
from collections import Counter
from hashlib import sha256
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}


def read_source(path):
    """Return the notebook that a source describes, not executed."""
    notebook = jupytext.read(path, fmt="md:myst")
    seen = Counter()
    for cell in notebook.cells:
        digest = sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        seen[digest] += 1  # equal cells still need different ids
        cell.id = f"{digest}-{seen[digest]}"
    return notebook


def code_cells(notebook):
    """Return the cells that are executed."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def faults(notebook):
    """Say what keeps the outputs from being those of one clean run, top to bottom."""
    cells = code_cells(notebook)
    outputs = [output for cell in cells for output in cell.outputs]
    if [cell.execution_count for cell in cells] != list(range(1, len(cells) + 1)):
        yield f"its execution counts are not 1..{len(cells)}"
    if not outputs:
        yield "it has no outputs"
    for output in outputs:
        if output.output_type == "error" or output.get("name") == "stderr":
            yield f"it has an output on stderr or an error: {dict(output)}"


def execute(notebook, folder):
    """Run every cell of a notebook, in place; raise CellExecutionError where one fails."""
    NotebookClient(
        notebook,
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    ).execute()


def sync(source_path, path, *, check=False, force=False):
    """Bring one notebook up to date (``check``: only look) and return what is wrong with it."""
    notebook, text, stale = read_source(source_path), "", ["it does not exist"]
    if path.exists():
        text = path.read_text(encoding="utf-8")
        stored = nbformat.reads(text, as_version=4)
        stale = list(faults(stored))
        if [c.source for c in code_cells(notebook)] != [c.source for c in code_cells(stored)]:
            stale.append("its code differs from the source")
    if stale and check:
        return stale
    if stale or force:
        print(f"{path.name}: executing", flush=True)
        try:
            execute(notebook, path.parent)
        except CellExecutionError as error:
            return [f"left as it was, since a cell failed\n{error}"]
        if refused := list(faults(notebook)):
            return [f"left as it was, since after the new run {fault}" for fault in refused]
    else:
        for new, old in zip(code_cells(notebook), code_cells(stored), strict=True):
            new.outputs, new.execution_count = old.outputs, old.execution_count
    notebook.metadata = nbformat.from_dict(METADATA)  # without the versions of jupytext and Python
    new_text = nbformat.writes(notebook) + "\n"
    if new_text == text:
        return []
    if check:
        return ["its prose or metadata differ from the source"]
    part = path.with_suffix(".part")
    part.write_text(new_text, encoding="utf-8")
    os.replace(part, path)
    print(f"{path.name}: written")
    return []


def main(arguments=None):
    """Sync every chapter; return 1 if a notebook is not what its source says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, name what is stale")
    parser.add_argument("--all", action="store_true", help="execute even what did not change")
    parser.add_argument("--only", default="", help="the chapters whose names begin so, such as 04")
    parser.add_argument("book", type=Path, nargs="?", default=Path(__file__).parent)
    options = parser.parse_args(arguments)
    failed = False
    for source in sorted(options.book.glob(f"src/{options.only}*.md")):
        path = options.book / f"{source.stem}.ipynb"
        for problem in sync(source, path, check=options.check, force=options.all):
            failed = True
            print(f"{path.name}: {problem}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""Derive the book's notebooks from their sources (``make chapters``).

``book/src/NN_name.md`` is what people edit; ``book/NN_name.ipynb`` holds the same cells, executed.
A notebook is executed when its code changed; when only prose or cell metadata did, it keeps its
outputs. Running this twice changes no byte of it: cell ids are hashes, and neither timings nor
versions are stored. A run that fails or writes to stderr leaves the notebook as it was.

Beside the notebooks, ``status.csv`` records of each when it was executed, on what, and a hash of
its code and outputs. A notebook that does not agree with its row is executed anew.
"""

import argparse
import csv
import io
import json
import os
import platform
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}
PACKAGES = ["torch", "transformers", "numpy", "loes"]
COLUMNS = ["chapter", "executed", "seconds", "Python", *PACKAGES, "processor", "hash"]


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


def write(path, text):
    """Write a whole file or nothing."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def fingerprint(notebook):
    """Return twelve hexadecimal digits that change with the code and the outputs."""
    content = [[cell.source, cell.outputs] for cell in code_cells(notebook)]
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def read_status(book):
    """Return the recorded row of each notebook of a folder, by its name; None without a record."""
    try:
        with open(book / "status.csv", encoding="utf-8", newline="") as file:
            return {row["chapter"]: row for row in csv.DictReader(file)}
    except FileNotFoundError:
        return None


def record(path, notebook, seconds):
    """Write the row of a notebook that has just run, and drop those whose sources are gone."""
    rows = read_status(path.parent) or {}
    rows[path.stem] = {
        "chapter": path.stem,
        "executed": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "seconds": round(seconds),
        "Python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
        "processor": platform.machine(),
        "hash": fingerprint(notebook),
    }
    kept = [rows[name] for name in sorted(rows) if (path.parent / f"src/{name}.md").exists()]
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(kept)
    write(path.parent / "status.csv", text.getvalue())


def unrecorded(path, notebook):
    """Say where a notebook and its row in status.csv do not agree."""
    rows = read_status(path.parent)
    if rows is None:  # a folder that has not been executed since records are kept
        return
    if path.stem not in rows:
        yield "status.csv does not say when it was executed"
    elif rows[path.stem]["hash"] != fingerprint(notebook):
        yield "its code and outputs are not those of the run that status.csv records"


def sync(source_path, path, *, check=False, force=False):
    """Bring one notebook up to date (``check``: only look) and return what is wrong with it."""
    notebook, text, stale = read_source(source_path), "", ["it does not exist"]
    if path.exists():
        text = path.read_text(encoding="utf-8")
        stored = nbformat.reads(text, as_version=4)
        stale = list(faults(stored))
        if [c.source for c in code_cells(notebook)] != [c.source for c in code_cells(stored)]:
            stale.append("its code differs from the source")
        stale.extend(unrecorded(path, stored))
    if stale and check:
        return stale
    if stale or force:
        print(f"{path.name}: executing", flush=True)
        start = time.perf_counter()
        try:
            execute(notebook, path.parent)
        except CellExecutionError as error:
            return [f"left as it was, since a cell failed\n{error}"]
        seconds = time.perf_counter() - start
        if refused := list(faults(notebook)):
            return [f"left as it was, since after the new run {fault}" for fault in refused]
    else:
        for new, old in zip(code_cells(notebook), code_cells(stored), strict=True):
            new.outputs, new.execution_count = old.outputs, old.execution_count
    notebook.metadata = nbformat.from_dict(METADATA)  # without the versions of jupytext and Python
    new_text = nbformat.writes(notebook) + "\n"
    if new_text != text:
        if check:
            return ["its prose or metadata differ from the source"]
        write(path, new_text)
        print(f"{path.name}: written")
    if stale or force:
        record(path, nbformat.reads(new_text, as_version=4), seconds)
    return []


def main(arguments=None):
    """Sync every notebook of a folder; return 1 if one is not what its source says."""
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

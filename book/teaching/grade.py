"""Grade submissions of a problem set: points for every problem, in one table.

    .venv/bin/python book/teaching/grade.py submissions/*.ipynb --out grades.csv

Each submission runs in a Python of its own, cell by cell, each with a time limit. Then the checks
of the set's source run, whatever checks the submission holds, and whatever it prints: a problem has
all its points if its check runs to the end, and none otherwise. Written questions are listed with
their answers, to be marked by hand.

THIS RUNS CODE THAT OTHERS WROTE, with your rights on your machine. Do it in a container without a
network and without anything you would miss. A submission that sets out to deceive the checks can:
look at the code of whoever has more points than you expected.
"""

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import jupytext
import nbformat
import pandas as pd
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat.v4 import new_code_cell, new_notebook
from tqdm import tqdm

SOURCES = Path(__file__).parent / "src"
PROBLEM = re.compile(r"^## (.+)\n\n\*Points: (\d+)(, marked by hand)?\.\*", re.MULTILINE)
ANSWER = "*Your answer:*"  # the last words of a written question
COLUMNS = ["submission", "set", "problem", "points", "of", "reason", "answer"]
WARNING = (
    "This runs the submissions' code with your rights on this machine. Do it in a container "
    "without a network and without anything you would miss."
)
# exit() would end the kernel a moment after its cell, so that the next cell would get the blame.
PRELUDE = "import builtins, sys\nexit = quit = builtins.exit = builtins.quit = sys.exit"


class Refused(ValueError):
    """A file that cannot be graded."""


@dataclass
class Problem:
    """One problem: what it is called, what it is worth, and the check (None: marked by hand)."""

    title: str
    points: int
    check: str | None = None


@dataclass
class ProblemSet:
    """A problem set as its source has it.

    Attributes
    ----------
    title : its heading, by which a submission is recognised.
    functions : the names that its empty answers define; a submission has at least one.
    cells : the code that is given and the checks, in order, as (source, problem or None).
    """

    name: str
    title: str
    functions: list[str]
    problems: list[Problem]
    cells: list[tuple[str, Problem | None]]


def read_set(path):
    """Read a problem set from its source.

    Raises
    ------
    ValueError where a problem has not the one check it needs.
    """
    problems, functions, cells = [], [], []
    notebook = jupytext.read(path, fmt="md:myst")
    tags = [cell.metadata.get("tags", []) for cell in notebook.cells] + [[]]
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            for title, points, by_hand in PROBLEM.findall(cell.source):
                problems.append(Problem(title, int(points), None if by_hand else ""))
        elif "solution" in tags[number + 1]:
            functions += re.findall(r"^def (\w+)", cell.source, re.MULTILINE)
        elif "check" in tags[number]:
            if not problems or problems[-1].check != "":
                raise ValueError(f"{path}: a check does not belong to a problem, or is its second.")
            problems[-1].check = cell.source
            cells.append((cell.source, problems[-1]))
        elif "solution" not in tags[number]:
            cells.append((cell.source, None))
    if without := [problem.title for problem in problems if problem.check == ""]:
        raise ValueError(f"{path}: {without[0]!r} has no check and is not marked by hand.")
    title = re.search(r"^# (.+)$", notebook.cells[0].source, re.MULTILINE)[1]
    return ProblemSet(path.stem, title, functions, problems, cells)


def read_submission(path):
    """Return the text and the code cells of a submission.

    Raises
    ------
    Refused where the file is no notebook, or cannot be read.
    """
    try:
        cells = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        return text, [cell.source for cell in cells if cell.cell_type == "code"]
    except OSError as error:
        raise Refused(f"cannot be read ({error.strerror}); wanted a notebook (.ipynb)") from error
    except Exception as error:  # whatever else a damaged file makes of nbformat
        raise Refused(
            f"is no notebook ({type(error).__name__}); wanted the .ipynb that Jupyter saves"
        ) from error


def recognise(text, code, sets):
    """Return the set that a submission answers, by its title, or else by its functions.

    Raises
    ------
    Refused where it answers none of the sets, or several.
    """
    source = "\n".join(code)
    fits = [s for s in sets if s.title in text] or [
        s for s in sets if any(re.search(rf"\b{name}\b", source) for name in s.functions)
    ]
    if len(fits) == 1:
        return fits[0]
    names = ", ".join(s.name for s in fits or sets)
    if fits:
        raise Refused(f"answers several sets ({names}); name one with --set")
    raise Refused(f"is another notebook: it has neither title nor functions of {names}")


def execute(sources, seconds):
    """Run cells in one kernel; return for each what went wrong, or None.

    A cell that hangs or ends Python is left out, and all others run again without it.

    Parameters
    ----------
    sources : the code of each cell.
    seconds : what a cell may take.
    """
    fatal = {}
    while True:
        notebook = new_notebook(cells=[new_code_cell(source) for source in [PRELUDE, *sources]])
        with TemporaryDirectory() as folder:
            found = _attempt(notebook, fatal, seconds, folder)
        if len(found) == len(notebook.cells):
            return [found[number] for number in range(1, len(notebook.cells))]


def _attempt(notebook, fatal, seconds, folder):
    """Run the cells that are not fatal until one more is; return what went wrong so far."""
    found = dict(fatal)
    client = NotebookClient(
        notebook,
        timeout=seconds,
        kernel_name="python3",
        shutdown_kernel="immediate",
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": folder}},
    )
    with client.setup_kernel():
        for number, cell in enumerate(notebook.cells):
            if number in fatal:
                continue
            try:
                client.execute_cell(cell, number)
                found[number] = None
            except CellExecutionError as error:
                found[number] = f"{error.ename}: {error.evalue}".strip(": ")
            except CellTimeoutError:
                fatal[number] = f"took more than {seconds} s"
                break
            except DeadKernelError:
                fatal[number] = "ended Python"
                break
            cell.outputs = []  # nobody reads them, and they may be long
    return found


def grade(code, problem_set, seconds):
    """Return (problem, points or None, reason) for each problem of a set.

    Parameters
    ----------
    code : the code cells of a submission.
    problem_set : the ProblemSet.
    seconds : what a cell may take.
    """
    checks = [problem.check for problem in problem_set.problems]
    answers = {n: source for n, source in enumerate(code, start=1) if source not in checks}
    outcomes = execute([*answers.values(), *(source for source, _ in problem_set.cells)], seconds)
    broken = [
        f"; its code cell {number} failed: {outcome}"
        for number, outcome in zip(answers, outcomes, strict=False)  # then come the set's own cells
        if outcome
    ]
    rows = {}
    for (_, problem), outcome in zip(problem_set.cells, outcomes[len(answers) :], strict=True):
        if problem is None:
            continue
        if outcome is None:
            rows[problem.title] = problem.points, "passed"
        else:
            rows[problem.title] = 0, f"check failed: {outcome}{''.join(broken)}"
    by_hand = None, "to be marked by hand"
    return [(problem, *rows.get(problem.title, by_hand)) for problem in problem_set.problems]


def written(text, title):
    """Return the answer to a written question, the last of its set: all text below it.

    Parameters
    ----------
    text : of a submission.
    title : of the question.
    """
    below = text.partition(f"## {title}")[2]
    _, mark, answer = below.partition(ANSWER)
    return (answer if mark else below).strip()  # some write over the mark


def total(rows):
    """Say how many points a submission has, of how many, and how many you still have to give."""
    if rows["of"].isna().all():
        return "not graded"
    graded = rows[rows["points"].notna()]
    by_hand = rows["of"].sum() - graded["of"].sum()
    return f"{graded['points'].sum()} of {graded['of'].sum()}, {by_hand} by hand"


def main(arguments=None):
    """Grade submissions; return 1 if one of them could not be graded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("submissions", type=Path, nargs="+", help="notebooks (.ipynb)")
    parser.add_argument("--set", help="such as problems_1 (default: found out for each)")
    parser.add_argument("--out", type=Path, required=True, help="the table to write (.csv)")
    parser.add_argument("--seconds", type=int, default=60, help="what a cell may take: %(default)s")
    options = parser.parse_args(arguments)
    sets = [read_set(path) for path in sorted(SOURCES.glob("problems_*.md"))]
    if options.set:
        names = [s.name for s in sets]
        if options.set not in names:
            parser.error(f"there is no set {options.set!r}; the sets are {', '.join(names)}")
        sets = [s for s in sets if s.name == options.set]
    print(WARNING, file=sys.stderr)
    rows, failed = [], False
    for path in tqdm(options.submissions, desc="grading"):
        try:
            text, code = read_submission(path)
            problem_set = recognise(text, code, sets)
        except Refused as error:
            failed = True
            tqdm.write(f"{path} {error}.", file=sys.stderr)
            rows.append([path, None, None, None, None, f"not graded: {error}", None])
            continue
        for problem, points, reason in grade(code, problem_set, options.seconds):
            answer = written(text, problem.title) if problem.check is None else None
            row = [path, problem_set.name, problem.title, points, problem.points, reason, answer]
            rows.append(row)
    table = pd.DataFrame(rows, columns=COLUMNS)
    table = table.astype({"points": "Int64", "of": "Int64"})
    table.to_csv(options.out, index=False)
    print(table.groupby("submission", sort=False)[["points", "of"]].apply(total).to_string())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

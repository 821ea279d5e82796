"""The teaching kit: student copies, checks that fail first, problem sets, the grader."""

import json
import re
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import jupytext
import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import grade
import slides
import student
import sync

ROOT = Path(__file__).parents[1]
SETS = sorted((ROOT / "book/teaching/src").glob("problems_*.md"))


# --- student copies


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """Copies of all notebooks, made anew over an old one."""
    out = tmp_path_factory.mktemp("copies") / "student"
    out.mkdir()
    old = new_notebook(cells=[new_markdown_cell("An old copy.", id="student-copy")])
    nbformat.write(old, out / "99_old.ipynb")
    assert student.main(["--out", str(out)]) == 0
    return out


def blocks_of(source):
    """Return (kind, code) of each code cell of a MyST source, found by its text alone."""
    text = source.read_text(encoding="utf-8")
    for block in re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", text, re.M | re.S):
        header = re.match(r"(?:---\n.*?^---\n|(?::\w+:[^\n]*\n)*)", block, re.M | re.S)[0]
        kind = next((k for k in ("solution", "check") if re.search(rf"\b{k}\b", header)), "")
        yield kind, block[len(header) :].strip("\n")


def test_there_is_one_copy_of_each_and_no_old_one(copies):
    wanted = {p.stem for p in (ROOT / "book/src").glob("[0-9]*.md")} | {p.stem for p in SETS}
    assert {path.stem for path in copies.iterdir()} == wanted


@pytest.mark.parametrize(
    "source",
    [*sorted((ROOT / "book/src").glob("[0-9]*.md")), *SETS],
    ids=lambda path: path.stem,
)
def test_a_copy_has_all_but_the_solutions(copies, source):
    copy = nbformat.read(copies / f"{source.stem}.ipynb", as_version=4)
    nbformat.validate(copy)
    assert "was made from `book/" in copy.cells[0].source
    prose = [cell.source for cell in copy.cells if cell.cell_type == "markdown"]
    assert not re.search(rf"\]\([^)]*{source.stem}\.ipynb", "\n".join(prose))  # has the solutions
    blocks = list(blocks_of(source))
    kept = [code for kind, code in blocks if kind != "solution"]
    solutions = [code for kind, code in blocks if kind == "solution"]
    assert solutions
    assert len(kept) + len(solutions) == source.read_text(encoding="utf-8").count("{code-cell}")
    cells = [cell for cell in copy.cells if cell.cell_type == "code"]
    assert [cell.source for cell in cells] == kept  # stubs, checks and the set-up cell among them
    assert "google.colab" in cells[0].source
    text = copies.joinpath(f"{source.stem}.ipynb").read_text(encoding="utf-8")
    given = {line.strip() for code in kept for line in code.splitlines()}
    for line in {line.strip() for code in solutions for line in code.splitlines()} - given:
        assert len(line) < 20 or json.dumps(line, ensure_ascii=False)[1:-1] not in text, line
    original = [
        c.source
        for c in jupytext.read(source, fmt="md:myst").cells
        if c.cell_type == "markdown" and "solution" not in c.metadata.get("tags", [])
    ]
    for found, wanted in zip(prose[1:], original, strict=True):
        if not re.search(r"```|\}`|\)=|\]\(", wanted):  # nothing in it is MyST's
            assert found.split() == wanted.split()


@pytest.mark.parametrize(
    "source", sorted((ROOT / "book/src").glob("[0-9]*.md")), ids=lambda path: path.stem
)
def test_a_copy_shows_what_the_directives_hold_and_hides_the_answers(copies, source):
    cells = nbformat.read(copies / source.with_suffix(".ipynb").name, as_version=4).cells
    copy = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    for markup in (r"```\{", r"\{[a-z:]+\}`", r"(?m)^\([\w-]+\)=", r"(?m)^:\w+:"):
        assert not re.search(markup, copy), markup
    text = source.read_text(encoding="utf-8")
    bold = re.findall(r"(?m)^\*\*(.+)\*\*$", copy)
    questions = re.findall(r"(?m)^```\{dropdown\} (.+)$", text)
    assert [line for line in bold if re.match(r"\d+\. ", line)] == questions
    for kind, wanted in (("exercise", "Exercise"), ("prf:theorem", "Theorem")):
        titles = re.findall(rf"(?m)^```\{{{kind}\}} (.+)$", text)
        assert titles
        assert [line for line in bold if line.startswith(f"{wanted} (")] == [
            f"{wanted} ({title})." for title in titles
        ]
    folded = re.findall(r"(?s)<details><summary>Answer</summary>\n\n(.+?)\n\n</details>", copy)
    answers = re.findall(r"(?ms)^```\{dropdown\}[^\n]*\n(.+?)\n```$", text)
    for found, answer in zip(folded, answers, strict=True):
        assert found.split()[0] == answer.split()[0]
        assert len(found) > 0.7 * len(answer)
    assert "<details>" not in re.sub(r"(?s)<details>.+?</details>", "", copy)


def test_directives_become_plain_markdown(tmp_path):
    for name in ("_config.yml", "book/references.bib"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "book/src").mkdir()
    (tmp_path / "book/src/04_a.md").write_text(CHAPTER + END)
    assert student.markdown(CHAPTER, slides.Plain(tmp_path)) == PLAIN


def test_exercises_and_checks_of_a_copy_have_no_outputs(copies):
    shown = 0
    for path in copies.iterdir():
        cells = nbformat.read(path, as_version=4).cells
        shown += sum(bool(cell.get("outputs")) for cell in cells)
        for cell in cells:
            if cell.cell_type == "code" and (
                "# your code here" in cell.source or "check" in cell.metadata.get("tags", [])
            ):
                assert (cell.outputs, cell.execution_count) == ([], None)
    assert shown > 50  # other outputs stay


def test_the_copy_leaves_its_notebook_alone():
    path = ROOT / "book/03_loss.ipynb"
    notebook, again = (nbformat.read(path, as_version=4) for _ in range(2))
    student.without_solutions(notebook, "A copy.", slides.Plain(ROOT))
    assert notebook == again


def test_copies_never_replace_the_work_of_others(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("three years")
    assert student.main(["--out", str(tmp_path)]) == 1
    assert "thesis.txt, which is no student copy" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "three years"


def test_copies_of_nothing_are_refused(tmp_path, capsys):
    assert student.main(["--root", str(tmp_path)]) == 1
    assert "has no notebooks in book/" in capsys.readouterr().err


PLAIN = """\
# A chapter on $x$

**Claim.** It holds (Batra et al., 2026), by Theorem (A sum) of Chapter 1.

**What you will be able to do**

1. Prove it.

**Before you start:** nothing.

## What holds

**Theorem (A sum).**

For all $a$ and $b$, $a + b = b + a$.

**Proof.**

The proof is long."""


# --- every check fails on the empty answer (book/conftest.py)

STUB = "def double(x):\n    ..."
ANSWER = "assert 'found' not in globals()  # a failed check leaves no name\n" + (
    "def double(x):\n    return 2 * x"
)
STRICT = "found = double(2)\nassert found == 4\ndel found"
LENIENT = "assert double(2) in (None, 4)"


def exercise(check, tags=("check",)):
    """Return the three cells of an exercise, as if they had been executed."""
    sources = [STUB, ANSWER, check]
    cells = [new_code_cell(source, execution_count=1) for source in sources]
    cells[1].metadata["tags"], cells[2].metadata["tags"] = ["solution"], list(tags)
    return cells


def test_each_check_has_to_fail_on_the_empty_answer(tmp_path):
    tmp_path.joinpath("conftest.py").write_bytes((ROOT / "book/conftest.py").read_bytes())
    cells = [*exercise(STRICT), *exercise(LENIENT), *exercise(STRICT, tags=())]
    nbformat.write(new_notebook(cells=cells, metadata=sync.METADATA), tmp_path / "a.ipynb")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--nbval",
        "--nbval-current-env",
        "--color=no",
        "-rA",
    ]
    report = subprocess.run(
        [*command, "-p", "no:cacheprovider", "."], cwd=tmp_path, capture_output=True, text=True
    ).stdout
    verdicts = re.findall(r"^(PASSED|FAILED) a.ipynb::Cell (\d)", report, re.MULTILINE)
    assert [cell for verdict, cell in verdicts if verdict == "FAILED"] == ["4", "7"], report
    assert len(verdicts) == 9  # a solution whose check is at fault runs all the same
    assert "exercise 2's check accepts an empty answer" in report
    assert "exercise 3 has no check: the next cell is not tagged check" in report


# --- problem sets

WRONG = {
    "pool_pieces": [
        "return means.mean(0)",
        "return np.asarray(counts) @ means / len(counts)",
    ],
    "noise_width": [
        "return int(np.ceil((1 - share) * n))",  # forgets the intercept
        "return int((1 - share) * (n - 1))",  # rounds down
    ],
    "weighted_ridge": [
        "m = Ridge(ridge).fit(X, Y); return m.coef_.T, m.intercept_",
        "a = np.sqrt(weights)[:, None]; m = Ridge(ridge).fit(a * X, a * Y)\n"
        "    return m.coef_.T, m.intercept_",  # centred by the means of the scaled rows
        "m = Ridge(ridge).fit(X, Y, sample_weight=weights); return m.coef_.T, Y.mean(0)",
    ],
    "gcv": [
        "m = Ridge(ridge).fit(X, Y); s = np.linalg.svd(X - X.mean(0), compute_uv=False) ** 2\n"
        "    return np.mean((Y - m.predict(X)) ** 2) / (1 - sum(s / (s + ridge)) / len(X)) ** 2",
        "m = Ridge(ridge).fit(X, Y)\n    H = m.fit(X, np.eye(len(X))).predict(X)\n"
        "    return np.mean(((Y - H @ Y) / (1 - np.diag(H))[:, None]) ** 2)",  # leave-one-out
        "H = Ridge(ridge).fit(X, np.eye(len(X))).predict(X)\n"
        "    return np.mean((Y - H @ Y) ** 2) / (1 - np.trace(H) / len(X))",
    ],
    "pr_side_by_side": ["return sum(pr)", "return np.average(pr, weights=trace)"],
    "without_leading": [
        "V = np.linalg.svd(X)[2][:k]; return X - X @ V.T @ V",  # not centred
        "V = np.linalg.svd(X - X.mean(0))[2][:k]; return (X - X.mean(0)) @ (np.eye(7) - V.T @ V)",
        "V = np.linalg.svd(X - X.mean(0))[2][k:]; return X - (X - X.mean(0)) @ V.T @ V",
    ],
    "partial_correlation": [
        "return np.corrcoef(x, y)[0, 1]",
        "x, y = (v - Z @ np.linalg.lstsq(Z, v)[0] for v in (x, y)); return np.corrcoef(x, y)[0, 1]",
        "A = np.c_[np.ones(len(Z)), Z]; r = y - A @ np.linalg.lstsq(A, y)[0]\n"
        "    return np.corrcoef(x, r)[0, 1]",  # out of one only
    ],
    "streamed_cka": [
        "return np.mean([terms.cka(X, Z) for X, Z in batches])",
        "p = [(X - X.mean(0), Z - Z.mean(0)) for X, Z in batches]; n = np.linalg.norm\n"
        "    X, Z = map(np.vstack, zip(*p)); return n(X.T @ Z)**2 / n(X.T @ X) / n(Z.T @ Z)",
        "X, Z = map(np.vstack, zip(*batches)); n = np.linalg.norm\n"
        "    return n(X.T @ Z)**2 / n(X.T @ X) / n(Z.T @ Z)",  # not centred
    ],
    "flattest": [
        "return max(combinations(range(len(M)), 3), "
        "key=lambda t: terms.triangle_area(M[list(t)], [0, 1, 2]))",
        "return min(combinations(range(len(M)), 3), key=lambda t: sum("
        "np.linalg.norm(M[i] - M[j]) for i, j in combinations(t, 2)))",
    ],
    "volume": [
        "S = np.array(D)**2; G = (S[0, 1:, None] + S[0, None, 1:] - S[1:, 1:]) / 2\n"
        "    return np.sqrt(max(np.linalg.det(G), 0))",  # no factorial
        "S = np.array(D); G = (S[0, 1:, None] + S[0, None, 1:] - S[1:, 1:]) / 2\n"
        "    return np.sqrt(max(np.linalg.det(G), 0)) / np.prod(np.arange(1, len(G) + 1))",
    ],
    "beam": [
        "S = frozenset()\n    for _ in range(K): "
        "S = min((S | {l} for l in range(M) if l not in S), key=loss)\n    return S",
        "return min(map(frozenset, combinations(range(M), K)), key=loss)",
        "kept = [frozenset()]\n    for _ in range(K): kept = sorted("  # counts sets twice
        "[S | {l} for S in kept for l in range(M) if l not in S], key=loss)[:width]\n"
        "    return kept[0]",
    ],
    "winners": [
        "order = np.argsort(loss)\n    return [i for n, i in enumerate(order) if "
        "all(iso[i] > iso[j] for j in order[:n])]",  # the Pareto front
        "return [int(np.argmin(loss)), int(np.argmax(iso))]",
        "p = [int(np.argmin(np.array(loss) - a * np.array(iso))) for a in np.linspace(0, 3, 50)]\n"
        "    return list(dict.fromkeys(p))",  # a coarse grid
    ],
    "divide": [
        "m = np.zeros(len(groups), bool)\n    r = np.random.default_rng(seed)\n"
        "    m[r.permutation(len(m))[:round(share * len(m))]] = True\n    return m",
        "return np.isin(groups, np.unique(groups)[:round(share * len(np.unique(groups)))])",
        "g = np.unique(groups); return np.isin(groups, "
        "np.random.default_rng().permutation(g)[:round(share * len(g))])",
    ],
    "interval": [
        "d = np.asarray(a, float) - b; r = np.random.default_rng(seed)\n"  # of samples
        "    m = d[r.integers(len(d), size=(repeats, len(d)))].mean(1)\n"
        "    return np.quantile(m, [0.025, 0.975])",
        "r = np.random.default_rng(seed); n = len(a)\n"  # not paired
        "    m = [a[r.integers(n, size=n)].mean() - b[r.integers(n, size=n)].mean()"
        " for _ in range(repeats)]\n    return np.quantile(m, [0.025, 0.975])",
        "d = np.asarray(a, float) - b\n    u, g = np.unique(groups, return_inverse=True)\n"
        "    m = np.bincount(g, d) / np.bincount(g); r = np.random.default_rng(seed)\n"
        "    m = m[r.integers(len(m), size=(repeats, len(m)))].mean(1)\n"  # all groups alike
        "    return np.quantile(m, [0.025, 0.975])",
    ],
    "sign_flip_p": [
        "d = np.asarray(differences); s = np.random.default_rng(seed).choice([-1, 1], "
        "(repeats, len(d)))\n    return np.mean(abs(s @ d) >= abs(d.sum()))",  # can be 0
        "d = np.asarray(differences); s = np.random.default_rng(seed).choice([-1, 1], "
        "(repeats, len(d)))\n    return (1 + np.sum(s @ d >= d.sum())) / (1 + repeats)",
    ],
    "best_of_equals": [
        "return p",
        "return p + np.sqrt(2 * np.log(M) * p * (1 - p) / n)",  # a bound
    ],
}
RIGHT = {  # another way than the solution's
    "pool_pieces": "return sum(c * m for c, m in zip(counts, means)) / sum(counts)",
    "noise_width": "return next(d for d in range(n) if 1 - d / (n - 1) <= share + 1e-12)",
    "weighted_ridge": "m = Ridge(ridge).fit(X, Y, sample_weight=weights)\n"
    "    return m.coef_.T, m.intercept_",
    "gcv": "n = len(X); Xc = X - X.mean(0); K = Xc @ Xc.T\n"
    "    H = 1 / n + np.linalg.solve(K + ridge * np.eye(n), K)\n"
    "    return np.mean((Y - H @ Y) ** 2) / (1 - np.trace(H) / n) ** 2",
    "pr_side_by_side": "(a, b), (s, t) = pr, trace; return (s + t)**2 / (s * s / a + t * t / b)",
    "without_leading": "p = PCA().fit(X); V = p.components_[k:]\n"
    "    return (X - p.mean_) @ V.T @ V + p.mean_",
    "partial_correlation": "Q, s, _ = np.linalg.svd(Z - Z.mean(0)); Q = Q[:, :sum(s > 1e-9 * s[0])]"
    "\n    f = lambda v: v - v.mean() - Q @ (Q.T @ (v - v.mean()))\n"
    "    return np.corrcoef(f(x), f(y))[0, 1]",
    "streamed_cka": "X, Z = map(np.vstack, zip(*batches)); return terms.cka(X, Z)",
    "flattest": "return min(combinations(range(len(M)), 3), "
    "key=lambda t: terms.triangle_area(M[list(t)], [0, 1, 2]))",
    "volume": "k = len(D) - 1; B = np.ones((k + 2, k + 2)); B[0, 0] = 0; B[1:, 1:] = np.square(D)\n"
    "    v = (-1) ** (k + 1) * np.linalg.det(B) / 2**k / np.prod(np.arange(1., k + 1)) ** 2\n"
    "    return max(v, 0) ** 0.5",  # Cayley and Menger
    "beam": "kept = {frozenset()}\n    for _ in range(K):\n"
    "        kept = {S | {l} for S in kept for l in set(range(M)) - S}\n"
    "        kept = set(sorted(kept, key=loss)[:width])\n    return min(kept, key=loss)",
    "winners": "from scipy.spatial import ConvexHull as C\n"
    "    loss, iso = np.array(loss), np.array(iso); best = int(np.argmin(loss))\n"
    "    m = [i for i in range(len(loss)) if i == best or (iso[i] > iso[best] and all((loss[i] - "
    "loss[j]) * (iso[k] - iso[j]) < (loss[k] - loss[j]) * (iso[i] - iso[j]) "
    "for j in range(len(loss)) for k in range(len(loss)) if iso[j] < iso[i] < iso[k]))]\n"
    "    return sorted(m, key=lambda i: iso[i])",
    "divide": "import random\n    g = sorted(set(np.asarray(groups).tolist()))\n"
    "    t = set(random.Random(seed).sample(g, round(share * len(g))))\n"
    "    return np.array([v in t for v in np.asarray(groups).tolist()])",
    "interval": "d = np.asarray(a, float) - b; r = np.random.default_rng(seed)\n"
    "    rows = [np.flatnonzero(groups == g) for g in np.unique(groups)]\n"
    "    m = [d[np.concatenate([rows[i] for i in r.integers(len(rows), size=len(rows))])].mean()"
    " for _ in range(repeats)]\n    return np.percentile(m, [2.5, 97.5])",
    "sign_flip_p": "r = np.random.default_rng(seed); d = np.array(differences)\n"
    "    m = sum(abs(np.where(r.random(len(d)) < .5, d, -d).sum()) >= abs(d.sum())"
    " for _ in range(repeats))\n    return (1 + m) / (1 + repeats)",
    "best_of_equals": "k = np.arange(n + 1); F = stats.binom.cdf(k, n, p) ** M\n"
    "    return np.diff(F, prepend=0) @ k / n",
}


@pytest.fixture(scope="module", params=SETS, ids=lambda path: path.stem)
def problem_set(request):
    """A set, and the names that its given cells define."""
    found = grade.read_set(request.param)
    given = {}
    for source, problem in found.cells:
        if problem is None and "google.colab" not in source:
            exec(source, given)
    return found, given


def judge(problem_set, name, body):
    """Run the check of the problem that asks for a function, with this body for an answer."""
    found, given = problem_set
    source = ROOT / f"book/teaching/src/{found.name}.md"
    head = re.search(rf"^def {name}\(.*\):$", source.read_text(encoding="utf-8"), re.MULTILINE)[0]
    namespace = dict(given)
    exec(f"{head}\n    {body}", namespace)
    exec(found.problems[found.functions.index(name)].check, namespace)


def test_checks_of_a_set_accept_every_right_answer(problem_set):
    for name in problem_set[0].functions:
        judge(problem_set, name, RIGHT[name])


def test_checks_of_a_set_reject_wrong_answers(problem_set):
    for name in problem_set[0].functions:
        assert len(WRONG[name]) >= 2
        for body in WRONG[name]:
            print(f"{name} has to reject: {body}")
            with pytest.raises(AssertionError):
                judge(problem_set, name, body)


def test_a_set_has_four_problems_a_written_question_and_twenty_points(problem_set):
    found, _ = problem_set
    assert len(found.functions) == 4
    assert [problem.check is None for problem in found.problems] == [False] * 4 + [True]
    assert sum(problem.points for problem in found.problems) == 20


# --- slides

CHAPTER = """\
(ch-a)=
# A chapter on $x$

**Claim.** It holds {cite:p}`batra2026loes`, by {prf:ref}`thm-a` of [Chapter 1](01_last_layer).

```{admonition} What you will be able to do
:class: tip

1. Prove it.

**Before you start:** nothing.
```

## What holds

```{prf:theorem} A sum
:label: thm-a

For all $a$ and $b$, $a +
b = b + a$.
```

```{prf:proof}
The proof is long.
```
"""
END = """\
## A control that has to fail

A paragraph.

Another paragraph.

## Exercises

```{exercise} Sums
:label: ex-a

*Easy; goal 1.* Write `add(a, b)`.
```

## Recap

- A point.

### Quiz

```{dropdown} 1. Why?
Because of {cite:t}`batra2026loes`.
```

### References
"""


@pytest.fixture(scope="module")
def deck(tmp_path_factory):
    """The parsed deck of a small chapter."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("_config.yml", "book/references.bib", "book/_static"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(ROOT / name)
    (root / "book/src").mkdir()
    (root / "book/src/04_a.md").write_text(CHAPTER + END)
    picture = new_output("display_data", data={"image/png": "iVBORw0KGgo="})
    described = {"image": {"alt": 'A "line".'}, "figure": {"caption": "A line $y > x$."}}
    table = new_output("execute_result", data={"text/html": "<table>\n\n<td>7</td></table>"})
    printed = new_output("stream", text="one < two\n\nthree")
    cells = [
        new_markdown_cell(CHAPTER),
        new_code_cell(
            "plot()", outputs=[picture], metadata={"tags": ["slide"], "mystnb": described}
        ),
        new_code_cell("table", outputs=[table], metadata={"tags": ["slide", "slide-code"]}),
        new_code_cell("print(1)", outputs=[printed], metadata={"tags": ["slide"]}),
        new_code_cell("print(2)", outputs=[new_output("stream", text="not shown")]),
        new_markdown_cell(END),
    ]
    nbformat.write(new_notebook(cells=cells), root / "book/04_a.ipynb")
    assert slides.main(["--root", str(root)]) == 0
    page = (root / "_build/extra/slides/04_a.html").read_text(encoding="utf-8")
    return BeautifulSoup(page, "html.parser")


def test_a_deck_has_all_that_is_taught_and_no_proof(deck):
    headings = [section.h2.text for section in deck.select("section > section")]
    assert headings == [
        "A chapter on $x$",
        "What you will be able to do",
        *["What holds"] * 4,
        "A control that has to fail",
        "Exercise: Sums",
        "Recap",
        "Quiz",
        "Where to go from here",
    ]
    text = " ".join(deck.text.split())
    assert "Claim. It holds (Batra et al., 2026), by Theorem (A sum) of Chapter 1." in text
    assert "Theorem (A sum). For all $a$ and $b$, $a + b = b + a$." in text
    assert "A paragraph." in text
    assert "Write add(a, b)." in text
    assert deck.select_one(".fragment").text.strip() == "Because of Batra et al. (2026)."
    for absent in ("proof is long", "Before you start", "Another paragraph", "not shown", "{"):
        assert absent not in deck.main.text
    assert "print(1)" not in text
    assert "table" in text  # the code of a cell with the tag slide-code


def test_outputs_of_a_deck_are_whole_and_described(deck):
    assert deck.img["alt"] == 'A "line".'
    assert deck.img["src"] == "data:image/png;base64,iVBORw0KGgo="
    assert deck.select_one(".caption").text.strip() == "A line $y > x$."
    assert deck.td.text == "7"
    assert [pre.text for pre in deck.select("pre")][-1] == "one < two\n\nthree"


def test_long_slides_are_divided_between_items():
    items = [f"{number}. {'word ' * 70}end" for number in range(1, 10)]
    parts = slides.divided(slides.Slide("Goals", "\n".join(items)))
    assert [part.heading for part in parts] == [f"Goals ({n} of 3)" for n in (1, 2, 3)]
    assert "\n".join(part.body for part in parts).split("\n") == items


def test_slides_of_no_chapter_are_refused(tmp_path, capsys):
    assert slides.main(["--only", "99", "--out", str(tmp_path / "slides")]) == 1
    assert "has no chapter '99'" in capsys.readouterr().err


def test_slides_never_replace_the_work_of_others(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("three years")
    assert slides.main(["--only", "04", "--out", str(tmp_path)]) == 1
    assert "holds other things than slides" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").exists()


MEASURE = """() => [...document.querySelectorAll('.slides > section > section')].map((slide, i) => {
  Reveal.slide(i);
  return {
    title: slide.querySelector('h2').innerText,
    high: slide.scrollHeight > 720,
    wide: slide.scrollWidth > slide.clientWidth,
    small: parseFloat(getComputedStyle(slide).fontSize) < 20,
    bare: [...slide.querySelectorAll('img')].some(image => image.alt.length < 20),
    mathError: slide.querySelector('mjx-merror') !== null,
    markup: /\\{[a-z:]+\\}`|\\$|\\]\\(/.test(slide.innerText.replace(/^(import|%).*$/gm, '')),
  };
})"""


def test_every_slide_of_every_deck_fits_and_asks_nobody(browser, tmp_path):
    assert slides.main(["--out", str(tmp_path / "slides")]) == 0
    decks = sorted((tmp_path / "slides").glob("[0-9]*.html"))
    assert [deck.stem for deck in decks] == [
        path.stem for path in sorted((ROOT / "book").glob("[0-9]*.ipynb"))
    ]
    asked, faults = [], []
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: faults.append(str(error)))
    for deck in decks:
        page.goto(deck.as_uri())
        page.wait_for_selector("body[data-ready]")
        measured = page.evaluate(MEASURE)
        assert len(measured) > 10
        faults += [(deck.stem, slide) for slide in measured if True in slide.values()]
    page.close()
    assert faults == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


# --- the grader

SOURCE = """\
# Problem set 0: numbers

```{code-cell} ipython3
import math
```

## Problem 1. One

*Points: 3.* Write `one()`.

```{code-cell} ipython3
def one():
    # your code here
```

```{code-cell} ipython3
:tags: [solution]

def one():
    return 1
```

```{code-cell} ipython3
:tags: [check]

assert one() == 1, "it is not one"
```

## Problem 2. Two

*Points: 5.* Write `two()`.

```{code-cell} ipython3
def two():
    # your code here
```

```{code-cell} ipython3
:tags: [solution]

def two():
    return 2
```

```{code-cell} ipython3
:tags: [check]

assert math.isclose(two(), 2)
print("passed")
```

## Written question

*Points: 4, marked by hand.* Why?
"""
ONE, TWO = "def one():\n    return 1", "def two():\n    return 2"
KILL = "import os; os._exit(0)"
HANG = """def one():
    while True:
        try:
            while True: pass
        except BaseException:
            pass"""
SUBMISSIONS = {  # name: (code cells, points, what the reasons say)
    "right in part": ([ONE, "def two():\n    return 3"], [3, 0], ["passed", "AssertionError"]),
    "unruly": (  # nothing that a cell does costs what other cells are worth
        ["while True: pass", "1 / 0", "import sys; sys.exit()", "exit()", ONE, KILL, TWO],
        [3, 5],
        ["passed", "passed"],
    ),
    "liar": (
        ["print('problem 1: passed')\ndef one():\n    print('passed'); exit()", "def zwei(): 2 2"],
        [0, 0],
        ["SystemExit", "name 'two' is not defined; its code cell 2 failed: SyntaxError"],
    ),
    "checked": (  # cells count as in the notebook, checks among them
        [ONE, 'assert one() == 1, "it is not one"', "def two(): 2 2"],
        [3, 0],
        ["passed", "its code cell 3 failed: SyntaxError"],
    ),
    "fatal": ([HANG, f"def two():\n    {KILL}"], [0, 0], ["took more than 4 s", "ended Python"]),
}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """Grade all submissions at once; return the exit status, the table and what was printed."""
    folder = tmp_path_factory.mktemp("grading")
    (folder / "src").mkdir()
    (folder / "src/problems_0.md").write_text(SOURCE)
    for name, (code, *_) in SUBMISSIONS.items():
        cells = [
            new_markdown_cell("# Problem set 0: numbers"),
            *map(new_code_cell, code),
            new_markdown_cell(f"## Written question\n\nWhy?\n\n*Your answer:* {name},"),
            new_markdown_cell("= so."),
        ]
        nbformat.write(new_notebook(cells=cells), folder / f"{name}.ipynb")
    nbformat.write(new_notebook(cells=[new_code_cell("print(1)")]), folder / "foreign.ipynb")
    (folder / "essay.ipynb").write_text("I lost my notebook.")
    (folder / "photo.ipynb").write_bytes(b"\xff\xd8\xff")
    names = [*SUBMISSIONS, "foreign", "essay", "photo", "absent"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grade, "SOURCES", folder / "src")
        patch.chdir(folder)
        arguments = [f"{name}.ipynb" for name in names] + ["--out", "grades.csv", "--seconds", "4"]
        with redirect_stdout(StringIO()) as printed:
            status = grade.main(arguments)
    table = pd.read_csv(folder / "grades.csv", dtype=str, keep_default_na=False)
    return status, table, printed.getvalue()


@pytest.mark.parametrize("name", SUBMISSIONS)
def test_grades(graded, name):
    _, points, reasons = SUBMISSIONS[name]
    rows = graded[1][graded[1]["submission"] == f"{name}.ipynb"]
    assert rows["problem"].tolist() == ["Problem 1. One", "Problem 2. Two", "Written question"]
    assert rows["of"].tolist() == ["3", "5", "4"]
    assert rows["points"].tolist() == [*map(str, points), ""], rows["reason"].tolist()
    for found, wanted in zip(rows["reason"], [*reasons, "marked by hand"], strict=True):
        assert wanted in found
    assert rows["answer"].tolist() == ["", "", f"{name},\n= so."]
    assert re.search(rf"(?m)^ *{name}.ipynb +{sum(points)} of 8, 4 by hand$", graded[2])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("foreign", "is another notebook: it has neither title nor functions of problems_0"),
        ("essay", "is no notebook"),
        ("photo", "is no notebook"),
        ("absent", "cannot be read (No such file or directory)"),
    ],
)
def test_what_cannot_be_graded_is_said_and_does_not_stop_the_others(graded, name, reason):
    status, table, printed = graded
    rows = table[table["submission"] == f"{name}.ipynb"]
    assert status == 1
    assert len(rows) == 1
    assert reason in rows["reason"].item()
    assert rows["points"].item() == ""
    assert re.search(rf"(?m)^ *{name}.ipynb +not graded$", printed)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("## Why?\nSay.\n*Your answer:*\nSo.\n## And so.", "So.\n## And so."),
        ("## Why?\nSo.", "So."),  # the mark is gone
        ("## How?\nSo.", ""),  # the question is gone
    ],
)
def test_a_written_answer_is_all_below_its_question(text, wanted):
    assert grade.written(text, "Why?") == wanted


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_a_written_question_is_the_last_of_its_set_and_ends_with_the_mark(path):
    text, _ = grade.read_submission(path.parents[1] / f"{path.stem}.ipynb")
    rubric = grade.written(text, grade.read_set(path).problems[-1].title)
    assert rubric.startswith("**Rubric.**")


def test_a_set_that_is_not_there_is_named(capsys):
    with pytest.raises(SystemExit):
        grade.main(["a.ipynb", "--set", "problems_9", "--out", "grades.csv"])
    assert "there is no set 'problems_9'; the sets are problems_1, " in capsys.readouterr().err


def test_a_submission_without_title_is_recognised_by_its_functions():
    sets = [grade.read_set(path) for path in SETS]
    assert grade.recognise("", ["def beam(): ..."], sets).name == "problems_3"
    with pytest.raises(grade.Refused, match="answers several sets"):
        grade.recognise("", ["beam", "gcv"], sets)


def test_a_set_with_a_problem_without_a_check_is_refused(tmp_path):
    path = tmp_path / "problems_0.md"
    path.write_text(SOURCE.replace(":tags: [check]", ""))
    with pytest.raises(ValueError, match="One' has no check"):
        grade.read_set(path)

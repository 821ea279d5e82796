"""The book is complete, and its notebooks are what their sources say."""

import re
import tomllib
from inspect import getdoc, isclass, ismodule
from pathlib import Path
from pkgutil import resolve_name

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import loes
import sync

ROOT = Path(__file__).parents[1]
BOOK = ROOT / "book"
REPOSITORY = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]["url"]
NOTEBOOKS = sorted(BOOK.glob("*.ipynb"))
CHAPTERS = [path for path in NOTEBOOKS if path.stem[0].isdigit()]  # the others are pages


def chapter_faults(notebook):
    """Say what a chapter lacks: the inert set-up cell for Colab, alt text, captions."""
    cells = sync.code_cells(notebook)
    if "google.colab" not in cells[0].source or REPOSITORY not in cells[0].source:
        yield f"the first code cell does not install loes from {REPOSITORY} on Colab"
    for number, cell in enumerate(cells, start=1):
        mystnb = cell.metadata.get("mystnb", {})
        described = "alt" in mystnb.get("image", {}) and "caption" in mystnb.get("figure", {})
        drawn = any("image/png" in output.get("data", {}) for output in cell.outputs)
        if drawn and not described:
            yield f"code cell {number} draws a figure without alt text and caption"
        if described and not drawn:
            yield f"code cell {number} describes a figure that is not there"


SECTIONS = [  # of every chapter, in this order
    "**Claim.**",
    "What you will be able to do",
    "**Before you start:**",
    "## The experiment",
    "## A control that has to fail",
    "## What fails, and where",
    "## Exercises",
    "## Recap",
    "### Quiz",
    "### Where this lives in `loes`",
    "### References",
]


def template_faults(notebook):
    """Say what of the template a chapter lacks: sections, a theorem, exercises with solutions."""
    text = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    found = [section for section in SECTIONS if section in text]
    yield from (f"there is no {section!r}" for section in SECTIONS if section not in found)
    if [text.index(section) for section in found] != sorted(map(text.index, found)):
        yield "its sections are not in the order of the template"
    for part in ("{prf:definition}", "{prf:theorem}", "{prf:proof}", "{dropdown}"):
        if part not in text:
            yield f"there is no {part}"
    if "Colab" not in text.partition("**Time:**")[2].partition("```")[0]:
        yield "its box does not say how long it takes in Colab"
    tags = [tag for cell in sync.code_cells(notebook) for tag in cell.metadata.get("tags", [])]
    counts = [text.count("{exercise}"), tags.count("solution"), tags.count("check")]
    if not 3 <= counts[0] <= 5 or len(set(counts)) > 1:
        yield "exercises, solutions and checks are {}, {} and {}; wanted 3 to 5 each".format(
            *counts
        )


def goal_faults(notebook):
    """Say which goal nothing practises, and which exercise practises no goal."""
    text = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    box = text.partition("What you will be able to do")[2].partition("**Before you start:**")[0]
    goals = set(re.findall(r"^(\d)\. ", box, re.MULTILINE))
    practised = set()
    for title, grade in re.findall(r"\{exercise\} (.+)\n(?::.*\n)*\n?(\*.+?\*)", text):
        named = re.fullmatch(r"\*(?:Easy|Medium|Harder); goals? ([\d, and]+)\.\*", grade)
        if not named:
            yield f"exercise {title!r} names no goal: {grade}"
        else:
            practised |= set(re.findall(r"\d", named[1]))
    for named in re.findall(r"\{dropdown\} .*\(goals? ([\d, and]+)\)\n", text):
        practised |= set(re.findall(r"\d", named))
    yield from (f"nothing practises goal {goal}" for goal in sorted(goals - practised))
    yield from (f"there is no goal {goal}" for goal in sorted(practised - goals))


def test_every_source_has_a_notebook_and_the_reverse():
    assert NOTEBOOKS
    assert [p.stem for p in sorted(BOOK.glob("src/*.md"))] == [p.stem for p in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_installs_on_colab_and_describes_its_figures(path):
    assert list(chapter_faults(nbformat.read(path, as_version=4))) == []


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_is_complete(path):
    assert list(template_faults(nbformat.read(path, as_version=4))) == []


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_goals_and_exercises_match(path):
    assert list(goal_faults(nbformat.read(path, as_version=4))) == []


def test_goal_faults_sees_each_fault():
    text = """What you will be able to do
1. One.
2. Two.
**Before you start:** nothing
```{exercise} A title
:label: a

*Easy; goals 1 and 4.* Write.
```
```{exercise} Another
*Easy.* Write.
```
"""
    faults = list(goal_faults(new_notebook(cells=[new_markdown_cell(text)])))
    assert faults == [
        "exercise 'Another' names no goal: *Easy.*",
        "nothing practises goal 2",
        "there is no goal 4",
    ]


def text_faults(text):
    """Say where Markdown would read something else than was meant."""
    for line in re.findall(r"^```+\{[\w:-]+\} .*`.*$", text, re.MULTILINE):
        yield f"a backtick in a title ends the fence: {line}"
    prose = re.sub(r"^```\{code-cell\}.*?^```$|`[^`\n]+`", "", text, flags=re.S | re.M)
    for formula in re.findall(r"\$\$.*?\$\$|\$[^$]+\$", prose, re.S):
        item = re.search(r"^\s*[-+*] .*$", formula.partition("\n")[2], re.MULTILINE)
        if item and not formula.startswith("$$"):
            yield f"a line of a formula that reads as an item of a list: {item[0]}"


@pytest.mark.parametrize("path", sorted(BOOK.glob("**/*.md")), ids=lambda path: path.stem)
def test_markdown_reads_what_was_meant(path):
    assert list(text_faults(path.read_text(encoding="utf-8"))) == []


def test_text_faults_sees_each_fault():
    text = "```{dropdown} What is `x`?\nIt.\n```\nSo $a\n- b$ and $$ a\n   + b $$ is `-`.\n"
    assert [fault.partition(":")[2] for fault in text_faults(text)] == [
        " ```{dropdown} What is `x`?",
        " - b$",
    ]


VERDICTS = {"reproduced", "in part", "not reproduced", "not testable here"}


def test_every_claim_has_a_verdict_and_evidence_that_exists():
    text = (BOOK / "src/claims.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|(.*)\|$", text, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, len(rows) + 1))
    assert {verdict for _, _, verdict, _ in rows} == VERDICTS
    linked = [re.findall(r"\]\((#?[\w-]+)\)", evidence) for *_, evidence in rows]
    assert all(linked)
    anchors = {f"#{name}" for name in re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)}
    there = anchors | {path.stem for path in CHAPTERS}
    assert {link for links in linked for link in links} <= there
    sections = re.findall(r"^## .*\(claims? ([\d, ]+)\)$", text, re.MULTILINE)
    discussed = [number for section in sections for number in section.split(", ")]
    assert sorted(discussed, key=int) == [number for number, *_ in rows]


def test_contents_name_every_chapter_and_only_files_that_exist():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    entries = [toc["root"]] + [c["file"] for part in toc["parts"] for c in part["chapters"]]
    for entry in entries:
        assert any((ROOT / entry).with_suffix(suffix).exists() for suffix in (".md", ".ipynb"))
    assert {f"book/{path.stem}" for path in NOTEBOOKS} <= set(entries)


def named(text):
    """Return the names of the package that stand as code in a text."""
    return set(re.findall(r"`(?!loes\.json)(loes(?:\.[A-Za-z_]\w*)+)(?:\(\))?`", text))


PAGES = sorted([*BOOK.glob("*.md"), *BOOK.glob("src/*.md"), *BOOK.glob("teaching/*.md")])


def test_every_name_of_the_package_in_the_text_is_there():
    for path in [*PAGES, ROOT / "README.md"]:
        for name in named(path.read_text(encoding="utf-8")):
            try:
                resolve_name(name)
            except (AttributeError, ImportError):
                pytest.fail(f"{path.name} speaks of {name}, which is not there")


def reference():
    """Return the entries of the reference by name, as text; a class has its members in its own."""
    directive = r"^\.\. (?:auto|py:)(\w+):: (loes[\w.]*)\n((?:[ ].*\n|\n(?=[ ]))*)"
    entries = {}
    for page in sorted(BOOK.glob("api_*.md")):
        for kind, name, rest in re.findall(directive, page.read_text(encoding="utf-8"), re.M):
            thing = resolve_name(name)
            entries[name] = f"{getdoc(thing)}\n{rest}"
            if kind == "module" and ":members:" in rest:
                for key, member in vars(thing).items():
                    if getattr(member, "__module__", None) == name and key[0] != "_":
                        entries[f"{name}.{key}"] = getdoc(member)
    return entries


REFERENCE = reference()


def test_every_public_name_is_in_the_reference():
    assert {f"loes.{name}" for name in (*loes.__all__, "plots")} <= set(REFERENCE)


@pytest.mark.parametrize("name", REFERENCE)
def test_entry_and_chapter_name_each_other(name):
    numbers = re.findall(r"\bChapter (\d+)", REFERENCE[name])
    assert numbers, "name the chapter that derives or uses it"
    for number in numbers:
        (source,) = BOOK.glob(f"src/{int(number):02d}_*.md")
        spoken = named(source.read_text(encoding="utf-8"))
        module = ismodule(resolve_name(name))  # named by what it holds
        assert any(other == name or (module and other.startswith(f"{name}.")) for other in spoken)


INTERNAL = ("loes.families", "loes.solver")  # insides that chapters point at


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_what_a_page_names_is_in_the_reference(path):
    for name in named(path.read_text(encoding="utf-8")):
        owner = name.rpartition(".")[0]  # of an attribute, which is in the entry of its class
        known = name in REFERENCE or (owner in REFERENCE and isclass(resolve_name(owner)))
        assert known or name.startswith(INTERNAL), name


def test_one_version_and_one_address_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    released = re.search(r"^## \[(\d[^]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert citation["version"] == version == released[1]
    assert citation["repository-code"] == REPOSITORY


def test_site_makes_no_request(site):
    pages = list(site.rglob("*.html"))
    remote = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')
    assert [match for page in pages for match in remote.findall(page.read_text())] == []


def test_every_figure_of_the_site_is_described(site):
    figures = [
        f
        for page in site.glob("book/*.html")
        for f in re.findall(r"<figure.*?</figure>", page.read_text(), re.S)
    ]
    assert figures
    assert [figure for figure in figures if not re.search(r'alt="[^"]{20,}', figure)] == []


def test_template_faults_sees_each_fault():
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    notebook.cells[0].source = notebook.cells[0].source.replace("**Claim.**", "Claim.")
    notebook.cells[-1].source = "### Quiz\n## Recap"
    tagged = [cell for cell in sync.code_cells(notebook) if "tags" in cell.metadata]
    next(cell for cell in tagged if "solution" in cell.metadata["tags"]).metadata["tags"] = []
    faults = "; ".join(template_faults(notebook))
    for fault in ("no '**Claim.**'", "no '### References'", "order", "no {dropdown}", "3, 2 and 3"):
        assert fault in faults


def test_chapter_faults_sees_each_fault():
    picture = new_output("display_data", data={"image/png": ""})
    described = {"mystnb": {"image": {"alt": "A line."}, "figure": {"caption": "A line."}}}
    setup = new_code_cell(f'if "google.colab" in sys.modules: {REPOSITORY}')
    fine = new_code_cell(outputs=[picture], metadata=described)
    assert list(chapter_faults(new_notebook(cells=[setup, fine]))) == []
    bare = new_code_cell(outputs=[picture])
    empty = new_code_cell(metadata=described)
    faults = list(chapter_faults(new_notebook(cells=[fine, bare, empty])))
    assert [fault.split(" ")[0:3] for fault in faults] == [
        ["the", "first", "code"],
        ["code", "cell", "2"],
        ["code", "cell", "3"],
    ]

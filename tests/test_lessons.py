"""Lesson plans say what their chapters say, and what they promise adds up."""

import ast
import re
from pathlib import Path

import pytest

BOOK = Path(__file__).parents[1] / "book"
LESSONS = sorted((BOOK / "teaching" / "lessons").glob("*.md"))
PARTS = [
    "Learning goals",
    "Before class",
    "Plan",
    "Common misconceptions",
    "Questions to ask",
    "Live coding",
    "Afterwards",
]


@pytest.fixture(params=LESSONS, ids=lambda path: path.stem)
def lesson(request):
    """Name of a chapter, text of its lesson plan, and text of the chapter's source."""
    path = request.param
    chapter = BOOK / "src" / path.name
    return path.read_text(encoding="utf-8"), chapter.read_text(encoding="utf-8")


def part(text, name):
    return re.search(rf"(?ms)^## {name}$(.*?)(?=^## |\Z)", text)[1]


def test_every_chapter_has_a_lesson():
    chapters = [path.name for path in sorted((BOOK / "src").glob("[0-9]*.md"))]
    assert [path.name for path in LESSONS] == chapters


def test_parts_are_complete_and_in_order(lesson):
    assert re.findall(r"(?m)^## (.*)$", lesson[0]) == PARTS


def test_minutes_add_up(lesson):
    total = int(re.search(r"\*\*Minutes:\*\* (\d+)", lesson[0])[1])
    rows = re.findall(r"(?m)^\| *(\d+) *\|", part(lesson[0], "Plan"))
    assert sum(map(int, rows)) == total


def test_snippets_parse_and_their_section_exists(lesson):
    text, chapter = lesson
    live = part(text, "Live coding")
    section = re.search(r'section\s+"(.+?)"', live, re.DOTALL)[1].replace("\n", " ")
    assert re.search(rf"(?m)^#+ {re.escape(section)}$", chapter), section
    snippets = re.findall(r"(?s)```python\n(.*?)```", live)
    assert 4 <= len(snippets) <= 8
    for snippet in snippets:
        ast.parse(snippet)


def test_the_plan_runs_every_live_step_once_and_in_order(lesson):
    steps = re.findall(r"(?m)^\*\*Step (\d+)\.\*\*", part(lesson[0], "Live coding"))
    assert steps == [str(number) for number in range(1, len(steps) + 1)]
    planned = []
    for first, link, last in re.findall(
        r"\blive (?:coding, )?steps? (\d+)(?: (and|to) (\d+))?", part(lesson[0], "Plan")
    ):
        assert not link or link == "to" or int(last) == int(first) + 1
        planned += range(int(first), int(last or first) + 1)
    assert planned == [int(step) for step in steps]


def test_exercises_named_for_home_are_those_of_the_chapter(lesson):
    text, chapter = lesson
    titles = re.findall(r"(?m)^```\{exercise\} (.*)$", chapter)
    home = " ".join(part(text, "Afterwards").split())
    for number, title in re.findall(r"exercise (\d), \*(.+?)\*", home, re.IGNORECASE):
        assert titles[int(number) - 1] == title

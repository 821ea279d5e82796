"""Every symbol of a chapter's mathematics is on the page of notation, and no other is listed."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

BOOK = Path(__file__).parents[1] / "book"
CHAPTERS = sorted((BOOK / "src").glob("[0-9]*.md"))

GREEK = re.compile(
    "(?:var)?(?:alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|pi|rho"
    "|sigma|tau|upsilon|phi|chi|psi|omega|ell)",
    re.I,
)
CODE = re.compile(r"^```\{code-cell\}.*?^```$|(?<!`)`[^`\n]+`(?!`)", re.S | re.M)
MATH = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$", re.S)
TOKEN = re.compile(
    r"\\(?:text|tag|begin|end)\{[^}]*\}"  # words
    r"|\\(?:operatorname|mathrm)\{(?P<name>\w+)\}"
    r"|\\(?P<font>math(?:cal|bb|sf))\s*\{?(?P<styled>[A-Za-z])\}?"
    r"|\\(?P<command>[A-Za-z]+)"
    r"|(?P<letter>[A-Za-z])"
)


def symbols(text):
    """Return the letters and names in the formulas of a Markdown text, without their accents."""
    found = set()
    for formula in MATH.finditer(CODE.sub("", text)):
        for token in TOKEN.finditer(formula[1] or formula[2]):
            if token["name"]:
                found.add(rf"\operatorname{{{token['name']}}}")
            elif token["font"]:
                found.add(rf"\{token['font']}{{{token['styled']}}}")
            elif token["letter"]:
                found.add(token["letter"])
            elif GREEK.fullmatch(token["command"] or ""):
                found.add(f"\\{token['command']}")
    return found


def listed(page):
    """Return the symbols that the tables list for the whole book, and those for each chapter."""
    everywhere, within = set(), defaultdict(set)
    for row in re.findall(r"^\| (.+) \|", page, re.M):
        first, *others = row.split(" | ")
        everywhere |= symbols(first)
        for chapter in re.findall(r"\]\((\w+)\)", first):
            within[chapter] |= symbols(others[0])
    return everywhere, within


def faults(text, everywhere, here):
    """Say which symbols of a chapter are not listed, and which are listed for it in vain."""
    used = symbols(text)
    yield from (f"{symbol} is used but not listed" for symbol in sorted(used - everywhere - here))
    yield from (f"{symbol} is listed but not used" for symbol in sorted(here - used))


EVERYWHERE, WITHIN = listed((BOOK / "notation.md").read_text("utf-8"))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapters_symbols_are_those_that_the_page_lists(path):
    assert not list(faults(path.read_text("utf-8"), EVERYWHERE, WITHIN[path.stem]))


def test_the_page_lists_no_unknown_chapter_and_no_symbol_that_no_chapter_uses():
    assert set(WITHIN) <= {path.stem for path in CHAPTERS}
    used = set().union(*(symbols(path.read_text("utf-8")) for path in CHAPTERS))
    assert used >= EVERYWHERE


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"$\hat x_i^{c\top} \le \mathbf{w}$", {"x", "i", "c", "w"}),
        (r"$\varepsilon + \Sigma \sin\theta$", {r"\varepsilon", r"\Sigma", r"\theta"}),
        (r"$\mathbb E\,\mathcal{N}(0, 1)$", {r"\mathbb{E}", r"\mathcal{N}"}),
        (
            r"$\operatorname{tr} A$ and $\mathrm{PR}$",
            {r"\operatorname{tr}", "A", r"\operatorname{PR}"},
        ),
        ("$$ a\n+ b \\text{ if } 1 \\tag{7} $$", {"a", "b"}),
        ("costs `$HOME` or $5$ for\n```{code-cell} ipython3\ny = '$z$'\n```\n", set()),
    ],
)
def test_symbols(text, found):
    assert symbols(text) == found


def test_a_symbol_that_is_missing_or_in_vain_is_found():
    page = "| $n$ | samples |\n\n| [1](01_a), [2](02_b) | $p$, $\\beta$ | shares of $q$ | `p` |\n"
    everywhere, within = listed(page)
    assert everywhere == {"n"}
    assert within == {"01_a": {"p", r"\beta"}, "02_b": {"p", r"\beta"}}
    assert list(faults(r"Let $p = q / n$.", everywhere, within["01_a"])) == [
        "q is used but not listed",
        r"\beta is listed but not used",
    ]

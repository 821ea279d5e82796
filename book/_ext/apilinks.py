"""The API reference: docstrings as Sphinx reads them, and links to them from every page."""

import re

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

# "layers : as for `LOES.fit`." says what a parameter is, where numpydoc expects its type.
DESCRIBED = re.compile(r"^(\S.*?) : (.+)$")
CHAPTER = re.compile(r"book/\d\d_")


def read_docstring(app: Sphinx, what, name, obj, options, lines: list[str]) -> None:
    """Put what a parameter or attribute is under its name, as numpydoc wants it; link chapters."""
    section = ""
    for number, line in enumerate(lines):
        if set(line) == {"-"}:
            section = lines[number - 1]
        elif section in ("Parameters", "Attributes") and (match := DESCRIBED.match(line)):
            lines[number] = f"{match[1]}\n    {match[2]}"
    chapters = {name[5:7].lstrip("0"): name for name in app.env.found_docs if CHAPTER.match(name)}
    text = "\n".join(lines)
    for number in set(re.findall(r"\bChapter (\d+)", text)) & set(chapters):
        link = f":doc:`Chapter {number} </{chapters[number]}>`"
        text = re.sub(rf"\bChapter {number}\b", link, text)
    lines[:] = text.split("\n")


def link_names(app: Sphinx, doctree: nodes.document) -> None:
    """Make inline code such as ``loes.LOES`` a reference; what is not documented stays code."""
    for literal in list(doctree.findall(nodes.literal)):
        name = literal.astext().removesuffix("()")
        linked = isinstance(literal.parent, nodes.reference | pending_xref)
        if name.startswith("loes.") and not linked:
            link = pending_xref(
                "",
                refdomain="py",
                reftype="obj",
                reftarget=name,
                refexplicit=False,
                refwarn=False,
                refdoc=app.env.docname,
            )
            literal.replace_self(link)
            link += literal


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", read_docstring, priority=400)  # before napoleon
    app.connect("doctree-read", link_names)
    return {"parallel_read_safe": True}

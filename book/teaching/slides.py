"""Build slides from the chapters (``make slides``): one deck a chapter, and a list of them.

A deck has the chapter's claim, its goals, every definition and theorem, each output of a cell
tagged ``slide`` (its code too, if the cell is also tagged ``slide-code``), the control, the recap,
the quiz with hidden answers, and the exercises. It needs no network: reveal.js and MathJax are
copied next to the decks, which can be opened as files.
"""

import argparse
import html
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import yaml
from jinja2 import DictLoader
from nbconvert import SlidesExporter
from nbformat.v4 import new_markdown_cell, new_notebook
from pybtex.database import parse_file
from tqdm import tqdm
from traitlets.config import Config

ROOT = Path(__file__).parents[2]
VENDORED = ("reveal", "mathjax")
LETTERS = 1200  # of prose on a slide; what is longer is divided between paragraphs

DIRECTIVE = re.compile(
    r"^(?P<fence>`{3,})\{(?P<kind>[\w:-]+)\}[ \t]*(?P<title>[^\n]*)\n"
    r"(?P<options>(?::[\w-]+:[^\n]*\n)*)(?P<body>.*?)^(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
HEADING = re.compile(r"^#{1,4} (?P<heading>.+)$", re.MULTILINE)
CONTROL = "A control that has to fail"


@dataclass
class Slide:
    """A heading, Markdown below it, and Markdown that a further step shows."""

    heading: str
    body: str
    answer: str = ""


@dataclass
class Chapter:
    """What a deck is made of.

    Attributes
    ----------
    name : stem of the notebook.
    slides : in their order.
    """

    name: str
    title: str
    slides: list[Slide] = field(default_factory=list)


class Plain:
    """Turns the book's MyST into the Markdown that nbconvert knows.

    Citations become (Author, year), references to theorems their kind and title, links to chapters
    their text.
    """

    def __init__(self, root):
        book = parse_file(str(root / "book/references.bib"))
        self.works = {key: _authors_and_year(entry) for key, entry in book.entries.items()}
        self.labels = {}
        for source in root.glob("book/src/*.md"):
            for found in DIRECTIVE.finditer(source.read_text(encoding="utf-8")):
                if label := re.search(r"^:label: (\S+)", found["options"], re.MULTILINE):
                    self.labels[label[1]] = called(found["kind"], found["title"])

    def __call__(self, text):
        """Return the text without roles, labels and links between chapters."""
        text = re.sub(r"^\([\w-]+\)=\n", "", text, flags=re.MULTILINE)
        text = re.sub(r"\{([\w:]+)\}`([^`]+)`", self._role, text)
        text = re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)
        one_line = r"(?<![\\$])\$(?!\$)[^$]+?(?<!\\)\$(?!\$)"  # a line of math can look like a list
        return re.sub(one_line, lambda found: " ".join(found[0].split()), text).strip()

    def _role(self, found):
        role, content = found.groups()
        if role.startswith("cite"):
            works = [self.works[key.strip()] for key in content.split(",")]
            if role == "cite:t":
                return " and ".join(f"{authors} ({year})" for authors, year in works)
            return "(" + "; ".join(f"{authors}, {year}" for authors, year in works) + ")"
        text, _, target = content.rstrip(">").rpartition("<")
        return text.strip() or self.labels.get(target, target)


def called(kind, title):
    """Return what a directive is called, such as Theorem (Closed form)."""
    kind = kind.removeprefix("prf:").capitalize()
    return f"{kind} ({title})" if title else kind


def _authors_and_year(entry):
    names = ["".join(person.last_names).strip("{}") for person in entry.persons["author"]]
    if len(names) > 2:
        names = [f"{names[0]} et al."]
    return " and ".join(names), entry.fields.get("year", "n.d.")


def chapter_of(path, plain):
    """Return the slides of a chapter's notebook.

    Parameters
    ----------
    path : of the notebook.
    plain : a Plain.
    """
    notebook = nbformat.read(path, as_version=4)
    heading, title = "", None
    chapter = Chapter(path.stem, path.stem)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            if "slide" in cell.metadata.get("tags", []):
                chapter.slides.append(Slide(heading, output_of(cell, plain)))
            continue
        for kind, name, body in pieces(cell.source):
            if kind == "heading":
                heading = plain(name)
                if title is None:
                    title = chapter.title = heading
                if heading == CONTROL:
                    chapter.slides += divided(Slide(heading, plain(first_paragraph(cell.source))))
            elif kind == "text" and body.startswith("**Claim.**"):
                chapter.slides += divided(Slide(title, plain(body)))
            elif kind == "text" and heading == "Recap":
                chapter.slides += divided(Slide(heading, plain(body)))
            else:
                chapter.slides += slides_of(kind, name, body, heading, plain)
    return chapter


def pieces(text):
    """Yield (kind, title, body) of the headings, directives and paragraphs of a text, in order."""
    position = 0
    for found in DIRECTIVE.finditer(text):
        yield from prose(text[position : found.start()])
        yield found["kind"], found["title"], found["body"].strip()
        position = found.end()
    yield from prose(text[position:])


def prose(text):
    """Yield the headings of a text and what is between them."""
    position = 0
    for found in HEADING.finditer(text):
        if between := text[position : found.start()].strip():
            yield "text", "", between
        yield "heading", found["heading"], ""
        position = found.end()
    if rest := text[position:].strip():
        yield "text", "", rest


def first_paragraph(text):
    """Return the first paragraph below the heading of the control."""
    return text.partition(f"## {CONTROL}")[2].strip().split("\n\n")[0]


def slides_of(kind, name, body, heading, plain):
    """Return the slides that a directive makes, if any."""
    if kind == "admonition" and name == "What you will be able to do":
        return divided(Slide(plain(name), plain(body.partition("**Before you start")[0])))
    if kind in ("prf:theorem", "prf:definition"):
        return divided(Slide(heading, f"**{called(kind, plain(name))}.**\n\n{plain(body)}"))
    if kind == "exercise":
        return divided(Slide(f"Exercise: {plain(name)}", plain(body)))
    if kind == "dropdown":
        return [Slide("Quiz", f"**{plain(name)}**", plain(body))]
    return []


def divided(slide):
    """Divide a slide with much text between paragraphs or items of a list."""
    blocks = re.split(r"\n\n(?=\S)|\n(?=(?:- |\d+\. ))", slide.body)
    parts = [[]]
    for block in blocks:
        if parts[-1] and sum(map(len, parts[-1])) + len(block) > LETTERS:
            parts.append([])
        parts[-1].append(block)
    if len(parts) == 1:
        return [slide]
    is_list = re.compile(r"- |\d+\. ").match
    return [
        Slide(
            f"{slide.heading} ({number} of {len(parts)})",
            "".join(("\n" if is_list(block) else "\n\n") + block for block in part).strip(),
        )
        for number, part in enumerate(parts, start=1)
    ]


def output_of(cell, plain):
    """Return the outputs of a cell as Markdown with HTML: figures with captions, tables, text."""
    mystnb = cell.metadata.get("mystnb", {})
    caption = plain(mystnb.get("figure", {}).get("caption", ""))
    alt = html.escape(mystnb.get("image", {}).get("alt", caption).strip())
    parts = []
    if "slide-code" in cell.metadata.get("tags", []):
        parts.append(f"```python\n{cell.source}\n```")
    for output in cell.outputs:
        data = output.get("data", {})
        if "image/png" in data:
            png = data["image/png"].replace("\n", "")
            parts.append(f'<img alt="{alt}" src="data:image/png;base64,{png}">')
        elif "text/html" in data:
            parts.append(re.sub(r"<style.*?</style>|\n\s*", "", data["text/html"], flags=re.DOTALL))
        elif text := output.get("text", data.get("text/plain", "")):
            lines = html.escape(text.rstrip()).replace("\n", "&#10;")  # an empty line ends HTML
            parts.append(f"<pre>{lines}</pre>")
    if caption:
        parts.append(f'<div class="caption">\n\n{caption}\n\n</div>')
    return "\n\n".join(parts)


TEMPLATE = """\
{%- extends 'reveal/index.html.j2' -%}
{%- block html_head_js -%}{%- endblock -%}
{%- block notebook_css -%}
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>.reveal .slide-number { background: #1b4965; }</style>
{%- endblock -%}
{%- block html_head_js_mathjax -%}
<script>
window.MathJax = {
  tex: {inlineMath: [['$', '$'], ['\\\\(', '\\\\)']], processEscapes: true},
  startup: {pageReady: () => MathJax.startup.defaultPageReady().then(start)},
};
// A slide with more than fits is set smaller, step by step.
function fit(section) {
  section.style.cssText = 'display: block !important; visibility: hidden;';
  const over = () => section.scrollHeight > 700 || section.scrollWidth > section.clientWidth;
  for (let size = 34; size > 16 && over(); size--)
    section.style.fontSize = size - 1 + 'px';
  const size = section.style.fontSize;
  section.style.cssText = '';
  section.style.fontSize = size;
}
function start() {
  Reveal.initialize({
    width: 1280, height: 720, margin: 0.04, center: false, hash: true, slideNumber: 'c/t',
    transition: 'none', scrollActivationWidth: null, // one long page would ignore a link to a slide
  }).then(() => {
    const outer = [...document.querySelectorAll('.slides > section')];
    outer.forEach(section => {
      const kept = section.style.cssText;
      section.style.cssText = 'display: block !important; visibility: hidden;';
      section.querySelectorAll('section').forEach(fit);
      section.style.cssText = kept;
    });
    Reveal.layout();
    document.body.dataset.ready = 'yes';
  });
}
</script>
<script src="reveal/dist/reveal.js"></script>
<script async src="mathjax/tex-chtml-full.js"></script>
{%- endblock -%}
{%- block markdowncell scoped -%}
{{ cell.source | markdown2html | strip_files_prefix }}
{%- endblock -%}
{%- block footer_js -%}{%- endblock -%}
"""


def exporter():
    """Return the exporter of decks."""
    config = Config()
    config.CSSHTMLHeaderPreprocessor.style = "default"
    config.SlidesExporter.exclude_anchor_links = True
    return SlidesExporter(
        config=config,
        template_name="reveal",
        template_file="deck.html.j2",
        reveal_url_prefix="reveal",
        reveal_theme="loes",
        extra_loaders=[DictLoader({"deck.html.j2": TEMPLATE})],
    )


def deck(chapter, repository, export):
    """Return a deck as HTML."""
    notebook_url = f"{repository}/blob/main/book/{chapter.name}.ipynb"
    last = Slide(
        "Where to go from here",
        f"- The chapter, with proofs, code and references: <{notebook_url}>\n"
        f"- The book and the package: <{repository}>\n"
        "- [All slides](index.html)",
    )
    cells = []
    for slide in [*chapter.slides, last]:
        cell = new_markdown_cell(f"## {slide.heading}\n\n{slide.body}")
        cell.metadata["slideshow"] = {"slide_type": "slide"}
        cells.append(cell)
        if slide.answer:
            answer = new_markdown_cell(slide.answer)
            answer.metadata["slideshow"] = {"slide_type": "fragment"}
            cells.append(answer)
    notebook = new_notebook(cells=cells, metadata={"title": chapter.title})
    page = export.from_notebook_node(notebook)[0]
    return re.sub(r'(<h2) id="[^"]*"', r"\1", page)  # many slides have the same heading


INDEX = """\
<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Slides of the LOES book</title>
<style>body {{ font-family: system-ui, sans-serif; line-height: 1.6; max-width: 45em;
margin: 2em auto; padding: 0 1em }} a {{ color: #0b5394 }}</style></head>
<body><main><h1>Slides of the LOES book</h1>
<p>One deck a chapter. Keys: arrows and space to move, Esc for all slides at once, F for the whole
screen. On a phone: turn it sideways and swipe. To print: add
<code>?print-pdf</code> to the address.</p>
<ul>
{items}
</ul>
<p>The book: <a href="{repository}">{repository}</a></p></main></body></html>
"""


def build(root, out, only=""):
    """Write the decks of a checkout to a folder, made anew.

    Raises
    ------
    FileNotFoundError where there is no such chapter.
    """
    paths = sorted(root.glob(f"book/{only or '[0-9]'}*.ipynb"))
    if not paths:
        raise FileNotFoundError(f"{root}/book has no chapter {only!r}; wanted one such as '04'.")
    about = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    repository, plain, export = about["repository"]["url"], Plain(root), exporter()
    if out.exists() and not (out / "index.html").exists() and any(out.iterdir()):
        raise FileExistsError(f"{out} holds other things than slides, and would be emptied.")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for name in VENDORED:
        shutil.copytree(root / "book/_static" / name, out / name)
    items = []
    for path in tqdm(paths, desc="slides"):
        chapter = chapter_of(path, plain)
        name = f"{path.stem}.html"
        (out / name).write_text(deck(chapter, repository, export), encoding="utf-8")
        items.append(f'<li><a href="{name}">{html.escape(chapter.title)}</a></li>')
    page = INDEX.format(items="\n".join(items), repository=repository)
    (out / "index.html").write_text(page, encoding="utf-8")


def main(arguments=None):
    """Build the decks; return 1 if that was refused."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="the chapters whose names begin so, such as 04")
    parser.add_argument("--root", type=Path, default=ROOT, help="a checkout of the book")
    parser.add_argument(
        "--out", type=Path, help="where to (default: _build/extra/slides of --root)"
    )
    options = parser.parse_args(arguments)
    out = options.out or options.root / "_build/extra/slides"
    try:
        build(options.root, out, options.only)
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"slides are in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

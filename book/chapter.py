"""Begin a chapter (``make chapter NAME=my_topic``) that passes the structure checks from the start.

Written are ``book/src/NN_my_topic.md`` from ``book/template.md``, its notebook, executed, its
lesson plan, and their lines in ``_toc.yml``. Then replace what the template says, part by part.
"""

import argparse
import re
import sys
from pathlib import Path

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

import sync


def contents(text, stem):
    """Return the text of ``_toc.yml`` with a chapter after the last one, and its lesson."""
    lines = text.split("\n")
    for folder in ("book/", "book/teaching/lessons/"):
        entries = [n for n, line in enumerate(lines) if re.search(rf"file: {folder}\d\d_", line)]
        indent = lines[entries[-1]].partition("- file")[0]
        lines.insert(entries[-1] + 1, f"{indent}- file: {folder}{stem}")
    return "\n".join(lines)


def main(arguments=None):
    """Write the scaffold of a chapter and execute it; return 1 if the name will not do."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", help="lower case, digits and underscores, such as my_topic")
    parser.add_argument("root", type=Path, nargs="?", default=Path(__file__).parents[1])
    options = parser.parse_args(arguments)
    book, name = options.root / "book", options.name
    chapters = sorted(path.stem for path in book.glob("src/[0-9][0-9]_*.md"))
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        print(f"{name!r} is no name of a chapter: wanted is such as my_topic", file=sys.stderr)
        return 1
    if name in {stem[3:] for stem in chapters}:
        print(f"there is a chapter {name!r} already: choose another name", file=sys.stderr)
        return 1
    number = int(chapters[-1][:2]) + 1
    stem = f"{number:02d}_{name}"
    words = {
        "number": number,
        "stem": stem,
        "label": name.replace("_", "-"),
        "title": name.replace("_", " ").capitalize(),
        "repository": yaml.safe_load((options.root / "_config.yml").read_text())["repository"][
            "url"
        ],
    }
    templates = Environment(
        loader=FileSystemLoader(book), undefined=StrictUndefined, keep_trailing_newline=True
    )
    for template, path in (
        ("template.md", book / "src" / f"{stem}.md"),
        ("template_lesson.md", book / "teaching/lessons" / f"{stem}.md"),
    ):
        path.write_text(templates.get_template(template).render(words), encoding="utf-8")
        print(f"{path.relative_to(options.root)}: written")
    toc = options.root / "_toc.yml"
    toc.write_text(contents(toc.read_text(encoding="utf-8"), stem), encoding="utf-8")
    return sync.main([str(book), "--only", stem])


if __name__ == "__main__":
    sys.exit(main())

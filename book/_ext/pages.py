"""What the pages of the site need beyond the theme."""

from pathlib import Path

from PIL import Image, ImageOps
from sphinx.application import Sphinx

CARD = (1200, 630)  # pixels, what previews of links are cropped to


def draw_card(app: Sphinx, exception: Exception | None) -> None:
    """Put the figure of the quick start on a white card, for previews of links to the site."""
    if exception is None and app.builder.format == "html":
        with Image.open(Path(app.srcdir, "book/_static/quickstart.png")) as figure:
            card = ImageOps.pad(figure.convert("RGB"), CARD, color="white")
        card.save(Path(app.outdir, "_static/social.png"))


def mend_roles(app: Sphinx, pagename, templatename, context: dict, doctree) -> None:
    """Give entries of a bibliography the role that their list wants; docutils' is deprecated."""
    if "body" in context:
        context["body"] = context["body"].replace('role="doc-biblioentry"', 'role="listitem"')


def name_arrows(app: Sphinx, pagename, templatename, context: dict, doctree) -> None:
    """Give the arrows that unfold the list of pages a name; the theme's have none."""
    generate = context.get("generate_toctree_html")

    def named(*args, **options):
        html = generate(*args, **options)
        return str(html).replace("<summary>", '<summary aria-label="Pages of this part">')

    if generate:
        context["generate_toctree_html"] = named


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.connect("html-page-context", mend_roles)
    app.connect("html-page-context", name_arrows, priority=600)  # after the theme
    app.connect("build-finished", draw_card)
    return {"parallel_read_safe": True}

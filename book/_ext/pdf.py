"""What the PDF edition needs and the site does not."""

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform


class TagOutside(SphinxPostTransform):
    r"""Put the ``\tag`` of an equation outside of the ``split`` that Sphinx wraps around it."""

    default_priority = 400
    formats = ("latex",)

    def run(self) -> None:
        """Write out the environments of each tagged equation."""
        for block in self.document.findall(nodes.math_block):
            text = block.astext()
            if tag := re.search(r"\\tag\{[^}]*\}", text):
                body = text.replace(tag[0], "")
                text = f"\\begin{{split}}{body}\\end{{split}}{tag[0]}"
                text = f"\\begin{{equation*}}{text}\\end{{equation*}}"
                block.children = [nodes.Text(text)]
                block["nowrap"] = block["no-wrap"] = True


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.add_post_transform(TagOutside)
    return {"parallel_read_safe": True}

"""``python -m loes``, and the same under torchrun."""

from loes.cli import app

app(prog_name="loes")

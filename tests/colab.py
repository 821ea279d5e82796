"""Run the code cells that stand on stdin as JSON, as Colab would (see test_colab.py).

It cannot reach the project's page from here: requests to it are answered from CHECKOUT.
"""

import json
import os
import sys
from importlib import import_module
from types import ModuleType
from urllib.request import HTTPSHandler, build_opener, install_opener, urlopen

from IPython.core.interactiveshell import InteractiveShell

PAGE = "https://raw.githubusercontent.com/loes-book/loes/main/"


class Page(HTTPSHandler):
    """The project's page, read from the checkout."""

    def https_open(self, request):
        """Answer with the file of the same path."""
        address = request.full_url
        if not address.startswith(PAGE):
            raise OSError(f"{address} is not on the project's page")
        answer = urlopen(f"file://{os.environ['CHECKOUT']}/{address.removeprefix(PAGE)}")
        answer.code, answer.msg = 200, "OK"
        return answer


if __name__ == "__main__":
    install_opener(build_opener(Page))
    sys.modules["google.colab"] = ModuleType("google.colab")
    shell = InteractiveShell.instance()
    for source in json.load(sys.stdin):
        shell.run_cell(source).raise_error()
    print("loes is from", import_module("loes").__file__)

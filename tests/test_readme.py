"""The README's Python runs as it is printed."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_first_python_block_is_short_and_runs(tmp_path):
    block = re.search(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert block, "the README has no ```python block"
    lines = [line for line in block[1].splitlines() if line.strip()]
    assert len(lines) <= 12
    run = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", block[1]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    picked = re.search(r"^\[(.*)\]$", run.stdout, re.MULTILINE)
    assert picked, run.stdout
    assert len(set(re.findall(r"'(?:embedding|layer\d)'", picked[1]))) == 3

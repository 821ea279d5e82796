"""While notebooks are tested (nbval), every exercise's check must fail before it passes.

Before a cell tagged ``solution`` runs, the cell after it, the check, runs on the empty answer in
the same kernel, and has to fail. It then runs a second time where it stands, on the solution.
"""

import pytest
from nbval.plugin import IPyNbCell

# A copy of the names keeps what a failing check defines out of the notebook. What it does to
# objects or to global random generators stays, and shows in outputs that differ from the stored.
ON_EMPTY_ANSWER = (
    "exec(compile(get_ipython().transform_cell({!r}), '<check>', 'exec'), {{**globals()}})"
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Run a solution as always, then fail it if its check had accepted the empty answer."""
    fault = check_fault(item) if isinstance(item, IPyNbCell) and "solution" in tags(item) else None
    result = yield
    if fault:
        item.raise_cell_error(fault)
    return result


def tags(item):
    """Return the tags of a cell."""
    return item.cell.metadata.get("tags", [])


def check_fault(item):
    """Run the check of a solution that has not run yet; say what is wrong if it does not fail."""
    cells = [cell for cell in item.parent.nb.cells if cell.cell_type == "code"]
    solved = [c for c in cells[: item.cell_num + 1] if "solution" in c.metadata.get("tags", [])]
    check = cells[item.cell_num + 1] if item.cell_num + 1 < len(cells) else None
    if check is None or "check" not in check.metadata.get("tags", []):
        return f"exercise {len(solved)} has no check: the next cell is not tagged check"
    reply = item.parent.kernel.kc.execute_interactive(
        ON_EMPTY_ANSWER.format(check.source),
        store_history=False,
        allow_stdin=False,
        stop_on_error=False,
        timeout=item.config.option.nbval_cell_timeout,
        output_hook=lambda message: None,
    )
    if reply["content"]["status"] == "ok":
        return f"exercise {len(solved)}'s check accepts an empty answer"
    return None

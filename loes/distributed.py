"""Several processes, started by torchrun: which of them does what, and how their parts add up."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from loes.statistics import LayerStatistics

# How long one process may wait for another. A process that dies is torchrun's to notice, at once;
# this is for one that hangs, and must exceed what a slow process needs after a quick one is done.
TIMEOUT = timedelta(hours=12)


class Process(NamedTuple):
    """The place of this process among those that torchrun has started, or alone."""

    rank: int
    size: int
    local_rank: int

    @classmethod
    def current(cls) -> "Process":
        """Read what torchrun says in the environment."""
        names = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0}
        return cls(*(int(os.environ.get(name, alone)) for name, alone in names.items()))

    def device(self, name: str | None = None) -> torch.device:
        """Return the device of this process: each takes a GPU of its own.

        Parameters
        ----------
        name : such as ``"cpu"`` or ``"cuda"``; None for a GPU if there is one.

        Raises
        ------
        ValueError for a name that torch does not know, a GPU that is not there, or one GPU for
        several processes.
        """
        name = name or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(name)
        except RuntimeError:
            raise ValueError(f"there is no device {name!r}; say cpu, cuda or mps.") from None
        if device.type != "cuda":
            return device
        if self.size > 1 and device.index is not None:
            raise ValueError(f"{self.size} processes cannot share {name}; say cuda.")
        index = self.local_rank if device.index is None else device.index
        if index >= torch.cuda.device_count():
            raise ValueError(
                f"GPU number {index} was asked for, but {torch.cuda.device_count()} are there; "
                "start one process a GPU, or say cpu."
            )
        return torch.device("cuda", index)

    def share(self, n_shards: int) -> range:
        """Return the shards that this process computes."""
        return range(self.rank, n_shards, self.size)


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Connect the processes that torchrun has started; do nothing for a single one.

    After an error the group is left as it is, for the others may never answer again.
    """
    if "WORLD_SIZE" not in os.environ:
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    yield
    dist.destroy_process_group()


def wait() -> None:
    """Wait until all processes are here."""
    if dist.is_initialized():
        dist.barrier()


def all_reduce(statistics: LayerStatistics) -> LayerStatistics:
    r"""Return the statistics over the samples of all processes, the same in each of them.

    Means :math:`\mu_r` and centred Gram matrices :math:`G_r` of :math:`n_r` samples do not add up
    as they are. About one common point :math:`\mu`, the mean of the first process with samples,
    they do: with :math:`\delta_r = \mu_r - \mu`, one sum over the processes of
    :math:`(n_r, n_r \delta_r, G_r + n_r \delta_r \delta_r^\top)` holds all moments. The differences
    are small, so large means cost no digits.

    Parameters
    ----------
    statistics : of this process's samples; empty if it had none. Classes may differ.

    Raises
    ------
    ValueError, in all processes alike, when their layers or targets are not the same.
    """
    if not dist.is_initialized():
        return statistics
    about = [None] * dist.get_world_size()
    dist.all_gather_object(about, _describe(statistics))
    seen = [rank for rank, described in enumerate(about) if described]
    if not seen:
        return statistics
    first = seen[0]
    for rank in seen:
        if about[rank]["layout"] != about[first]["layout"]:
            raise ValueError(
                f"processes {first} and {rank} saw different things: {about[first]['layout']}; "
                f"{about[rank]['layout']}."
            )
    total = LayerStatistics(about[first]["task"])
    total.names, total.widths = about[first]["names"], about[first]["widths"]
    total.classes, width = None, about[first]["width"]
    mine = copy(statistics)
    if about[first]["classes"] is not None:
        total.classes = sorted({label for rank in seen for label in about[rank]["classes"]})
        width = sum(total.widths) + len(total.classes)
        if mine.n:
            mine._expand(total.classes)

    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    reference = torch.zeros(width, dtype=torch.float64, device=device)
    if dist.get_rank() == first:
        reference.copy_(mine._mean)
    dist.broadcast(reference, src=first)
    sums = torch.zeros(1 + width + width**2, dtype=torch.float64, device=device)
    gram = sums[1 + width :].view(width, width)
    if mine.n:
        shift = mine._mean.to(device) - reference
        sums[0], sums[1 : 1 + width] = mine.n, mine.n * shift
        gram.copy_(mine._gram).addr_(shift, shift, alpha=mine.n)
    dist.all_reduce(sums)
    total.n = int(sums[0])
    shift = sums[1 : 1 + width] / total.n
    total._mean, total._gram = reference + shift, gram.addr_(shift, shift, alpha=-total.n)
    return total


def _describe(statistics: LayerStatistics) -> dict | None:
    """Return what the processes have to agree on; None without samples."""
    if not statistics.n:
        return None
    about = {key: getattr(statistics, key) for key in ("task", "names", "widths", "classes")}
    return {**about, "layout": statistics._layout(), "width": len(statistics._mean)}

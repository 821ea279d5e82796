"""Time GeoReg, forward and backward, beside the same penalty from an eigendecomposition."""

import argparse

import pandas as pd
import reference
import torch
from torch import Tensor

from loes import GeoReg


def by_eigenvalues(Z: Tensor, y: Tensor, weight: float = 0.1) -> Tensor:
    """Return the published form, with one random triangle."""
    eigenvalues = torch.linalg.eigvalsh(torch.cov(Z.T) + 1e-4 * torch.eye(Z.shape[1]))
    i, j, k = torch.randperm(int(y.max()) + 1)[:3]
    u, v = (Z[y == c].mean(0) - Z[y == i].mean(0) for c in (j, k))
    area = 0.5 * (u.square().sum() * v.square().sum() - (u @ v) ** 2).clamp(min=1e-12).sqrt()
    return weight * (eigenvalues.var() - (area + 1e-6).log())


def main() -> None:
    """Print one row a dimension."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--dimensions", type=int, nargs="*", default=[64, 256, 1024])
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    rows = []
    for d in options.dimensions:
        y = torch.arange(options.batch) % options.classes
        Z = torch.randn(options.batch, d, generator=torch.Generator().manual_seed(0))
        Z.requires_grad_()
        georeg = GeoReg()
        runs = {
            "ours": lambda Z=Z, y=y, georeg=georeg: georeg(Z, y).loss.backward(),
            "eigenvalues": lambda Z=Z, y=y: by_eigenvalues(Z, y).backward(),
        }
        for run in runs.values():
            run()
        times = reference.interleaved(runs, options.repeats)
        ratio = times["eigenvalues"] / times["ours"]
        rows.append({"batch": options.batch, "dimension": d, **times, "ratio": ratio})
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.3g}".format))


if __name__ == "__main__":
    main()

"""Peak memory of `LOES.fit` and of `LayerStatistics`, each in a process of its own (Linux)."""

import argparse
import warnings
from functools import partial

import numpy as np
import pandas as pd
import reference

from loes import LOES, LayerStatistics

MB = 1e6
peak = partial(reference.child_peak, __file__)


def child(work: str, n: int, n_layers: int, d: int, k: int, rank: int) -> None:
    """Do one piece of work and print the peak, in bytes."""
    warnings.filterwarnings("ignore")
    reference.residual_stream(400, 2, 32)  # load the libraries
    LOES(2).fit(*reference.residual_stream(400, 3, 32))
    if work == "stream":
        statistics = LayerStatistics()
        for start in range(0, n, 500):
            statistics.update(*reference.residual_stream(500, n_layers, d, seed=start))
        LOES(k).fit_statistics(statistics)
    else:
        layers, y = reference.residual_stream(n, n_layers, d, rank or None)
        if work == "fit":
            LOES(k).fit(layers, y)
    reference.print_peak()


def main() -> None:
    """Compare peaks with what is promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=6, help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.child:
        work, *sizes = options.child
        return child(work, *map(int, sizes))
    primal, dual, stream = (6000, 12, 768, 4, 0), (512, 20, 2048, 3, 100), (2000, 6, 256, 3, 0)
    if options.small:
        primal, dual, stream = (3000, 12, 256, 4, 0), (256, 10, 1024, 3, 50), (1000, 4, 128, 3, 0)
    rows = []
    for form, size in (("Primal", primal), ("Dual", dual)):
        n, n_layers, d, k, _ = size
        features = 4 * n * n_layers * d
        small = 8 * n_layers * d * d if form == "Primal" else 2 * 8 * n_layers * n * n
        extra = peak("fit", *size) - peak("data", *size)
        row = {"form": form, "n": n, "L": n_layers, "d": d, "K": k, "features": features / MB}
        row |= {"d x d or n x n": small / MB, "promise": (features + small) / MB}
        rows.append(row | {"extra": extra / MB, "share": extra / (features + small)})
    print("Peak memory beyond the features themselves, MB:")
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.3g}".format))
    n, *rest = stream
    peaks = [peak("stream", samples, *rest) / MB for samples in (n, 10 * n)]
    print(f"\nLayerStatistics, whole process, n={n} and n={10 * n}: {np.round(peaks)} MB")
    n_layers, d, n = 80, 8192, 2048
    kernels, grams = 2 * 8 * n_layers * n**2, 8 * n_layers * d**2
    print(
        f"\nOn paper, {n_layers} layers x {d}, n={n}: {kernels / 1e9:.1f} GB of kernels, against "
        f"{grams / 1e9:.0f} GB of Gram matrices; the features are {4 * n_layers * n * d / 1e9:.1f}."
    )


if __name__ == "__main__":
    main()

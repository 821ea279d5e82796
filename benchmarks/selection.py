"""Time `LOES.fit` beside the same selection written out, scikit-learn's, and the bare products."""

import argparse
import os
import platform
import warnings

import pandas as pd
import reference
import torch
from threadpoolctl import threadpool_info

from loes import LOES

SIZES = {  # n, L, d, K, rank of a layer: where n < d, one layer of full rank would span everything
    "n > d": (4000, 12, 768, 4, None),
    "six picks": (5000, 12, 768, 6, None),
    "n < d": (1000, 24, 1024, 4, 200),
}
SMALL = {"n > d": (1200, 6, 128, 3, None), "n < d": (200, 6, 256, 3, 40)}
HALF = {
    "n > d": (2000, 12, 384, 4, None),
    "six picks": (2500, 12, 384, 6, None),
    "n < d": (500, 24, 512, 4, 100),
}
LITERAL = {"paper": reference.literal_paper, "bounded": reference.literal_bounded}


def machine() -> str:
    """Describe what the times depend on."""
    try:
        with open("/proc/cpuinfo") as file:
            cpu = next(line.split(":")[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration):
        cpu = platform.processor() or platform.machine()
    blas = "MKL" if torch.backends.mkl.is_available() else "no MKL"
    others = {f"{i['internal_api']} {i['version']}" for i in threadpool_info() if i["version"]}
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return (
        f"{cpu}; {torch.get_num_threads()} threads of {os.cpu_count()} cores, load {load:.1f}\n"
        f"torch {torch.__version__} with {blas}; numpy and scikit-learn with {', '.join(others)}"
    )


def compare(
    size: tuple, criterion: str, repeats: int, slow: int, clock: str, sklearn: bool
) -> dict:
    """Time one criterion at one size against everything else."""
    n, n_layers, d, k, rank = size
    layers, y = reference.residual_stream(n, n_layers, d, rank)

    def ours() -> list[int]:
        return LOES(k, criterion=criterion).fit(layers, y).selected_

    picks = ours()  # the first call also warms up
    wide = [X.double() for X in layers]
    runs = {
        "ours": ours,
        "bare32": lambda: reference.bare_products(layers, k),
        "bare64": lambda: reference.bare_products(wide, k),
    }
    times = reference.interleaved(runs, repeats, clock)
    written_out = []
    runs = {"literal": lambda: written_out.append(LITERAL[criterion](layers, y, k))}
    if sklearn:
        runs["sklearn"] = lambda: reference.sequential_ridge(layers, y, k)
    times |= reference.interleaved(runs, slow, clock)
    row = {"n": n, "L": n_layers, "d": d, "K": k, "criterion": criterion} | times
    for name in runs:
        row[f"{name} / ours"] = times[name] / times["ours"]
    for name in ("bare32", "bare64"):
        row[f"ours / {name}"] = times["ours"] / times[name]
    return row | {"picks": picks, "same": picks == written_out[0]}


def main() -> None:
    """Print one row a size and criterion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--half", action="store_true", help="n and d halved")
    parser.add_argument("--criterion", choices=list(LITERAL), nargs="*", default=list(LITERAL))
    parser.add_argument("--only", choices=list(SIZES), nargs="*", help="some of the sizes")
    parser.add_argument("--repeats", type=int, default=5, help="of ours and of the bare products")
    parser.add_argument("--slow", type=int, default=1, help="repeats of the literal and sklearn")
    parser.add_argument("--no-sklearn", action="store_true")
    parser.add_argument("--threads", type=int, help="default: as torch finds them")
    parser.add_argument(
        "--clock",
        choices=list(reference.CLOCKS),
        default="wall",
        help="cpu, with --threads 1, on a machine that is busy with other things",
    )
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.threads:
        torch.set_num_threads(options.threads)
    print(machine())
    print("float32 layers; literal and bare64 multiply in float64, bare32 and sklearn in float32.")
    sizes, rows = SMALL if options.small else HALF if options.half else SIZES, []
    for name, size in sizes.items():
        if options.only and name not in options.only:
            continue
        for criterion in options.criterion:
            sklearn = criterion == "paper" and not options.no_sklearn
            arguments = options.repeats, options.slow, options.clock, sklearn
            rows.append({"case": name} | compare(size, criterion, *arguments))
            table = pd.DataFrame(rows[-1:]).set_index("case")
            print(table.T.to_string(float_format="{:.3g}".format), end="\n\n", flush=True)
    columns = [
        c
        for c in ("literal / ours", "sklearn / ours", "ours / bare32", "ours / bare64")
        if c in rows[0]
    ]
    summary = pd.DataFrame(rows).set_index(["case", "criterion"])[[*columns, "same"]]
    print(summary.to_string(float_format="{:.3g}".format))


if __name__ == "__main__":
    main()

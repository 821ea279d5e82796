"""Selection on an accelerator: TF32 off and on, float64, share of the measured matrix peak."""

import argparse
import sys
import time
import warnings

import pandas as pd
import reference
import torch

from loes import LOES


def product_flops(n: int, n_layers: int, d: int, k: int) -> int:
    """Count the operations of the products over samples: Gram matrices and crosses."""
    crosses = sum(n_layers - step for step in range(1, k))
    return 2 * n * d * d * (n_layers + crosses)


def matrix_peak(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Return the operations a second of a large square product."""
    A = torch.randn(size, size, device=device, dtype=dtype)
    run = {"peak": lambda: [A @ A for _ in range(5)]}
    reference.interleaved(run, 1)
    return 5 * 2 * size**3 / reference.interleaved(run, 3)["peak"]


def main() -> None:
    """Print one row a precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cpu to try the script itself")
    parser.add_argument("--size", type=int, nargs=4, metavar=("n", "L", "d", "K"))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    cuda = options.device.startswith("cuda")
    if cuda and not torch.cuda.is_available():
        sys.exit("No CUDA device here; --device cpu tries the script itself.")
    warnings.filterwarnings("ignore")
    device, start = torch.device(options.device), time.perf_counter()
    size = options.size or ((16384, 24, 1024, 4) if cuda else (1500, 6, 128, 3))
    n, n_layers, d, k = size
    layers, y = reference.residual_stream(n, n_layers, d)
    print(
        f"{torch.cuda.get_device_name(device) if cuda else 'cpu'}; n={n} L={n_layers} d={d} K={k}"
    )
    on_cpu = {c: LOES(k, criterion=c).fit(layers, y).selected_ for c in ("paper", "bounded")}
    peak64 = matrix_peak(device, torch.float64, 8192 if cuda else 512)  # ours multiplies in float64
    rows = []
    for dtype, tf32 in ((torch.float32, False), (torch.float32, True), (torch.float64, False)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        there = [X.to(device, dtype) for X in layers]
        peak = matrix_peak(device, dtype, 8192 if cuda else 512)
        for criterion, expected in on_cpu.items():
            model = LOES(k, criterion=criterion).fit(there, y)  # warms up

            def ours(model=model, there=there):
                model.fit(there, y)

            if cuda:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats(device)
            held = torch.cuda.memory_allocated(device) if cuda else 0
            bare = {"ours": ours, "bare": lambda there=there: reference.bare_products(there, k)}
            times = reference.interleaved(bare, options.repeats)
            used = torch.cuda.max_memory_allocated(device) - held if cuda else float("nan")
            flops = product_flops(*size)
            rows.append(
                {"dtype": str(dtype).removeprefix("torch."), "TF32": tf32, "criterion": criterion}
                | times
                | {
                    "ours / bare": times["ours"] / times["bare"],
                    "bare: share of peak": flops / times["bare"] / peak,
                    "ours: share of float64 peak": flops / times["ours"] / peak64,
                    "peak TFLOP/s": peak / 1e12,
                    "extra GB": used / 1e9,
                    "picks": model.selected_,
                    "as on CPU": model.selected_ == expected,
                }
            )
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.3g}".format))
    print(f"{time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    main()

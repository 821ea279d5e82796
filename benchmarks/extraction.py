"""What `extract_layers` costs beyond the bare forward pass, and its peak memory (Linux)."""

import argparse
import tempfile
import warnings
from functools import partial

import pandas as pd
import reference
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
from transformers.utils import logging

from loes import tasks, zoo
from loes.extract import extract_layers, stream_layers

MB = 1e6
peak = partial(reference.child_peak, __file__)
WIDTH, BLOCKS, SHARD = 128, 3, 256  # of the model whose memory is measured


def compare(n: int, max_length: int, repeats: int, threads: int, clock: str) -> pd.DataFrame:
    """Return the seconds of each way in each repeat, taken in turns."""
    torch.set_num_threads(threads)
    model, tokenizer = zoo.load("minilm")
    texts = tasks.load("20newsgroups").inputs[:n]
    settings = {"processor": tokenizer, "max_length": max_length, "progress": False}
    batches: list[dict] = []
    hook = model.register_forward_pre_hook(
        lambda module, args, batch: batches.append(batch), with_kwargs=True
    )
    extract_layers(model, texts, **settings)
    hook.remove()

    def bare() -> None:
        with torch.inference_mode():
            for batch in batches:
                model(**{**batch, "output_hidden_states": True})

    def cold() -> None:
        with tempfile.TemporaryDirectory() as cache:
            extract_layers(model, texts, cache=cache, **settings)

    with tempfile.TemporaryDirectory() as filled:
        extract_layers(model, texts, cache=filled, **settings)
        runs = {
            "bare": bare,
            "extract": lambda: extract_layers(model, texts, **settings),
            "into a cache": cold,
            "from the cache": lambda: extract_layers(model, texts, cache=filled, **settings),
        }
        rows = [
            {name: reference.seconds(run, clock) for name, run in runs.items()}
            for _ in range(repeats)
        ]
    return pd.DataFrame(rows)


def child(work: str, n: int) -> None:
    """Extract from `n` short texts with a small model and print the peak, in bytes."""
    torch.set_num_threads(1)
    words = [f"word{i}" for i in range(100)]
    vocabulary = {word: i for i, word in enumerate(["[PAD]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[PAD]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]")
    model = BertModel(
        BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=WIDTH,
            num_hidden_layers=BLOCKS,
            num_attention_heads=2,
            intermediate_size=2 * WIDTH,
        )
    )
    texts = [" ".join(words[(i + j) % 100] for j in range(1 + i % 16)) for i in range(n)]
    with tempfile.TemporaryDirectory() as cache:
        settings = {"processor": tokenizer, "shard_size": SHARD, "progress": False}
        if work != "extract":
            settings["cache"] = cache
        if work == "stream":
            for _ in stream_layers(model, texts, **settings):
                pass
        else:
            extract_layers(model, texts, **settings)
    reference.print_peak()


def main() -> None:
    """Print the ratios to the bare forward pass, and the growth of the peaks with n."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=reference.CLOCKS, default="cpu")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable_progress_bar()
    if options.child:
        work, n = options.child
        return child(work, int(n))
    n, max_length, samples = (64, 64, 500) if options.small else (512, 128, 2000)
    times = compare(n, max_length, options.repeats, options.threads, options.clock)
    table = pd.DataFrame(
        {"seconds": times.median(), "ratio": times.div(times["bare"], axis=0).median()}
    )
    print(f"{n} texts of at most {max_length} tokens, medians of {options.repeats}:")
    print(table.to_string(float_format="{:.3f}".format))
    rows = []
    for work in ("extract", "extract into a cache", "stream"):
        few, many = (peak(work, size) / MB for size in (samples, 10 * samples))
        features = 4 * WIDTH * (BLOCKS + 1) * samples / MB
        rows.append({"": work, "n": few, "10 n": many, "growth": many - few})
        rows[-1]["growth of the features"] = 9 * features
    print(f"\nPeak memory of the whole process, n={samples}, MB:")
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.1f}".format))


if __name__ == "__main__":
    main()

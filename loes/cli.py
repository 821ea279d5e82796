"""The command line: ``loes select``, ``loes layers`` and ``loes export``."""

import json
import re
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import pandas as pd
import torch
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from loes import run, zoo
from loes.checks import as_targets, as_task
from loes.distributed import Process, process_group, wait
from loes.selection import LOES, SelectionWarning

PACKAGE = Path(run.__file__).parent
CLOSEST = 3  # candidates of a step that are printed; all are in path.csv
RESUME = "Interrupted. The same command goes on from the features finished so far."
EXAMPLES = {  # \b keeps the line breaks
    "select": """\b
Examples:
  loes select --model minilm --data posts.csv --text-column text --label-column topic \\
      -k 4 --criterion bounded --out posts
  torchrun --nproc-per-node 2 -m loes select --model minilm --data posts.csv ...
""",
    "layers": """\b
Example:
  loes layers --model minilm --data posts.csv --text-column text --label-column topic \\
      --group-column author --out posts
""",
    "export": """\b
Example:
  loes export --selection posts/selection.json --out minilm-posts
""",
}

IN_OPTIONS = {  # what messages say of Python's arguments, and how it is said here
    r"; to silence this: .*$": ".",
    r"\bdominance_": "dominance in selection.json",
    r" or y=None for label-free selection": " or leave out --label-column",
    r"\b(include|exclude)=\[([\d, ]+)\]": r"--\1 \2",
    r"\b(task|criterion)='(\w+)'": r"--\1 \2",
    r"\bn_layers\b=?": "-k ",
    r"\bmax_length\b=?": "--max-length ",
    r"\bfinal_norm\b=?": "--final-norm ",
    r"^(include|exclude|task|criterion|pooling|alpha|gamma|eta)\b": r"--\1",
    r"^y\b": "the label column",
    r"\bpass y\.ravel\(\)|\by\.astype\(str\)": "text labels",
}

app = typer.Typer(
    help="Which layers of a pretrained model hold what a task needs.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Model = Annotated[
    str,
    typer.Option(
        "--model", help=f"A folder, a name of the hub, or one of {', '.join(zoo.MODELS)}."
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        help="A table (csv, tsv, jsonl, parquet); a folder of images, one subfolder a class; or, "
        "with a column named, a folder of the datasets library.",
    ),
]
Out = Annotated[Path, typer.Option("--out", help="A folder for features and results.")]
Texts = Annotated[str | None, typer.Option("--text-column", help="The column of texts.")]
Images = Annotated[str | None, typer.Option("--image-column", help="The column of image files.")]
Clips = Annotated[str | None, typer.Option("--audio-column", help="The column of audio files.")]
Labels = Annotated[str | None, typer.Option("--label-column", help="The column of labels.")]
Groups = Annotated[
    str | None,
    typer.Option("--group-column", help="The column of what belongs together, as a speaker."),
]
Split = Annotated[str, typer.Option("--split", help="The part of a data set to read.")]
Limit = Annotated[
    int | None, typer.Option("--limit", min=2, help="Take so many examples only, at random.")
]
Pooling = Annotated[
    str, typer.Option("--pooling", help="auto, mean, cls, last or mean_without_first.")
]
FinalNorm = Annotated[
    str, typer.Option("--final-norm", help="The last layer as_is; or apply or skip its norm.")
]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Inputs a forward pass.")]
MaxLength = Annotated[
    float | None, typer.Option("--max-length", help="Cut to so many tokens, or seconds of sound.")
]
Device = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda or mps; cuda if there is one.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of what is drawn at random.")]
Task = Annotated[str, typer.Option("--task", help="auto, classification or regression.")]
Progress = Annotated[bool, typer.Option("--progress/--no-progress", help="Show progress bars.")]


@contextmanager
def user_errors(quiet: bool = False) -> Iterator[None]:
    """Turn what the user can mend into one line and exit code 2; bugs keep their traceback.

    The user's to mend is what the system refuses, and what this package says by `raise`.
    """
    try:
        yield
    except KeyboardInterrupt:
        code, message = 130, RESUME
    except torch.cuda.OutOfMemoryError:
        code, message = 2, "Error: the GPU is out of memory; lower --batch-size or --max-length."
    except (OSError, ValueError, TypeError, ImportError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = Path(last.filename).is_relative_to(PACKAGE) and last.line.startswith("raise ")
        if isinstance(error, BrokenPipeError) or not (said or isinstance(error, OSError)):
            raise
        code, message = 2, f"Error: {_in_options(str(error))}"
    else:
        return
    if not quiet:
        typer.echo(" ".join(message.split()), err=True)
    raise typer.Exit(code)


@app.command(epilog=EXAMPLES["select"])
def select(
    model: Model,
    data: Data,
    out: Out,
    text_column: Texts = None,
    image_column: Images = None,
    audio_column: Clips = None,
    label_column: Labels = None,
    k: Annotated[
        str, typer.Option("-k", "--n-layers", help="How many layers to pick; or auto.")
    ] = "3",
    criterion: Annotated[str, typer.Option(help="paper or bounded.")] = "paper",
    alpha: Annotated[float | None, typer.Option(help="Weight of isotropy.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Weight of redundancy.")] = None,
    eta: Annotated[float | None, typer.Option(help="Weight of triangle area.")] = None,
    task: Task = "auto",
    standardize: Annotated[
        bool, typer.Option("--standardize", help="Divide features by their deviation first.")
    ] = False,
    include: Annotated[
        list[int] | None, typer.Option(help="A layer to pick first, by index; repeatable.")
    ] = None,
    exclude: Annotated[
        list[int] | None, typer.Option(help="A layer never to pick, by index; repeatable.")
    ] = None,
    pooling: Pooling = "auto",
    final_norm: FinalNorm = "as_is",
    batch_size: BatchSize = 32,
    max_length: MaxLength = None,
    split: Split = "train",
    limit: Limit = None,
    seed: Seed = 0,
    device: Device = None,
    progress: Progress = True,
) -> None:
    """Pick the layers that together explain the labels; without labels, the most diverse ones.

    Writes selection.json, path.csv, path.png and redundancy.png into --out, and the features, from
    which a second run goes on. Processes that torchrun starts share the work.
    """
    process = Process.current()
    with user_errors(quiet=process.rank > 0):
        selector = LOES(
            _budget(k),
            criterion=criterion,
            alpha=alpha,
            gamma=gamma,
            eta=eta,
            task=task,
            standardize=standardize,
            include=include or (),
            exclude=exclude or (),
        )
        selector._check_parameters(None)  # all but the number of layers
        place, drawing = _prepare(process, device, out)
        columns = {"text": text_column, "image": image_column, "audio": audio_column}
        source = run.Source.read(data, columns, label_column, split=split, limit=limit, seed=seed)
        y = source.examples.labels
        if y is not None:
            as_targets(y, len(y), task)
        elif selector.n_layers == "auto":
            raise ValueError("-k auto needs a target; name a --label-column, or say how many.")
        features = run.share_features(
            model,
            source,
            out,
            process,
            pooling=pooling,
            final_norm=final_norm,
            batch_size=batch_size,
            max_length=_as_number(max_length),
            device=place,
            progress=progress and process.rank == 0,
        )
        selector._check_parameters(len(features.first))
    with user_errors():
        with process_group(place), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", SelectionWarning)
            run.run_selection(features, y, selector, place)
        if process.rank:
            return
        notes = [str(warning.message) for warning in caught]
        content = run.describe_selection(selector, features, source, model, notes)
        path = run.named_path(selector)
        files = {"path.csv": lambda file: path.to_csv(file, index=False)}
        if drawing:
            files["path.png"] = lambda file: _draw(file, "plot_path", selector)
            files["redundancy.png"] = lambda file: _draw(
                file,
                "plot_redundancy",
                features.load(features.thinning).without(selector.exclude),
                criterion=criterion,
            )
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"
        files["selection.json"] = lambda file: file.write_text(text, encoding="utf-8")
        written = run.write_results(out, files)
    _print(_closest(path))
    for note in notes:
        typer.echo(f"Note: {_in_options(note)}", err=True)
    picks = ", ".join(f"{layer['name']} ({layer['index']})" for layer in content["selected"])
    data = content["data"]
    task = data["task"] or "none, since there are no labels"
    classes = f" of {len(data['classes'])} classes" if data["classes"] else ""
    typer.echo(f"Task: {task}{classes}\nSelected: {picks}\nWritten to {out}: {', '.join(written)}")


@app.command(epilog=EXAMPLES["layers"])
def layers(
    model: Model,
    data: Data,
    out: Out,
    text_column: Texts = None,
    image_column: Images = None,
    audio_column: Clips = None,
    label_column: Labels = None,
    group_column: Groups = None,
    splits: Annotated[int, typer.Option(min=2, help="How many splits to average over.")] = 5,
    task: Task = "auto",
    pooling: Pooling = "auto",
    final_norm: FinalNorm = "as_is",
    batch_size: BatchSize = 32,
    max_length: MaxLength = None,
    split: Split = "train",
    limit: Limit = None,
    seed: Seed = 0,
    device: Device = None,
    progress: Progress = True,
) -> None:
    """Probe every layer by itself, to look at where the labels can be read off.

    A ridge probe a layer is scored on held-out quarters of the data, whole groups if there are
    some. Writes layers.csv and layers.png into --out. The scores are for looking: the best of them
    is best by luck too, so report a choice on other data.
    """
    process = Process.current()
    with user_errors(quiet=process.rank > 0):
        place, drawing = _prepare(process, device, out)
        columns = {"text": text_column, "image": image_column, "audio": audio_column}
        source = run.Source.read(
            data, columns, label_column, group_column, split=split, limit=limit, seed=seed
        )
        _, y, groups = source.examples
        if y is None:
            raise ValueError("a probe needs labels; name a --label-column.")
        as_targets(y, len(y), task)
        task = as_task(y, len(y), task)[1]
        parts = run.held_out_splits(y, groups, task, splits, seed)
        features = run.share_features(
            model,
            source,
            out,
            process,
            pooling=pooling,
            final_norm=final_norm,
            batch_size=batch_size,
            max_length=_as_number(max_length),
            device=place,
            progress=progress and process.rank == 0,
        )
    with user_errors():
        with process_group(place):
            for _ in features.own():
                pass
            wait()
        if process.rank:
            return
        table = run.probe_layers(features.load(), y, parts, task, progress=progress)
        files = {"layers.csv": lambda file: table.to_csv(file, index=False)}
        if drawing:
            files["layers.png"] = lambda file: _draw(file, "plot_probes", table)
        written = run.write_results(out, files)
    _print(table)
    typer.echo(
        f"Means over {splits} splits, for looking only: the best of these scores is best by luck "
        f"too. Report a chosen layer on data kept apart.\nWritten to {out}: {', '.join(written)}"
    )


@app.command(epilog=EXAMPLES["export"])
def export(
    selection: Annotated[Path, typer.Option("--selection", help="The selection.json of a run.")],
    out: Annotated[Path, typer.Option("--out", help="A folder for the checkpoint.")],
    model: Annotated[
        str | None, typer.Option("--model", help="Where the model is now, if it has moved.")
    ] = None,
) -> None:
    """Write the part of a model that the selected layers need, for plain transformers to load.

    Where the family puts a final norm on the last hidden state, the highest selected layer is what
    goes into that norm: loes.json says so, as final_norm "skip", for loes.extract_layers.
    """
    with user_errors():
        _quiet_libraries()
        content = run.read_selection(selection)
        report = run.export_selection(content, out, model)
    rows = [
        (of, f"{n['before']:,}", f"{n['after']:,}", f"{n['saved']:.0%}") for of, n in report.items()
    ]
    _print(pd.DataFrame(rows, columns=["", "before", "after", "saved"]))
    typer.echo(f"Written to {out}. Features: loes.extract_layers, with the settings in loes.json.")


def _budget(text: str) -> int | str:
    """Return a number of layers, or "auto"."""
    if text == "auto":
        return text
    if text.isdecimal() and int(text) >= 1:
        return int(text)
    raise ValueError(f"-k must be a whole number from 1, or auto; got {text!r}.")


def _as_number(length: float | None) -> float | None:
    """Return a whole number as one: tokens are counted."""
    return int(length) if length is not None and length.is_integer() else length


def _prepare(process: Process, device: str | None, out: Path) -> tuple[torch.device, bool]:
    """Check device and folder; return the device, and whether figures can be drawn."""
    place = process.device(device)
    run.check_folder(out)
    drawing = bool(find_spec("matplotlib") and find_spec("seaborn"))
    if not drawing and process.rank == 0:
        typer.echo("Note: no figures without the plots extra: pip install 'loes[plots]'", err=True)
    _quiet_libraries()
    return place, drawing


def _in_options(message: str) -> str:
    """Say what a message of the package says in terms of the command line's options."""
    for pattern, said in IN_OPTIONS.items():
        message = re.sub(pattern, said, message)
    return message


def _quiet_libraries() -> None:
    """Keep what transformers says of loading to itself: errors are one line."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _draw(file: Path, plot: str, *args, **options) -> None:
    """Save a figure of `loes.plots`; what cannot be drawn holds no result up."""
    import matplotlib.pyplot as plt

    from loes import plots

    try:
        ax = getattr(plots, plot)(*args, **options)
    except ValueError as error:
        typer.echo(f"Note: no {file.name}: {_in_options(str(error))}", err=True)
        return
    ax.figure.savefig(file, dpi=150)
    plt.close(ax.figure)


def _closest(path: pd.DataFrame) -> pd.DataFrame:
    """Return the picks of a path and the candidates nearest to them, step by step."""
    table = path.sort_values(["step", "chosen", "score"], ascending=[True, False, True])
    table = table.groupby("step").head(CLOSEST)
    table["chosen"] = table["chosen"].map({True: "pick", False: ""})
    return table.drop(columns="rank").dropna(axis="columns", how="all")


def _print(table: pd.DataFrame) -> None:
    """Print a table, numbers to three digits."""
    shown = Table(*table.columns, box=SIMPLE, pad_edge=False)
    for row in table.itertuples(index=False):
        cells = ["" if pd.isna(x) else f"{x:.3g}" if isinstance(x, float) else str(x) for x in row]
        shown.add_row(*cells)
    Console().print(shown)

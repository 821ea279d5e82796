"""What the command line runs: from data and a model to a selection, or to one probe a layer."""

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch
import transformers
from PIL import Image
from safetensors import SafetensorError
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import RidgeClassifierCV, RidgeCV
from sklearn.model_selection import GroupShuffleSplit, ShuffleSplit, StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

import loes
from loes import zoo
from loes.checks import as_task
from loes.distributed import Process, all_reduce, wait
from loes.export import export_checkpoint
from loes.extract import extract_layers, load_backbone, stream_layers
from loes.families import reading_part
from loes.features import LayerFeatures
from loes.inputs import Examples, modality_of, read_dataset, read_image_folder, read_table
from loes.readers import load_processor
from loes.selection import LOES
from loes.statistics import LayerStatistics
from loes.store import MANIFEST, FeatureStore, fingerprint_inputs, fingerprint_model, writing

FORMAT = "loes.selection/1"
FEATURES = "features"
OURS = {"selection.json", "path.csv", "path.png", "redundancy.png", "layers.csv", "layers.png"}
SHARD = 1024  # samples a file: the least share of a process, and the most that a stop can lose
SHOWN = 4096  # samples that the map of redundancies is drawn from
HELD_OUT = 0.25
RIDGES = np.logspace(-2, 5, 15)


@dataclass(frozen=True)
class Source:
    """Examples, and what to say of where they come from.

    Attributes
    ----------
    examples : inputs, labels and groups.
    modality : ``"text"``, ``"image"`` or ``"audio"``.
    about : the path and the columns, for the record.
    """

    examples: Examples
    modality: str
    about: dict

    @classmethod
    def read(
        cls,
        data: str,
        columns: Mapping[str, str | None],
        label: str | None = None,
        group: str | None = None,
        *,
        split: str = "train",
        limit: int | None = None,
        seed: int = 0,
    ) -> "Source":
        """Read a table, a folder of images in class folders, or a folder of the datasets library.

        Parameters
        ----------
        data : the file or folder.
        columns : the column of the inputs, under their modality; none for class folders.
        label, group : the columns of labels and of groups.
        split : which part of a folder of the datasets library.
        limit : take so many examples only, drawn at random and left in their order.
        seed : of that draw.

        Raises
        ------
        FileNotFoundError, ValueError for what is not there or cannot be read, naming it.
        """
        given = {modality: column for modality, column in columns.items() if column}
        if len(given) > 1:
            names = " and ".join(f"--{modality}-column" for modality in given)
            raise ValueError(f"the inputs are in one column; got {names}.")
        column = next(iter(given.values()), None)
        examples = _read(Path(data), column, label, group, split)
        modality = modality_of(examples.inputs)
        if given and modality not in given:
            raise ValueError(
                f"column {column!r} holds {modality} inputs, and not what --{next(iter(given))}"
                f"-column says; use --{modality}-column."
            )
        if limit is not None and limit < len(examples.inputs):
            rows = np.random.default_rng(seed).choice(len(examples.inputs), limit, replace=False)
            rows.sort()
            inputs, *others = examples
            others = [None if values is None else values[rows] for values in others]
            examples = Examples([inputs[row] for row in rows], *others)
        _check_images(examples.inputs, modality)
        about = {"path": str(Path(data).resolve()), "column": column, "label": label}
        about |= {"n": len(examples.inputs), "limit": limit, "seed": seed}
        return cls(examples, modality, about)


def _read(
    path: Path, column: str | None, label: str | None, group: str | None, split: str
) -> Examples:
    """Read what `path` holds, by the kind it is of."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {str(path)!r}.")
    if split != "train" and (column is None or not path.is_dir()):
        raise ValueError(
            f"{path.name} has no split {split!r}: only a folder of the datasets library, read by a "
            "named column, has splits; leave out --split, and pass the data to read as --data."
        )
    if path.is_dir() and column is None:
        if label or group:
            raise ValueError(
                f"{path} is a folder and no column of inputs is named. If it holds images in class "
                "folders, leave out --label-column and --group-column; else name the column."
            )
        return read_image_folder(path)
    if column is None:
        raise ValueError(
            f"which column of {path.name} holds the inputs? Say so by --text-column, "
            "--image-column or --audio-column."
        )
    if path.is_dir():
        return read_dataset(_open_dataset(path, split), column, label, group)
    return read_table(path, column, label, group)


def _check_images(inputs: Sequence, modality: str) -> None:
    """Open the header of every image file: most damage shows before the model has run."""
    for path in inputs if modality == "image" and isinstance(inputs, list) else ():
        if isinstance(path, (str, os.PathLike)):
            Image.open(path).close()


def _open_dataset(folder: Path, split: str):
    """Open a folder that `save_to_disk` has written, or that was downloaded from the hub."""
    try:
        import datasets
    except ImportError:
        raise ImportError(
            f"{folder} is a folder, and reading a column from one needs the datasets library; "
            "run: pip install datasets"
        ) from None
    saved = (folder / "state.json").exists() or (folder / "dataset_dict.json").exists()
    try:
        if not saved:
            return datasets.load_dataset(str(folder), split=split)
        dataset = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise ValueError(f"cannot open {folder} as a data set: {error}") from error
    if not isinstance(dataset, Mapping):
        return dataset
    if split not in dataset:
        raise ValueError(f"{folder} has no split {split!r}; it has {list(dataset)}.")
    return dataset[split]


def load_model(name: str, modality: str) -> tuple[torch.nn.Module, object]:
    """Load a model, and what prepares its inputs, from a folder, the zoo or the hub.

    Parameters
    ----------
    name : a folder, a name of the zoo, or one of the hub; in this order.
    modality : ``"text"``, ``"image"`` or ``"audio"``: which processor to load, and which tower of
        a model of two.

    Raises
    ------
    ValueError when there is no such model, or it cannot be loaded; and as `zoo.load`.
    """
    if in_zoo(name):
        return zoo.load(name)
    try:
        model = load_backbone(name)
        processor = load_processor(name, modality)
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"cannot load {name!r} as a model of {modality}s; it must be a folder of transformers, "
            f"one of {', '.join(zoo.MODELS)}, or a name of the hub: {error}"
        ) from error
    if hasattr(model, "text_model") and hasattr(model, "vision_model"):
        model = model.vision_model if modality == "image" else model.text_model
    return model, processor


def in_zoo(name: str) -> bool:
    """Whether a name is one of the zoo, and not a folder."""
    return name in zoo.MODELS and not Path(name).exists()


@dataclass(frozen=True)
class SharedFeatures:
    """Features of all inputs, which one process or several compute and keep in one folder.

    Attributes
    ----------
    model, inputs : as `extract_layers` takes them.
    folder : where the shards are.
    process : this one.
    options : further arguments of `extract_layers`.
    """

    model: torch.nn.Module
    inputs: Sequence
    folder: Path
    process: Process
    options: dict

    @cached_property
    def first(self) -> LayerFeatures:
        """Features of the first input alone: which layers there are, and whether the model runs."""
        return extract_layers(self.model, self.inputs[:1], **self.options | {"progress": False})

    @property
    def width(self) -> int:
        """Width of all layers together."""
        return sum(array.shape[1] for array in self.first)

    @property
    def n_shards(self) -> int:
        """Number of files."""
        return ceil(len(self.inputs) / SHARD)

    @property
    def thinning(self) -> int:
        """Every how many samples are enough for a figure."""
        return ceil(len(self.inputs) / SHOWN)

    def own(self) -> Iterator[tuple[slice, LayerFeatures]]:
        """Compute this process's shards, or read those that an earlier run has finished."""
        return stream_layers(
            self.model,
            self.inputs,
            cache=self.folder,
            shard_size=SHARD,
            shards=self.process.share(self.n_shards),
            **self.options,
        )

    @cached_property
    def about(self) -> dict:
        """What the features depend on, as the folder has it."""
        return json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))["about"]

    def stored(self, every: int = 1) -> Iterator[tuple[slice, LayerFeatures]]:
        """Read the shards of all processes, or of every so many samples.

        Raises
        ------
        FileNotFoundError when a shard is missing.
        """
        store = FeatureStore(self.folder, self.about)
        for shard in range(self.n_shards):
            features = store.read(shard)
            if features is None:
                raise FileNotFoundError(
                    f"shard {shard} is missing in {self.folder}. Processes on several machines "
                    "must see one folder: choose --out on a file system that they share."
                )
            start = shard * SHARD
            offset = -start % every
            rows = slice(start + offset, start + len(features[0]), every)
            yield rows, features.take(slice(offset, None, every))

    def load(self, every: int = 1) -> LayerFeatures:
        """Return all samples, or every so many, in memory."""
        parts = [features for _, features in self.stored(every)]
        arrays = [np.concatenate(layer) for layer in zip(*parts, strict=True)]
        return LayerFeatures(parts[0].names, arrays, parts[0].pooling)


def share_features(
    model: str, source: Source, folder: Path, process: Process, **options
) -> SharedFeatures:
    """Load a model for the inputs of `source`; the features will be kept inside `folder`.

    Raises
    ------
    ValueError, TypeError, OSError for what cannot be loaded or does not fit together.
    """
    loaded, processor = load_model(model, source.modality)
    inputs = source.examples.inputs
    options = options | {"processor": processor}
    if in_zoo(model):
        entry = zoo.MODELS[model]
        options["modules"] = entry.modules
        inputs = [entry.prefix + text for text in inputs] if entry.prefix else inputs
    return SharedFeatures(loaded, inputs, folder / FEATURES, process, options)


def run_selection(
    features: SharedFeatures, y: np.ndarray | None, selector: LOES, device: torch.device
) -> LOES | None:
    """Extract and select, on one process or several.

    What needs less memory decides how. Few samples, n <= 2 D for layers of total width D, are put
    together for `LOES.fit` (which works with n x n kernels if n is smaller still). Of many, each
    process gathers the D x D moments over its shards, one reduction adds them up, and
    leave-one-out reads the shards again. The number of processes has no part in it.

    Parameters
    ----------
    features : still to be computed, or to be read where an earlier run has finished.
    y : (n,) labels or targets of all samples; or None.
    selector : with its parameters.
    device : where to select.

    Returns
    -------
    The fitted selector in process 0, None in the others.
    """
    # Statistics need float64, which MPS lacks.
    device = device if device.type == "cuda" else torch.device("cpu")
    streamed = len(features.inputs) > 2 * features.width
    # One batch may look like another task than all.
    statistics = LayerStatistics("auto" if y is None else as_task(y, len(y), selector.task)[1])
    for rows, layers in features.own():
        if streamed:
            statistics.update(_on(layers, device), None if y is None else y[rows])
    if streamed:
        statistics = all_reduce(statistics)
    else:
        wait()  # until all shards are there
    if features.process.rank:
        return None
    if not streamed:
        return selector.fit(_on(features.load(), device), y)

    def batches():
        for rows, layers in features.stored():
            yield _on(layers, device), None if y is None else y[rows]

    return selector.fit_statistics(statistics, batches)


def _on(features: LayerFeatures, device: torch.device) -> LayerFeatures:
    tensors = [torch.from_numpy(array).to(device) for array in features]
    return LayerFeatures(features.names, tensors, features.pooling)


def describe_selection(
    selector: LOES, features: SharedFeatures, source: Source, model: str, notes: Sequence[str]
) -> dict:
    """Return a fitted selection and all that it hangs on, ready for JSON.

    Parameters
    ----------
    selector : fitted.
    features, source, model : what it was fitted on.
    notes : the warnings of the selection.
    """
    y, names = source.examples.labels, selector.names_
    task = None if y is None else as_task(y, len(y), selector.task)[1]
    return {
        "format": FORMAT,
        "selected": [{"index": layer, "name": names[layer]} for layer in selector.selected_],
        "layers": list(names),
        "criterion": {
            "name": selector.criterion,
            **asdict(selector._check_parameters(len(names))),
            "standardize": selector.standardize,
        },
        "n_layers": selector.n_layers,
        "include": list(selector.include),
        "exclude": list(selector.exclude),
        "model": {
            "name": str(Path(model).resolve()) if Path(model).exists() else model,
            "modality": source.modality,
            "prefix": zoo.MODELS[model].prefix if in_zoo(model) else "",
            "sha256": features.about["weights"],
        },
        "data": source.about
        | {
            "labels_sha256": None if y is None else fingerprint_inputs(y.tolist()),
            "task": task,
            "classes": np.unique(y).tolist() if task == "classification" else None,
        },
        "features": features.about,
        "warnings": list(notes),
        "steps": [
            {"step": int(step), "candidates": _records(rows.drop(columns="step"))}
            for step, rows in named_path(selector).groupby("step")
        ],
        "dominance": _records(selector.dominance_),
        "versions": {
            "loes": loes.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def named_path(selector: LOES) -> pd.DataFrame:
    """Return the path of a fitted selection with the names of the layers."""
    path = selector.path_.copy()
    path.insert(2, "name", [selector.names_[layer] for layer in path["layer"]])
    return path


def _records(table: pd.DataFrame) -> list[dict]:
    """Return one dict a row, without what is undefined or infinite, for which JSON has no word."""
    rows = table.replace([np.inf], np.nan).to_dict(orient="records")
    return [{key: value for key, value in row.items() if pd.notna(value)} for row in rows]


def held_out_splits(
    y: np.ndarray, groups: np.ndarray | None, task: str, n_splits: int = 5, seed: int = 0
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw several splits into a training part and a held-out quarter.

    Parameters
    ----------
    y : (n,) labels or targets. Classes are divided evenly, unless there are groups.
    groups : (n,) names of what is never divided, such as a speaker; or None.
    task : ``"classification"`` or ``"regression"``.
    n_splits : how many splits.
    seed : of the draws.

    Raises
    ------
    ValueError when there are too few samples, samples of a class, or groups.
    """
    options = {"n_splits": n_splits, "test_size": HELD_OUT, "random_state": seed}
    classes, counts = np.unique(y, return_counts=True)
    if groups is not None:
        if len(np.unique(groups)) < 4:
            raise ValueError(
                f"a held-out quarter wants at least 4 groups; got {len(np.unique(groups))}."
            )
        splits = list(GroupShuffleSplit(**options).split(y, y, groups))
        if any(len(np.unique(y[train])) < 2 for train, _ in splits):
            raise ValueError(
                "some training part holds one class only, since groups and classes nearly "
                "coincide; name another --group-column, or none."
            )
        return splits
    if task == "regression":
        if len(y) < 8:
            raise ValueError(f"a held-out quarter wants at least 8 samples; got {len(y)}.")
        return list(ShuffleSplit(**options).split(y))
    if counts.min() < 4:
        raise ValueError(
            "a held-out quarter wants at least 4 samples a class; "
            f"{str(classes[counts.argmin()])!r} has {counts.min()}."
        )
    return list(StratifiedShuffleSplit(**options).split(y, y))


def probe_layers(
    features: LayerFeatures,
    y: np.ndarray,
    splits: Sequence[tuple[np.ndarray, np.ndarray]],
    task: str,
    *,
    progress: bool = True,
) -> pd.DataFrame:
    """Fit one ridge probe a layer and split, and score it on what was held out.

    Features are standardised, and leave-one-out on the training part chooses the ridge.

    Chapter 12 draws such a map.

    Parameters
    ----------
    features : n samples of every layer.
    y : (n,) labels or targets.
    splits : (training, held-out) row numbers; see `held_out_splits`.
    task : ``"classification"`` for accuracy, ``"regression"`` for R^2.
    progress : show a progress bar.

    Returns
    -------
    DataFrame with one row a layer: layer; accuracy or r2, the mean over the splits; spread, the
    standard deviation over the splits; chance, the score of always saying the most frequent class
    (or the mean) of the training part.
    """
    probe, dummy = RidgeCV, DummyRegressor()
    if task == "classification":
        probe, dummy = RidgeClassifierCV, DummyClassifier()
    rows = []
    # `disable` stays unsaid where it can, so that TQDM_DISABLE is heard.
    for X in tqdm(features, unit="layer", **({} if progress else {"disable": True})):
        learner = make_pipeline(StandardScaler(), probe(RIDGES))
        rows.append([learner.fit(X[a], y[a]).score(X[b], y[b]) for a, b in splits])
    scores = np.array(rows)
    return pd.DataFrame(
        {
            "layer": features.names,
            "accuracy" if task == "classification" else "r2": scores.mean(1),
            "spread": scores.std(1, ddof=1),
            "chance": np.mean([dummy.fit(y[a], y[a]).score(y[b], y[b]) for a, b in splits]),
        }
    )


def check_folder(folder: Path) -> None:
    """Refuse a folder for results that holds something else.

    Raises
    ------
    NotADirectoryError for a file; ValueError for foreign content.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; pass a folder for the results.")
    foreign = set(os.listdir(folder)) - OURS if folder.is_dir() else ()
    if foreign and not (folder / FEATURES).is_dir():
        raise ValueError(
            f"{folder} holds other files ({', '.join(sorted(foreign)[:3])}) and no run of loes; "
            "pass a new or an empty folder for the results."
        )


def write_results(folder: Path, files: Mapping[str, Callable[[Path], object]]) -> list[str]:
    """Write some files, none of them half: all are drafted before the first takes its place.

    Return the names of those that were written; an earlier file of one that was not is removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".draft-", dir=folder) as drafts, writing(folder):
        for name, write in files.items():
            write(Path(drafts, name))
        written = [name for name in files if Path(drafts, name).exists()]
        for name in files:
            if name in written:
                os.replace(Path(drafts, name), folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
    return written


def read_selection(file: Path) -> dict:
    """Read a selection.json.

    Raises
    ------
    FileNotFoundError, ValueError for no such file, or another one.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged or no selection.json: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{file} is no {FORMAT}; pass the selection.json that loes select wrote.")
    return content


def export_selection(content: dict, folder: Path, name: str | None = None) -> dict:
    """Write the part of a model that a selection needs; see `export_checkpoint`.

    Parameters
    ----------
    content : of a selection.json.
    folder : for the checkpoint.
    name : where the model is; None for where it was.

    Raises
    ------
    ValueError when the model has other weights than the one that the selection was made on, or the
    content is damaged; and as `export_checkpoint`.
    """
    try:
        name = name or content["model"]["name"]
        modality, prefix, weights = (content["model"][k] for k in ("modality", "prefix", "sha256"))
        layers, names = [layer["index"] for layer in content["selected"]], content["layers"]
        classes, modules = content["data"]["classes"], content["features"]["modules"]
        settings = {k: content["features"][k] for k in ("pooling", "final_norm", "max_length")}
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"the selection is damaged, it lacks {error}; run loes select again."
        ) from error
    model, processor = load_model(name, modality)
    if fingerprint_model(reading_part(model, (), modules)) != weights:
        raise ValueError(f"{name} has other weights than the model of this selection; pass that.")
    return export_checkpoint(
        model,
        processor,
        layers,
        folder,
        names=names,
        **settings,
        extra={"classes": classes, "prefix": prefix},
    )

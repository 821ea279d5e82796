"""Tasks of the Hugging Face hub, or of a local folder in the same form."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from loes.tasks.task import PER_CLASS, Task, _content, choose, need


def hub(
    per_class: int | None,
    seed: int,
    *,
    dataset: str,
    config: str | None = None,
    inputs: str = "text",
    labels: str = "label",
    groups: str | None = None,
    train: str = "train",
    test: str = "test",
    modality: str = "text",
) -> Task:
    """Read a labelled set by `datasets.load_dataset`, its train and test splits as published.

    A fifth of the train split is there for validation: of the groups that the column `groups` names
    (speaker, template), else of the samples. What is in two splits or classes is left out, what
    is repeated kept once. Pictures are decoded when they are asked for: thousands of photographs
    fill the memory.

    Chapter 11 reads the paper's data so, in its full profile.
    """
    choose("modality", modality, ["text", "image", "audio"])
    sets = {"train": _read(dataset, config, train), "test": _read(dataset, config, test)}
    for rows in sets.values():
        for column in filter(None, (inputs, labels, groups)):
            if column not in rows.column_names:
                raise ValueError(
                    f"{dataset} has no column {column!r}; its columns are {rows.column_names}."
                )
    pool = need("datasets").concatenate_datasets(
        [rows.select_columns(inputs) for rows in sets.values()]
    )
    table = pd.concat(
        [_described(rows, labels, groups).assign(part=part) for part, rows in sets.items()],
        ignore_index=True,
    )
    if groups is None:
        table["group"] = table.index.astype(str)
    table = _with_validation(table.sample(frac=1, random_state=seed))
    largest = int(table.loc[table["part"] == "train", "label"].value_counts().max())
    if per_class is not None and per_class > largest:
        raise ValueError(
            f"{dataset} wants a whole number 4 <= per_class <= {largest}; got {per_class!r}."
        )
    per_class = per_class or PER_CLASS
    size = {"train": per_class, "validation": per_class // 4, "test": per_class // 2}
    table = table[table.groupby(["part", "label"]).cumcount() < table["part"].map(size)]
    content = [_content(item) for item in _items(pool.select(table.index), inputs, modality)]
    table = table.assign(content=content)
    found_in = table.groupby("content")[["part", "label"]].transform("nunique")
    table = table[(found_in == 1).all(axis=1)].drop_duplicates("content")
    complete = table.groupby("label")["part"].transform("nunique") == len(size)
    left_out = sorted(set(table.loc[~complete, "label"]))
    table = table[complete]
    if table["label"].nunique() < 2:
        raise ValueError(
            f"{dataset} has fewer than two classes with samples in train, validation and test "
            f"(too few: {left_out}); take a larger per_class, or other columns."
        )
    codes, classes = pd.factorize(table["label"], sort=True)
    source = f"{dataset}{f', {config}' if config else ''}, splits {train} and {test}"
    return Task(
        inputs=_items(pool.select(table.index), inputs, modality),
        labels=codes,
        classes=list(classes),
        **{part: np.flatnonzero(table["part"] == part) for part in size},
        licence=sets["train"].info.license or f"see the card of {dataset}",
        source=f"{source}; too few samples: {', '.join(left_out)}" if left_out else source,
        modality=modality,
        groups=table["group"].to_numpy(),
    )


def _read(dataset: str, config: str | None, split: str):
    """Load one split, or say what is in the way."""
    datasets = need("datasets")
    if Path(dataset).is_file():
        raise ValueError(
            f"{dataset} is a file; name a folder that holds train.csv and test.csv (or .jsonl, "
            ".parquet), or read one table by `loes select --data`."
        )
    try:
        return datasets.load_dataset(dataset, config, split=split)
    except (ConnectionError, FileNotFoundError) as error:
        raise FileNotFoundError(
            f"{dataset} is neither a folder here, nor in the cache, nor can it be reached; connect "
            "to a network, or use LOES_PROFILE=offline, whose data come in packages."
        ) from error
    except (ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise ValueError(
            f"{dataset} cannot be read: {reason} Wanted are a train and a test split of the same "
            "columns, in a folder train.csv and test.csv (or .jsonl, .parquet); name other splits "
            "by train= and test=."
        ) from error


def _described(rows, labels: str, groups: str | None) -> pd.DataFrame:
    """Return the names of class and group of each row."""
    kind = rows.features[labels]
    named = kind.int2str if hasattr(kind, "int2str") else str
    table = pd.DataFrame({"label": [named(value) for value in rows[labels]]})
    return table.assign(group=[str(value) for value in rows[groups]]) if groups else table


def _with_validation(table: pd.DataFrame) -> pd.DataFrame:
    """Move every fifth group of the train part to validation, and keep those of test out of it."""
    in_test = table["part"] == "test"
    table = table[in_test | ~table["group"].isin(table.loc[in_test, "group"])]
    first = table[table["part"] == "train"].drop_duplicates("group")
    # By class, so that where a group has one class, a fifth of each class is held out.
    held_out = first.sort_values("label", kind="stable")["group"].iloc[4::5]
    return table.assign(part=table["part"].mask(table["group"].isin(held_out), "validation"))


def _items(rows, column: str, modality: str) -> Sequence:
    """Return texts, pictures, or pairs of samples and their rate."""
    if modality != "audio":
        return list(rows[column]) if modality == "text" else rows[column]
    soundfile = need("soundfile")
    encoded = rows.cast_column(column, need("datasets").Audio(decode=False))[column]
    return [
        soundfile.read(
            io.BytesIO(each["bytes"]) if each["bytes"] else each["path"], dtype="float32"
        )
        for each in encoded
    ]

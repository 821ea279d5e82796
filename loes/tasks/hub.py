"""Tasks of the Hugging Face hub, or of a local folder in the same form."""

import io

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

    Validation samples are drawn from the train split: by the column `groups` if there is one
    (speaker, template), else sample by sample. What is in two splits or classes is left out.
    """
    choose("modality", modality, ["text", "image", "audio"])
    parts = {"train": train, "test": test}
    sets = {part: _read(dataset, config, split) for part, split in parts.items()}
    for rows in sets.values():
        for column in filter(None, (inputs, labels, groups)):
            if column not in rows.column_names:
                raise ValueError(
                    f"{dataset} has no column {column!r}; its columns are {rows.column_names}."
                )
    tables = []
    for part, rows in sets.items():
        kind = rows.features[labels]
        named = [str(kind.int2str(v) if hasattr(kind, "int2str") else v) for v in rows[labels]]
        own = rows[groups] if groups else range(len(rows))
        own = [f"{part} {group}" if groups is None else str(group) for group in own]
        tables.append(pd.DataFrame({"part": part, "row": range(len(rows)), "label": named}))
        tables[-1]["group"] = own
    table = pd.concat(tables, ignore_index=True).sample(frac=1, random_state=seed)
    table = _with_validation(table)
    per_class = per_class or PER_CLASS
    size = {"train": per_class, "validation": per_class // 4, "test": per_class // 2}
    table = table[table.groupby(["part", "label"]).cumcount() < table["part"].map(size)]
    where = table["part"].replace("validation", "train")
    items = {}
    for part, rows in sets.items():
        chosen = table.index[where == part]
        items |= dict(
            zip(
                chosen, _items(rows.select(table.loc[chosen, "row"]), inputs, modality), strict=True
            )
        )
    content = pd.Series({row: _content(item) for row, item in items.items()}).reindex(table.index)
    table = table[~content.duplicated(keep=False)]
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
        inputs=[items[row] for row in table.index],
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
    try:
        return datasets.load_dataset(dataset, config, split=split)
    except (ConnectionError, FileNotFoundError) as error:
        raise FileNotFoundError(
            f"{dataset} is neither a folder here, nor in the cache, nor can it be reached; connect "
            "to a network, or use LOES_PROFILE=offline, whose data come in packages."
        ) from error


def _with_validation(table: pd.DataFrame) -> pd.DataFrame:
    """Move a fifth of the groups of the train part to validation, in the order that they have."""
    of_train = table.loc[table["part"] == "train"]
    shared = set(of_train["group"]) & set(table.loc[table["part"] == "test", "group"])
    table = table[~((table["part"] == "train") & table["group"].isin(shared))]
    of_train = table.loc[table["part"] == "train"]
    rank = of_train.groupby("label")["group"].transform(lambda group: pd.factorize(group)[0])
    held_out = set(of_train.loc[rank % 5 == 4, "group"])
    moved = (table["part"] == "train") & table["group"].isin(held_out)
    return table.assign(part=table["part"].mask(moved, "validation"))


def _items(rows, column: str, modality: str) -> list:
    """Return texts, pictures, or pairs of samples and their rate."""
    if modality != "audio":
        return list(rows[column])
    soundfile = need("soundfile")
    encoded = rows.cast_column(column, need("datasets").Audio(decode=False))[column]
    return [
        soundfile.read(
            io.BytesIO(each["bytes"]) if each["bytes"] else each["path"], dtype="float32"
        )
        for each in encoded
    ]

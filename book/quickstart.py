"""The whole method once: a real model, a real task, three layers out of seven."""

import argparse

import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import RidgeClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from loes import LOES, extract_layers, tasks, zoo

RIDGES = np.logspace(-1, 5, 13)


def probe() -> RidgeClassifierCV:
    """Return the classifier that all features are judged by; its ridge is left to leave-one-out."""
    return make_pipeline(StandardScaler(), RidgeClassifierCV(RIDGES))


def main() -> None:
    """Extract, select, compare on held-out posts, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figure", metavar="FILE", help="also draw the comparison into FILE")
    figure_file = parser.parse_args().figure

    task = tasks.load("20newsgroups")
    model, tokenizer = zoo.load("minilm")
    features = extract_layers(model, task.inputs, processor=tokenizer)
    parts = {part: features.take(getattr(task, part)) for part in ("train", "validation", "test")}
    labels = {part: task.labels[getattr(task, part)] for part in parts}
    last = len(features) - 1

    print(f"\n{task.source}\n{len(task.classes)} classes; {features!r}")
    print("samples:", ", ".join(f"{len(y)} {part}" for part, y in labels.items()))
    fitted = {
        criterion: LOES(n_layers=3, criterion=criterion).fit(parts["train"], labels["train"])
        for criterion in ("paper", "bounded")
    }
    for criterion, loes in fitted.items():
        table = loes.path_.assign(layer=np.array(features.names)[loes.path_["layer"]])
        table["chosen"] = table["chosen"].map({True: "<--", False: ""})
        print(f"\n{criterion}: Score = Loss + alpha (1 - Iso) + gamma Red - eta Tri (Eq. 7)")
        print(table.to_string(index=False, float_format="{:.3f}".format, na_rep=""))

    def fit_and_score(layers: list[int], part: str) -> float:
        train, held_out = (
            np.concatenate([parts[p][layer] for layer in layers], axis=1) for p in ("train", part)
        )
        return probe().fit(train, labels["train"]).score(held_out, labels[part])

    validation = [fit_and_score([layer], "validation") for layer in range(len(features))]
    words = make_pipeline(TfidfVectorizer(sublinear_tf=True), RidgeClassifierCV(RIDGES))
    texts = {part: [task.inputs[i] for i in getattr(task, part)] for part in parts}
    compared = {
        "last layer": [last],
        "best single layer (validation)": [int(np.argmax(validation))],
        "last three layers": [last - 2, last - 1, last],
        "LOES, paper": fitted["paper"].selected_,
        "LOES, bounded": fitted["bounded"].selected_,
        "all layers": list(range(len(features))),
    }
    rows = [
        ("chance", "", task.chance),
        (
            "word counts (TF-IDF)",
            "",
            words.fit(texts["train"], labels["train"]).score(texts["test"], labels["test"]),
        ),
    ]
    rows += [
        (name, str(layers), fit_and_score(layers, "test")) for name, layers in compared.items()
    ]
    result = pd.DataFrame(rows, columns=["features", "layers", "accuracy"])
    result["accuracy"] *= 100
    print(f"\nAccuracy in % of a ridge classifier on the {len(labels['test'])} test posts")
    print(result.to_string(index=False, float_format="{:.1f}".format))

    if figure_file:
        draw(result).savefig(figure_file, dpi=200, bbox_inches="tight")


def draw(result: pd.DataFrame):
    """Return a figure with one bar a row of the result table."""
    import matplotlib.pyplot as plt
    import seaborn as sns

    figure, ax = plt.subplots(figsize=(3, 3.2))  # to be read on a phone
    colours = ["#c0504d" if name.startswith("LOES") else "#7f9bb3" for name in result["features"]]
    sns.barplot(
        result, x="accuracy", y="features", hue="features", palette=colours, legend=False, ax=ax
    )
    for row, (layers, accuracy) in enumerate(
        zip(result["layers"], result["accuracy"], strict=True)
    ):
        ax.text(accuracy + 0.8, row, f"{accuracy:.1f}   {layers}", va="center")
    ax.set(xlabel="accuracy on held-out posts (%)", ylabel="", xlim=(0, 100))
    sns.despine(figure)
    return figure


if __name__ == "__main__":
    main()

"""Figures of a selection: its path, its redundancies, its stability and its weights.

Needs matplotlib and seaborn, which `import loes` alone does not load. Every function draws into
`ax`, or into a new figure of a fitting size, and returns the Axes. Colours keep their order in
greyscale and for the colour-blind; text is grey, to be read on white and on black.

Chapter 6 draws with them, and Chapter 12.
"""

from collections import Counter
from collections.abc import Sequence
from string import ascii_letters

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import PercentFormatter
from sklearn.utils.validation import check_is_fitted

from loes.analysis import Stability, redundancies
from loes.checks import Layers
from loes.selection import LOES, weigh

INK = "#767676"  # contrast 4.5 on white, 4.6 on black
PALETTE = sns.color_palette("colorblind")
# term: label, colour, hatch
STYLES = {
    "loss": ("Loss", PALETTE[0], ""),
    "iso": (r"$\alpha$ (1 − Iso)", PALETTE[1], "///"),
    "red": (r"$\gamma$ Red", PALETTE[2], "..."),
    "tri": (r"−$\eta$ Tri", PALETTE[4], "xxx"),
}
SCORE = {
    "marker": "D",
    "linestyle": "",
    "color": "white",
    "markeredgecolor": "black",
    "markersize": 4,
}
FRAME = {"fill": False, "edgecolor": INK, "linewidth": 1.6}
ANNOTATED = 10  # layers: numbers in the cells of a larger map would touch
LISTED = 8  # selections named in a legend


def _axes(ax: Axes | None, width: float, height: float) -> Axes:
    """Return `ax`, or the Axes of a new figure, with grey text on no background."""
    if ax is None:
        _, ax = plt.subplots(figsize=(width, height), layout="constrained")
    ax.set_facecolor("none")
    ax.tick_params(colors=INK)
    for part in (ax.title, ax.xaxis.label, ax.yaxis.label):
        part.set_color(INK)
    for spine in ax.spines.values():
        spine.set_color(INK)
    return ax


def _name_rows(ax: Axes, names: Sequence[str]) -> None:
    """Label the rows from top to bottom, in letters that fit."""
    ax.set_yticks(range(len(names)), names, fontsize=_size(len(names)))
    ax.set_ylim(len(names) - 0.4, -0.6)


def _size(rows: int) -> float:
    return 10 if rows <= 16 else 8


def _rows_high(rows: int) -> float:
    """Return the height in inches of a figure with so many labelled rows."""
    return 1.3 + (0.28 if rows <= 16 else 0.19) * rows


def plot_path(loes: LOES, ax: Axes | None = None) -> Axes:
    """Draw what every term adds to the score of each candidate, one column a step.

    Bars to the right speak against a layer, bars to the left for it; the diamond is their sum, the
    score, and the row of the pick (the lowest score) is framed. All steps share one scale.

    Chapter 8 derives the score.

    Parameters
    ----------
    loes : a fitted `LOES`.
    ax : where to draw; None for a new figure.

    Returns
    -------
    The Axes.

    Raises
    ------
    NotFittedError before `fit`.
    """
    check_is_fitted(loes)
    names, path = loes.names_, loes.path_
    parts = weigh(path, loes._check_parameters(len(names)))
    left, right = parts.clip(upper=0).sum(axis=1), parts.clip(lower=0).sum(axis=1)
    low, high = min(left.min(), path["score"].min(), 0), max(right.max(), 0)
    width = high - low
    pitch = 1.45 * width  # between the zeros of two steps, with room for a number
    steps = path["step"].unique()
    ax = _axes(ax, 1.6 + 2.3 * len(steps), _rows_high(len(names)) + 0.4)
    ticks = [tick for tick in plt.MaxNLocator(3).tick_values(low, high) if low <= tick <= high]
    for step in steps:
        rows, zero = path["step"] == step, (step - 1) * pitch
        ax.axvline(zero, color=INK, linewidth=0.8, zorder=3)
        for sign in (1, -1):
            start = pd.Series(zero, index=path.index[rows])
            for term, (_, colour, hatch) in STYLES.items():
                length = parts.loc[rows, term]
                length = length.where(sign * length > 0).dropna()
                ax.barh(
                    path.loc[length.index, "layer"],
                    length,
                    left=start[length.index],
                    height=0.72,
                    color=colour,
                    hatch=hatch,
                    edgecolor="white",
                    linewidth=0,
                )
                start[length.index] += length
        ax.plot(zero + path.loc[rows, "score"], path.loc[rows, "layer"], zorder=4, **SCORE)
        for row in path[rows].itertuples():
            ax.annotate(
                f"{row.score:.3f}",
                (zero + max(right[row.Index], 0), row.layer),
                (6, 0),
                textcoords="offset points",
                va="center",
                color=INK,
                fontsize=_size(len(names)) - 2,
            )
            if row.chosen:
                corner = (zero + low - 0.04 * width, row.layer - 0.5)
                ax.add_patch(Rectangle(corner, 1.4 * width, 1, zorder=5, **FRAME))
    ax.set_xticks(
        [(step - 1) * pitch + tick for step in steps for tick in ticks],
        [f"{tick:g}" for _ in steps for tick in ticks],
        fontsize=8,
    )
    ax.set_xlim(low - 0.06 * width, (len(steps) - 1) * pitch + low + 1.4 * width)
    _name_rows(ax, names)
    ax.tick_params(axis="y", length=0)
    ax.spines[["left", "top", "right"]].set_visible(False)
    for step in steps:
        middle = (step - 1) * pitch + (low + high) / 2
        ax.annotate(
            f"step {step}",
            (middle, 1),
            (0, 4),
            xycoords=ax.get_xaxis_transform(),
            textcoords="offset points",
            ha="center",
            color=INK,
        )
    ax.set_xlabel("contribution to the score")
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0, label=label)
        for term, (label, colour, hatch) in STYLES.items()
        if parts[term].notna().any()
    ]
    handles.append(plt.Line2D([], [], label="score", **SCORE))
    handles.append(Patch(label="pick", **FRAME))
    ax.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1, 1), frameon=False, labelcolor=INK
    )
    return ax


def plot_redundancy(layers: Layers, ax: Axes | None = None, criterion: str = "bounded") -> Axes:
    """Draw the redundancy of every pair of layers as a map.

    Chapter 6 draws with it.

    Parameters
    ----------
    layers : as for `LOES.fit`.
    ax : where to draw; None for a new figure.
    criterion : ``"bounded"`` for linear CKA, ``"paper"`` for the Frobenius alignment.

    Returns
    -------
    The Axes.

    Raises
    ------
    ValueError as `LOES.fit`.
    """
    table = redundancies(layers, criterion)
    count = len(table)
    side = _rows_high(count)
    ax = _axes(ax, side + 1.4, side)
    sns.heatmap(
        table.to_numpy(),
        ax=ax,
        vmin=0,
        vmax=1,
        cmap="cividis",
        square=True,
        annot=count <= ANNOTATED,
        fmt=".2f",
        annot_kws={"fontsize": 8},
        xticklabels=False,
        yticklabels=False,
        cbar_kws={"label": "linear CKA" if criterion == "bounded" else "Frobenius alignment"},
    )
    ax.set_xticks(np.arange(count) + 0.5, table.columns, rotation=90, fontsize=_size(count))
    ax.set_yticks(np.arange(count) + 0.5, table.index, rotation=0, fontsize=_size(count))
    bar = ax.collections[0].colorbar
    bar.ax.tick_params(colors=INK)
    bar.ax.yaxis.label.set_color(INK)
    bar.outline.set_visible(False)
    return ax


def plot_frequency(result: Stability, ax: Axes | None = None) -> Axes:
    """Draw in which share of the resamples each layer was picked, and at which step.

    Chapter 8 draws with it.

    Parameters
    ----------
    result : what `loes.stability` returned. Its picks on all samples are marked by their step.
    ax : where to draw; None for a new figure.

    Returns
    -------
    The Axes.
    """
    table = result.frequency.drop(columns="selected")
    names = list(table.index)
    ax = _axes(ax, 6.5, _rows_high(len(names)))
    colours = sns.color_palette("viridis", len(table.columns) + 1)[: len(table.columns)]
    hatches = ["", "///", "...", "xxx"]
    start = np.zeros(len(names))
    for place, (step, colour) in enumerate(zip(table.columns, colours, strict=True)):
        share = table[step].to_numpy()
        ax.barh(
            range(len(names)),
            share,
            left=start,
            height=0.72,
            color=colour,
            hatch=hatches[place % len(hatches)],
            edgecolor="white",
            linewidth=0,
            label=f"step {step}",
        )
        start += share
    for step, layer in enumerate(result.selected, start=1):
        ax.annotate(
            f"◀ pick {step}",
            (start[layer], layer),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=_size(len(names)) - 1,
            color=INK,
        )
    _name_rows(ax, names)
    ax.set(
        xlim=(0, 1.2),
        xticks=np.linspace(0, 1, 6),
        xlabel=f"share of {len(result.resampled)} resamples",
    )
    ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines["bottom"].set_bounds(0, 1)
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, labelcolor=INK)
    return ax


def plot_sensitivity(
    table: pd.DataFrame,
    ax: Axes | None = None,
    *,
    eta: float | None = None,
    first: bool = False,
) -> Axes:
    """Draw which layers are selected over the weights of isotropy and redundancy.

    Chapter 8 draws with it.

    Parameters
    ----------
    table : what `loes.sensitivity` returned. A letter and a colour stand for a set of layers,
        whatever their order: A for the most frequent. The criterion's own weights are framed.
    ax : where to draw; None for a new figure.
    eta : which of the table's weights of triangle area to show; None for the middle one.
    first : compare the first pick only.

    Returns
    -------
    The Axes.

    Raises
    ------
    ValueError when the table has no such eta.
    """
    etas = sorted(table["eta"].unique())
    eta = etas[len(etas) // 2] if eta is None else eta
    shown = table[np.isclose(table["eta"], eta)]
    if shown.empty:
        raise ValueError(f"the table has no eta={eta!r}; choose one of {[float(e) for e in etas]}.")
    picked = [
        list(zip(*cell, strict=True)) for cell in zip(shown.selected, shown.names, strict=True)
    ]
    cells = [tuple(layers[:1] if first else sorted(layers)) for layers in picked]
    ranked = [cell for cell, _ in Counter(cells).most_common()]
    codes = [ranked.index(cell) for cell in cells]
    grid = shown.assign(code=codes).pivot(index="gamma", columns="alpha", values="code")
    grid = grid.sort_index(ascending=False)
    letters = grid.map(lambda code: "" if np.isnan(code) else _letter(int(code)))
    ax = _axes(ax, 2.2 + 0.55 * len(grid.columns) + 2, 1.2 + 0.45 * len(grid))
    colours = [*PALETTE[:7], *[PALETTE[7]] * max(len(ranked) - 7, 0)][: len(ranked)]
    sns.heatmap(
        grid.to_numpy(),
        ax=ax,
        vmin=-0.5,
        vmax=len(ranked) - 0.5,
        cmap=ListedColormap(colours),
        annot=letters.to_numpy(),
        fmt="",
        cbar=False,
        linewidths=0.5,
        linecolor=INK,
        xticklabels=[f"{alpha:g}" for alpha in grid.columns],
        yticklabels=[f"{gamma:g}" for gamma in grid.index],
    )
    ax.tick_params(axis="y", rotation=0)
    ax.set_xlabel(r"$\alpha$, weight of 1 − Iso")
    ax.set_ylabel(r"$\gamma$, weight of Red")
    ax.set_title(rf"$\eta$ = {eta:g}", color=INK, fontsize=10)
    for row in shown[shown["default"]].itertuples():
        corner = (list(grid.columns).index(row.alpha), list(grid.index).index(row.gamma))
        ax.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="black", linewidth=2.5))
    handles = [
        Patch(facecolor=colours[code], label=f"{_letter(code)}: " + ", ".join(n for _, n in cell))
        for code, cell in enumerate(ranked[:LISTED])
    ]
    if len(ranked) > LISTED:
        handles.append(Patch(fill=False, linewidth=0, label=f"and {len(ranked) - LISTED} others"))
    ax.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.02, 1), frameon=False, labelcolor=INK
    )
    return ax


def _letter(code: int) -> str:
    return ascii_letters[26:][code] if code < 26 else "·"


def plot_probes(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the held-out score of one probe a layer with its spread, over chance.

    Chapter 11 says how to read one.

    Parameters
    ----------
    table : columns layer, accuracy or r2, spread and chance, as `loes layers` writes it.
    ax : where to draw; None for a new figure.
    """
    ax = _axes(ax, 2 + max(3, 0.3 * len(table)), 3.5)
    metric = table.columns[1]
    style = {"marker": "o", "capsize": 3, "color": PALETTE[0]}
    ax.errorbar(table["layer"], table[metric], table["spread"], **style)
    ax.axhline(table["chance"].iloc[0], color=INK, linestyle="--")
    ax.annotate("chance", (0, table["chance"].iloc[0]), color=INK, va="bottom")
    ax.set_ylabel({"accuracy": "held-out accuracy", "r2": "held-out $R^2$"}[metric])
    ax.tick_params(axis="x", rotation=90)
    return ax


def plot_comparison(summary: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw how much each method gains over the reference, with its interval.

    Chapter 11 draws with it.

    Parameters
    ----------
    summary : what `Evaluation.summary` returns.
    ax : where to draw; None for a new figure.
    """
    rows = summary.dropna(subset="difference").sort_values("difference", ascending=False)
    ax = _axes(ax, 6.5, _rows_high(len(rows)))
    errors = [rows["difference"] - rows["low"], rows["high"] - rows["difference"]]
    ax.errorbar(
        rows["difference"], range(len(rows)), xerr=errors, fmt="o", capsize=3, color=PALETTE[0]
    )
    ax.axvline(0, color=INK, linestyle="--")
    _name_rows(ax, rows.index)
    ax.set_xlabel("gain over the reference, 95 % interval over test groups")
    return ax

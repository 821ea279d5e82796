"""Figures show the numbers they were given, name the layers, and keep their labels apart."""

import subprocess
import sys
from itertools import combinations

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

import loes
from loes import LOES, LayerFeatures
from loes.analysis import Stability, redundancies

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

from loes import plots

pytestmark = pytest.mark.filterwarnings("ignore::loes.selection.SelectionWarning")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def problem(n_layers=7, n=60):
    """Layers that drift away from the first, and classes."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 4
    layers, X = [], np.eye(4)[y] @ rng.normal(size=(4, 5)) + rng.normal(size=(n, 5))
    for _ in range(n_layers):
        X = X @ (np.eye(5) + 0.2 * rng.normal(size=(5, 5))) + 0.3 * rng.normal(size=(n, 5))
        layers.append(X / X.std())
    return LayerFeatures(["embedding", *(f"layer{l}" for l in range(1, n_layers))], layers), y


def draw(kind, n_layers=7, ax=None):
    """Return the Axes of one of the four figures."""
    layers, y = problem(n_layers)
    if kind == "path":
        return plots.plot_path(LOES(4, eta=1.0).fit(layers, y), ax=ax)
    if kind == "redundancy":
        return plots.plot_redundancy(layers, ax=ax)
    if kind == "frequency":
        result = loes.stability(layers, y, 6, progress=False, criterion="bounded")
        return plots.plot_frequency(result, ax=ax)
    return plots.plot_sensitivity(loes.sensitivity(layers, y, progress=False), ax=ax)


KINDS = ["path", "redundancy", "frequency", "sensitivity"]


@pytest.mark.parametrize("kind", KINDS)
def test_figure_is_drawn_into_the_given_axes(kind):
    _, (left, right) = plt.subplots(1, 2)
    assert draw(kind, ax=right) is right
    assert not left.has_data()
    assert right.has_data()


@pytest.mark.parametrize("n_layers", [7, 13, 31])
@pytest.mark.parametrize("kind", KINDS)
def test_labels_name_the_layers_and_stay_apart(kind, n_layers):
    ax = draw(kind, n_layers)
    rows = [label.get_text() for label in ax.get_yticklabels()]
    if kind != "sensitivity":
        assert rows == problem(n_layers)[0].names
    ax.figure.draw_without_rendering()
    texts = [*ax.get_xticklabels(), *ax.get_yticklabels(), *ax.texts]
    if legend := ax.get_legend():
        texts += legend.get_texts()
    boxes = {t: t.get_window_extent() for t in texts if t.get_text()}
    for (a, first), (b, second) in combinations(boxes.items(), 2):
        assert not first.overlaps(second), (a.get_text(), b.get_text())
    page = ax.figure.bbox
    for text, box in boxes.items():
        assert box.x0 >= page.x0, text
        assert box.x1 <= page.x1, text
        assert box.y0 >= page.y0, text
        assert box.y1 <= page.y1, text


@pytest.mark.parametrize("criterion", ["paper", "bounded"])
@pytest.mark.parametrize("target", ["classes", "values", "none"])
def test_bars_of_a_path_add_up_to_the_score(criterion, target):
    layers, y = problem()
    y = {"classes": y, "values": layers[0][:, 0] + 0.5, "none": None}[target]
    model = LOES(3, criterion=criterion).fit(layers, y)
    ax = plots.plot_path(model)
    bars = [bar for container in ax.containers for bar in container]
    assert all(np.isfinite(bar.get_width()) and bar.get_width() != 0 for bar in bars)
    total = sum(bar.get_width() for bar in bars)
    assert total == pytest.approx(model.path_["score"].sum())
    frames = sorted(p.get_y() + 0.5 for p in ax.patches if not p.get_fill())
    assert frames == sorted(model.selected_)
    shown = {text.get_text() for text in ax.get_legend().get_texts()}
    expected = {"score", "pick", r"$\alpha$ (1 − Iso)", r"$\gamma$ Red"}
    expected |= {"Loss"} if target != "none" else set()
    assert shown - {r"−$\eta$ Tri"} == expected
    assert (r"−$\eta$ Tri" in shown) == (target == "classes")
    numbers = [t.get_text() for t in ax.texts if not t.get_text().startswith("step")]
    assert numbers == [f"{score:.3f}" for score in model.path_["score"]]


def test_path_of_one_step_and_of_an_automatic_stop():
    layers, y = problem()
    assert plots.plot_path(LOES(1).fit(layers, y)).has_data()
    noise = np.random.default_rng(1).normal(size=(60, 3))
    model = LOES("auto", criterion="bounded").fit([layers[0], noise], y)
    assert model.selected_ == [0]
    ax = plots.plot_path(model)
    assert [p.get_y() + 0.5 for p in ax.patches if not p.get_fill()] == [0]


@pytest.mark.parametrize("criterion", ["paper", "bounded"])
def test_map_shows_the_redundancies(criterion):
    layers, _ = problem()
    ax = plots.plot_redundancy(layers, criterion=criterion)
    expected = redundancies(layers, criterion).to_numpy()
    np.testing.assert_allclose(np.reshape(ax.collections[0].get_array(), (7, 7)), expected)
    assert [t.get_text() for t in ax.texts] == [f"{value:.2f}" for value in expected.flat]


def test_bars_of_a_frequency_are_the_shares():
    frequency = pd.DataFrame(
        {1: [0.75, 0, 0.25], 2: [0, 0.5, 0.5], "selected": [0.75, 0.5, 0.75]}, list("abc")
    )
    ax = plots.plot_frequency(Stability([0, 2], [[0, 2]] * 4, frequency))
    widths = np.array([[bar.get_width() for bar in bars] for bars in ax.containers])
    np.testing.assert_array_equal(widths, frequency[[1, 2]].to_numpy().T)
    ends = [bar.get_x() + bar.get_width() for bar in ax.containers[1]]
    assert ends == [0.75, 0.5, 0.75]
    assert [(t.get_text(), t.xy) for t in ax.texts] == [
        ("◀ pick 1", (0.75, 0)),
        ("◀ pick 2", (0.75, 2)),
    ]


def table_of(selections, etas=(0.1,)):
    """Return a table like that of `sensitivity`, alpha fastest."""
    names = ["embedding", "layer1", "layer2"]
    rows = [
        (alpha, gamma, eta, s, tuple(names[l] for l in s), (alpha, gamma, eta) == (1, 0.5, 0.1))
        for eta in etas
        for (gamma, alpha), s in zip([(0, 0), (0, 1), (0.5, 0), (0.5, 1)], selections, strict=True)
    ]
    return pd.DataFrame(rows, columns=["alpha", "gamma", "eta", "selected", "names", "default"])


def test_letters_stand_for_sets_of_layers():
    table = table_of([(0, 1), (1, 0), (2, 0), (0, 1)])
    ax = plots.plot_sensitivity(table)
    assert [t.get_text() for t in ax.texts] == ["B", "A", "A", "A"]  # gamma 0.5 is the upper row
    legend = [t.get_text() for t in ax.get_legend().get_texts()]
    assert legend == ["A: embedding, layer1", "B: embedding, layer2"]
    (frame,) = [p for p in ax.patches if isinstance(p, Rectangle) and not p.get_fill()]
    assert frame.get_xy() == (1, 0)
    ax = plots.plot_sensitivity(table, first=True)
    assert [t.get_text() for t in ax.texts] == ["C", "A", "A", "B"]


def test_eta_is_the_middle_one_or_as_asked():
    selections = [(0, 1), (1, 0), (2, 0), (0, 1)]
    table = table_of(selections, etas=(0, 0.1, 0.4))
    assert "0.1" in plots.plot_sensitivity(table).get_title()
    assert "0.4" in plots.plot_sensitivity(table, eta=0.4).get_title()
    with pytest.raises(ValueError, match=r"no eta=2; choose one of \[0.0, 0.1, 0.4\]"):
        plots.plot_sensitivity(table, eta=2)
    partial = plots.plot_sensitivity(table_of(selections).iloc[1:])
    assert sorted(t.get_text() for t in partial.texts if t.get_text()) == ["A", "A", "B"]


def test_many_selections_are_cut_short_in_the_legend():
    pairs = list(combinations(range(9), 2))
    rows = [
        (float(a), float(g), 0.1, pairs[6 * g + a], tuple(map(str, pairs[6 * g + a])), False)
        for g in range(6)
        for a in range(6)
    ]
    table = pd.DataFrame(rows, columns=["alpha", "gamma", "eta", "selected", "names", "default"])
    legend = plots.plot_sensitivity(table).get_legend().get_texts()
    assert len(legend) == 9
    assert legend[-1].get_text() == "and 28 others"


def test_import_of_loes_loads_no_plotting_library():
    code = (
        "import sys, loes\n"
        "assert not {'matplotlib', 'seaborn'} & set(sys.modules)\n"
        "loes.plots.plot_path\n"
        "assert 'seaborn' in sys.modules\n"
        "try: loes.absent\n"
        "except AttributeError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "no attribute 'absent'" in run.stdout


def test_probes_show_scores_spread_and_chance():
    table = pd.DataFrame(
        {"layer": ["embedding", "layer1"], "accuracy": [0.5, 0.7], "spread": 0.1, "chance": 0.25}
    )
    ax = plots.plot_probes(table)
    line, *_ = ax.containers[0]
    assert line.get_ydata().tolist() == [0.5, 0.7]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["embedding", "layer1"]
    assert ax.lines[-1].get_ydata() == [0.25, 0.25]
    with pytest.raises(KeyError):
        plots.plot_probes(table.rename(columns={"accuracy": "luck"}))


def test_a_comparison_shows_gains_from_the_largest_down_with_their_intervals():
    summary = pd.DataFrame(
        {
            "mean": [0.5, 0.6, 0.8],
            "difference": [np.nan, 0.1, 0.3],
            "low": [np.nan, -0.1, 0.2],
            "high": [np.nan, 0.2, 0.5],
        },
        index=["last layer", "random", "LOES"],
    )
    ax = plots.plot_comparison(summary)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["LOES", "random"]
    points, _, (bars,) = ax.containers[0]
    assert points.get_xdata().tolist() == [0.3, 0.1]
    ends = [segment[:, 0].tolist() for segment in bars.get_segments()]
    assert ends == [pytest.approx([0.2, 0.5]), pytest.approx([-0.1, 0.2])]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first row is on top

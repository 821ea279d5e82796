"""The explorer page: its trees select what LOES selects, and the page weighs as Python does."""

import re
import shutil
from itertools import combinations, permutations, product
from pathlib import Path

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe

import explorer
from loes import LOES
from loes.criteria import CRITERIA
from loes.selection import TERMS

ROOT = Path(__file__).parents[1]
quiet = pytest.mark.filterwarnings("ignore::loes.SelectionWarning")


# ---- trees -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stack():
    """Five layers that know more or less of four classes, the last of them nothing."""
    rng = np.random.default_rng(0)
    y = np.repeat(range(4), 40)
    signal = np.eye(4)[y]
    layers = [
        np.hstack([strength * signal @ rng.normal(size=(4, 5)), np.zeros((160, 2))])
        + rng.normal(size=(160, 7)) * np.linspace(1, width, 7)
        for strength, width in ((0.6, 4), (0.5, 1), (0.7, 3), (0.6, 2))
    ]
    return [*layers, rng.normal(size=(160, 7))], y


@pytest.fixture(scope="module")
def trees(stack):
    return {criterion: explorer.tree(*stack, criterion) for criterion in CRITERIA}


@quiet
@pytest.mark.parametrize("criterion", CRITERIA)
def test_every_state_holds_the_terms_of_loes(stack, trees, criterion):
    for picks in permutations(range(5), 2):
        path = LOES(3, criterion=criterion, include=picks).fit(*stack).path_
        for step, rows in path.groupby("step"):
            state = trees[criterion][explorer.key(picks[: step - 1])]
            assert [layer for layer in range(5) if state[layer]] == rows["layer"].tolist()
            mine = np.array([row for row in state if row], dtype=float)
            np.testing.assert_allclose(mine, rows[TERMS], rtol=1e-5, atol=1e-12)


@quiet
@pytest.mark.parametrize("criterion", CRITERIA)
def test_walking_a_tree_selects_what_loes_selects(stack, trees, criterion):
    layers, y = stack
    found = set()
    for alpha, gamma, eta in product((0, 0.1, 1, 5), (0, 1), (0, 2)):
        weights = {"alpha": alpha, "gamma": gamma, "eta": eta}
        for candidates, k in ((4, 3), (5, 2), (5, 3)):
            loes = LOES(k, criterion=criterion, **weights).fit(layers[:candidates], y)
            picks = explorer.greedy(trees[criterion], k, candidates, weights)
            assert picks == loes.selected_
            found.add(tuple(picks))
    assert len(found) > 5  # the weights matter here


# ---- the files that the page loads -------------------------------------------------------------


@pytest.fixture(scope="module", params=explorer.TITLES)
def content(request):
    return explorer.read(explorer.FOLDER / f"{request.param}.js")


def test_a_file_holds_every_state_and_set_and_only_finite_numbers(content):
    size = len(content["layers"])
    assert content["layers"][0] == "embedding"
    assert content["layers"][-1] == "noise"
    states = {explorer.key(s) for k in range(3) for s in permutations(range(size), k)}
    for criterion in CRITERIA:
        own = CRITERIA[criterion]()
        weights = {name: getattr(own, name) for name in explorer.WEIGHTS}
        assert content["defaults"][criterion] == weights
        assert set(content["terms"][criterion]) == states
        for state, rows in content["terms"][criterion].items():
            picked = {int(layer) for layer in state.split("-") if layer}
            assert [layer for layer, row in enumerate(rows) if row is None] == sorted(picked)
            values = np.array([row[: 4 if picked else 2] for row in rows if row], dtype=float)
            assert np.isfinite(values).all()
            assert all(picked or row[2:] == [None, None] for row in rows if row)
            if criterion == "bounded":
                assert 0 <= values.min() <= values.max() <= 1
    sets = {explorer.key(s) for k in (1, 2, 3) for s in combinations(range(size), k)}
    assert set(content["accuracy"]) == sets
    assert all(0 <= accuracy <= 1 for accuracy in content["accuracy"].values())


def test_a_file_is_small_and_reads_back(content, tmp_path):
    path = explorer.FOLDER / f"{content['example']}.js"
    assert path.stat().st_size < 250_000
    assert explorer.write(content, tmp_path).read_bytes() == path.read_bytes()


def test_the_tree_of_a_file_selects_what_loes_selected_from_the_samples(content):
    runs = content["selections"]
    assert {(run["criterion"], run["noise"]) for run in runs} == set(
        product(CRITERIA, (False, True))
    )
    for run in runs:
        candidates = len(content["layers"]) - (not run["noise"])
        states = content["terms"][run["criterion"]]
        assert explorer.greedy(states, explorer.K, candidates, run) == run["layers"]
    assert len({tuple(run["layers"]) for run in runs}) > 5


def test_noise_comes_first_under_the_paper_weights_only(content):
    for criterion, first in (("paper", True), ("bounded", False)):
        weights = content["defaults"][criterion]
        picks = explorer.greedy(content["terms"][criterion], 1, len(content["layers"]), weights)
        assert (content["layers"][picks[0]] == "noise") == first


def test_the_page_offers_the_examples_that_there_are():
    script = (explorer.FOLDER / "explorer.js").read_text(encoding="utf-8")
    offered = re.search(r"const EXAMPLES = \{(.*?)\};", script, re.DOTALL)[1]
    assert re.findall(r'^\s*"?([\w-]+)"?: "', offered, re.MULTILINE) == list(explorer.TITLES)


def test_an_unknown_example_is_named(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["explorer.py", "tropics"])
    with pytest.raises(SystemExit):
        explorer.main()
    assert "there is no tropics; take some of topics" in capsys.readouterr().err


# ---- the page in a browser -----------------------------------------------------------------------

# What the theme would give; the real one is tested where the site is built.
COLOURS = {
    "light": "--pst-color-background: #fff; --pst-color-surface: #f3f4f5; --pst-color-text-base:"
    "#222832; --pst-color-text-muted: #48566b; --pst-color-border: #d1d5da;"
    "--pst-color-primary: #176de8",
    "dark": "--pst-color-background: #14181e; --pst-color-surface: #222832; --pst-color-text-base:"
    "#ced6dd; --pst-color-text-muted: #9ca4af; --pst-color-border: #48566b;"
    "--pst-color-primary: #528fe4",
}


@pytest.fixture(scope="module", params=["alone", "site"])
def address(request, tmp_path_factory):
    """The page by itself, and as part of the built site."""
    if request.param == "site":
        return (request.getfixturevalue("site") / "book/explorer.html").as_uri()
    folder = tmp_path_factory.mktemp("site")
    source = (ROOT / "book/explorer.md").read_text(encoding="utf-8")
    (mount,) = re.findall(r"^```\{raw\} html\n(.*?)^```$", source, re.DOTALL | re.MULTILINE)
    shutil.copytree(explorer.FOLDER, folder / "_static/explorer")
    (folder / "book").mkdir()
    page = folder / "book/explorer.html"
    styles = "".join(f'[data-theme="{name}"] {{ {c} }}' for name, c in COLOURS.items())
    page.write_text(
        f'<!doctype html><html lang="en" data-theme="light"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>Explorer</title>'
        f"<style>{styles} body {{ background: var(--pst-color-background);"
        f"color: var(--pst-color-text-base) }} * {{ box-sizing: border-box }}</style>"
        f"<main><h1>Explorer</h1><h2>Move</h2>{mount}</main>",
        encoding="utf-8",
    )
    return page.as_uri()


@pytest.fixture
def page(browser, address):
    """A page that must not complain, nor ask anyone for anything."""
    page = browser.new_page()
    wrong = []
    page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else wrong.append(r.url),
    )
    visit(page, address)
    yield page
    page.close()
    assert wrong == []


def visit(page, address, **asked):
    query = "&".join(f"{name}={value}" for name, value in asked.items())
    page.goto("about:blank")
    page.goto(f"{address}#{query}" if query else address)
    page.wait_for_selector("#loes-explorer [data-picks]")


def picked(page):
    return page.get_attribute("#loes-explorer [data-part=picks]", "data-picks")


def weights_on(page):
    return {name: float(page.input_value(f"#loes-{name}-number")) for name in explorer.WEIGHTS}


@pytest.fixture(scope="module")
def topics():
    return explorer.read(explorer.FOLDER / "topics.js")


def expected(topics, criterion, weights, noise=False, k=3):
    candidates = len(topics["layers"]) - (not noise)
    return explorer.key(explorer.greedy(topics["terms"][criterion], k, candidates, weights))


def test_sliders_moved_by_keyboard_change_the_picks_as_python_does(page, topics):
    default = topics["defaults"]["paper"]
    assert weights_on(page) == default
    assert picked(page) == expected(topics, "paper", default)
    found = set()
    for name in explorer.WEIGHTS:
        page.focus(f"#loes-{name}")
        for press in ("Home", "ArrowRight", *["PageUp"] * 8, "End", "ArrowLeft"):
            page.keyboard.press(press)
            weights = weights_on(page)
            assert weights[name] == {"Home": 0, "End": 10}.get(press, weights[name])
            assert picked(page) == expected(topics, "paper", weights)
            assert page.get_attribute(f"#loes-{name}", "aria-valuetext") == f"{weights[name]:g}"
            found.add(picked(page))
        page.focus("#loes-explorer button[type=reset]")
        page.keyboard.press("Enter")
        assert weights_on(page) == default
        assert picked(page) == expected(topics, "paper", default)
    assert len(found) > 3


def test_noise_k_and_criterion_by_keyboard(page, topics):
    page.focus("#loes-noise")
    page.keyboard.press("Space")
    paper, bounded = (topics["defaults"][criterion] for criterion in ("paper", "bounded"))
    assert picked(page) == expected(topics, "paper", paper, noise=True)
    assert "Picks: noise" in page.text_content("[data-part=picks]")
    page.focus("#loes-criterion")
    page.keyboard.press("ArrowDown")
    assert weights_on(page) == bounded
    assert picked(page) == expected(topics, "bounded", bounded, noise=True)
    page.focus("#loes-k")
    page.keyboard.press("ArrowUp")
    assert picked(page) == expected(topics, "bounded", bounded, noise=True, k=2)
    assert page.locator("#loes-explorer section:visible").count() == 2


def test_accuracies_are_those_of_the_file(page, topics):
    cells = page.locator("#loes-explorer table.accuracy tbody tr").all()
    shown = [row.locator("td").all_text_contents()[:2] for row in cells]
    best = max(range(7), key=lambda layer: topics["accuracy"][str(layer)])
    default = expected(topics, "paper", topics["defaults"]["paper"])
    for (layers, share), picks in zip(shown, [default, default, "6", str(best)], strict=True):
        names = [topics["layers"][int(layer)] for layer in picks.split("-")]
        assert layers == ", ".join(names)
        accuracy = topics["accuracy"]["-".join(sorted(picks.split("-")))]
        assert float(share) == pytest.approx(100 * accuracy, abs=0.051)


def test_a_table_says_what_the_chart_says(page, topics):
    page.locator("#loes-explorer summary").first.focus()
    page.keyboard.press("Enter")
    rows = page.locator("#loes-explorer .numbers").first.locator("tbody tr").all()
    for row, (loss, iso, *_) in zip(rows, topics["terms"]["paper"][""], strict=False):
        cells = row.locator("td").all_text_contents()
        values = [float(cell.replace("\N{MINUS SIGN}", "-")) for cell in cells if cell != "–"]
        np.testing.assert_allclose(values, [loss, 1 - iso, loss + 1 - iso], atol=6e-4)
    assert len(rows) == 7


def test_a_setting_can_be_shared_and_a_bad_one_is_not_followed(page, address, topics):
    asked = {"criterion": "bounded", "alpha": 0.7, "gamma": 0.2, "eta": 0, "k": 2, "noise": 1}
    visit(page, address, example="topics", **asked)
    weights = {name: asked[name] for name in explorer.WEIGHTS}
    assert weights_on(page) == weights
    shared = expected(topics, "bounded", weights, noise=True, k=2)
    assert picked(page) == shared
    page.fill("#loes-alpha-number", "0")
    # Asked of the page itself: page.url follows a change of the address some time later.
    page.wait_for_function("location.hash.includes('alpha=0&')")
    page.fill("#loes-alpha-number", "0.7")
    assert picked(page) == shared
    visit(page, address, example="tropics", criterion="fair", alpha="much", k=9)
    assert picked(page) == expected(topics, "paper", topics["defaults"]["paper"])
    visit(page, address, example="animals", criterion="bounded")
    animals = explorer.read(explorer.FOLDER / "animals.js")
    assert picked(page) == expected(animals, "bounded", animals["defaults"]["bounded"])


def test_a_slider_that_is_dragged_writes_the_address_once(page):
    """Safari lets a page write its address a hundred times in ten seconds, then throws."""
    written = page.evaluate("""async () => {
      const write = history.replaceState.bind(history), written = [];
      history.replaceState = (...what) => { written.push(what[2]); write(...what); };
      const slider = document.querySelector("#loes-alpha");
      for (let position = 0; position <= 101; position++) {
        slider.value = position;
        slider.dispatchEvent(new Event("input"));
      }
      await new Promise((later) => setTimeout(later, 1000));
      return written;
    }""")
    assert len(written) == 1
    assert "alpha=10&" in written[0]


def test_a_weight_below_zero_is_refused_in_words(page):
    before = picked(page)
    page.fill("#loes-gamma-number", "-1")
    assert "a number from 0 on is wanted" in page.text_content("[data-part=wrong]")
    assert page.get_attribute("#loes-gamma-number", "aria-invalid") == "true"
    assert picked(page) == before
    page.fill("#loes-gamma-number", "0.5")
    assert page.text_content("[data-part=wrong]") == ""
    assert page.get_attribute("#loes-gamma-number", "aria-invalid") is None


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_keeps_readers_out_and_nothing_overflows_a_phone(page, address, theme):
    page.set_viewport_size({"width": 390, "height": 844})
    visit(page, address, example="intents-e5", criterion="paper", noise=1)
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    page.evaluate("document.querySelectorAll('#loes-explorer details').forEach(d => d.open = true)")
    # Axe would read the style sheet by a request, which a page opened from a file may not make.
    results = Axe().run(page, context="#loes-explorer", options={"preload": False})
    assert results.violations_count == 0, results.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


# ---- what the page says ------------------------------------------------------------------------


def picks_of(content, criterion, k=3, noise=False, **weights):
    weights = content["defaults"][criterion] | weights
    candidates = len(content["layers"]) - (not noise)
    return explorer.greedy(content["terms"][criterion], k, candidates, weights)


def share(content, picks):
    return round(100 * content["accuracy"][explorer.key(sorted(picks))], 1)


NOTHING = dict.fromkeys(explorer.WEIGHTS, 0)


def test_the_answers_are_right(topics):
    intents = explorer.read(explorer.FOLDER / "intents-e5.js")
    assert picks_of(intents, "paper", 1, **NOTHING) == [1]
    first = [picks_of(intents, "paper", 1, alpha=a)[0] for a in (0.002, 0.00224, 0.1, 0.3, 1)]
    assert first == [1, 0, 0, 12, 12]
    assert share(intents, picks_of(intents, "paper")) == 95.5
    better = picks_of(intents, "paper", alpha=0)
    assert share(intents, better) == 96.3
    n = intents["samples"]["validation"]
    assert n == 244
    gain = (share(intents, better) - 95.5) / 100
    assert round(gain * n) == 2
    assert gain < np.sqrt(0.955 * 0.045 / n)

    assert picks_of(topics, "paper", noise=True, alpha=0.01)[0] == 7
    for alpha in (0, 0.00891):
        assert picks_of(topics, "paper", noise=True, alpha=alpha)[:2] == [6, 7]
    reds = [row[2] for row in topics["terms"]["paper"]["6"] if row]
    assert 3 * reds[-1] < min(reds[:-1])
    assert 7 not in picks_of(topics, "paper", noise=True, **NOTHING)
    assert share(topics, picks_of(topics, "paper", noise=True)) == 75.4
    assert share(topics, picks_of(topics, "paper")) == 78.2


@pytest.mark.parametrize(("name", "step"), [("topics", 2), ("animals", 2), ("intents-e5", 3)])
def test_the_bounded_criterion_picks_the_noise_when_the_page_says(name, step):
    content = explorer.read(explorer.FOLDER / f"{name}.js")
    picks = picks_of(content, "bounded", noise=True)
    assert picks.index(len(content["layers"]) - 1) == step - 1

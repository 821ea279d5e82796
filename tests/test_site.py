"""The built site as readers meet it: links, a browser, a keyboard, a phone, and axe's rules.

Wants ``make site`` and Chromium.
"""

import re
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest
import yaml

ROOT = Path(__file__).parents[1]
HTML = ROOT / "_build/html"
PREFIX = "/loes/"  # of the site on its host
PAGES = sorted(
    path.relative_to(HTML).as_posix()
    for path in [*HTML.glob("*.html"), *HTML.glob("book/**/*.html")]
    if path != HTML / "index.html"  # sends on at once
)
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


class Handler(SimpleHTTPRequestHandler):
    """Serves the site below PREFIX, with 404.html for what is not there, as GitHub's pages do."""

    protocol_version = "HTTP/1.1"

    def translate_path(self, path):
        inside = path.startswith(PREFIX)
        return super().translate_path("/" + path.removeprefix(PREFIX) if inside else "/nowhere")

    def send_error(self, code, message=None, explain=None):
        body = (HTML / "404.html").read_bytes() if code == 404 else b""
        self.send_response(code, message)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def address(site):
    """Return the address of the site, served on this machine alone."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=HTML))
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}{PREFIX}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def tab(browser, address):
    """Return an empty tab; what it asks of any other host fails the test when it is done."""
    context = browser.new_context(
        viewport=DESKTOP, color_scheme="light", reduced_motion="reduce", base_url=address
    )
    hosts = set()
    context.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    yield context.new_page()
    context.close()
    assert hosts <= {urlsplit(address).netloc, ""}  # "": data:


AXE = {"runOnly": ["wcag2a", "wcag2aa"], "resultTypes": ["violations"], "preload": False}
IN_DARK = AXE | {"runOnly": {"type": "rule", "values": ["color-contrast"]}}  # all else is the same
ON_PHONE = AXE | {"runOnly": {"type": "rule", "values": ["scrollable-region-focusable"]}}
# What hides is opened. What axe would read again and again goes, which saves minutes: tokens and
# buttons of code but one of each kind, formulas, which have the colours of the text around, rows
# of tables after the fourth, and the list of all pages, but on the first one.
PREPARE = """() => {
  const still = new CSSStyleSheet();
  still.replaceSync("* { animation: none !important; transition: none !important }");
  document.adoptedStyleSheets.push(still);
  document.querySelectorAll("details").forEach(part => { part.open = true; });
  document.querySelectorAll("span.math, mjx-container").forEach(part => part.replaceWith("x"));
  if (!location.pathname.endsWith("/intro.html"))
    document.querySelectorAll(".bd-docs-nav").forEach(part => part.remove());
  document.querySelectorAll(".copybtn").forEach((part, index) => index && part.remove());
  document.querySelectorAll("tbody tr:nth-child(n + 5)").forEach(part => part.remove());
  const kinds = new Set();
  for (const token of document.querySelectorAll(".highlight span"))
    if (kinds.has(token.className)) token.replaceWith(...token.childNodes);
    else kinds.add(token.className);
  document.body.normalize();
}"""
WIDE = """() => [...document.querySelectorAll("main *")]
  .filter(part => part.getBoundingClientRect().right > innerWidth + 1
      && !part.closest("mjx-container, pre, table, div.math"))
  .slice(0, 3).map(part => part.outerHTML.slice(0, 120))"""
# the slides whose headings are on the screen
IN_SIGHT = """() => [...document.querySelectorAll(".slides h2")].map((heading, index) => {
    const { top, bottom } = heading.getBoundingClientRect();
    return heading.checkVisibility({ visibilityProperty: true }) && top >= 0 && bottom < innerHeight
        ? index : null;
  }).filter(index => index !== null)"""


def breaches(tab, options):
    """Run axe and return each breach as one readable line."""
    from axe_playwright_python.sync_playwright import Axe

    return [
        f"{breach['id']}: {node['html'][:150]} {node['failureSummary']}"
        for breach in Axe().run(tab, options=options).response["violations"]
        for node in breach["nodes"]
    ]


def open_page(tab, page):
    """Open a page and wait until it is loaded and its formulas are set."""
    tab.goto(page)
    tab.evaluate("window.MathJax?.startup?.promise.then(() => null)")


@pytest.mark.parametrize("page", PAGES)
def test_page_is_accessible_and_fits_a_phone(tab, page):
    tab.set_viewport_size(PHONE)
    open_page(tab, page)
    width = tab.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE["width"], tab.evaluate(WIDE)
    assert breaches(tab, ON_PHONE) == []
    tab.set_viewport_size(DESKTOP)
    tab.evaluate(PREPARE)
    assert breaches(tab, AXE) == []
    tab.evaluate("document.documentElement.dataset.theme = 'dark'")
    assert breaches(tab, IN_DARK) == []


def test_what_is_wider_than_a_phone_can_be_read_there(tab):
    tab.set_viewport_size(PHONE)
    open_page(tab, "book/intro.html")
    first = tab.locator("figure").first
    assert first.evaluate("figure => figure.scrollWidth <= figure.clientWidth")
    assert first.locator("img").bounding_box()["width"] > 300
    for page in ("book/03_loss.html", "book/12_language.html"):
        open_page(tab, page)
        images = tab.locator("figure img").evaluate_all(
            "all => all.map(image => [image.getBoundingClientRect().width, image.naturalWidth])"
        )
        assert images
        for width, own in images:
            assert width == pytest.approx(max(600, 0.65 * own), abs=1)
    figure, table = tab.locator("figure").first, tab.locator(".output.text_html").first

    def fades(part, edge, width):  # as soon as the browser draws
        tab.wait_for_function(
            "([part, edge, width]) => getComputedStyle(part).getPropertyValue(edge) === width",
            arg=[part.element_handle(), edge, width],
        )

    for part in (figure, table):
        fades(part, "--left", "0px")
        fades(part, "--right", "16px")
    figure.focus()
    for _ in range(40):
        tab.keyboard.press("ArrowRight")
    tab.wait_for_function(
        "figure => figure.scrollLeft + figure.clientWidth > figure.scrollWidth - 2",
        arg=figure.element_handle(),
    )
    fades(figure, "--left", "16px")
    tab.set_viewport_size(DESKTOP)
    for part in (figure, table):
        fades(part, "--left", "0px")
        fades(part, "--right", "0px")


@pytest.mark.parametrize("page", ["slides/index.html", "slides/03_loss.html"])
def test_slides_are_accessible(tab, page):
    tab.goto(page)
    if page != "slides/index.html":
        tab.wait_for_selector("body[data-ready]")
    assert breaches(tab, AXE) == []


def test_a_link_to_a_slide_opens_it_on_a_phone(tab):
    tab.set_viewport_size(PHONE)
    tab.goto("slides/03_loss.html#/6")
    tab.wait_for_selector("body[data-ready]")
    assert tab.evaluate(IN_SIGHT) == [6]


def test_axe_sees_a_breach(tab):
    tab.set_content('<html lang="en"><title>a</title><p style="color: #bbb">pale<img src="data:,">')
    assert [line.partition(":")[0] for line in breaches(tab, AXE)] == [
        "color-contrast",
        "image-alt",
    ]


def test_keyboard_reaches_the_content_and_the_search(tab):
    open_page(tab, "book/intro.html")
    tab.keyboard.press("Tab")
    assert "Skip to main content" in tab.evaluate("document.activeElement.textContent")
    for _ in range(10):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.matches('.search-button, .search-button-field')"):
            break
    else:
        pytest.fail("ten steps by Tab do not reach the search")
    tab.keyboard.press("Enter")
    tab.keyboard.type("isotropy")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/search.html?q=isotropy*")
    tab.wait_for_selector("#search-results li a >> text=Iso")


def test_next_and_previous_page_in_the_browser(tab):
    open_page(tab, "book/intro.html")
    tab.click("a.right-next")
    tab.wait_for_url("**/book/01_last_layer.html")
    tab.click("a.left-prev")
    tab.wait_for_url("**/book/intro.html")


def test_an_address_that_is_not_there_gives_a_page_with_a_way_back(tab, address):
    answer = tab.goto("book/no/such/page.html", wait_until="networkidle")
    assert answer.status == 404
    assert tab.evaluate("document.styleSheets.length") > 3
    assert tab.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
    tab.click("main a >> text=first page")
    tab.wait_for_url(f"{address}book/intro.html")


@pytest.fixture(scope="module")
def soups(site):
    """Return every page as a tree, by its path."""
    from bs4 import BeautifulSoup

    paths = {*PAGES, "index.html"}
    return {path: BeautifulSoup((HTML / path).read_text("utf-8"), "html.parser") for path in paths}


def test_every_link_inside_the_site_leads_somewhere(soups):
    anchors = {
        path: {"", *(tag.get("id") or tag["name"] for tag in soup.select("[id], a[name]"))}
        for path, soup in soups.items()
    }
    broken = []
    for path, soup in soups.items():
        for tag in soup.select("[href], [src]"):
            link = tag.get("href") or tag.get("src") or ""
            target, fragment = urldefrag(urljoin(PREFIX + path, link))
            if urlsplit(target).scheme:  # of another host
                continue
            name = unquote(target).split("?")[0].removeprefix(PREFIX)
            if not (HTML / name).is_file() or unquote(fragment) not in anchors.get(
                name, {fragment}
            ):
                broken.append(f"{path}: {link}")
    assert broken == []


def test_next_goes_through_the_contents_in_order(soups):
    contents = (ROOT / "_toc.yml").read_text()
    wanted = re.findall(r"(?:root|file): (\S+)", contents)  # parts and sections alike
    assert {f"{name}.html" for name in wanted} <= {*PAGES}, "pages that no test opens"
    path, found = f"{wanted[0]}.html", [wanted[0]]
    while (link := soups[path].select_one("a.right-next")) and len(found) <= len(wanted):
        path = urljoin(path, link["href"])
        found.append(path.removesuffix(".html"))
    assert found == wanted


def test_button_of_every_chapter_opens_its_notebook_in_colab(soups):
    url = "https://colab.research.google.com/github/loes-book/loes/blob/main/"
    notebooks = sorted(ROOT.glob("book/*.ipynb"))
    assert notebooks
    for notebook in notebooks:
        soup = soups[f"book/{notebook.stem}.html"]
        links = {a["href"] for a in soup.select('.article-header-buttons a[href*="colab"]')}
        assert links == {f"{url}book/{notebook.name}"}
    for soup in soups.values():
        for link in soup.select('main a[href*="colab.research"]'):
            assert (ROOT / link["href"].removeprefix(url)).is_file(), link["href"]


def test_every_page_has_its_icon_and_what_other_sites_show_of_it(soups):
    address = yaml.safe_load((ROOT / "_config.yml").read_text())["sphinx"]["config"]["ogp_site_url"]
    for path, soup in soups.items():
        if path != "index.html":  # sends on at once
            assert soup.select_one('link[rel~="icon"]'), path
        if path.startswith("book/"):
            meta = {tag["property"]: tag["content"] for tag in soup.select('meta[property^="og:"]')}
            assert meta["og:url"] == address + path
            assert len(meta["og:description"]) > 20, path
            assert len(meta["og:image:alt"]) > 40
            assert (HTML / meta["og:image"].removeprefix(address)).is_file()

"""Opens a report of `farshore bench` in a headless browser, in both colour schemes and two widths, and looks at what is there.

`--report` is a page or its directory; without it, one of made-up results is built, which has every kind of plot, a run with damage and a
hostile name. Canaries are broken pages that the same checks must refuse.
"""

import base64
import html.parser
import json
import pathlib
import re
import subprocess

import pytest
from browser import Browser, need
from harness import Failed, Unavailable, expect

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SECONDS = 900
KINDS = {"overview", "figure", "ratio", "latency", "timeline", "sweep", "sweep-ratio", "sweep-latency"}
IDEAL = "#2B3036"
HOSTILE = "<script>document.title='broken'</script>"
TEXT_CONTRAST, SERIES_CONTRAST = 4.5, 3.0
VIEWS = [(scheme, width) for scheme in ("light", "dark") for width in (1280, 400)]


class Addresses(html.parser.HTMLParser):
    """Everything in a page that a browser might fetch or run."""

    def __init__(self):
        super().__init__()
        self.found, self.scripts, self.styles, self.in_style = [], 0, [], False

    def handle_starttag(self, tag, attributes):
        self.scripts += tag == "script"
        self.in_style = tag == "style"
        for name, value in attributes:
            if name == "style":
                self.styles.append(value or "")
            if name in ("src", "href", "srcset", "data", "action", "poster", "background", "xlink:href"):
                self.found.append((tag, value or ""))
            if name.startswith("on"):
                self.scripts += 1

    def handle_endtag(self, tag):
        self.in_style = False

    def handle_data(self, data):
        if self.in_style:
            self.styles.append(data)


def check_source(text, beside=("results.json",)):
    """Nothing in the source is fetched or run; links lead into the page or to the files beside it."""
    page = Addresses()
    page.feed(text)
    expect(page.scripts == 0, f"{page.scripts} scripts or handlers")
    for tag, address in page.found:
        local = address.startswith(("#", "data:")) or (tag == "a" and address in beside)
        expect(local, f"<{tag}> refers to {address!r}")
    styles = re.findall(r"(?:url\(|@import)[^;)]*", "\n".join(page.styles))
    expect(not styles, f"a style refers to {styles[:1]}")
    return f"{len(text) // 1024} KiB, {len(page.found)} addresses, none to fetch"


def check_quiet(console, events, url):
    """Nothing on the console, and nothing was asked for but the page."""
    expect(not console, f"on the console: {console[0]['message'][:200] if console else ''}")
    asked = []
    for event in events:
        message = json.loads(event["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.append(message["params"]["request"]["url"])
    # chrome://… is what the browser's own first window loads, and no page can ask for.
    others = [address for address in asked if address != url and not address.startswith(("data:", "chrome://", "chrome-untrusted://"))]
    expect(not others, f"asked for {others[:3]}")
    expect(url in asked, "the page itself was not seen among the requests: the log is not what it should be")
    return "nothing"


def check_figures(page):
    """Every plot has an image with marks for each of its series, inside of it, a name and a caption."""
    expect(page["figures"], "there is no figure on the page")
    for figure in page["figures"]:
        where = f"{figure['kind']} {figure['title']!r}"
        expect(figure["image"], f"{where} has no image")
        expect(figure["width"] > 200 and figure["height"] > 40, f"{where} is {figure['width']:.0f} by {figure['height']:.0f}")
        expect(figure["role"] == "img" and figure["name"] and figure["title"], f"{where} has no name for those who do not see it")
        expect(figure["caption"].endswith((".", ")")) and re.search(r"better", figure["caption"]), f"{where}: the caption does not tell which direction is better")
        expect(figure["texts"] >= 4, f"{where} has {figure['texts']} texts")
        expect(not figure["cut"], f"{where}: cut off: {figure['cut'][:3]}")
        expect(not figure["collisions"], f"{where}: on top of each other: {figure['collisions'][:3]}")
        expect(figure["series"], f"{where} has no series")
        for series in figure["series"]:
            expect(series["shown"] > 0, f"{where}: no marks in {series['colour']}")
            expect(series["outside"] == 0, f"{where}: {series['outside']} marks in {series['colour']} lie outside")
    return f"{len(page['figures'])} plots, {sum(series['marks'] for figure in page['figures'] for series in figure['series'])} marks"


def check_layout(page, width):
    """Nothing is wider than the window."""
    expect(page["windowWidth"] == width, f"the window is {page['windowWidth']} wide")
    expect(page["pageWidth"] <= width, f"the page is {page['pageWidth']} wide in a window of {width}")
    outside = [figure["title"] for figure in page["figures"] if not figure.get("inWindow", True)]
    expect(not outside, f"not within the window: {outside[:3]}")
    return f"{page['pageWidth']} of {width}"


def check_contrast(page, scheme):
    """Text and series can be told from what is behind them."""
    expect(page["dark"] == (scheme == "dark"), "the scheme was not taken")
    dark_paper = sum(page["paper"]) < 384
    expect(dark_paper == (scheme == "dark"), f"the background is {page['paper']} in the {scheme} scheme")
    faintest = page["faintest"]
    expect(faintest["contrast"] >= TEXT_CONTRAST, f"text {faintest['words']!r}: contrast {faintest['contrast']:.2f}")
    worst = min((series["contrast"], series["colour"], figure["title"]) for figure in page["figures"] for series in figure["series"])
    expect(worst[0] >= SERIES_CONTRAST, f"series {worst[1]} in {worst[2]!r}: contrast {worst[0]:.2f}")
    return f"text {faintest['contrast']:.1f}, series {worst[0]:.1f} at least"


def check_ideal(page):
    """Each sweep over memory has the ideal line, or says why not."""
    sweeps = [figure for figure in page["figures"] if figure["kind"] == "sweep" and figure["title"].endswith("over local memory")]
    if not sweeps:
        raise Unavailable("there is no sweep over memory in this report")
    drawn = 0
    for figure in sweeps:
        lines = [series for series in figure["series"] if series["colour"] == IDEAL]
        expect(lines or "There is no ideal line:" in figure["caption"], f"{figure['title']!r} has no ideal line and does not say why")
        drawn += any(series["shown"] for series in lines)
    return f"{drawn} of {len(sweeps)} sweeps over memory"


def check_made_up(page):
    """The made-up results: each kind of plot, an ideal line, damage that is told, a hostile name that is only text."""
    kinds = {figure["kind"] for figure in page["figures"]}
    expect(kinds == KINDS, f"kinds of plots: missing {KINDS - kinds}, unknown {kinds - KINDS}")
    expect(check_ideal(page) == "1 of 1 sweeps over memory", "the sweep over memory has no ideal line")
    expect(page["title"].startswith("farshore bench"), f"the title became {page['title']!r}")
    for words in (HOSTILE, "ended by signal 9", "1 of 5 rounds of linux-swap are left out", "zswap was not measured", "CONFIG_ZSWAP"):
        expect(words in page["text"], f"the page does not say {words!r}")
    return f"{len(kinds)} kinds of plots"


# Pages that are wrong in one thing each, and which check must say so.
SMALL = '<figure data-plot="sweep" data-series="{colour}"><h3>T over local memory</h3><svg viewBox="0 0 300 100" width="300" role="img" aria-label="t">' \
        '<g class="plot">{plot}<text x="20" y="20">1</text><text x="90" y="20">2</text><text x="20" y="60">3</text><text x="90" y="60">4</text></g></svg>' \
        '<figcaption>{caption}</figcaption></figure>'
LINE = '<polyline fill="none" stroke="{colour}" stroke-width="3" points="10,90 200,40"/>'


def small_page(*, body="", style="", colour="#0000F0", drawn=None, line=LINE, caption="Higher is better."):
    """A page that passes, but for what is asked to be different."""
    figure = SMALL.format(colour=colour, plot=line.format(colour=drawn or colour), caption=caption)
    scheme = ":root{color-scheme:light dark} body{background:#fff} @media (prefers-color-scheme:dark){body{background:#111;color:#eee} svg{fill:#eee} svg polyline{stroke:#99f}}"
    return f'<!doctype html><html><head><meta charset="utf-8"><link rel="icon" href="data:,"><title>t</title><style>{scheme}{style}</style></head><body>{figure}{body}</body></html>'


CANARIES = [
    ("source", small_page(body="<script>1</script>")),
    ("source", small_page(body='<img src="https://example.invalid/a.png">')),
    ("source", small_page(style="body{background-image:url(x.png)}")),
    ("quiet", small_page(body="<script>nothing.at_all()</script>")),
    ("quiet", small_page(body='<img src="missing.png">')),
    ("figures", small_page(line="")),
    ("figures", small_page(drawn="#FF0000")),
    ("figures", small_page(line='<polyline fill="none" stroke="{colour}" points="10,90 10,90"/>')),
    ("figures", small_page(line='<polyline fill="none" stroke="{colour}" stroke-width="3" points="10,90 900,40"/>')),
    ("figures", small_page(line=LINE + '<text x="21" y="21">on another</text>')),
    ("figures", small_page(caption="A plot.")),
    ("layout", small_page(body='<div style="width:2000px">wide</div>')),
    ("contrast", small_page(body='<p style="color:#777">grey</p>', style="body{background:#999 !important}")),
    ("contrast", small_page(style="svg polyline{stroke:#eef !important}")),
    ("contrast", small_page(style="@media (prefers-color-scheme:dark){body{background:#fff !important}}")),
    ("ideal", small_page()),
]


class Window:
    """A browser, and what is asked of a page."""

    def __init__(self, browser):
        self.browser = browser
        self.question = (HERE / "page.js").read_text(encoding="utf-8")

    def look(self, path, scheme, width):
        """Opens a page; returns what it is like, its console and its requests."""
        self.browser.log("performance")
        self.browser.log("browser")
        self.browser.show(path.as_uri(), scheme, width)
        page = self.browser.script(self.question)
        return page, self.browser.log("browser"), self.browser.log("performance")

    def canary(self, path, which):
        """Whether the check of this name refuses the page in any view."""
        for scheme, width in VIEWS:
            page, console, events = self.look(path, scheme, width)
            checks = {
                "source": lambda: check_source(path.read_text(encoding="utf-8")),
                "quiet": lambda: check_quiet(console, events, path.as_uri()),
                "figures": lambda: check_figures(page),
                "layout": lambda: check_layout(page, width),
                "contrast": lambda: check_contrast(page, scheme),
                "ideal": lambda: check_ideal(page),
            }
            try:
                checks[which]()
            except Failed as reason:
                return str(reason)
        return None


def build(folder, *words):
    """A report of made-up results; with `--paper`, pages of a paper's figure."""
    cargo = need_cargo()
    command = [cargo, "run", "--quiet", "-p", "farshore-bench", "--example", "report", "--", *words, str(folder)]
    try:
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(f"no end after {SECONDS} s: {' '.join(command)}") from None
    expect(done.returncode == 0, f"{' '.join(command)}: status {done.returncode}: {done.stderr.decode(errors='replace')[-800:]}")
    return folder / "index.html"


def need_cargo():
    """cargo, or the reason why there is no page to look at."""
    try:
        return need("cargo")
    except Unavailable:
        raise Unavailable("cargo is not installed: give the path of a report") from None


@pytest.fixture(scope="module")
def window():
    """One browser for all."""
    with Browser() as browser:
        yield Window(browser)


@pytest.fixture(scope="module")
def given(pytestconfig):
    """The report that is looked at, if it is not one of made-up results."""
    path = pytestconfig.option.report
    path = pathlib.Path(path).resolve() if path else None
    return path / "index.html" if path is not None and path.is_dir() else path


@pytest.fixture(scope="module")
def report(given, tmp_path_factory):
    """The page."""
    path = given or build(tmp_path_factory.mktemp("report"))
    expect(path.is_file(), f"there is no page at {path}")
    return path


@pytest.fixture(scope="module", params=VIEWS, ids=lambda view: f"{view[0]}-{view[1]}")
def view(request, window, report, pytestconfig):
    """The page in one view: what it is like, its console, its requests, its scheme and width."""
    scheme, width = request.param
    page, console, events = window.look(report, scheme, width)
    if pytestconfig.option.pictures:
        picture = pathlib.Path(pytestconfig.option.pictures) / f"{scheme}-{width}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(base64.b64decode(window.browser.picture()))
    return page, console, events, scheme, width


def test_source(report):
    """The page fetches and runs nothing."""
    return check_source(report.read_text(encoding="utf-8"))


def test_quiet(view, report):
    """No error in the console, no request."""
    _, console, events, _, _ = view
    return check_quiet(console, events, report.as_uri())


def test_plots(view):
    """Each plot is there and has marks."""
    return check_figures(view[0])


def test_layout(view):
    """All is within the window."""
    return check_layout(view[0], view[4])


def test_contrast(view):
    """Text and lines can be read."""
    return check_contrast(view[0], view[3])


def test_ideal_line(view):
    """The ideal is drawn, and named."""
    return check_ideal(view[0])


def test_made_up_results(view, given):
    """What the made-up results have is there."""
    if given is None:
        return check_made_up(view[0])
    return "of no made-up results"


def test_sound(window, tmp_path):
    """The page that broken ones are made from is refused by no check."""
    sound = tmp_path / "sound.html"
    sound.write_text(small_page(colour=IDEAL), encoding="utf-8")
    for which in sorted({which for which, _ in CANARIES}):
        reason = window.canary(sound, which)
        expect(reason is None, f"a sound page is refused by {which}: {reason}")


@pytest.mark.parametrize("which,text", CANARIES, ids=[f"{which}-{index}" for index, (which, _) in enumerate(CANARIES)])
def test_canary(window, tmp_path, which, text):
    """Each broken page is refused by its check."""
    path = tmp_path / "canary.html"
    path.write_text(text, encoding="utf-8")
    expect(window.canary(path, which) is not None, f"{which} lets it pass")


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    """The pages of a paper's figure and of all figures, of made-up raw rows."""
    folder = tmp_path_factory.mktemp("paper")
    build(folder, "--paper")
    return folder


@pytest.mark.parametrize("scheme,width", VIEWS, ids=[f"{scheme}-{width}" for scheme, width in VIEWS])
@pytest.mark.parametrize("which", ["figure", "all"])
def test_paper(window, papers, pytestconfig, which, scheme, width):
    """A paper's figure, and the page of all of them: as sound as a report, in each view."""
    (folder,) = [path for path in papers.iterdir() if path.is_dir()]
    path = (folder if which == "figure" else papers) / "index.html"
    text = path.read_text(encoding="utf-8")
    beside = ("raw.json", "../index.html") if which == "figure" else (f"{folder.name}/index.html",)
    check_source(text, beside)
    page, console, events = window.look(path, scheme, width)
    if pytestconfig.option.pictures:
        picture = pathlib.Path(pytestconfig.option.pictures) / f"paper-{which}-{scheme}-{width}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(base64.b64decode(window.browser.picture()))
    check_quiet(console, events, path.as_uri())
    check_layout(page, width)
    expect(page["faintest"]["contrast"] >= TEXT_CONTRAST, f"text {page['faintest']['words']!r}: contrast {page['faintest']['contrast']:.2f}")
    if which == "figure":
        check_figures(page)
        check_contrast(page, scheme)
        for words in ("What agrees:", "What does not:", "MAGE-Lib (paper, §6.2)", "Hollow circles are digits of the paper's text"):
            expect(words in page["text"], f"the page does not say {words!r}")
    else:
        expect("mage-9-disk" in page["text"] and "was not measured" in page["text"], "the rows of the index")

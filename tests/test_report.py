"""The report: tables as text, and one page that stands alone and draws in a browser without a network."""

import io
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from outcome_cases import synthetic_store
from rich.console import Console

from loopformer.evaluation.report import FIGURES, Run, report_html, write_report
from loopformer.evaluation.summary import summarize
from loopformer.evaluation.tables import range_table

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


def make_run(name, **options):
    store = synthetic_store(**options)
    return Run(name, store, summarize(store))


@pytest.fixture(scope="module")
def runs():
    return [make_run("GRU <controller>"), make_run("timer & reader", seed=1, hazard=0.05, wrong_stop=0.3)]


class Outline(HTMLParser):
    """Collect what a test wants to know of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.links, self.lang = [], [], None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append(tag)
        self.lang = attributes.get("lang", self.lang)
        self.links += [attributes[name] for name in ("src", "href") if name in attributes]


def test_markdown(runs):
    lines = range_table(runs[0]).markdown().splitlines()
    assert lines[0].startswith("| N | queries | forced final % |")
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| all", "| 1-6", "| 7-12", "| 13-32"]
    assert len({line.count("|") for line in lines}) == 1
    strict = 100 * runs[0].summary["strict"]
    assert f"{strict:.2f} [" in lines[2].split(" | ")[-1]


def test_rich(runs):
    console = Console(file=io.StringIO(), width=200)
    console.print(range_table(runs[0]).rich("GRU"))
    assert "GRU" in console.file.getvalue()
    assert "13-32" in console.file.getvalue()


def test_page_stands_alone_and_has_an_outline(runs):
    page = report_html(runs)
    outline = Outline(page)
    assert outline.lang == "en"
    assert [link for link in outline.links if not link.startswith(("data:", "#"))] == []
    assert outline.tags.count("h1") == 1
    assert outline.tags.count("title") == 1
    assert outline.tags.count("table") > 3
    anchors = [link[1:] for link in outline.links if link.startswith("#")]
    assert anchors
    assert all(page.count(f'id="{anchor}"') == 1 for anchor in anchors)
    assert page.count("plotly-graph-div") >= len(FIGURES)
    assert page.count("Plotly.newPlot") >= len(FIGURES)
    assert "<controller>" not in page.split("</script>")[-2]  # names are escaped
    assert "GRU &lt;controller&gt;" in page
    assert len(page) < 8_000_000  # plotly.js once, not once per figure


def test_write_report_is_careful(tmp_path, runs):
    path = tmp_path / "report.html"
    write_report(path, runs[:1])
    with pytest.raises(FileExistsError, match="overwrite=True"):
        write_report(path, runs[:1])
    write_report(path, runs, overwrite=True)
    assert "timer &amp; reader" in path.read_text()
    with pytest.raises(ValueError, match="a name of its own"):
        write_report(path, [runs[0], runs[0]], overwrite=True)
    with pytest.raises(ValueError, match="at least one run"):
        write_report(path, [], overwrite=True)


@pytest.mark.parametrize(
    "options",
    [
        {"counts": [7]},  # no panel and a single requested count
        {"counts": [1], "loops": 1},
        {"hazard": 1.0, "wrong_stop": 1.0},
    ],
)
def test_poor_runs_still_make_a_page(options):
    assert report_html([make_run("poor", **options)]).count("Plotly.newPlot") >= len(FIGURES)


PROBE = """<script>
window.addEventListener("load", () => setTimeout(() => {
  const plots = [...document.querySelectorAll(".plotly-graph-div")];
  const drawn = plots.filter(p => p.querySelector(".scatterlayer .trace, .barlayer .trace, .hm"));
  const background = getComputedStyle(document.body).backgroundColor, colour = plots[0].layout.font.color;
  const remote = performance.getEntriesByType("resource").map(r => r.name).filter(n => !n.startsWith("data:"));
  const wide = document.documentElement.scrollWidth > window.innerWidth;
  const hovered = plots.filter(p => {
    const curve = p._fullData.findIndex(t => t.visible === true && t.hoverinfo !== "skip");
    const map = p._fullData[curve].type === "heatmap";
    Plotly.Fx.hover(p, map ? {xval: p.data[curve].x[0], yval: 0} : [{curveNumber: curve, pointNumber: 0}]);
    return p.querySelector(".hoverlayer .legend, .hoverlayer .hovertext");
  });
  document.title = `plots ${plots.length} drawn ${drawn.length} hovered ${hovered.length} ` +
    `page ${background} text ${colour} wide ${wide} ` +
    `remote ${remote.length}`;
}, 500));
</script></body>"""


def browse(page, folder, scheme, width):
    """Open a page in a real browser and return what the probe found out."""
    path = folder / "probed.html"
    head, _, tail = page.rpartition("</body>")
    path.write_text(head + PROBE + tail)
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--window-size={width},900",
        f"--user-data-dir={folder / 'profile'}", f"--blink-settings=preferredColorScheme={scheme}",
        "--proxy-server=127.0.0.1:9", "--virtual-time-budget=10000", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    return re.search(r"<title>(.*?)</title>", result.stdout)[1]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine")
@pytest.mark.parametrize(
    ("scheme", "width", "page", "text"), [(1, 1200, "255, 255, 255", "#1f2937"), (0, 500, "20, 23, 28", "#e5e7eb")]
)
def test_a_browser_draws_it_without_a_network(tmp_path, runs, scheme, width, page, text):
    html = report_html(runs)
    count = html.count('class="plotly-graph-div"')
    assert count >= len(FIGURES)
    title = browse(html, tmp_path, scheme, width)
    assert title == f"plots {count} drawn {count} hovered {count} page rgb({page}) text {text} wide false remote 0"

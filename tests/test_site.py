"The site: built once by each builder at hand, every page opened in a browser with no way out; and the builder's own checks."
import contextlib
import functools
import http.server
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlparse

import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup

root = Path(__file__).parent.parent
sys.path.insert(0, str(root / ".ci"))
import docs  # noqa: E402
import pages  # noqa: E402
import redirects  # noqa: E402

chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def hrefs(items):
    for i in items:
        yield from [i] if isinstance(i, str) else hrefs(i["contents"]) if "contents" in i else [i["href"]]


WEBSITE = yaml.safe_load((root / "_quarto.yml").read_text())["website"]
SIDEBAR = list(hrefs(WEBSITE["sidebar"]["contents"]))


def build(project: Path, out: Path, work: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, root / ".ci/docs.py", "--out", out, "--work", work]
    return subprocess.run(command, cwd=project, capture_output=True, text=True)


def make_quarto(project: Path, path: str) -> subprocess.CompletedProcess:
    "`make quarto` in a copy of the project, by this environment, with `path` as PATH"
    shutil.copytree(root, project, symlinks=True, ignore=shutil.ignore_patterns(".*cache", ".hypothesis", ".venv", "_*s", "_proc", "_site", "build", "*.egg-info"))
    (project / ".venv/bin").mkdir(parents=True)
    (project / ".venv/bin/nbdev_docs").symlink_to(Path(sys.executable).parent / "nbdev_docs")
    python = project / ".venv/bin/python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (root / "_runs/live").mkdir(parents=True, exist_ok=True)
    (project / "_runs").mkdir()
    (project / "_runs/live").symlink_to(root / "_runs/live")  # networks are trained once
    return subprocess.run(["make", "-o", "setup", "quarto", "VENV=.venv"], cwd=project, env=os.environ | {"PATH": path}, capture_output=True, text=True)


def skip(reason: str) -> None:
    print(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module", params=["sphinx", "quarto"])
def builder(request):
    if request.param == "quarto" and not shutil.which("quarto"):
        skip("no Quarto on this machine: the site was built and tested with Sphinx alone (https://quarto.org)")
    return request.param


@pytest.fixture(scope="module")
def site(builder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    if builder == "sphinx":
        done, html = build(root, folder / "html", folder / "work"), folder / "html"
    else:
        done, html = make_quarto(folder / "project", os.environ["PATH"]), folder / "project/_docs"
    assert done.returncode == 0, done.stdout + done.stderr
    return html


# ---- what is in the pages ----


def test_pages_are_whole(site):
    assert docs.check_site(site) == []


def test_language_models_find_every_page(site, builder):
    if builder == "quarto": return  # what nobody publishes needs no list
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith(f"# {WEBSITE['title']}\n\n> {WEBSITE['description']}\n")
    listed = re.findall(r"^- \[.+?\]\(https://u2c\.github\.io/u2c/(\S+?\.html)\): \S.{10,}$", text, re.M)
    assert sorted(listed) == sorted(f"{pages.page_of(notebook)}.html" for notebook in SIDEBAR)
    assert all((site / page).exists() for page in listed)


def soup(site: Path, notebook: str) -> BeautifulSoup:
    return docs.parsed(site / f"{pages.page_of(notebook)}.html")


def test_every_exported_name_has_its_place_and_its_source(site):
    index = importlib.import_module("u2c._modidx").d["syms"]
    for module, names in index.items():
        source = (root / f"{module.replace('.', '/')}.py").read_text().splitlines()
        for name, (place, _) in names.items():
            short = name.removeprefix(module + ".")
            if "." in short or short.startswith("_"):
                continue
            page, anchor = place.split("#")
            html = soup(site, page)
            assert html.find(id=anchor), f"{page} has no #{anchor}"
            heads = [h for h in html.find_all(["h2", "h3"]) if h.get_text().rstrip("#") == short and h.find("code")]
            assert len(heads) == 1, f"{page} describes {short} {len(heads)} times"
            link = heads[0].find_next("a", class_="source-link")["href"]
            assert re.fullmatch(rf"https://\S+/{module.replace('.', '/')}\.py#L\d+", link), link
            assert re.match(rf"(@|(async )?(def|class) {short}\b)", source[int(link.rpartition("#L")[2]) - 1]), link


def test_parameters_are_described(site):
    table = soup(site, "paper/05_unified.ipynb").find(id="u2c").find("table")
    rows = {row.find("td").get_text(): [c.get_text() for c in row.find_all("td")] for row in table.find_all("tr")[1:]}
    assert rows["alpha"] == ["alpha", "float", "0.95", "share of in-domain data below the threshold"]


def test_alternative_types_are_told_apart():
    rows = [("x", "Array | None", "None", "a | b"), ("y", "dict[str, int | None]", "", "")]
    assert pages.parameter_table(rows, str) == "\n".join([
        "|  | type | default |  |",
        "| --- | --- | --- | --- |",
        r"| `x` | `Array` or `None` | `None` | a \| b |",
        '| `y` | <code class="literal">dict[str, int &#124; None]</code> |  |  |',
    ])  # fmt: skip


def test_names_in_prose_link_to_their_page(site):
    page = soup(site, "index.ipynb")
    link = next(a for a in (page.find("article") or page.find("main")).find_all("a") if a.get_text() == "RejectOrClassify")
    assert link["href"].removeprefix("./") == "paper/reject.html#rejectorclassify"


def test_every_page_has_an_icon_and_leads_to_the_repository(site):
    for notebook in SIDEBAR:
        icons = [Path(link["href"]).name for link in soup(site, notebook).find_all("link", rel="icon")]
        assert icons == [Path(WEBSITE["favicon"]).name], notebook
        assert soup(site, notebook).find("a", href=WEBSITE["repo-url"]), notebook


def test_the_front_picture_is_described_without_a_caption(site):
    page = soup(site, "index.ipynb")
    picture = next(img for img in page.find_all("img") if "abstain" in img["src"])
    assert picture["alt"].startswith("Above, histograms of a score:")
    assert "digits that a network knows have low ones" not in docs.visible_text(page)


def test_figures_of_the_quickstart_are_described(site):
    page = soup(site, "tutorials/own_classifier.ipynb")
    figures = [img for img in (page.find("article") or page.find("main")).find_all("img")]
    assert len(figures) == 2
    for figure in figures:
        assert len(figure["alt"].split()) > 15, figure["alt"]


def test_old_addresses_lead_to_pages(site):
    for old, new in redirects.table(root / "nbs").items():
        assert (site / new).exists(), f"{old} leads to {new}, which is not there"
        html = docs.parsed(site / old)
        assert html.find("meta", {"http-equiv": "refresh"})["content"] == f"0; url={new}"
        assert html.find("a")["href"] == new


def test_a_page_is_not_led_away_from(tmp_path):
    (tmp_path / "redirects.yml").write_text("core.html: paper/00_core.ipynb\n")
    redirects.write(tmp_path, tmp_path)
    redirects.write(tmp_path, tmp_path)  # its own work is no page
    (tmp_path / "core.html").write_text("a page")
    with pytest.raises(SystemExit, match="core.html is a page of the site"):
        redirects.write(tmp_path, tmp_path)


# ---- in a browser ----


@pytest.fixture(scope="module")
def url(site):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def handle(self):  # a reader may go on before all has come
            with contextlib.suppress(ConnectionError):
                super().handle()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


# Every name and address but this machine's is unknown to the browser: nothing is asked of a network.
ALONE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


@pytest.fixture(scope="module")
def browser():
    if not chromium:
        skip("no Chromium on this machine: the site was not opened in a browser (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", ALONE])
        yield browser
        browser.close()


WIDE = {"width": 1400, "height": 900}


def new_context(browser):
    return browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")


@pytest.fixture()
def tab(browser):
    "A tab of a new reader"
    context = new_context(browser)
    yield watched(context.new_page())
    context.close()


@pytest.fixture(scope="module")
def reader(browser):
    context = new_context(browser)
    yield watched(context.new_page())
    context.close()


@pytest.fixture()
def leaf(reader):
    "The tab of one reader who goes from page to page, and so has what all of them share: to open one takes longer than a page"
    reader.set_viewport_size(WIDE)
    reader.faults.clear()
    return reader


def watched(page):
    "What goes wrong is collected in `page.faults`: also what the page asks of another host, which is not found"
    page.faults = []
    page.on("console", lambda m: page.faults.append(f"console: {m.text}") if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: page.faults.append(f"script: {e}"))
    # what a page still loads when the next one is opened is given up, and no fault
    given_up = lambda r: r.failure == "net::ERR_ABORTED"
    page.on("requestfailed", lambda r: None if given_up(r) else page.faults.append(f"failed: {r.url}, {r.failure}"))
    page.on("response", lambda r: page.faults.append(f"{r.status}: {r.url}") if r.status >= 400 else None)
    return page


@pytest.mark.parametrize("asked", ["https://elsewhere.invalid/x.png", "http://elsewhere.invalid:8000/x.png"])
def test_a_page_that_asks_another_host_is_noticed(tab, asked):
    tab.set_content(f"<img src='{asked}'>")
    tab.wait_for_load_state("load")
    assert tab.faults[0] == f"failed: {asked}, net::ERR_NAME_NOT_RESOLVED"


VISIBLE = """() => { const a = (document.querySelector('article') || document.querySelector('main')).cloneNode(true);
  a.querySelectorAll('pre, code, script, style, math, mjx-container').forEach(n => n.remove()); return a.textContent }"""
UNSEEN = """() => [...document.querySelectorAll('img')].filter(i => { i.loading = 'eager'; return !(i.complete && i.naturalWidth > 0 && i.naturalHeight > 0) }).map(i => i.src)"""
WIDER = """() => { const w = document.documentElement; return w.scrollWidth > w.clientWidth ? [...document.querySelectorAll('article *, main *')]
  .filter(n => n.getBoundingClientRect().right > w.clientWidth + 1).slice(0, 5).map(n => n.outerHTML.slice(0, 150)) : null }"""
# folded code as well
SCROLLED = """() => { document.querySelectorAll('details').forEach(d => d.open = true);
  const scrolls = n => n.scrollWidth > n.clientWidth + 1;
  const code = [...document.querySelectorAll('div.highlight pre, pre.sourceCode')].filter(p => !p.closest('.cell_output, .cell-output'));
  return code.filter(p => scrolls(p) || scrolls(p.parentElement)).map(p => p.textContent.trim().split('\\n')[0]) }"""


def playwright_timeout() -> type[Exception]:
    from playwright.sync_api import TimeoutError

    return TimeoutError


def has_math(notebook: str) -> bool:
    cells = json.loads((root / "nbs" / notebook).read_text())["cells"]
    text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return bool(pages.MATH.search(pages.CODE.sub("", text)))


FORMULAS = {"sphinx": "article .math", "quarto": "main math"}
SIDE = {"sphinx": ".bd-sidebar-primary", "quarto": "#quarto-sidebar"}
CURRENT = {"sphinx": ".bd-sidebar-primary a.current", "quarto": "#quarto-sidebar a.sidebar-link.active"}


@pytest.mark.parametrize("notebook", SIDEBAR)
def test_page_in_browser(leaf, url, builder, notebook):
    assert leaf.goto(f"{url}/{pages.page_of(notebook)}.html").ok
    if has_math(notebook):
        assert leaf.locator(FORMULAS[builder]).count() > 0
    if builder == "sphinx":  # MathJax draws; Quarto's formulas are MathML
        leaf.wait_for_function("() => [...document.querySelectorAll('article .math')].every(m => m.querySelector('mjx-container svg'))")
    assert leaf.locator("merror, mjx-merror, [data-mjx-error]").count() == 0
    raw = re.search(r".{0,40}(\$|\\\(|\\\[|\\frac|\\tau).{0,40}", leaf.evaluate(VISIBLE))
    assert not raw, f"a formula that is not rendered: {raw[0]}"
    if notebook.startswith("live/"):  # whose scripts fetch; other pages have all they need once they are loaded
        leaf.wait_for_load_state("networkidle")
    with contextlib.suppress(playwright_timeout()):  # what a script brings comes late
        leaf.wait_for_function(f"() => ({UNSEEN})().length == 0", timeout=10_000)
    assert leaf.evaluate(UNSEEN) == []
    assert leaf.locator(CURRENT[builder]).count() > 0, "the page is not in the sidebar"
    leaf.set_viewport_size({"width": 390, "height": 844})
    assert leaf.evaluate(WIDER) is None
    assert leaf.faults == []
    leaf.set_viewport_size(WIDE)
    scrolled = leaf.evaluate(SCROLLED)
    assert not scrolled, f"{notebook}: code scrolls sideways, in the block that begins with {scrolled[0]!r}"


GROUPS = {"sphinx": ".bd-sidebar-primary .toctree-l0 > details > summary", "quarto": "#quarto-sidebar .sidebar-item-section > .sidebar-item-container"}


@pytest.mark.parametrize("notebook", ["index.ipynb", "explanations/results.ipynb"])  # short, and with the longest group
def test_all_groups_of_the_sidebar_are_seen_at_once(leaf, url, builder, notebook):
    leaf.goto(f"{url}/{pages.page_of(notebook)}.html")
    groups = [(g.inner_text().strip(), g.bounding_box()) for g in leaf.locator(GROUPS[builder]).all()]
    assert [name for name, _ in groups] == [item["section"] for item in WEBSITE["sidebar"]["contents"]]
    assert all(box["y"] >= 0 and box["y"] + box["height"] <= WIDE["height"] for _, box in groups)
    own = {item["section"]: list(hrefs(item["contents"])) for item in WEBSITE["sidebar"]["contents"]}
    links = leaf.locator(f"{SIDE[builder]} a").evaluate_all("all => all.filter(a => a.checkVisibility()).map(a => a.href.split('#')[0])")
    seen = [name for name, inside in own.items() if f"{url}/{pages.page_of(inside[-1])}.html" in links]
    assert seen == [name for name, inside in own.items() if name == docs.OPEN or notebook in inside]
    assert len(own[docs.OPEN]) == 11


@pytest.mark.parametrize("script", [True, False])
def test_an_old_address(browser, url, script):
    context = browser.new_context(java_script_enabled=script)
    page = context.new_page()
    page.goto(f"{url}/core.html#outputs")
    page.wait_for_url(f"{url}/paper/core.html" + "#outputs" * script)
    context.close()


def test_a_click_on_a_title_sorts(tab, url):
    assert tab.goto(f"{url}/{pages.page_of('explanations/scores.ipynb')}.html").ok
    tab.locator("details:has(#scores-small) > summary").click()
    ways = [("ascending", False), ("descending", True)]
    for column, order in ((1, ways[::-1]), (12, ways)):  # the best first: a high AUROC, a low time
        title = tab.locator(f"#scores-small th >> nth={column}")
        for direction, down in order:
            title.click()
            texts = tab.locator(f"#scores-small tbody td:nth-child({column + 1})").all_inner_texts()
            numbers = [float(text.split()[0]) for text in texts]
            assert len(set(numbers)) > 10 and numbers == sorted(numbers, reverse=down)
            assert title.get_attribute("aria-sort") == direction
    assert tab.faults == []


def test_search_finds(tab, url, builder):
    tab.goto(f"{url}/index.html")
    if builder == "sphinx":
        tab.keyboard.press("Control+k")
        tab.keyboard.type("temperature")
        tab.keyboard.press("Enter")
        results = tab.locator("#search-results li a")
    else:
        tab.locator("#quarto-search .aa-Input").press_sequentially("temperature")
        results = tab.locator("#quarto-search-results a.search-result-link")
    results.first.wait_for()
    found = [urlparse(a.get_attribute("href")).path for a in results.all()]
    assert [path for path in found if path.endswith("temperature.html")], found
    excerpts = tab.locator("#search-results .context, #quarto-search-results .search-result-text").all()
    assert not [e for e in excerpts if e.is_visible()], "excerpts show formulas as they are written"
    assert tab.faults == []


def test_dark_switch(tab, url, builder):
    tab.goto(f"{url}/{pages.page_of('paper/01_metrics.ipynb')}.html")
    colour = "() => getComputedStyle(document.body).backgroundColor"
    light = tab.evaluate(colour)
    if builder == "sphinx":
        tab.locator(".theme-switch-button:visible").first.click()
        tab.locator(".dropdown-menu:visible").get_by_text("Dark").click()
    else:
        tab.locator(".quarto-color-scheme-toggle:visible").first.click()
    tab.wait_for_function(f"light => ({colour})() !== light", arg=light)
    dark = tab.evaluate(colour)
    assert light == "rgb(255, 255, 255)"
    assert sum(map(int, re.findall(r"\d+", dark)[:3])) < 150, dark
    assert tab.faults == []


# ---- the builder's checks ----

SETTINGS = """[DEFAULT]
repo = tiny
lib_name = tiny
version = 0.1
min_python = 3.11
license = apache2
lib_path = tiny
nbs_path = nbs
doc_path = _docs
recursive = True
user = nobody
branch = main
custom_sidebar = True
doc_host = https://nobody.invalid
doc_baseurl = /tiny
git_url = https://github.com/nobody/tiny
title = tiny
author = nobody
copyright = nobody
description = a tiny project
skip_procs = add_show_docs,exec_show_docs,rm_export
procs = pages:exported
"""
BIB = "@article{guo2017, title={On {Calibration}}, author={Guo, Chuan}, journal={ICML}, year={2017}}\n"


def project(folder: Path, **notebooks: list) -> Path:
    "A project of notebooks, given as lists of cells: text is markdown, (source, output) is code."
    (folder / "nbs").mkdir(parents=True)
    (folder / "settings.ini").write_text(SETTINGS)
    (folder / "nbs/references.bib").write_text(BIB)
    contents = [f"{name}.ipynb" for name in notebooks]
    site = {"website": {"title": "tiny", "sidebar": {"contents": contents}}, "bibliography": "references.bib"}
    (folder / "nbs/_quarto.yml").write_text(yaml.safe_dump(site))
    for name, cells in notebooks.items():
        nb = nbformat.v4.new_notebook()
        for cell in cells:
            if isinstance(cell, str):
                nb.cells.append(nbformat.v4.new_markdown_cell(cell))
            else:
                nb.cells.append(nbformat.v4.new_code_cell(cell[0], outputs=[nbformat.v4.new_output("stream", text=cell[1])]))
        nbformat.write(nb, folder / f"nbs/{name}.ipynb")
    return folder


def test_small_site_is_built_without_running_a_cell(tmp_path):
    tiny = project(
        tmp_path / "tiny",
        index=["# Tiny\n\n> A site.", "See [the other](01_other.ipynb#a-place), @eq-one, [@guo2017, Section 2] and @guo2017.", "$$x = 1$$ {#eq-one}", ("raise SystemExit", "saved output\n")],
        **{"01_other": ["# Other\n\n> A page.", "## A place", "::: {.callout-note}\n\n## Mind\n\nthe gap\n\n:::", "$$y = 2$$ {#eq-one}", "As @guo2017 says, and [there](index.ipynb#eq-one)."]},
    )
    done = build(tiny, tmp_path / "out", tmp_path / "work")
    assert done.returncode == 0, done.stdout + done.stderr
    index, other = ((tmp_path / f"out/{n}.html").read_text() for n in ("index", "other"))
    assert "saved output" in index and 'href="other.html#a-place"' in index
    assert "Equation 1" in index and 'href="index.html#equation-index-eq-one"' in other
    assert "On Calibration" in index and "On Calibration" in other
    assert "Mind" in BeautifulSoup(other, "html.parser").select_one(".admonition.note .admonition-title").get_text()


def test_faults_stop_the_build_and_are_named(tmp_path):
    tiny = project(
        tmp_path / "tiny",
        index=["# Tiny\n\n> A site.", "[a](nowhere.ipynb) and [b](01_other.ipynb#no-such-place)", "![](no_picture.png)", "See @guo1999 and ?@tbl-x and @fig-none."],
        **{"01_other": ["# Other\n\n> A page.", r"An angle $\\theta$.", "text\n- a list without a blank line", r"A formula \(x\)", '<img src="https://elsewhere.invalid/x.png">', "::: {.panel-tabset}\n\nx\n\n:::"]},
    )
    (tmp_path / "out").mkdir()
    (tmp_path / "out/old.html").write_text("the site before")
    done = build(tiny, tmp_path / "out", tmp_path / "work")
    assert done.returncode == 1
    for page, text in [
        ("index", "nowhere.ipynb: no such notebook"), ("index", "no-such-place"), ("index", "no_picture.png"), ("index", "tbl-x"), ("index", "fig-none"),
        ("01_other.ipynb, cell 1", "theta"), ("01_other.ipynb, cell 2", "- a list without a blank line"), ("01_other", r"\\("), ("other", "https://elsewhere.invalid/x.png"), ("01_other", ".panel-tabset"),
    ]:  # fmt: skip
        assert [line for line in done.stderr.splitlines() if line.startswith(page) and text in line], f"{page}: {text} is not named in\n{done.stderr}"
    assert [f.name for f in (tmp_path / "out").iterdir()] == ["old.html"], "a site with faults was published"


@pytest.mark.parametrize("text, reason", [
    (r"see \(x\)", "mathematics"),
    ("a $ x $ b", "space just inside"),
    ("{{< video x >}}", "shortcode"),
    ("::: {.columns}\nx\n:::", "no callout"),
    ("```{mermaid}\nx\n```", "executable or directive fence"),
    ("```{note}\nx\n```", "executable or directive fence"),
    ("{cite:p}`x`", "MyST role"),
    ("(here)=\n# x", "MyST target"),
    ("<div>*x*</div>", "raw HTML"),
    ("text\n- item", "blank line"),
    ("text\n## head", "blank line"),
    ("text\n| a |\n| --- |", "blank line"),
    (r"at $\\theta$", "doubled backslash"),
    (r"$$x \\tau$$", "doubled backslash"),
    (r"$a \\ b$", "doubled backslash"),
    (r"$$\begin{cases} \\tau & x \\ 0 & y\end{cases}$$", "doubled backslash"),
    ("![a](b.png){#fig-a}", "a label of a figure"),
])  # fmt: skip
def test_source_that_one_builder_would_not_render(text, reason):
    assert [f for f in pages.source_faults(text) if reason in f]


@pytest.mark.parametrize("text", [
    "a $x$ and $y$, 5 and 6", "`$ x $` and `\\(`", "$$\nx\n$$ {#eq-a}", "```python\n# {{< x >}}\na = 1\n- 2\n```", "- a\n- b\n  - c", "1. a\n2. b",
    "::: {.callout-tip}\n\nx\n\n:::", "| a | b |\n| --- | --- |\n| 1 | 2 |", "$\\big[x\\big]$ and $a$ of $b$", r"$\theta$ and `$\\theta$`", r"$$\begin{cases} z & x \\ \tau & y\end{cases}$$", "a[^1]\n\n[^1]: note",
])  # fmt: skip
def test_source_that_both_render(text):
    assert pages.source_faults(text) == []


def test_code_that_does_not_fit_a_page_is_named(tmp_path):
    wide = "x = " + "1 + " * 23 + "1"
    fence = f"Prose is as wide as it likes: {wide}\n\n```python\n{wide}\nc = 1; d = 2\n```\n\n```bash\ncd a; ls\n```"
    directive = f"#| fig-alt: {'much to say; ' * 20}\n#| export\n"
    fine = f"{directive}{wide[2:]}\ny = ';'  # a; b"
    several, option = "a = 1\nb = 2; c = ';'; d = 3\nf(", "#| include: false\nx"  # code that ends anywhere
    shell = "%%bash\ncd a; ls", "!cd a; ls\nplt.show();  # a; b"
    tiny = project(tmp_path, index=["# Tiny", (wide, ""), (several, ""), fence, (fine, ""), (option, ""), *((s, "") for s in shell)])
    assert pages.check_sources(tiny / "nbs", ["index.ipynb"]) == [
        f"index.ipynb, cell 1: {wide[:60]!r}: 97 columns, where 95 fit",
        """index.ipynb, cell 2: "b = 2; c = ';'; d = 3": several statements in a line""",
        f"index.ipynb, cell 3: {wide[:60]!r}: 97 columns, where 95 fit",
        "index.ipynb, cell 3: 'c = 1; d = 2': several statements in a line",
        "index.ipynb, cell 5: 'include': an option that only Quarto knows",
    ]


@pytest.mark.parametrize("text, expected", [
    ("$$x$$ {#eq-a}", "$$x$$ (a-b-eq-a)"),
    ("by @eq-a", "by {eq}`a-b-eq-a`"),
    ("`@eq-a` and $@eq-a$", "`@eq-a` and $@eq-a$"),
    ("@key says", "{cite:t}`a-b-key` says"),
    ("[see @key, p. 3; @other]", "{cite:p}`{see}a-b-key{p. 3},a-b-other`"),
    ("me@key.org and @nobody", "me@key.org and @nobody"),
    ("[x](../00_core.ipynb#y)", "[x](../core.ipynb#y)"),
    ("[x](03a_c.ipynb)", "[x](../a/c.ipynb)"),
    ("[x](../01_m.ipynb#eq-err)", "[x](../m.ipynb#equation-m-eq-err)"),
    ("[x](https://x.org/a.ipynb)", "[x](https://x.org/a.ipynb)"),
    ("`[x](../00_core.ipynb)` and `$x$ {#eq-a}`", "`[x](../00_core.ipynb)` and `$x$ {#eq-a}`"),
    ("```markdown\n::: {.callout-note}\nx\n:::\n```", "```markdown\n::: {.callout-note}\nx\n:::\n```"),
    ("::: {.callout-warning}\n\n## T\n\nx\n\n:::", ":::{admonition} T\n:class: warning\nx\n:::"),
])  # fmt: skip
def test_translation(text, expected):
    page = pages.Page("a/02_b.ipynb", frozenset({"key", "other"}))
    assert page.to_myst(text) == expected


@pytest.mark.parametrize("text, expected", [
    ("[`fit`](https://site.invalid/u2c/core.html#thing)", "[`fit`](../00_core.ipynb#thing)"),
    ("[`fit`](https://site.invalid/u2c/core.html#thing.fit)", "[`fit`](../00_core.ipynb#thing.fit)"),
    ("[`fit`](https://site.invalid/u2c/core.html#thing.gone)", "[`fit`](../00_core.ipynb#thing)"),
    ("[`fit`](https://site.invalid/u2c/core.html#_private)", "[`fit`](../00_core.ipynb)"),
    ("[`fit`](https://site.invalid/u2c/a/c.html)", "[`fit`](03_c.ipynb)"),
    ("[`fit`](https://site.invalid/u2c/gone.html#x)", "`fit`"),
    ("[there](https://site.invalid/u2c/gone.html#x)", "[there](https://site.invalid/u2c/gone.html#x)"),
    ("[`fit`](https://elsewhere.invalid/core.html#thing)", "[`fit`](https://elsewhere.invalid/core.html#thing)"),
    ("```\n[fit](https://site.invalid/u2c/core.html#thing)\n```", "```\n[fit](https://site.invalid/u2c/core.html#thing)\n```"),
])  # fmt: skip
def test_links_to_names_stay_in_the_site(text, expected):
    known = {"core": ("00_core.ipynb", {"thing", "thing.fit"}), "a/c": ("a/03_c.ipynb", set())}
    assert pages.local_links(text, "a/02_b.ipynb", "https://site.invalid/u2c", known) == expected


@pytest.mark.parametrize("text, expected", [
    ("[[`U2C`](https://x.org/u.html#u2c)](05_unified.ipynb)", "[`U2C`](05_unified.ipynb)"),
    ("[the [`U2C`](a) and [`RC`](b) classes](c.ipynb)", "[the `U2C` and `RC` classes](c.ipynb)"),
    ("[`U2C`](a), [`RC`](b)", "[`U2C`](a), [`RC`](b)"),
])  # fmt: skip
def test_links_in_links(text, expected):
    assert pages.unnest(text) == expected


@pytest.mark.parametrize("notebook, page", [("00_core.ipynb", "core"), ("03a_distances.ipynb", "distances"), ("explanations/results.ipynb", "explanations/results")])
def test_page_names_are_nbdevs(notebook, page):
    from nbdev.doclinks import _nbpath2html

    assert pages.page_of(notebook) == page == str(_nbpath2html(Path(notebook)).with_suffix(""))


@pytest.mark.parametrize("title, expected", [("1. Outputs of a classifier", "outputs-of-a-classifier"), ("Outputs.to", "outputs.to"), ("What's new?", "whats-new"), ("check_probs", "check_probs")])
def test_anchors_are_pandocs(title, expected):
    assert pages.slug(title) == expected


@pytest.mark.parametrize("html, leak", [
    ("<p>::: {.callout-note}</p>", ":::"), ("<p>see @fig-x</p>", "@fig-x"), ("<p>{eq}`x`</p>", "{eq}"), ("<p>cost $x$ now</p>", "$x$"), ("<p>**bold**</p>", "**bold**"),
    ("<p>[a](b.html)</p>", "](b.html)"), ("<p>x {#eq-a}</p>", "{#eq-a}"), ("<p>[@key]</p>", "[@key]"), ("<p>## Head</p>", "## Head"), ("<p>| --- | --- |</p>", "---"),
])  # fmt: skip
def test_leaks_are_found(html, leak):
    found = docs.page_leaks(BeautifulSoup(f"<article>{html}</article>", "html.parser"))
    assert len(found) >= 1 and leak in found[0]


def test_code_and_formulas_are_no_leaks():
    html = '<article><pre>## x **y**</pre><code>@fig-x</code><span class="math">\\(\\frac12\\)</span><p>5 % of a | b, c_d</p></article>'
    assert docs.page_leaks(BeautifulSoup(html, "html.parser")) == []


def test_built_pages_are_checked(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html">x</a><a href="c.html#here">x</a><img src="no.png"><script src="https://cdn.invalid/x.js"></script><a href="https://fine.invalid">x</a>')
    (tmp_path / "c.html").write_text('<p id="there">x</p><a href="a.html">fine</a><a href="#there">fine</a>')
    (tmp_path / "s.css").write_text("@import 'https://fonts.invalid/x.css';")
    assert docs.check_site(tmp_path) == [
        "a.html: broken link b.html",
        "a.html: broken link c.html#here: no such place on that page",
        "a.html: missing image no.png",
        "a.html: loads https://cdn.invalid/x.js from another host",
        "s.css: fetches https://fonts.invalid/x.css from another host",
    ]


# ---- with Quarto, up to its door ----


@pytest.mark.parametrize("text, expected", [
    ("<b>x</b>\n", "```{=html}\n<b>x</b>\n```"),
    ("<pre>```</pre>", "````{=html}\n<pre>```</pre>\n````"),
    ("a\n\nb `c`", "```{=html}\na\n\nb `c`\n```"),
])  # fmt: skip
def test_html_as_markdown(text, expected):
    assert pages.raw_html(text) == expected


@pytest.mark.parametrize("text, expected", [
    ("![A dot.](images/a.png)", "![A dot.](images/a.png)<!-- -->"),
    ("x\n\n![A [dot].](a.png) \n\ny", "x\n\n![A [dot].](a.png)<!-- -->\n\ny"),
    ("see ![A dot.](a.png) here", "see ![A dot.](a.png) here"),
    ("![A dot.](a.png){#fig-a}", "![A dot.](a.png){#fig-a}"),
    ("```\n![A dot.](a.png)\n```", "```\n![A dot.](a.png)\n```"),
])  # fmt: skip
def test_pictures_without_captions(text, expected):
    assert pages.plain_pictures(text) == expected


def test_a_notebook_for_quarto():
    picture = "![A dot.](a.png)"
    outputs = [
        nbformat.v4.new_output("stream", text="<b>printed</b>"),
        nbformat.v4.new_output("display_data", {"text/plain": "p", "text/html": "<b>h</b>"}),
        nbformat.v4.new_output("execute_result", {"text/plain": "p", "text/markdown": "*m*"}),
        nbformat.v4.new_output("display_data", {"text/plain": "p", "image/png": "AAAA"}),
    ]
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(picture), nbformat.v4.new_code_cell("show()", outputs=outputs)])
    pages.for_quarto(nb)
    text, code = nb.cells
    assert (text.source, code.source) == (f"{picture}<!-- -->", "show()")
    assert code.outputs[0].text == "<b>printed</b>"
    assert [o.data for o in code.outputs[1:]] == [
        {"text/plain": "p", "text/markdown": ["```{=html}\n<b>h</b>\n```"]},
        {"text/plain": "p", "text/markdown": "*m*"},
        {"text/plain": "p", "image/png": "AAAA"},
    ]


def kinds(notebook: dict) -> list[set[str]]:
    "The kinds of every output that is displayed"
    return [set(o["data"]) for c in notebook["cells"] for o in c.get("outputs", []) if "data" in o]


def test_html_stays_html_for_sphinx(monkeypatch):
    monkeypatch.chdir(root)
    saved = json.loads((root / "nbs/paper/06_regions.ipynb").read_text())
    assert {"text/html", "text/plain"} in kinds(saved)
    assert kinds(docs.process(root / "nbs/paper/06_regions.ipynb")) == kinds(saved)


def test_where_quarto_is_installed_nbdev_hands_it_every_page(tmp_path):
    "A stand-in of that name writes down how it is called; what the true one makes of the pages is tested above, where it is at hand"
    project, calls = tmp_path / "project", tmp_path / "calls"
    (tmp_path / "bin").mkdir()
    quarto = tmp_path / "bin/quarto"
    quarto.write_text(f'#!/bin/sh\necho "$PWD $*" >> {calls}\nmkdir -p _docs && echo page > _docs/index.html\n')
    quarto.chmod(0o755)
    done = make_quarto(project, f"{quarto.parent}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert calls.read_text().startswith(f"{project}/_proc render") and (project / "_docs/index.html").read_text() == "page\n"
    assert "paper/core.html" in (project / "_docs/core.html").read_text(), "an old address leads nowhere"
    assert not [page for page in SIDEBAR if not (project / "_proc" / page).exists()]
    assert yaml.safe_load((project / "_proc/_quarto.yml").read_text()) == yaml.safe_load((root / "_quarto.yml").read_text())
    assert (project / "_proc" / WEBSITE["favicon"]).exists()
    for f in ("README.md", "CONTRIBUTING.md", "_quarto.yml"):
        assert (project / f).read_bytes() == (root / f).read_bytes()
    handed = {page: nbformat.read(project / "_proc" / page, as_version=4) for page in SIDEBAR}
    text = {page: "\n\n".join(c.source for c in nb.cells if c.cell_type == "markdown") for page, nb in handed.items()}
    assert re.search(r"^### `RejectOrClassify`\n\n\[source\]", text["paper/04_reject.ipynb"], re.M), "nbdev did not use our processor"
    assert not [page for page, nb in handed.items() if any("text/html" in kind for kind in kinds(nb))], "Quarto would load libraries from another host"
    tables = [o["data"]["text/markdown"] for c in handed["paper/06_regions.ipynb"].cells for o in c.get("outputs", []) if "text/markdown" in o.get("data", {})]
    assert len(tables) == 3 and all(t.startswith("```{=html}\n<div>") and t.endswith("\n```") and "</table>" in t for t in tables)
    assert re.search(r"^!\[Above, .*\]\(images/abstain.png\)<!-- -->$", text["index.ipynb"], re.M), "the alternative text would be a caption"
    published = "https://u2c.github.io/u2c/"
    assert not [page for page in SIDEBAR if published in (project / "_proc" / page).read_text()], "links that leave a local build"
    assert "[`RejectOrClassify`](paper/04_reject.ipynb#rejectorclassify)" in text["index.ipynb"]

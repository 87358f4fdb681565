"""Build the site into _docs/ from the notebooks and _quarto.yml with Sphinx: what is tested and what is published.

It stops, and names file and text, at code that does not fit a page, at markup that one builder would not render or
that leaks, at broken links, missing images, anything fetched from another host, and every warning of Sphinx. The site
that is built is moved to its place only when nothing was found."""
import contextlib
import functools
import importlib.util
import io
import os
import posixpath
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlparse

import nbformat
import yaml
from bs4 import BeautifulSoup, NavigableString, Tag
from fastcore.basics import listify
from fastcore.script import call_parse
from nbdev.config import get_config
from nbdev.process import NBProcessor
from nbdev.processors import FilterDefaults

sys.path.insert(0, str(Path(__file__).parent))
import live  # noqa: E402
import redirects  # noqa: E402
from pages import Page, check_sources, described, exported, notebooks, page_of, to_sphinx  # noqa: E402

OPEN = "The paper"  # the group of the sidebar that is not folded; styles.css opens it for Quarto
MYST = "amsmath attrs_inline colon_fence deflist dollarmath smartquotes strikethrough tasklist"  # extensions of it

# ---- what takes how long, and why ----


def told(seconds: float, what: str, why: str) -> None:
    print(f"{seconds:5.1f} s  {what}: {why}", flush=True)


@contextlib.contextmanager
def step(what: str) -> Iterator[list[str]]:
    "Say what a step took, and why, which the step itself finds out."
    began, why = time.perf_counter(), []
    yield why
    told(time.perf_counter() - began, what, ", ".join(why))


# ---- from notebooks to Sphinx's source ----


def process(path: Path) -> dict:
    "A notebook as nbdev prepares it for a site, without what Quarto alone needs; no cell is run."
    procs = [described if proc is exported else proc for proc in FilterDefaults().procs()]
    processor = NBProcessor(path, procs)
    processor.process()
    return processor.nb


def toctrees(items: list, caption: str = "") -> list[str]:
    "Quarto's sidebar: a table of contents for each section; a section in a section follows it."
    lines, inner = [], []
    for item in (i if isinstance(i, dict) else {"href": i} for i in items):
        if "section" in item:
            inner += toctrees(item["contents"], item["section"])
        else:
            page = "self" if item["href"] == "index.ipynb" else page_of(item["href"])
            lines.append(f"{item['text']} <{page}>" if "text" in item else page)
    head = "```{toctree}\n:hidden:\n" + (f":caption: {caption}\n" if caption else "")
    return [head + "\n" + "\n".join(lines) + "\n```"] * bool(lines) + inner


def write_source(nbs: Path, names: list[str], quarto: dict, src: Path) -> int:
    "Sphinx's source folder: a translated notebook to a page, other files as they are. How many cells there are."
    cells = 0
    shutil.copytree(nbs, src, ignore=shutil.ignore_patterns("_*", ".*", "*.ipynb", "*.css", "*.scss"))
    references = "".join((nbs / f).read_text(encoding="utf-8") for f in listify(quarto.get("bibliography")))
    keys = frozenset(re.findall(r"^\s*@\w+\{\s*([^,\s]+),", references, re.M))
    for name in names:
        page = Page(name, keys)
        out = to_sphinx(process(nbs / name), page)
        cells += len(out.cells)
        if page.name == "index":
            trees = toctrees(quarto["website"]["sidebar"]["contents"])
            out.cells.append(nbformat.v4.new_markdown_cell("\n\n".join(trees)))
        nbformat.write(out, src / f"{page.name}.ipynb")
    return cells


def settings(quarto: dict, nbs: Path) -> dict:
    "Sphinx's configuration."
    cfg, website = get_config(), quarto["website"]
    mathjax = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent / "static/mathjax/tex-svg.js"
    styles = listify(quarto.get("format", {}).get("html", {}).get("css"))
    options = {
        "repository_url": cfg.git_url, "use_repository_button": True, "use_download_button": False, "show_toc_level": 2,
        "show_navbar_depth": 0,  # groups of pages are folded
        # the theme below this one has a bar of its own, with a second search field
        "navbar_persistent": [], "navbar_start": [], "navbar_center": [], "navbar_end": [],
    }  # fmt: skip
    return {
        "project": website["title"], "html_title": website["title"], "author": cfg.author, "copyright": cfg.copyright,
        "extensions": ["myst_nb", "sphinx_copybutton", "sphinx_design", "sphinxcontrib.bibtex"],
        "bibtex_bibfiles": listify(quarto.get("bibliography")), "bibtex_reference_style": "author_year",
        "nb_execution_mode": "off", "nb_render_markdown_format": "myst", "nb_merge_streams": True,
        "myst_enable_extensions": MYST.split(),
        "myst_heading_anchors": 4, "myst_heading_slug_func": "pages.slug", "myst_dmath_double_inline": True,
        "math_numfig": False, "math_eqref_format": "Equation {number}",
        "mathjax_path": mathjax.name,  # all of MathJax in one file, which fetches no fonts
        "mathjax3_config": {"svg": {"fontCache": "none"}, "options": {"enableMenu": False}, "chtml": {}},
        "html_theme": "sphinx_book_theme", "html_theme_options": options, "html_context": {"default_mode": "auto"},
        "html_static_path": [str(mathjax), *(str(nbs / css) for css in styles)], "html_css_files": styles,
        "html_favicon": str(nbs / website["favicon"]) if "favicon" in website else None,
        "html_show_sourcelink": False, "html_copy_source": False,
        "html_show_search_summary": False,  # excerpts would show formulas as they are written
        # check_site follows the links; labels in brackets are a page's own, so that two pages may share one
        "suppress_warnings": ["myst.header", "myst.strikethrough", "myst.xref_missing", "bibtex.duplicate_label"],
    }  # fmt: skip


def open_group(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    "For Sphinx's event html-page-context: the theme folds all groups of the sidebar but the reader's; one more is open."
    made = context["generate_toctree_html"]

    def with_one_open(**options):
        sidebar = made(**options)
        caption = sidebar.find("p", class_="caption", string=OPEN)
        if caption:
            caption.find_parent("details")["open"] = "open"
        return sidebar

    context["generate_toctree_html"] = with_one_open


def run_sphinx(src: Path, out: Path, config: dict) -> list[str]:
    "Build, and return the warnings, with notebooks and cells in place of Sphinx's files and lines."
    import pybtex.plugin
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    # it looks through all installed packages for every reference on every page
    pybtex.plugin.entry_points = functools.cache(pybtex.plugin.entry_points)
    warnings, cores, times = io.StringIO(), len(os.sched_getaffinity(0)), [time.perf_counter()]
    with patch_docutils(), docutils_namespace():
        doctrees = src.parent / "doctrees"
        options = {"status": None, "warning": warnings, "freshenv": True, "parallel": cores}
        app = Sphinx(src, None, out, doctrees, "html", config, **options)
        app.connect("env-updated", lambda app, env: times.append(time.perf_counter()), priority=999)
        app.connect("html-page-context", open_group, priority=900)  # after the theme, which makes the sidebar
        app.build(force_all=True)
        times.append(time.perf_counter())
    pages = len(app.env.found_docs)
    told(times[1] - times[0], "Sphinx reads", f"prose, outputs and references of {pages} pages, {cores} at a time")
    told(times[2] - times[1], "Sphinx writes", "each page with the whole sidebar and coloured code, and the index of the search")
    text = re.sub(r"\x1b\[[\d;]*m", "", warnings.getvalue()).replace(f"{src}/", "")
    place = re.compile(r"^([\w/.-]+\.ipynb):(\d+):", re.M)  # myst-nb counts lines from 10,000 times the cell
    text = place.sub(lambda m: f"{m[1]}, cell {int(m[2]) // 10000}:", text)
    return [line for line in text.splitlines() if line.strip()]


# ---- for language models that read ----


def listed(items: list, nbs: Path, site: str, section: str = "Pages") -> list[str]:
    "Quarto's sidebar as sections of links, each page with its subtitle"
    lines, inner = [], []
    for item in (i if isinstance(i, dict) else {"href": i} for i in items):
        if "section" in item:
            inner += listed(item["contents"], nbs, site, item["section"])
            continue
        first = next(c for c in nbformat.read(nbs / item["href"], as_version=4).cells if c.cell_type == "markdown")
        title, _, subtitle = first.source.partition("\n")
        text = item.get("text", title.lstrip("# "))
        lines.append(f"- [{text}]({site}/{page_of(item['href'])}.html): {subtitle.strip().lstrip('> ')}")
    return [f"## {section}", "", *lines, ""] * bool(lines) + inner


def write_llms(quarto: dict, nbs: Path, out: Path) -> None:
    "llms.txt: the site in one page of markdown, what it is and where what stands"
    cfg, website = get_config(), quarto["website"]
    site = cfg.doc_host + cfg.doc_baseurl.rstrip("/")
    head = [f"# {website['title']}", "", f"> {website.get('description', website['title'])}", ""]
    head += [f"Python package, source at {cfg.git_url}. Every page is a notebook that is run by the tests.", ""]
    lines = head + listed(website["sidebar"]["contents"], nbs, site)
    (out / "llms.txt").write_text("\n".join(lines), encoding="utf-8")


# ---- what came out ----

LEAKS = re.compile(
    r"^:{3,}.*|\{\{<|\?@[\w-]+|@(?:fig|tbl|eq|sec)-[\w-]+|\{#[\w-]+[^}]*\}|\{\.[\w-]+[^}]*\}"
    r"|\{(?:cite|eq|ref|numref|doc)(?::\w)?\}|\[@\w+[^\]]*\]|^#\|.*|^#{1,6} \S.*|\*\*\w[^*\n]*\*\*|\]\([^)\s]+\)"
    r"|\|\s*:?-{3,}:?\s*\||^```.*|\$[^\s$][^$\n]*\$|\$\$|\\\(|\\frac\b|\\tau\b",
    re.M,
)
UNREAD = ("pre", "code", "script", "style", "math", "mjx-container")
LOADED = (("a", "href"), ("img", "src"), ("script", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"))


@functools.cache  # it takes seconds, and the tests of the site look at every page again and again
def parsed(page: Path) -> BeautifulSoup:
    "A page without the colours of its code, which are most of it."
    text = page.read_text(encoding="utf-8")
    return BeautifulSoup(re.sub(r'<span class="\w{1,3}">([^<]*)</span>', r"\1", text), "html.parser")


def visible_text(soup: BeautifulSoup) -> str:
    "What a reader sees of a page's article, without code and formulas."
    parts, nodes = [], [soup.find("article") or soup.find("main") or soup.body or soup]
    while nodes:
        node = nodes.pop()
        if type(node) is NavigableString:
            parts.append(node)
        elif isinstance(node, Tag) and node.name not in UNREAD and "math" not in node.get("class", []):
            nodes += reversed(node.contents)
    return "\n".join(parts)


def page_leaks(soup: BeautifulSoup) -> list[str]:
    "Markup of either dialect that reached the reader."
    return [f"leaked markup {m[0].strip()[:60]!r}" for m in LEAKS.finditer(visible_text(soup))]


def check_site(out: Path) -> list[str]:
    "Leaked markup, broken links and anchors, missing images, things from other hosts, in a built site."
    files = [p for p in sorted(out.rglob("*.html")) if "_static" not in p.parts]
    soups = {p.relative_to(out).as_posix(): parsed(p) for p in files}
    tags = {page: [node for node in soup.descendants if isinstance(node, Tag)] for page, soup in soups.items()}
    ids = {page: {node["id"] for node in nodes if node.has_attr("id")} for page, nodes in tags.items()}
    there = {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}
    found = []
    for page, soup in soups.items():
        faults = page_leaks(soup)
        for tag, attribute in LOADED:
            for node in (node for node in tags[page] if node.name == tag and node.has_attr(attribute)):
                faults += link_faults(page, tag, node[attribute], there, ids)
        faults += ["image without a source" for node in tags[page] if node.name == "img" and not node.has_attr("src")]
        found += [f"{page}: {fault}" for fault in faults]
    for css in out.rglob("*.css"):
        text = css.read_text(encoding="utf-8")
        far = re.search(r"(?:url\(\s*['\"]?|@import\s+['\"])((?:https?:)?//[^'\")\s]+)", text)
        found += [f"{css.relative_to(out)}: fetches {far[1]} from another host"] if far else []
    return found


def link_faults(page: str, tag: str, url: str, there: set[str], ids: dict[str, set[str]]) -> list[str]:
    "What is wrong with one link or one thing that a page loads."
    parts = urlparse(url)
    if parts.scheme == "data" or (tag == "link" and not url):
        return []
    if parts.scheme or parts.netloc:
        return [] if tag == "a" else [f"loads {url} from another host"]
    path = posixpath.join(posixpath.dirname(page), unquote(parts.path)) if parts.path else page
    target = next((t for t in map(posixpath.normpath, (path, f"{path}/index.html")) if t in there), None)
    if not target:
        return [f"{'missing image' if tag == 'img' else 'broken link'} {url}"]
    anchor = unquote(parts.fragment)
    if re.search(r"\.ipynb(#|$)", anchor):  # how MyST leaves a link that it cannot follow
        return [f"broken link {anchor}: no such notebook"]
    if tag == "a" and anchor and anchor not in ids.get(target, {anchor}):
        return [f"broken link {url}: no such place on that page"]
    return []


# ---- all of it ----


@call_parse
def main(
    out: Path = Path("_docs"),  # where the site goes
    work: Path = Path("_site"),  # for intermediate files
):
    "Build the site of the project in the current folder, or say what is wrong with it"
    out, work, nbs = out.resolve(), work.resolve(), get_config().nbs_path
    quarto = yaml.safe_load((nbs / "_quarto.yml").read_text(encoding="utf-8"))
    names = notebooks(nbs)
    shutil.rmtree(work, ignore_errors=True)
    with step("notebooks") as why:
        cells = write_source(nbs, names, quarto, work / "src")
        faults = check_sources(nbs, names)
        why.append(f"{len(names)} with {cells} cells, prepared by nbdev and translated; none is run")
    faults += run_sphinx(work / "src", work / "html", settings(quarto, nbs))
    if (nbs / "live").is_dir():
        with step("live pages") as why:
            why.append(live.what_is_new())
            for line in live.install(nbs / "live", work / "html/live"):
                print(line)
    redirects.write(nbs, work / "html")
    write_llms(quarto, nbs, work / "html")
    with step("checks") as why:
        faults += check_site(work / "html")
        why.append("every page parsed, every link, anchor and image followed")
    if faults:
        sys.exit("\n".join(["the site is not built:", *faults]))
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(work / "html", out)
    print(f"built {out}/index.html")

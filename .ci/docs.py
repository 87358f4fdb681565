"""Build the site into _docs/ from the notebooks and _quarto.yml with Sphinx, for machines without Quarto (`make docs` chooses).

It stops, and names file and text, at markup that one builder would not render or that leaks, at broken links, missing images, anything fetched from
another host, and every warning of Sphinx. The site that is built is moved to its place only when nothing was found."""
import argparse
import importlib.util
import io
import json
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote, urlparse

import yaml
from bs4 import BeautifulSoup
from execnb.nbio import nb2dict, read_nb
from nbdev.config import get_config
from nbdev.processors import FilterDefaults

sys.path.insert(0, str(Path(__file__).parent))
from pages import Page, described, exported, notebooks, page_of, source_faults, to_sphinx  # noqa: E402

EXTENSIONS = ["myst_nb", "sphinx_copybutton", "sphinx_design"]


# ---- what _quarto.yml says ----


def sidebar(items: list) -> list[tuple[str | None, str | list]]:
    "Quarto's sidebar as (title, page) and (title, [entries])."
    found: list[tuple[str | None, str | list]] = []
    for item in items:
        if isinstance(item, str):
            found.append((None, page_of(item)))
        elif "section" in item:
            found.append((item["section"], sidebar(item.get("contents", []))))
        else:
            found.append((item.get("text"), page_of(item["href"])))
    return found


def toctrees(entries: list, caption: str = "") -> list[str]:
    "One table of contents for each section of the sidebar; a section in a section follows it."
    own = [(title, "self" if page == "index" else page) for title, page in entries if not isinstance(page, list)]
    lines = [f"{title} <{page}>" if title else page for title, page in own]
    head = "```{toctree}\n:hidden:\n" + (f":caption: {caption}\n" if caption else "")
    mine = [head + "\n" + "\n".join(lines) + "\n```"] if lines else []
    return mine + [tree for title, page in entries if isinstance(page, list) for tree in toctrees(page, title or "")]


def bibliography(quarto: dict, nbs: Path) -> tuple[list[str], frozenset[str]]:
    "The files of references, and the keys in them."
    files = quarto.get("bibliography", [])
    files = [files] if isinstance(files, str) else files
    return files, frozenset(key for f in files for key in re.findall(r"^\s*@\w+\{\s*([^,\s]+),", (nbs / f).read_text(encoding="utf-8"), re.M))


# ---- from notebooks to Sphinx's source ----


class Filter(FilterDefaults):
    "nbdev's processors and those of settings.ini, without what Quarto alone needs."

    def xtra_procs(self) -> list:
        return [described if proc is exported else proc for proc in super().xtra_procs()]


def process(path: Path) -> dict:
    "A notebook as nbdev prepares it for a site; no cell is run."
    nb = read_nb(path)
    Filter()(nb)
    return nb2dict(nb)


def check_sources(nbs: Path, names: list[str]) -> list[str]:
    "Markdown that only one of the builders renders, by notebook and cell."
    found = []
    for name in names:
        for n, cell in enumerate(json.loads((nbs / name).read_text(encoding="utf-8"))["cells"]):
            if cell["cell_type"] == "markdown":
                found += [f"{name}, cell {n}: {fault}" for fault in source_faults("".join(cell["source"]))]
    return found


def write_source(nbs: Path, names: list[str], quarto: dict, src: Path) -> list[str]:
    "Sphinx's source folder: a translated notebook to a page, other files as they are. Returns the references' files."
    files, keys = bibliography(quarto, nbs)
    trees = toctrees(sidebar(quarto["website"]["sidebar"]["contents"]))
    for name in names:
        page = Page(name, keys)
        out = to_sphinx(process(nbs / name), page)
        if page.name == "index":
            out["cells"].append({"cell_type": "markdown", "id": "contents", "metadata": {}, "source": "\n\n".join(trees)})
        target = src / f"{page.name}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(out), encoding="utf-8")
    for f in nbs.rglob("*"):
        part = f.relative_to(nbs)
        if f.is_file() and f.suffix not in (".ipynb", ".yml", ".css", ".scss") and not any(p.startswith(("_", ".")) for p in part.parts):
            (src / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(f, src / part)
    return files


def styles(quarto: dict) -> list[str]:
    "The style sheets that _quarto.yml names."
    css = quarto.get("format", {}).get("html", {}).get("css", [])
    return [css] if isinstance(css, str) else css


def settings(quarto: dict, files: list[str], static: Path) -> dict:
    "Sphinx's configuration."
    site = quarto["website"]
    return {
        "project": site["title"], "html_title": site["title"], "author": get_config().author, "copyright": get_config().copyright,
        "extensions": EXTENSIONS + ["sphinxcontrib.bibtex"] * bool(files),
        "nb_execution_mode": "off", "nb_render_markdown_format": "myst", "nb_merge_streams": True,
        "myst_enable_extensions": ["amsmath", "dollarmath", "colon_fence", "deflist", "tasklist", "smartquotes", "attrs_inline", "attrs_block", "strikethrough"],
        "myst_heading_anchors": 4, "myst_heading_slug_func": "pages.slug", "myst_dmath_double_inline": True,
        "math_numfig": False, "math_eqref_format": "Equation {number}",
        "mathjax_path": "tex-svg.js",  # all of MathJax in one file, which fetches no fonts
        "mathjax3_config": {"svg": {"fontCache": "none"}, "options": {"enableMenu": False}, "chtml": {}},
        "html_static_path": [str(static)], "html_css_files": styles(quarto),
        **({"html_favicon": str(get_config().nbs_path / site["favicon"])} if "favicon" in site else {}),
        "html_theme": "sphinx_book_theme", "html_context": {"default_mode": "auto"}, "html_show_sourcelink": False,
        "html_show_search_summary": False,  # excerpts would show formulas as they are written
        "html_copy_source": False,
        "html_theme_options": {
            "repository_url": get_config().git_url, "use_repository_button": True, "use_download_button": False, "show_toc_level": 2,
            # the theme below this one has a bar of its own, with a second search field
            "navbar_persistent": [], "navbar_start": [], "navbar_center": [], "navbar_end": [],
        },
        **({"bibtex_bibfiles": files, "bibtex_reference_style": "author_year"} if files else {}),
        "exclude_patterns": ["_build", "jupyter_execute"],
        "suppress_warnings": ["myst.header", "myst.strikethrough", "myst.xref_missing"],  # links are checked where they end, in check_site
    }  # fmt: skip


def run_sphinx(src: Path, out: Path, config: dict) -> list[str]:
    "Build, and return the warnings, with notebooks and cells in place of Sphinx's files and lines."
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    warnings = io.StringIO()
    with patch_docutils(), docutils_namespace():
        app = Sphinx(src, None, out, src.parent / "doctrees", "html", confoverrides=config, status=None, warning=warnings, freshenv=True)
        app.build(force_all=True)
    text = re.sub(r"\x1b\[[\d;]*m", "", warnings.getvalue()).replace(f"{src}/", "")
    place = re.compile(r"^([\w/.-]+\.ipynb):(\d+):", re.M)  # myst-nb counts lines from 10,000 times the cell
    return [line for line in place.sub(lambda m: f"{m[1]}, cell {int(m[2]) // 10000}:", text).splitlines() if line.strip()]


# ---- what came out ----

LEAKS = re.compile(
    r"^:{3,}.*|\{\{<|\?@\w+|@(?:fig|tbl|eq|sec)-[\w-]+|\{#[\w-]+[^}]*\}|\{\.[\w-]+[^}]*\}|\{(?:cite|eq|ref|numref|doc)(?::\w)?\}|\[@\w+[^\]]*\]"
    r"|^#\|.*|^#{1,6} \S.*|\*\*\w[^*\n]*\*\*|\]\([^)\s]+\)|\|\s*:?-{3,}:?\s*\||^```.*|\$[^\s$][^$\n]*\$|\$\$|\\\(|\\frac\b|\\tau\b",
    re.M,
)


def visible_text(soup: BeautifulSoup) -> str:
    "What a reader sees of a page's article, without code and formulas."
    article = BeautifulSoup(str(soup.find("article") or soup.find("main") or soup.body or soup), "html.parser")
    for tag in article.select("pre, code, script, style, .math, math, mjx-container"):
        tag.decompose()
    return article.get_text("\n")


def page_leaks(soup: BeautifulSoup) -> list[str]:
    "Markup of either dialect that reached the reader."
    return [f"leaked markup {m[0].strip()[:60]!r}" for m in LEAKS.finditer(visible_text(soup))]


def check_site(out: Path) -> list[str]:
    "Leaked markup, broken links and anchors, missing images, things from other hosts, in a built site."
    soups = {p.relative_to(out).as_posix(): BeautifulSoup(p.read_text(encoding="utf-8"), "html.parser") for p in sorted(out.rglob("*.html")) if "_static" not in p.parts}
    ids = {page: {tag["id"] for tag in soup.find_all(id=True)} | {tag["name"] for tag in soup.find_all("a", attrs={"name": True})} for page, soup in soups.items()}
    found = []
    for page, soup in soups.items():
        found += [f"{page}: {leak}" for leak in page_leaks(soup)]
        for tag, attribute in (("a", "href"), ("img", "src"), ("script", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")):
            for node in soup.find_all(tag, attrs={attribute: True}):
                found += [f"{page}: {fault}" for fault in link_faults(page, tag, node[attribute], out, ids)]
        found += [f"{page}: image without a source" for node in soup.find_all("img", src=False)]
    for css in out.rglob("*.css"):
        far = re.search(r"(?:url\(\s*['\"]?|@import\s+['\"])((?:https?:)?//[^'\")\s]+)", css.read_text(encoding="utf-8"))
        found += [f"{css.relative_to(out)}: fetches {far[1]} from another host"] if far else []
    return found


def link_faults(page: str, tag: str, url: str, out: Path, ids: dict[str, set[str]]) -> list[str]:
    "What is wrong with one link or one thing that a page loads."
    parts = urlparse(url)
    if parts.scheme == "data" or (tag == "link" and not url):
        return []
    if parts.scheme or parts.netloc:
        return [] if tag == "a" else [f"loads {url} from another host"]
    target = (out / page).parent / unquote(parts.path) if parts.path else out / page
    target = target / "index.html" if target.is_dir() else target
    kind = "missing image" if tag == "img" else "broken link"
    if not target.resolve().is_relative_to(out.resolve()) or not target.exists():
        return [f"{kind} {url}"]
    if parts.fragment.endswith(".ipynb") or ".ipynb#" in unquote(parts.fragment):  # how MyST leaves a link that it cannot follow
        return [f"broken link {unquote(parts.fragment)}: no such notebook"]
    anchor, name = unquote(parts.fragment), target.resolve().relative_to(out.resolve()).as_posix()
    if tag == "a" and anchor and name in ids and anchor not in ids[name]:
        return [f"broken link {url}: no such place on that page"]
    return []


# ---- all of it ----


def build(work: Path, out: Path) -> list[str]:
    "Build the site of the project in the current folder; returns what is wrong with it."
    nbs = get_config().nbs_path
    quarto = yaml.safe_load((nbs / "_quarto.yml").read_text(encoding="utf-8"))
    names = notebooks(nbs)
    faults = check_sources(nbs, names)
    shutil.rmtree(work, ignore_errors=True)
    src, static, html = work / "src", work / "static", work / "html"
    src.mkdir(parents=True)
    static.mkdir()
    files = write_source(nbs, names, quarto, src)
    mathjax = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent / "static/mathjax/tex-svg.js"
    for f in [mathjax, *(nbs / css for css in styles(quarto))]:
        shutil.copy(f, static)
    faults += run_sphinx(src, html, settings(quarto, files, static))
    faults += check_site(html)
    if not faults:
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(html, out)
        shutil.rmtree(out / ".doctrees", ignore_errors=True)
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("_docs"), help="where the site goes")
    parser.add_argument("--work", type=Path, default=Path("_site"), help="for intermediate files")
    args = parser.parse_args()
    faults = build(args.work.resolve(), args.out.resolve())
    if faults:
        sys.exit("\n".join(["the site is not built:", *faults]))
    print(f"built {args.out}/index.html")


if __name__ == "__main__":
    main()

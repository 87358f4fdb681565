"""From a notebook to a page of the site: what both builders share, what Quarto alone needs, what Sphinx wants.

`described` and `exported` are processors of nbdev. settings.ini names `exported`, which is for Quarto; .ci/docs.py
takes `described` in its place. Nothing here executes a notebook or imports the library: outputs are saved, types and
defaults are shown as the source spells them, and fastcore, which can read a source as well, reads the comments."""
import ast
import contextlib
import functools
import html
import io
import json
import posixpath
import re
import textwrap
import tokenize
from collections.abc import Callable
from pathlib import Path

import yaml
from execnb.nbio import mk_cell
from fastcore.basics import exec_local
from fastcore.docments import _clean_comment, _get_comment, _param_locs, _tokens
from nbdev.config import get_config
from nbdev.doclinks import NbdevLookup, _nbpath2html, nbglob
from nbdev.process import Processor
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
LONG = 30  # lines; longer source starts folded
WIDE = 95  # columns; more would scroll sideways
CODE = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)[ ]*$|(?<!`)`[^`\n]+`(?!`))", re.S | re.M)
MATH = re.compile(r"(\$\$.*?\$\$|(?<![\\$])\$[^\s$](?:[^$\n]*[^\s$])?\$(?!\d))", re.S)
CODE_OR_MATH = re.compile(f"{CODE.pattern}|{MATH.pattern}", re.S | re.M)
Rows = list[tuple[str, str, str, str]]  # of parameters: name, type, default, what it is


def notebooks(nbs: Path) -> list[str]:
    "The notebooks of the site, relative to their folder."
    return sorted(path.relative_to(nbs).as_posix() for path in nbglob(nbs, as_path=True))


def page_of(notebook: str) -> str:
    "The name of a notebook's page: nbdev drops the number in front and writes small letters."
    return _nbpath2html(Path(notebook)).with_suffix("").as_posix()


def slug(title: str) -> str:
    "The id that Pandoc, and so Quarto, gives to a heading: links hold on both sites."
    text = re.sub(r"[^\w\s.-]", "", title.lower())
    return re.sub(r"^[^a-z]+", "", re.sub(r"\s+", "-", text.strip()))


def around(pattern: re.Pattern, change: Callable[[str], str], text: str) -> str:
    "The text as `change` makes it, which sees a mark in place of every match of `pattern`."
    kept: list[str] = []
    marked = pattern.sub(lambda m: kept.append(m[0]) or f"\0{len(kept) - 1}\0", text)
    return re.sub(r"\0(\d+)\0", lambda m: kept[int(m[1])], change(marked))


# ---- exported names: heading, parameters, source ----


@functools.cache
def definitions(module: str) -> dict[str, ast.AST]:
    "The functions and classes of a module, as they are written."
    file = get_config().lib_path.parent / f"{module.replace('.', '/')}.py"
    return {node.name: node for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, DEFINITIONS)}


def arguments(node: ast.AST) -> list[tuple[str, ast.expr | None, ast.expr | None]]:
    "The (name, type, default) of a function's parameters, or of a dataclass's fields."
    if isinstance(node, ast.ClassDef):
        dataclass = any("dataclass" in ast.unparse(d) for d in node.decorator_list)
        return [(f.target.id, f.annotation, f.value) for f in node.body if dataclass and isinstance(f, ast.AnnAssign)]
    a = node.args
    plain = a.posonlyargs + a.args
    defaults = dict(zip(plain[::-1], a.defaults[::-1])) | dict(zip(a.kwonlyargs, a.kw_defaults))
    stars = {a.vararg: "*", a.kwarg: "**"}
    given = [p for p in [*plain, a.vararg, *a.kwonlyargs, a.kwarg] if p and p.arg not in ("self", "cls")]
    return [(stars.get(p, "") + p.arg, p.annotation, defaults.get(p)) for p in given]


def docments(node: ast.AST, source: str) -> dict[str, str]:
    "The comments on parameters, or on a class's fields, as fastcore reads them: its own `docments` needs an object."
    source = textwrap.dedent(ast.get_source_segment(source, node, padded=True))
    fields = {f.lineno - node.lineno + 1: ast.unparse(f.target) for f in node.body if isinstance(f, ast.AnnAssign)}
    lines = _param_locs(source, args_kwargs=True) or fields
    comments = {t.start[0]: _clean_comment(t.string) for t in _tokens(source) if t.type == tokenize.COMMENT}
    return {name: _get_comment(line, name, comments, lines) or "" for line, name in lines.items()}


def parameters(node: ast.AST, source: str) -> Rows:
    "What is passed to a function, or to a class: to its __init__, or as its fields; and what comes back."
    node = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), node)
    said = docments(node, source)
    text = lambda tree: ast.unparse(tree) if tree else ""  # noqa: E731
    rows = [(name, text(kind), text(value), said.get(name.strip("*"), "")) for name, kind, value in arguments(node)]
    returns = text(getattr(node, "returns", None))
    return rows + [("returns", returns, "", said.get("return", ""))] * (returns not in ("", "None"))


def signature(name: str, rows: Rows) -> str:
    "How the name is called, without types; long ones over several lines."
    given = ", ".join(n + (f"={default}" if default else "") for n, _, default, _ in rows if n != "returns")
    if len(f"{name}({given})") <= 76:
        return f"{name}({given})"
    wrapped = textwrap.wrap(given, 72, break_long_words=False, break_on_hyphens=False)
    return f"{name}(\n" + "\n".join("    " + line for line in wrapped) + "\n)"


def in_cell(text: str) -> str:
    "Text for a cell of a pipe table."
    return " ".join(text.split()).replace("|", r"\|")


def as_code(text: str) -> str:
    "Code for a cell of a pipe table; a bar ends the cell for one builder, and its escape is printed by the other."
    if "|" in text:
        return f'<code class="literal">{html.escape(text, quote=False).replace("|", "&#124;")}</code>'
    return f"`{text}`" if text else ""


def as_type(text: str) -> str:
    "A type for a cell: alternatives apart, so that each may link to its page."
    tree = ast.parse(text, mode="eval").body if text else None
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        return f"{as_type(ast.unparse(tree.left))} or {as_type(ast.unparse(tree.right))}"
    return as_code(text)


def parameter_table(rows: Rows, link: Callable[[str], str]) -> str:
    "A pipe table of the rows, without columns that are empty."
    table = [["", "type", "default", ""], ["---"] * 4]
    for name, kind, default, said in rows:
        head = "*returns*" if name == "returns" else as_code(name)
        table.append([head, link(as_type(kind)), as_code(default), link(in_cell(said))])
    keep = [i for i in range(4) if i == 0 or any(row[i] for row in rows)]
    return "\n".join("| " + " | ".join(line[i] for i in keep) + " |" for line in table)


def documented_methods(node: ast.AST) -> list[ast.FunctionDef]:
    "The public methods of a class that have something to say; a function has none."
    own = node.body if isinstance(node, ast.ClassDef) else []
    return [f for f in own if isinstance(f, ast.FunctionDef) and f.name[0] != "_" and ast.get_docstring(f)]


def methods_table(node: ast.AST, link: Callable[[str], str]) -> str:
    "The documented methods of a class, each with an anchor that links to it find."
    lines = ["| method | |", "| --- | --- |"]
    for f in documented_methods(node):
        given = ", ".join(name for name, _, _ in arguments(f) if name[0] != "*")
        call = f.name if "property" in map(ast.unparse, f.decorator_list) else f"{f.name}({given})"
        anchor = f'<a id="{node.name.lower()}.{f.name.lower()}"></a>'
        lines.append(f"| {anchor}`{call}` | {link(in_cell(ast.get_docstring(f)))} |")
    return "\n".join(lines)


def describe(node: ast.AST, source: str, source_url: str, folded: bool) -> str:
    "The markdown about one exported name; how it is called is shown where its source is folded away."
    link, rows = NbdevLookup().link_line, parameters(node, source)
    parts = [
        f"### `{node.name}`",
        f"[source]({source_url}){{.source-link}}",
        f"```python\n{signature(node.name, rows)}\n```" if folded else "",
        link(ast.get_docstring(node) or ""),
        parameter_table(rows, link) if any(said for *_, said in rows) else "",
        methods_table(node, link) if documented_methods(node) else "",
    ]
    return "\n\n".join(filter(None, parts))


@functools.cache
def index() -> dict[str, dict[str, tuple[str, str]]]:
    "nbdev's index of the library: by module and name, the place on the site and the file."
    file = get_config().lib_path / "_modidx.py"
    return exec_local(file.read_text("utf-8"), "d")["syms"] if file.exists() else {}


@functools.cache
def places() -> dict[str, tuple[str, set[str]]]:
    "By page: its notebook, and the anchors of the names that it describes."
    found: dict[str, tuple[str, set[str]]] = {page_of(n): (n, set()) for n in notebooks(get_config().nbs_path)}
    for module, names in index().items():
        for node in (n for n in definitions(module).values() if n.name[0] != "_"):
            page, anchor = names[f"{module}.{node.name}"][0].split(".html#")
            found[page][1].update([anchor, *(f"{anchor}.{f.name.lower()}" for f in documented_methods(node))])
    return found


def unnest(text: str) -> str:
    "nbdev links a name in backticks even inside a link, `[[`U2C`](there)](here)`: the author's link stays."
    inner = r"\[(`[^`\n]+`)\]\([^)\s]*\)"
    return re.sub(rf"\[(?:[^\[\]]|{inner})*\]\(", lambda m: "[" + re.sub(inner, r"\1", m[0][1:]), text)


def local_links(text: str, notebook: str, site: str, known: dict[str, tuple[str, set[str]]]) -> str:
    "nbdev's links to names lead to the published site: as links to notebooks they hold in every copy of it."

    def to_notebook(m: re.Match) -> str:
        label, page, anchor = m[1], m[2], m[3] or ""
        if page not in known:
            return label if label.startswith("\0") else m[0]
        target, anchors = known[page]
        while anchor and anchor not in anchors:  # a private helper or method: its class, or the page
            anchor = anchor.rpartition(".")[0]
        return f"[{label}]({posixpath.relpath(target, posixpath.dirname(notebook))}{'#' + anchor if anchor else ''})"

    links = re.compile(rf"\[([^\]]*)\]\({re.escape(site)}/([\w/]+)\.html(?:#([\w.-]+))?\)")
    return around(CODE, lambda marked: links.sub(to_notebook, marked), text)


def displayed(cell, kind: str) -> list[dict]:
    "What a cell displays, where one of its forms is `kind`."
    return [o["data"] for o in cell.get("outputs", []) if kind in o.get("data", {})]


class described(Processor):
    "An nbdev processor: exported cells become their names' descriptions and the source, names link to their notebooks."

    def begin(self):
        module, cells = "", []
        for cell in self.nb.cells:
            directives = getattr(cell, "directives_", None) or {}
            if "default_exp" in directives:
                module = f"{get_config().lib_path.name}.{directives['default_exp'][0]}"
            elif directives.keys() & {"export", "exporti", "exports"}:
                cells += self.shown(cell, module)
            else:
                cells.append(cell)
        self.nb.cells, cfg = cells, get_config()
        notebook = Path(self.nb.path_).resolve().relative_to(cfg.nbs_path.resolve()).as_posix()
        site = cfg.doc_host + cfg.doc_baseurl.rstrip("/")
        linked = lambda text: local_links(unnest(text), notebook, site, places())  # noqa: E731
        for cell in cells:
            if cell.cell_type == "markdown":
                cell.source = linked(cell.source)
            for data in displayed(cell, "text/markdown"):
                data["text/markdown"] = [linked("".join(data["text/markdown"]))]

    def shown(self, cell, module: str) -> list:
        "The cells that stand for an exported one: of imports alone, none."
        source = cell.source.strip()
        tree, folded = ast.parse(source).body, source.count("\n") >= LONG
        if all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in tree):
            return []
        cell.source = f'#| code-fold: {"true" if folded else "show"}\n#| code-summary: "Source"\n{source}'
        cells, repository = [], f"{get_config().git_url}/blob/{get_config().branch}"
        for node in (node for node in tree if isinstance(node, DEFINITIONS) and node.name[0] != "_"):
            file, line = f"{module.replace('.', '/')}.py", definitions(module)[node.name].lineno
            cells.append(mk_cell(describe(node, source, f"{repository}/{file}#L{line}", folded), "markdown"))
        return [*cells, cell]


# ---- what Quarto alone needs ----


def raw_html(text: str) -> str:
    "HTML as a block of Pandoc's markdown; the fence is longer than any in the text."
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}{{=html}}\n{text.strip()}\n{fence}"


def plain_pictures(text: str) -> str:
    "Pandoc prints the alternative text of a picture in a line of its own as a caption, unless something follows it."
    alone = re.compile(r"^(!\[.*\]\([^)\n]*\)) *$", re.M)
    return around(CODE, lambda marked: alone.sub(r"\1<!-- -->", marked), text)


def for_quarto(nb) -> None:
    "Outputs in HTML become markdown: for the others Quarto loads two libraries from another host."
    for cell in nb.cells:
        for shown in displayed(cell, "text/html"):
            shown["text/markdown"] = [raw_html("".join(shown.pop("text/html")))]
        if cell.cell_type == "markdown":
            cell.source = plain_pictures(cell.source)


class exported(described):
    "The nbdev processor that settings.ini names."

    def begin(self):
        super().begin()
        for_quarto(self.nb)


# ---- what only one of the builders would render, and what does not fit a page ----

TEXT = r"^(?!\s|[-*+] |\d+[.)] |\||#|:::|>).+\n"  # a line of prose, which goes on unless a blank line follows
FAULTS = [
    (r"\\\(|\\\[", "\\( or \\[ for mathematics: write $x$ or $$x$$"),
    (r"(?<!\\)\$[^$\n]+\$", "a space just inside $...$, which Pandoc does not take for mathematics"),
    (r"\{\{<", "a shortcode, which only Quarto knows"),
    (r"^:{3,}\s*\{(?!\.callout-(?:note|tip|warning|important|caution)\})[^}]*\}", "a div that is no callout"),
    (r"^:{4,}", "nested divs: keep callouts flat"),
    (r"^```\{\w", "an executable or directive fence: use a code cell, or a callout"),
    (r"\{(?:cite|eq|ref|numref|doc|math|term)(?::\w)?\}`", "a MyST role, which Quarto prints as it stands"),
    (r"^\([\w-]+\)=\s*$", "a MyST target, which Quarto prints as it stands"),
    (r"^<(?:div|details|table|p)\b", "a block of raw HTML in markdown"),
    (r"\{#(?:fig|tbl)-[\w-]+", "a label of a figure or a table, which Quarto alone would number"),
    (TEXT + r"(#{1,6} .*)", "a blank line belongs before a heading"),
    (TEXT + r"(\|.*)", "a blank line belongs before a table"),
    (TEXT + r"((?:[-*+] |1[.)] |:{3,} ?\{).*)", "a blank line belongs before a list or a callout"),
]
OPTION = re.compile(r"^#\|\s*([\w-]+):\s*(.*)$", re.M)  # of a code cell, as Quarto spells it
OPTIONS = {"code-fold", "code-summary", "echo", "fig-alt", "output"}
FENCE = re.compile(r"^ *(```|~~~) *(\w*)[^\n]*\n(.*?)^ *\1", re.S | re.M)


def several_statements(lines: list[str]) -> set[str]:
    "The lines with a semicolon between statements; one at the end hides what a cell would show."
    found = set()
    with contextlib.suppress(SyntaxError, tokenize.TokenError):  # a piece of code may end anywhere
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
            if token.exact_type == tokenize.SEMI and token.line[token.end[1] :].split("#")[0].strip():
                found.add(token.line.strip())
    return found


def code_faults(source: str, language: str = "python") -> list[str]:
    "What in code does not fit a page, or holds several statements in a line; options that Sphinx would pass over."
    lines = [line.expandtabs() for line in source.splitlines() if not line.startswith("#|")]
    found = [f"{line.strip()[:60]!r}: {len(line)} columns, where {WIDE} fit" for line in lines if len(line) > WIDE]
    if language == "python" and not source.startswith("%%"):
        plain = [line for line in lines if not line.lstrip().startswith(("!", "%"))]
        found += [f"{line[:60]!r}: several statements in a line" for line in sorted(several_statements(plain))]
    unknown = [option for option, _ in OPTION.findall(source) if option not in OPTIONS]
    return found + [f"{option!r}: an option that only Quarto knows" for option in unknown]


def source_faults(text: str) -> list[str]:
    "What in a markdown cell would be rendered by one builder and not by the other, and what is wrong with its code."
    bare = CODE.sub(lambda m: m[0].split("\n")[0] + "\n```" if "\n" in m[0] else "`code`", text)
    bare = MATH.sub(lambda m: "$$" if m[0].startswith("$$") else "formula", bare)
    matches = [(re.search(pattern, bare, re.M), reason) for pattern, reason in FAULTS]
    found = [f"{m[m.lastindex or 0].strip()[:60]!r}: {reason}" for m, reason in matches if m]
    for formula in MATH.findall(CODE.sub("", text)):
        if re.search(r"\\\\[A-Za-z]", formula) or ("\\\\" in formula and "\\begin{" not in formula):
            reason = "a doubled backslash in a formula: one begins a command; two end a row, with a space behind them"
            found.append(f"{formula[:60]!r}: {reason}")
    return found + [fault for _, language, code in FENCE.findall(text) for fault in code_faults(code, language)]


def check_sources(nbs: Path, names: list[str]) -> list[str]:
    "Markdown that only one of the builders renders and code that does not fit a page, by notebook and cell."
    checks = {"markdown": source_faults, "code": code_faults, "raw": lambda text: []}
    found = []
    for name in names:
        for n, cell in enumerate(json.loads((nbs / name).read_text(encoding="utf-8"))["cells"]):
            found += [f"{name}, cell {n}: {fault}" for fault in checks[cell["cell_type"]]("".join(cell["source"]))]
    return found


# ---- Quarto's markdown to MyST ----

CALLOUT = re.compile(r"^::: *\{\.callout-(\w+)\}\s*(?:#+ +([^\n]*)\n)?(.*?)^::: *$", re.S | re.M)
CITATION = re.compile(r"\[([^\]\[]*@[^\]\[]*)\](?!\()|(?<![\w`{./:,-])@\w[\w:-]*")
CITED = re.compile(r"([^;@]*)@(\w[\w:-]*)(?:, ?([^;]*))?")  # words before, key, words after
LINK = re.compile(r"\]\((?!\w+:)([\w./-]+\.ipynb)?(#[^)]*)?\)")


class Page:
    "One page on its way to Sphinx: knows where it is, what may be cited and whether anything was."

    def __init__(self, notebook: str, keys: frozenset[str] = frozenset()):
        self.notebook, self.name, self.keys = notebook, page_of(notebook), keys  # relative to nbs/
        self.prefix = self.name.replace("/", "-") + "-"  # labels are global in Sphinx, and a page's own in Quarto
        self.cites = False

    def to_myst(self, text: str) -> str:
        "Markdown as Quarto reads it, as MyST reads it."
        return around(CODE_OR_MATH, self.translate, text)

    def translate(self, text: str) -> str:
        "What stands outside code and formulas: callouts, links, labels of equations, references to them, citations."
        text = CALLOUT.sub(self.callout, text)
        text = LINK.sub(self.link, text)
        text = re.sub(r"\0\s*\{#(eq-[\w-]+)\}", rf"\0 ({self.prefix}\1)", text)
        text = re.sub(r"(?<![\w`{./])@(eq-[\w-]+)", rf"{{eq}}`{self.prefix}\1`", text)
        return CITATION.sub(self.cite, text)

    def callout(self, m: re.Match) -> str:
        return f":::{{admonition}} {m[2] or m[1].capitalize()}\n:class: {m[1]}\n{m[3].strip()}\n:::"

    def link(self, m: re.Match) -> str:
        "A link to a notebook as one to its page; equations have anchors of Sphinx's making."
        path, anchor = m[1], m[2] or ""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(self.notebook), path or ""))
        page = page_of(target) if path else self.name
        if anchor.startswith("#eq-"):
            anchor = f"#equation-{page.replace('/', '-')}-{anchor[1:]}"
        return f"]({'../' * self.name.count('/') + page + '.ipynb' if path else ''}{anchor})"

    def cite(self, m: re.Match) -> str:
        "`[see @key, page; @other]` in brackets, `@key` in a sentence; what is not in the bibliography stays as it is."
        kind, parts = ("p", CITED.findall(m[1])) if m[1] else ("t", CITED.findall(m[0]))
        if any(key not in self.keys for _, key, _ in parts):
            return m[0]
        self.cites = True
        words = lambda text: f"{{{text.strip()}}}" if text.strip() else ""  # noqa: E731
        return f"{{cite:{kind}}}`" + ",".join(words(a) + self.prefix + key + words(b) for a, key, b in parts) + "`"


def code_cells(cell: dict, page: Page) -> list[dict]:
    "A code cell with its options as myst-nb knows them; output that is markdown to be taken as it is becomes markdown."
    said = {key: yaml.safe_load(value) for key, value in OPTION.findall(cell.source)}
    source = re.sub(r"^#\|.*\n?", "", cell.source, flags=re.M).strip()
    for data in displayed(cell, "text/markdown"):
        data["text/markdown"] = page.to_myst("".join(data["text/markdown"]))
    if said.get("output") == "asis":
        return [new_markdown_cell(data["text/markdown"]) for data in displayed(cell, "text/markdown")]
    tags = ["remove-input"] * (said.get("echo") is False) + ["hide-input"] * (said.get("code-fold") is True)
    summary = said.get("code-summary", "Code")
    look = {"code_prompt_show": summary, "code_prompt_hide": summary}
    look |= {"image": {"alt": said["fig-alt"]}} if "fig-alt" in said else {}
    shown = new_code_cell(source, metadata={"tags": tags, "mystnb": look}, outputs=cell.outputs)
    return [shown] if source or cell.outputs else []


def to_sphinx(nb, page: Page) -> dict:
    "A notebook that nbdev has processed, as myst-nb takes it."
    cells = []
    for cell in nb.cells:
        if cell.cell_type == "code":
            cells += code_cells(cell, page)
        elif cell.cell_type == "markdown" and not cell.source.startswith("<!--"):
            cells.append(new_markdown_cell(page.to_myst(cell.source)))
    head = f"# {nb.frontmatter_.get('title', page.name)}"
    if "description" in nb.frontmatter_:
        head += f"\n\n> {page.to_myst(nb.frontmatter_['description'])}"
    if page.cites:
        listed = f"```{{bibliography}}\n:filter: docname in docnames\n:keyprefix: {page.prefix}\n```"
        cells.append(new_markdown_cell(f"## References\n\n{listed}"))
    return new_notebook(cells=[new_markdown_cell(head), *cells], metadata={"language_info": {"name": "python"}})

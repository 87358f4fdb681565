"""From a notebook to a page of the site: what both builders share, what Quarto alone needs, and the markdown that Sphinx wants.

`described` and `exported` are processors of nbdev. settings.ini names `exported`, which is for Quarto; .ci/docs.py takes `described` in its place.
Nothing here executes a notebook or imports the library: outputs are saved in the notebooks, and names, types and comments are read from the source."""
import ast
import functools
import html
import io
import posixpath
import re
import textwrap
import tokenize
from pathlib import Path, PurePosixPath

import yaml
from execnb.nbio import mk_cell
from nbdev.config import get_config
from nbdev.doclinks import NbdevLookup
from nbdev.process import Processor

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
LONG = 30  # lines; longer source starts folded
CODE = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)[ ]*$|(?<!`)`[^`\n]+`(?!`))", re.S | re.M)
MATH = re.compile(r"(\$\$.*?\$\$|(?<![\\$])\$[^\s$](?:[^$\n]*[^\s$])?\$(?!\d))", re.S)


def page_of(notebook: str) -> str:
    "The name of a notebook's page: nbdev drops the number in front and writes small letters."
    path = PurePosixPath(notebook)
    stem = re.sub(r"^\d+[a-zA-Z0-9]*_", "", path.name.lower().removesuffix(".ipynb").removesuffix(".html"))
    return str(path.with_name(stem))


def slug(title: str) -> str:
    "The id that Pandoc, and so Quarto, gives to a heading: links hold on both sites."
    text = re.sub(r"[^\w\s.-]", "", title.lower())
    return re.sub(r"^[^a-z]+", "", re.sub(r"\s+", "-", text.strip()))


def outside(pattern: re.Pattern, change, text: str) -> str:
    "Apply `change` to the text between the matches of `pattern`, which has one group around all of it."
    return "".join(part if i % 2 else change(part) for i, part in enumerate(pattern.split(text)))


def put_aside(text: str) -> tuple[str, list[str]]:
    "The text with a mark in place of each piece of code, and the code."
    code: list[str] = []
    return CODE.sub(lambda m: code.append(m[0]) or f"\0{len(code) - 1}\0", text), code


def put_back(text: str, code: list[str]) -> str:
    return re.sub(r"\0(\d+)\0", lambda m: code[int(m[1])], text)


# ---- exported names: heading, parameters, source ----


def line_comments(source: str) -> dict[int, tuple[str, bool]]:
    "Comment by line, and whether it stands alone there."
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            found[token.start[0]] = token.string.lstrip("# ").strip(), not token.line[: token.start[1]].strip()
    return found


def docment(first: int, last: int, comments: dict[int, tuple[str, bool]]) -> str:
    "What is said about a parameter: at the end of its line, or in lines of their own above it."
    above = []
    while comments.get(first - 1, ("", False))[1]:
        first -= 1
        above.insert(0, comments[first][0])
    text, alone = comments.get(last, ("", True))
    return " ".join(above + [text] * (not alone))


def parameters(node: ast.AST, comments: dict[int, tuple[str, bool]]) -> list[tuple[str, str, str, str]]:
    "Rows of (name, type, default, what it is) of a function, or of a class: its __init__, or the fields of a dataclass."
    show = lambda tree: ast.unparse(tree) if tree is not None else ""  # noqa: E731
    if isinstance(node, ast.ClassDef):
        init = [f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"]
        if init:
            return parameters(init[0], comments)
        if not any("dataclass" in ast.unparse(d) for d in node.decorator_list):
            return []
        return [(show(f.target), show(f.annotation), show(f.value), docment(f.lineno, f.end_lineno, comments)) for f in node.body if isinstance(f, ast.AnnAssign)]
    a = node.args
    rows, plain = [], a.posonlyargs + a.args
    defaults = [None] * (len(plain) - len(a.defaults)) + a.defaults
    marked = [(p, "", d) for p, d in zip(plain, defaults)] + [(a.vararg, "*", None)] * bool(a.vararg)
    marked += [(p, "", d) for p, d in zip(a.kwonlyargs, a.kw_defaults)] + [(a.kwarg, "**", None)] * bool(a.kwarg)
    for p, mark, default in marked:
        if p.arg not in ("self", "cls"):
            rows.append((mark + p.arg, show(p.annotation), show(default), docment(p.lineno, default.end_lineno if default else p.end_lineno, comments)))
    if node.name != "__init__" and node.returns is not None and show(node.returns) != "None":
        rows.append(("returns", show(node.returns), "", docment(10**9, node.returns.end_lineno, comments)))
    return rows


def signature(node: ast.AST, rows: list[tuple[str, str, str, str]]) -> str:
    "How the name is called, without types; long ones over several lines."
    given = [n + (f"={d}" if d else "") for n, _, d, _ in rows if n != "returns"]
    flat = f"{node.name}({', '.join(given)})"
    if len(flat) <= 76:
        return flat
    wrapped = textwrap.wrap(", ".join(given), 72, break_long_words=False, break_on_hyphens=False)
    return f"{node.name}(\n" + "\n".join("    " + w for w in wrapped) + "\n)"


def in_cell(text: str) -> str:
    "Text for a cell of a pipe table."
    return " ".join(text.split()).replace("|", r"\|")


def as_code(text: str) -> str:
    "Code for a cell of a pipe table; a bar in code ends the cell for one builder, and its escape is printed by the other."
    bar = "|" in text
    return f'<code class="literal">{html.escape(text, quote=False).replace("|", "&#124;")}</code>' if bar else f"`{text}`" if text else ""


def as_type(text: str) -> str:
    "A type for a cell: alternatives apart, so that each may link to its page."
    tree = ast.parse(text, mode="eval").body if text else None
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        return f"{as_type(ast.unparse(tree.left))} or {as_type(ast.unparse(tree.right))}"
    return as_code(" ".join(text.split()))


def parameter_table(rows: list[tuple[str, str, str, str]], link) -> str:
    "A pipe table of the rows, without columns that are empty."
    titles = ["", "type", "default", ""]
    keep = [0, *(i for i in (1, 2, 3) if any(r[i] for r in rows))]
    shown = [[as_code(r[0]) if r[0] != "returns" else "*returns*", link(as_type(r[1])), as_code(r[2]), link(in_cell(r[3]))] for r in rows]
    lines = [[titles[i] for i in keep], ["---"] * len(keep), *([row[i] for i in keep] for row in shown)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def documented_methods(node: ast.AST) -> list[ast.FunctionDef]:
    "The public methods of a class that have something to say; a function has none."
    own = node.body if isinstance(node, ast.ClassDef) else []
    return [f for f in own if isinstance(f, ast.FunctionDef) and not f.name.startswith("_") and ast.get_docstring(f)]


def methods_table(node: ast.AST, link) -> str:
    "The documented methods of a class, each with an anchor that links to it find."
    rows = []
    for f in documented_methods(node):
        kind = [ast.unparse(d) for d in f.decorator_list]
        given = ", ".join(a.arg for a in f.args.args + f.args.kwonlyargs if a.arg not in ("self", "cls"))
        call = f.name if "property" in kind else f"{f.name}({given})"
        rows.append(f'| <a id="{node.name.lower()}.{f.name.lower()}"></a>`{call}` | {link(in_cell(ast.get_docstring(f)))} |')
    return "\n".join(["| method | |", "| --- | --- |", *rows]) if rows else ""


def describe(node: ast.AST, comments: dict[int, tuple[str, bool]], source_url: str, folded: bool) -> str:
    "The markdown about one exported name; how it is called is shown where its source is folded away."
    link = NbdevLookup().link_line
    parts = [f"### `{node.name}`", f"[source]({source_url}){{.source-link}}"]
    rows = parameters(node, comments)
    if folded:
        parts.append(f"```python\n{signature(node, rows)}\n```")
    if ast.get_docstring(node):
        parts.append(link(ast.get_docstring(node)))
    if any(r[3] for r in rows):
        parts.append(parameter_table(rows, link))
    if documented_methods(node):
        parts.append(methods_table(node, link))
    return "\n\n".join(parts)


def defined_at(module: str) -> dict[str, int]:
    "The line of every definition in a module of the library."
    tree = ast.parse((get_config().lib_path / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    return {node.name: node.lineno for node in tree.body if isinstance(node, DEFINITIONS)}


def unnest(text: str) -> str:
    "nbdev links a name in backticks even inside a link, `[[`U2C`](there)](here)`: the author's link stays."
    inner = r"\[(`[^`\n]+`)\]\([^)\s]*\)"
    return re.sub(rf"\[(?:[^\[\]]|{inner})*\]\(", lambda m: "[" + re.sub(inner, r"\1", m[0][1:]), text)


@functools.cache
def places() -> dict[str, tuple[str, set[str]]]:
    "By page: its notebook, and the anchors of the names that it describes."
    cfg = get_config()
    found: dict[str, tuple[str, set[str]]] = {page_of(n): (n, set()) for n in notebooks(cfg.nbs_path)}
    for file in cfg.lib_path.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        written = re.search(r"^# AUTOGENERATED! .*File to edit: \S*nbs/(\S+\.ipynb)", text, re.M)
        nodes = ast.parse(text).body if written else []
        public = [name for n in nodes if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__" for name in ast.literal_eval(n.value)]
        for node in nodes:
            if isinstance(node, DEFINITIONS) and node.name in public:
                name = node.name.lower()
                found[page_of(written[1])][1].update({name, *(f"{name}.{f.name.lower()}" for f in documented_methods(node))})
    return found


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

    text, code = put_aside(text)
    return put_back(re.sub(rf"\[([^\]]*)\]\({re.escape(site)}/([\w/]+)\.html(?:#([\w.-]+))?\)", to_notebook, text), code)


def change_markdown(nb, change) -> None:
    "Apply `change` to the markdown of a notebook: to cells, and to outputs."
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            cell.source = change(cell.source)
        for shown in (o["data"] for o in cell.get("outputs", []) if "text/markdown" in o.get("data", {})):
            shown["text/markdown"] = [change("".join(shown["text/markdown"]))]


class described(Processor):
    "An nbdev processor: exported cells become the description of their names and the source, import cells go, names link to their notebooks."

    def begin(self):
        module, cells = None, []
        for cell in self.nb.cells:
            directives = getattr(cell, "directives_", None) or {}
            if "default_exp" in directives:
                module = directives["default_exp"][0]
                lines = defined_at(module)
            elif directives.keys() & {"export", "exports"}:
                cells += self.shown(cell, module, lines)
            else:
                cells.append(cell)
        self.nb.cells = cells
        cfg = get_config()
        site, notebook = cfg.doc_host + cfg.doc_baseurl.rstrip("/"), Path(self.nb.path_).resolve().relative_to(cfg.nbs_path.resolve()).as_posix()
        change_markdown(self.nb, lambda text: local_links(unnest(text), notebook, site, places()))

    def shown(self, cell, module: str, lines: dict[str, int]) -> list:
        "The cells that stand for an exported one."
        source = cell.source.strip()
        tree, comments = ast.parse(source).body, line_comments(source)
        if all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in tree):
            return []
        cfg, cells, folded = get_config(), [], source.count("\n") >= LONG
        for node in tree:
            if isinstance(node, DEFINITIONS) and not node.name.startswith("_"):
                url = f"{cfg.git_url}/blob/{cfg.branch}/{cfg.lib_path.name}/{module.replace('.', '/')}.py#L{lines[node.name]}"
                cells.append(mk_cell(describe(node, comments, url, folded), "markdown"))
        cell.source = f'#| code-fold: {"true" if folded else "show"}\n#| code-summary: "Source"\n{source}'
        return [*cells, cell]


# ---- what Quarto alone needs ----


def raw_html(text: str) -> str:
    "HTML as a block of Pandoc's markdown; the fence is longer than any in the text."
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}{{=html}}\n{text.strip()}\n{fence}"


def plain_pictures(text: str) -> str:
    "Pandoc prints the alternative text of a picture in a line of its own as a caption, unless something follows the picture."
    text, code = put_aside(text)
    return put_back(re.sub(r"^(!\[.*\]\([^)\n]*\)) *$", r"\1<!-- -->", text, flags=re.M), code)


def for_quarto(nb) -> None:
    "Outputs in HTML become markdown: for the others Quarto loads two libraries from another host. Pictures get no caption."
    for cell in nb.cells:
        for shown in (o["data"] for o in cell.get("outputs", []) if "text/html" in o.get("data", {})):
            shown["text/markdown"] = [raw_html("".join(shown.pop("text/html")))]
        if cell.cell_type == "markdown":
            cell.source = plain_pictures(cell.source)


class exported(described):
    "The nbdev processor that settings.ini names."

    def begin(self):
        super().begin()
        for_quarto(self.nb)


# ---- what only one of the builders would render ----

FAULTS = [
    (r"\\\(|\\\[", "\\( or \\[ for mathematics: write $x$ or $$x$$"),
    (r"(?<!\\)\$[^$\n]+\$", "a space just inside $...$, which Pandoc does not take for mathematics"),
    (r"\{\{<", "a shortcode, which only Quarto knows"),
    (r"^:{3,}\s*\{(?!\.callout-(?:note|tip|warning|important|caution)\b)[^}]*\}", "a div that is no callout"),
    (r"^:{4,}", "nested divs: keep callouts flat"),
    (r"^```\{\w", "an executable or directive fence: use a code cell, or a callout"),
    (r"\{(?:cite|eq|ref|numref|doc|math|term)(?::\w)?\}`", "a MyST role, which Quarto prints as it stands"),
    (r"^\([\w-]+\)=\s*$", "a MyST target, which Quarto prints as it stands"),
    (r"^<(?:div|details|table|p)\b", "a block of raw HTML in markdown"),
]
BLOCK = re.compile(r"^(?:[-*+] |1[.)] |#{1,6} |\||:{3,} ?\{)")


def source_faults(text: str) -> list[str]:
    "What in a markdown cell would be rendered by one builder and not by the other; fenced and inline code do not count."
    bare = CODE.sub(lambda m: "```\n```" if "\n" in m[0] else "`code`", text)
    bare = MATH.sub(lambda m: "$$" if m[0].startswith("$$") else "formula", bare)
    found = []
    for pattern, reason in FAULTS:
        where = re.search(pattern, text if pattern.startswith("^```") else bare, re.M)
        if where:
            found.append(f"{where[0].strip()!r}: {reason}")
    for formula in MATH.findall(CODE.sub("", text)):
        if re.search(r"\\\\[A-Za-z]", formula) or ("\\\\" in formula and "\\begin{" not in formula):
            found.append(f"{formula[:60]!r}: a doubled backslash in a formula: one begins a command; two end a row, with a space behind them")
    lines = bare.splitlines()
    for before, line in zip(lines, lines[1:]):
        same = before.strip() and (m := BLOCK.match(line)) and not re.match(r"\s*([-*+] |\d+[.)] |\||#|:::|>|\s)", before)
        if same:
            found.append(f"{line[:60]!r}: a blank line belongs before {'a heading' if m[0][0] == '#' else 'a table' if m[0] == '|' else 'a list or a callout'}")
    return found


# ---- Quarto's markdown to MyST ----


def callout(m: re.Match) -> str:
    "A flat callout as an admonition."
    kind, attributes, body = m[1], m[2], m[3].strip()
    title = re.match(r"#+ +(.*)\n", body) or re.search(r'title="(.*?)"', attributes)
    if title and body.startswith("#"):
        body = body[title.end() :].strip()
    folded = " dropdown" if 'collapse="true"' in attributes else ""
    return f":::{{admonition}} {title[1] if title else kind.capitalize()}\n:class: {kind}{folded}\n{body}\n:::"


class Page:
    "One page on its way to Sphinx: knows where it is, what may be cited and what was."

    def __init__(self, notebook: str, keys: frozenset[str] = frozenset()):
        self.notebook, self.name, self.keys = notebook, page_of(notebook), keys  # relative to nbs/
        self.prefix = self.name.replace("/", "-") + "-"  # labels are global in Sphinx, and a page's own in Quarto
        self.cites, self.numbers = False, {}

    def to_myst(self, text: str) -> str:
        "Markdown as Quarto reads it, as MyST reads it."
        text, code = put_aside(text)
        text = re.sub(r"^:{3} *\{\.callout-(\w+)(.*?)\}\n(.*?)^:{3} *$", callout, text, flags=re.S | re.M)
        text = self.equation_labels(outside(MATH, self.references, self.links(text)))
        return put_back(text, code)

    def links(self, text: str) -> str:
        "Links to notebooks as links to pages."
        here = PurePosixPath(self.notebook).parent

        def relative(page: str) -> str:
            up = len(PurePosixPath(self.name).parents) - 1
            return "../" * up + page + ".ipynb"

        def to_notebook(m: re.Match) -> str:
            page = page_of(str(PurePosixPath(*normal((here / m[1]).parts))))
            return f"]({relative(page)}{place(page, m[2] or '')})"

        def place(page: str, anchor: str) -> str:
            return f"#equation-{page.replace('/', '-')}-{anchor[1:]}" if anchor.startswith("#eq-") else anchor

        text = re.sub(r"\]\((#eq-[\w-]+)\)", lambda m: f"]({place(self.name, m[1])})", text)
        return re.sub(r"\]\((?!\w+:)([\w./-]+\.ipynb)(#[^)]*)?\)", to_notebook, text)

    def equation_labels(self, text: str) -> str:
        return re.sub(r"(\$\$)\s*\{#(eq-[\w-]+)\}", rf"\1 ({self.prefix}\2)", text)

    def references(self, text: str) -> str:
        "Citations and references to equations, figures and tables, which stand outside code and formulas."
        text = re.sub(r"\[([^\]\[]*@[^\]\[]*)\](?!\()", self.cited, text)
        text = re.sub(r"(?<![\w`{./])@(eq-[\w-]+)", rf"{{eq}}`{self.prefix}\1`", text)
        text = re.sub(r"(?<![\w`{./])@((?:fig|tbl)-[\w-]+)", self.numbered, text)
        text = re.sub(r"(?<![\w`{./:,-])@([\w][\w:-]*)", lambda m: self.role("t", [m[1]]) if m[1] in self.keys else m[0], text)
        text = re.sub(r"^!\[(.*?)\]\((.*?)\)\{#(fig-[\w-]+)([^}]*)\} *$", self.figure, text, flags=re.M)
        return re.sub(r"^: (.*?)\s*\{#(tbl-[\w-]+)\} *$", lambda m: f"({m[2]})=\n{self.label(m[2])}: {m[1]}", text, flags=re.M)

    def cited(self, m: re.Match) -> str:
        parts = re.findall(r"([^;@]*)@([\w][\w:-]*)(?:, ?([^;]*))?", m[1])
        if not parts or any(key not in self.keys for _, key, _ in parts):
            return m[0]
        wrap = lambda s: f"{{{s.strip()}}}" if s.strip() else ""  # noqa: E731
        return self.role("p", [wrap(before) + key + wrap(after) for before, key, after in parts])

    def role(self, kind: str, keys: list[str]) -> str:
        self.cites = True
        keyed = [re.sub(r"^((?:\{.*?\})?)", rf"\g<1>{self.prefix}", k, count=1) for k in keys]
        return f"{{cite:{kind}}}`{','.join(keyed)}`"

    def label(self, name: str) -> str:
        "Figure 1, Table 2: counted on the page, in the order of their mention or appearance."
        kind = {"fig": "Figure", "tbl": "Table"}[name[:3]]
        if name not in self.numbers:
            self.numbers[name] = 1 + sum(n[:3] == name[:3] for n in self.numbers)
        return f"{kind} {self.numbers[name]}"

    def numbered(self, m: re.Match) -> str:
        return f"[{self.label(m[1])}](#{m[1]})"

    def figure(self, m: re.Match) -> str:
        width = re.search(r'width="?([\d.]+(?:%|px))', m[4])
        return f"```{{figure}} {m[2]}\n:name: {m[3]}\n" + (f":width: {width[1]}\n" if width else "") + f"\n{self.label(m[3])}: {m[1]}\n```"


def normal(parts: tuple[str, ...]) -> list[str]:
    "The parts of a path with .. resolved."
    out: list[str] = []
    for part in parts:
        out = out[:-1] if part == ".." else out + [part]
    return out


def directives(source: str) -> tuple[dict, str]:
    "The `#|` options of a code cell, and the rest of it."
    options, rest = {}, []
    for line in source.splitlines():
        m = re.match(r"#\|\s*([\w-]+):\s*(.*)$", line)
        if m:
            options[m[1]] = yaml.safe_load(m[2])
        elif not line.startswith("#|"):
            rest.append(line)
    return options, "\n".join(rest).strip()


def to_sphinx(nb: dict, page: Page) -> dict:
    "A notebook that nbdev has processed, as myst-nb takes it."
    cells, front = [], {}
    for n, cell in enumerate(nb["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "raw":
            front = yaml.safe_load(source.strip().strip("-")) or {}
        elif cell["cell_type"] == "markdown":
            if not source.startswith("<!--"):
                cells.append(markdown(page.to_myst(source), n))
        else:
            cells += code_cells(cell, source, n, page)
    head = f"# {front.get('title', page.name)}"
    if front.get("description"):
        head += f"\n\n> {page.to_myst(str(front['description']))}"
    if page.cites:
        cells.append(markdown(f"## References\n\n```{{bibliography}}\n:filter: docname in docnames\n:keyprefix: {page.prefix}\n```", len(nb["cells"])))
    return {"cells": [markdown(head, "title"), *cells], "metadata": {"language_info": {"name": "python"}, "kernelspec": {"name": "python3", "display_name": "python3", "language": "python"}}, "nbformat": 4, "nbformat_minor": 5}


def markdown(text: str, n: int | str) -> dict:
    return {"cell_type": "markdown", "id": f"m{n}", "metadata": {}, "source": text}


def code_cells(cell: dict, source: str, n: int, page: Page) -> list[dict]:
    "A code cell with its options as tags of myst-nb; output that is markdown to be taken as it is becomes markdown cells."
    options, source = directives(source)
    outputs = [dict(o) for o in cell.get("outputs", [])]
    if options.get("include") is False:
        return []
    if options.get("warning") is False:
        outputs = [o for o in outputs if o.get("name") != "stderr"]
    if options.get("output") == "asis":
        texts = ["".join(o.get("data", {}).get("text/markdown", o.get("text", ""))) for o in outputs]
        return [markdown(page.to_myst(t), f"{n}-{i}") for i, t in enumerate(texts)]
    for o in outputs:
        if "text/markdown" in o.get("data", {}):
            o["data"] = {**o["data"], "text/markdown": page.to_myst("".join(o["data"]["text/markdown"]))}
    folded = options.get("code-fold") is True
    tags = [t for t, on in {"remove-input": options.get("echo") is False, "remove-output": options.get("output") is False, "hide-input": folded}.items() if on]
    if not source and not outputs:
        return []
    look: dict = {"code_prompt_show": options.get("code-summary", "Code"), "code_prompt_hide": options.get("code-summary", "Code")} if folded else {}
    before = []
    if "fig-cap" in options:
        name = options.get("label")
        caption = f"{page.label(name)}: {options['fig-cap']}" if name else options["fig-cap"]
        look["figure"] = {"caption": page.to_myst(caption), **({"name": name} if name else {})}
    if "fig-alt" in options:
        look["image"] = {"alt": options["fig-alt"]}
    if "tbl-cap" in options:
        name = options.get("label")
        before = [markdown((f"({name})=\n{page.label(name)}: " if name else "") + page.to_myst(options["tbl-cap"]), f"{n}-caption")]
    metadata = {"tags": tags, **({"mystnb": look} if look else {})}
    return [*before, {"cell_type": "code", "id": f"c{n}", "execution_count": None, "metadata": metadata, "source": source, "outputs": outputs}]


def notebooks(nbs: Path) -> list[str]:
    "The notebooks of the site, relative to their folder; nbdev passes over names that begin with _ or a dot."
    found = (p.relative_to(nbs) for p in nbs.rglob("*.ipynb"))
    return sorted(str(p) for p in found if not any(part.startswith(("_", ".")) for part in p.parts))

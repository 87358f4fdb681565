"The house by its import graph: no cycle, no arrow against the order of rooms, no public name twice; lazy imports and strings count."
import ast
import collections
import json
import re
from importlib import import_module
from pathlib import Path

root = Path(__file__).parent.parent
SEEN_FROM = {  # the rooms that a room may import from, beside itself
    "top": {"scores"},
    "scores": {"top"},
    "bench": {"top", "scores"},
    "service": {"top", "scores", "bench"},
    "run": {"top", "scores", "bench"},
    "study": {"top", "scores", "bench", "run"},
}


def modules() -> dict[str, Path]:
    files = (p for p in sorted((root / "u2c").rglob("*.py")) if p.name != "_modidx.py")
    return {".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): p for p in files}


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in SEEN_FROM else "top"


def imported(source: str, package: str) -> set[str]:
    "What code names: at its top, in a function, for a type checker, in a string."
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            up = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*up, *filter(None, [node.module])])
            found |= {base, *(f"{base}.{a.name}" for a in node.names)}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"u2c(\.\w+)+", node.value):
            found.add(node.value)
    return found


def graph() -> dict[str, set[str]]:
    "Module -> the modules of this package that it names; the package itself, which names all lazily, is left out."
    known, found = modules(), {}
    for m, path in known.items():
        package = m if path.name == "__init__.py" else m.rpartition(".")[0]
        found[m] = (imported(path.read_text(encoding="utf-8"), package) & known.keys()) - {m, "u2c"}
    return {m: names for m, names in found.items() if m != "u2c"}


def on_a_cycle(edges: dict[str, set[str]]) -> list[tuple[str, str]]:
    "The edges from which one comes back to where one began."
    def reached(start: str) -> set[str]:
        seen, todo = set(), [start]
        while todo:
            new = edges[todo.pop()] - seen
            seen |= new
            todo += new
        return seen

    reach = {m: reached(m) for m in edges}
    return [(m, n) for m in edges for n in sorted(edges[m]) if m in reach[n] | {n}]


def test_no_module_comes_back_to_itself():
    assert on_a_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [("b", "c"), ("c", "b")]
    assert not on_a_cycle(graph()), "these imports are on a cycle"


def test_no_import_against_the_order_of_rooms():
    against = [(m, n) for m, found in graph().items() for n in sorted(found) if room(n) not in SEEN_FROM[room(m)] | {room(m)}]
    assert not against, "a room imports from one above it"


def test_every_way_to_import_is_seen():
    source = "from . import a\nfrom ..run import b\nimport u2c.c\ndef f():\n    from u2c.d import e\n    return 'u2c.f.g'\n"
    found = imported(source, "u2c.service")
    assert {"u2c.service.a", "u2c.run.b", "u2c.c", "u2c.d", "u2c.f.g"} <= found
    assert {room(m) for m in modules()} == SEEN_FROM.keys()


def test_what_is_shared_is_not_private():
    taken = []
    for m, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("u2c")):
                taken += [(m, a.name) for a in node.names if a.name.startswith("_")]
    assert not taken, "a private name of another module"


def public() -> dict[str, list[str]]:
    "Module -> its public names."
    found = {}
    for m, path in modules().items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "__all__" for t in node.targets) and m != "u2c":
                found[m] = ast.literal_eval(node.value)
    return found


def test_a_public_name_lives_in_one_module():
    homes = collections.defaultdict(list)
    for m, names in public().items():
        for name in names: homes[name].append(m)
    assert not {name: where for name, where in homes.items() if len(where) > 1}


def test_what_is_public_in_the_wheel_can_be_kept_in_mind():
    count = {m: len(names) for m, names in public().items() if room(m) != "study"}
    assert sum(count.values()) <= 350, count


def test_an_exported_cell_fits_a_screen():
    long = []
    for path in root.glob("nbs/**/*.ipynb"):
        if ".ipynb_checkpoints" in path.parts: continue
        for n, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
            source = "".join(cell["source"])
            if cell["cell_type"] == "code" and re.search(r"^#\|\s*exporti?\b", source, re.M) and len(source.splitlines()) > 60:
                long.append((path.relative_to(root).as_posix(), n, len(source.splitlines())))
    assert not long, "notebook, cell, lines"


def test_a_module_is_that_of_a_notebook():
    "A notebook that moves leaves its old module behind, and its lines in the index, and nobody would notice."
    made = {m: p for m, p in modules().items() if p.name != "__init__.py"}
    assert import_module("u2c._modidx").d["syms"].keys() <= made.keys()
    for m, path in made.items():
        named = re.search(r"File to edit: (\S+\.ipynb)", path.read_text(encoding="utf-8"))
        assert named, f"{m} names no notebook"
        cells = json.loads((path.parent / named[1]).read_text(encoding="utf-8"))["cells"]
        assert f"#| default_exp {m.removeprefix('u2c.')}" in ("".join(cell["source"]).strip() for cell in cells), f"{m} is not of {named[1]}"


def test_the_front_page_is_short():
    text = (root / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 700
    assert len(re.findall(r"\]\(", text.partition("## Where to go\n")[2].partition("\n## ")[0])) in range(1, 9)

"""Bring what is generated in step with the notebooks: the library, clean notebooks, README.md, CONTRIBUTING.md.

With --check it fails when that changed a file, and names it, or when a cell does not fit a page: here in a second, where
the site's tests would say so at the end."""
import re
import subprocess
import sys
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter
from pages import CODE, around, check_sources, notebooks

root = Path(__file__).resolve().parent.parent
WRITTEN = {"index": "README.md", "contributing": "CONTRIBUTING.md"}  # notebook: file at the root
HIDDEN = re.compile(r"^#\|\s*(hide|default_exp|export|exporti|exports)\b", re.M)


def generated() -> dict[Path, bytes]:
    "Every file that the notebooks decide, with its content."
    files = [f for pattern in ("u2c/**/*.py", "u2c/data/*.ipynb", "nbs/**/*.ipynb") for f in root.glob(pattern)]
    files += [root / f for f in WRITTEN.values()]
    return {f: f.read_bytes() for f in files if f.exists() and ".ipynb_checkpoints" not in f.parts}


def from_root(text: str) -> str:
    "Markdown with its links and pictures as seen from the root of the repository; a link may have code for its text."
    links = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s]+)(?=\))")
    return around(CODE, lambda marked: links.sub(r"nbs/\1", marked), text)


def for_browsers(cell: dict) -> bool:
    "Whether a cell shows HTML alone, which runs on the site and nowhere else."
    shown = [o.get("data", {}) for o in cell.outputs]
    return "echo: false" in cell.source and bool(shown) and all("text/html" in data for data in shown)


def write_markdown(name: str, target: str) -> None:
    "A file at the root from a notebook: no hidden cells, no directives, links that hold from there."
    nb = nbformat.read(root / f"nbs/{name}.ipynb", as_version=4)
    nb.cells = [c for c in nb.cells if not (c.cell_type == "code" and (HIDDEN.search(c.source) or for_browsers(c)))]
    for cell in nb.cells:
        if cell.cell_type == "code":
            if re.search(r"^#\|\s*echo:\s*false", cell.source, re.M):  # the output alone
                table = "".join(o.get("data", {}).get("text/markdown", "") for o in cell.outputs)
                text = "".join(o.get("text", "") for o in cell.outputs)
                cell.update(cell_type="markdown", source=table or f"```\n{text.strip()}\n```")
                del cell["outputs"], cell["execution_count"]
                continue
            cell.source = re.sub(r"^#\|.*\n", "", cell.source, flags=re.M)
            shown = {kind for o in cell.outputs for kind in o.get("data", {})}
            if any(kind.startswith("image/") for kind in shown):
                sys.exit(f"{name}.ipynb: a picture in a cell's output does not reach {target}; save it and link to it")
        else:
            cell.source = from_root(cell.source)
    nb.metadata["language_info"] = {"name": "python"}  # nbdev_clean drops it, the fences need it
    body, _ = MarkdownExporter().from_notebook_node(nb)
    body = re.sub(r"\n{3,}", "\n\n", body).strip()
    head = f"<!-- Written by `make sync` from nbs/{name}.ipynb: edit that. -->"
    (root / target).write_text(f"{head}\n\n{body}\n", encoding="utf-8")


def pack_experiments() -> None:
    "The experiment notebooks without their outputs as package data, for u2c_reproduce to execute."
    for path in sorted(root.glob("nbs/experiments/*.ipynb")):
        nb = nbformat.read(path, as_version=4)
        for cell in nb.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        nbformat.write(nb, root / "u2c/data" / path.name)


def main() -> None:
    before = generated()
    for command in ("nbdev_export", "nbdev_clean"):
        subprocess.run([Path(sys.executable).parent / command], cwd=root, check=True)
    for name, target in WRITTEN.items():
        write_markdown(name, target)
    pack_experiments()
    after = generated()
    changed = sorted(str(f.relative_to(root)) for f in before.keys() | after.keys() if before.get(f) != after.get(f))
    if "--check" in sys.argv and changed:
        sys.exit("not in sync with the notebooks (now mended; look at the change and commit it): " + ", ".join(changed))
    faults = check_sources(root / "nbs", notebooks(root / "nbs"))
    if "--check" in sys.argv and faults:
        sys.exit("\n".join(["not for the site:", *faults]))
    print("in sync" if not changed else "updated: " + ", ".join(changed))


main()

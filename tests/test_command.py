"The command as a user runs it, on real images and a real network; and its readers on whatever bytes there are."
import csv
import io
import json
import os
import pickle
import re
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from sklearn.datasets import load_digits

import u2c
from u2c.core import Outputs
from u2c.demo import digits_outputs
from u2c.guards import seeded
from u2c.service.command import parsed, run_command
from u2c.service.inputs import InputError, class_images, find_images, listed_name, read_outputs
from u2c.service.inputs import read_picture
from u2c.service.report import ece_of, share_of

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # tiny data draw every warning there is
ENV = os.environ | {"PYTHONPATH": str(Path(u2c.__file__).parent.parent), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(autouse=True, scope="module")
def pillows_limit():
    "The command sets Pillow's limit of pixels for its process, which here is that of other tests as well."
    limit = PIL.Image.MAX_IMAGE_PIXELS
    yield
    PIL.Image.MAX_IMAGE_PIXELS = limit


def run(folder, *args, stdin="", code=0):
    "What `u2c` prints, on standard output and on standard error, if it ends with the right code"
    command = [sys.executable, "-c", "from u2c.service.command import main; main()", *map(str, args)]
    done = subprocess.run(command, cwd=folder, env=ENV, input=stdin, capture_output=True, text=True)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    "Digits as PNG in class folders, a network that has learned 0 to 7, and a classifier calibrated through the command"
    folder = tmp_path_factory.mktemp("command")
    x, y = load_digits(return_X_y=True)
    pictures = [PIL.Image.fromarray(np.uint8(i.reshape(8, 8) * 15)).resize((32, 32)) for i in x]
    rows = np.random.default_rng(0).permutation(np.nonzero(y < 8)[0])
    parts = {"va": rows[200:500], "te": rows[500:700], "fresh": rows[700:1000], "strange": np.nonzero(y >= 8)[0][:60]}
    for part, chosen in parts.items():
        for row in chosen:
            place = folder / part / (f"digit {y[row]}" if part != "strange" else ".")
            place.mkdir(parents=True, exist_ok=True)
            pictures[row].save(place / f"{row}.png")
    with seeded(0):
        net = timm.create_model("test_resnet", num_classes=8)
        config = timm.data.resolve_model_data_config(net) | {"input_size": (3, 32, 32)}
        transform = timm.data.create_transform(**config, is_training=False)
        images = torch.stack([transform(pictures[row].convert("RGB")) for row in rows[:200]])
        labels = torch.from_numpy(y[rows[:200]])
        optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
        for _ in range(10):
            for some in torch.randperm(200).split(50):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(net(images[some]), labels[some]).backward()
                optimizer.step()
    torch.save(net.state_dict(), folder / "own.pth")
    out, _ = run(folder, "calibrate", "--model", "own.pth", "--arch", "timm/test_resnet", "--size", 32, "--data", "va", "-o", "my.u2c", "--card")
    assert "300 rows, last layer 'head'" in out and (folder / "my.u2c.md").exists()
    return folder


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


def said(capsys, *args, code=0):
    "As `run`, without a process of its own"
    assert run_command(list(map(str, args))) == code
    return capsys.readouterr()


def test_predict_serves_the_good_and_names_the_bad(folder):
    (folder / "broken.png").write_bytes(b"no picture")
    listed = "\n".join(["strange/105.png", "/etc/passwd", "../x.png", "broken.png", "", "nothing.png"])
    out, errors = run(folder, "predict", "my.u2c", "-", "te", "--json", stdin=listed, code=1)
    records = {r["name"]: r for r in map(json.loads, out.splitlines())}
    assert len(records) == 201 and "strange/105.png" in records
    for name, record in records.items():
        assert 0 <= record["probability"] <= 1 and record["abstains"] == (record["answer"] == "unknown") and 0 < record["p_value"] <= 1
    right = [Path(name).parent.name == r["answer"] for name, r in records.items() if name.startswith("te")]
    assert np.mean(right) > 0.85
    for name in ("/etc/passwd: found an absolute path", "../x.png: found", "broken.png: found what does not read", "nothing.png: found no such file"):
        assert f"u2c: {name}" in errors
    assert len(errors.splitlines()) == 4


def test_the_three_forms_of_an_answer_agree(here, capsys):
    table = said(capsys, "predict", "my.u2c", "strange").out.splitlines()
    rows = list(csv.DictReader(io.StringIO(said(capsys, "predict", "my.u2c", "strange", "--csv").out)))
    records = list(map(json.loads, said(capsys, "predict", "my.u2c", "strange", "--json", "--batch", "7").out.splitlines()))
    assert len(table) - 1 == len(rows) == len(records) == 60
    for line, row, record in zip(table[1:], rows, records):
        assert line.startswith(record["name"]) and record["answer"] in line and row["answer"] == record["answer"]
        assert float(row["probability"]) == pytest.approx(record["probability"], abs=1e-4) == record["top"][0][1]


def test_evaluate_counts_what_predict_says(here, capsys):
    numbers = [json.loads(x) for x in said(capsys, "evaluate", "my.u2c", "te", "--unknown", "strange", "--json").out.splitlines()]
    assert [n["data"] for n in numbers] == ["te", "strange", "all"]
    records = [json.loads(x) for x in said(capsys, "predict", "my.u2c", "te", "--json").out.splitlines()]
    wrong = np.mean([r["answer"] != Path(r["name"]).parent.name for r in records])
    assert numbers[0]["err"][0] == pytest.approx(wrong) and numbers[0]["coverage"][0] == pytest.approx(1 - np.mean([r["abstains"] for r in records]))
    assert 0.3 < numbers[1]["rejected"][1] < numbers[1]["rejected"][0]


def test_the_report_stands_alone(here, capsys):
    (here / "te" / "digit 0" / "<b>&.png").write_bytes(next((here / "strange").glob("*.png")).read_bytes())
    try: said(capsys, "report", "my.u2c", "te", "--unknown", "strange", "-o", "report.html")
    finally: (here / "te" / "digit 0" / "<b>&.png").unlink()
    page = (here / "report.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 24 and page.count("<svg") == 3 and "<b>&" not in page and "src=\"data:" in page
    assert "prefers-color-scheme: dark" in page and "<script" not in page


def test_a_watch_goes_on_from_call_to_call(here, capsys):
    assert "expected the state of a watch" in said(capsys, "watch", "my.u2c", "te", code=2).err
    said(capsys, "watch", "my.u2c", "--reference", "fresh")
    assert json.loads(said(capsys, "watch", "my.u2c", "te", "--json").out)["n"] == 200
    scores = [json.loads(x)["u"] for x in said(capsys, "predict", "my.u2c", "strange", "--json").out.splitlines()]
    (here / "u.txt").write_text("\n".join(map(str, scores)))
    found = json.loads(said(capsys, "watch", "my.u2c", "--scores", "u.txt", "--json", code=3).out)
    assert (found["n"], found["alarm"]) == (260, "up")
    before = (here / "my.watch").read_bytes()
    (here / "u.txt").write_text("1.0\nnan\n")
    assert "u.txt, line 2: found 'nan', expected a finite number" in said(capsys, "watch", "my.u2c", "--scores", "u.txt", code=2).err
    assert (here / "my.watch").read_bytes() == before  # a failed call changes nothing
    assert "a watch that has begun" in said(capsys, "watch", "my.u2c", "--reference", "fresh", code=2).err
    said(capsys, "watch", "my.u2c", "--reference", "fresh", "--restart")
    assert strict(said(capsys, "watch", "my.u2c", "--json").out)["n"] == 0


def strict(text):
    "JSON as others read it: without NaN and Infinity"
    def refused(name): raise AssertionError(f"{name} is no JSON")
    return json.loads(text, parse_constant=refused)


def test_all_json_is_read_by_a_strict_parser(here, capsys, tmp_path):
    (tmp_path / "p.txt").write_text("0.5\n0.01\n")
    ranks = "ranks.u2c"  # beside its weights; the default's alarms need scores, and a watch on it refuses p-values
    said(capsys, "calibrate", "--model", "own.pth", "--arch", "timm/test_resnet", "--size", 32, "--data", "va", "--method", "rank", "-o", ranks)
    for model in ("my.u2c", ranks):
        begun = strict(said(capsys, "watch", model, "--reference", "fresh", "--state", tmp_path / "j.watch", "--restart", "--json").out)
        assert begun["rate"] is None and set(begun["u"].values()) == {None}
        if model == "my.u2c":
            why = said(capsys, "watch", model, "--state", tmp_path / "j.watch", "--p-values", tmp_path / "p.txt", "--json", code=2).err
            assert "p: found p-values for LeftOutU2C, which has none, expected Outputs or scores u" in why
    seen = strict(said(capsys, "watch", ranks, "--state", tmp_path / "j.watch", "--p-values", tmp_path / "p.txt", "--json").out)
    assert seen["n"] == 2 and set(seen["u"].values()) == {None}
    for line in said(capsys, "predict", "my.u2c", "strange", "--json").out.splitlines(): strict(line)
    for line in said(capsys, "evaluate", "my.u2c", "te", "--unknown", "strange", "--json").out.splitlines(): strict(line)


def test_a_new_watch_that_fails_leaves_the_old_one(here, capsys, tmp_path):
    state = tmp_path / "old.watch"
    said(capsys, "watch", "my.u2c", "te", "--reference", "fresh", "--state", state)
    before = state.read_bytes()
    again = ("watch", "my.u2c", "--reference", "fresh", "--restart", "--state", state)
    for wrong in (("--plot", tmp_path / "p.png"), ("te", "--plot", tmp_path / "p.nothing"), ("te", "--plot", tmp_path / "no" / "p.png")):
        said(capsys, *again, *wrong, code=2)
        assert state.read_bytes() == before
    said(capsys, *again, "te", "--plot", tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_calls_at_once_wait_for_each_other(here, capsys, tmp_path):
    said(capsys, "watch", "my.u2c", "--reference", "fresh", "--state", tmp_path / "w.watch")
    u = "\n".join(["-8.0"] * 100)
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(run, here, "watch", "my.u2c", "--scores", "-", "--state", tmp_path / "w.watch", "--json", stdin=u) for _ in range(3)]
    assert sorted(strict(call.result()[0])["n"] for call in calls) == [100, 200, 300]


@pytest.mark.parametrize("device", ["foo", "xpu", "cuda:9"])
def test_a_device_that_is_not_there(here, capsys, device):
    assert f"device: found '{device}'" in said(capsys, "predict", "my.u2c", "te", "--device", device, code=2).err


def test_a_word_for_abstaining_has_no_place_beside_outputs(tmp_path, capsys):
    x = digits_outputs().va
    np.savez(tmp_path / "va.npz", features=x.features, logits=x.logits, labels=x.labels)
    text = said(capsys, "calibrate", "--data", tmp_path / "va.npz", "--unknown", "other", "-o", tmp_path / "a.u2c", code=2).err
    assert "unknown: found with a file of outputs, expected with images alone" in text and not (tmp_path / "a.u2c").exists()


def test_other_weights_are_refused(here, capsys):
    state = torch.load("own.pth", weights_only=True)
    state["fc.bias"] = state["fc.bias"] + 1
    torch.save(state, "other.pth")
    assert "with weights" in said(capsys, "predict", "my.u2c", "te", "--weights", "other.pth", code=2).err


def test_names_of_classes_that_are_not_there(here, capsys):
    error = said(capsys, "calibrate", "--model", "timm/resnet18", "--data", "va", "--classes", "no", "-o", "x.u2c", code=2).err
    assert "classes: found no, which cannot be read (FileNotFoundError), expected names, one a line" in error


def test_weights_that_are_elsewhere(here, capsys, tmp_path):
    (tmp_path / "my.u2c").write_bytes((here / "my.u2c").read_bytes())
    strange = next((here / "strange").glob("*.png"))
    assert "found no own.pth beside the .u2c file, expected it there, or as --weights" in said(capsys, "predict", tmp_path / "my.u2c", strange, code=2).err
    said(capsys, "predict", tmp_path / "my.u2c", strange, "--weights", "own.pth")


class Evil:
    def __reduce__(self): return os.mkdir, ("ran",)


def test_a_pickle_is_not_opened(here, capsys):
    torch.save({"head.weight": Evil()}, "evil.pth")
    error = said(capsys, "calibrate", "--model", "evil.pth", "--arch", "timm/test_resnet", "--data", "va", "-o", "x.u2c", code=2).err
    assert "evil.pth, which does not read as tensors" in error
    with zipfile.ZipFile("evil.npz", "w") as z:
        array = io.BytesIO()
        np.lib.format.write_array_header_1_0(array, {"descr": "|O", "fortran_order": False, "shape": (1,)})
        z.writestr("logits.npy", array.getvalue() + pickle.dumps(Evil()))
    assert "evil.npz: logits.npy: found object, expected numbers" in said(capsys, "predict", "my.u2c", "evil.npz", code=1).err
    assert not Path("ran").exists() and not Path("x.u2c").exists()


def test_outputs_in_files_need_no_network(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = digits_outputs()
    for name in ("va", "te", "unknown"):
        x = getattr(data, name)
        np.savez(f"{name}.npz", features=x.features.numpy(), logits=x.logits.numpy(), labels=x.labels.numpy())
    for method in ("rank", "rc"):
        out = said(capsys, "calibrate", "--data", "va.npz", "-o", "my.u2c", "--method", method, "--scorer", "knn").out
        assert f"my.u2c: {method} on knn, 640 rows\nof them 5." in out
        records = [json.loads(x) for x in said(capsys, "predict", "my.u2c", "unknown.npz", "--json").out.splitlines()]
        assert len(records) == len(data.unknown) and (records[0]["p_value"] is None) == (method == "rc")
        found = [json.loads(x) for x in said(capsys, "evaluate", "my.u2c", "te.npz", "--unknown", "unknown.npz", "--json").out.splitlines()]
        assert (found[2]["nll"][0] is None) == (method == "rc")  # an infinite nll
    assert "without a network, and images, expected outputs" in said(capsys, "predict", "my.u2c", "x.png", code=2).err
    assert "found no labels" in said(capsys, "evaluate", "my.u2c", unlabelled(), code=2).err
    assert "model: found with a file of outputs" in said(capsys, "calibrate", "--data", "va.npz", "-o", "x.u2c", "--model", "timm/x", code=2).err


def unlabelled():
    np.savez("plain.npz", logits=np.zeros((3, 8), np.float32))
    return "plain.npz"


def test_a_published_network_by_its_name_in_timm(here, capsys, tmp_path):
    "The classes of a folder are looked up among all that the network knows"
    names = [f"class {i}" for i in range(1000)]
    (tmp_path / "names.txt").write_text("\n".join(names))
    for c, source in ((3, "digit 0"), (700, "digit 1")):
        (tmp_path / "va" / names[c]).mkdir(parents=True)
        for path in sorted((here / "va" / source).glob("*.png"))[:12]: (tmp_path / "va" / names[c] / path.name).write_bytes(path.read_bytes())
    model = "--model", "timm/tf_efficientnet_lite0", "--data", tmp_path / "va", "-o", tmp_path / "lite.u2c"
    assert "found 2 classes with a network of 1000, expected as many; --classes FILE" in said(capsys, "calibrate", *model, code=2).err
    said(capsys, "calibrate", *model, "--classes", tmp_path / "names.txt", "--scorer", "maxlogit", "--alpha", "0.8", "--size", 64)
    out = said(capsys, "predict", tmp_path / "lite.u2c", tmp_path / "va", "--json").out
    assert len(out.splitlines()) == 24


def test_weights_that_cannot_be_downloaded(here, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    error = said(capsys, "calibrate", "--model", "timm/resnet18.a1_in1k", "--data", "va", "-o", "x.u2c", code=2).err
    assert "found no way to download the weights of 'timm/resnet18.a1_in1k'" in error


def test_help_teaches_and_does_not_wait_for_torch(folder):
    for command in ("calibrate", "predict", "evaluate", "report", "watch"):
        out = subprocess.run([sys.executable, "-X", "importtime", "-c", "from u2c.service.command import main; main()", command, "--help"],
                             env=ENV, capture_output=True, text=True)
        assert out.returncode == 0 and f"u2c {command} " in out.stdout.partition("examples:")[2]
        assert "torch" not in out.stderr and "numpy" not in out.stderr
    assert run(folder, "--version")[0] == f"u2c {u2c.__version__}\n"
    assert "required: COMMAND" in run(folder, code=2)[1]
    assert "expected none of it" in run(folder, "evaluate", "my.u2c", "te", "more", code=2)[1]


def test_the_old_commands_are_there_under_the_new_name(here, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [])
    for words, code, text in (("reproduce --help", 0, "--benchmark"), ("imagenet check --data .", 1, "ImageNet-va")):
        with pytest.raises(SystemExit) as e: run_command(words.split())
        assert e.value.code == code and text in capsys.readouterr().out


def test_a_missing_extra_is_named(folder):
    block = "import sys; sys.modules['timm'] = None; from u2c.service.command import main; main()"
    done = subprocess.run([sys.executable, "-c", block, "predict", "my.u2c", "te"], cwd=folder, env=ENV, capture_output=True, text=True)
    assert done.returncode == 2 and 'expected it from pip install "u2c[vision] @ git+https://github.com/u2c/u2c"' in done.stderr, done.stderr


def test_a_reader_that_has_seen_enough(folder):
    "A pipe that is closed early is no error"
    line = f"{sys.executable} -c 'from u2c.service.command import main; main()' predict my.u2c te --json --batch 8 | head -1"
    done = subprocess.run(line, shell=True, cwd=folder, env=ENV, capture_output=True, text=True)
    assert done.stderr == "" and json.loads(done.stdout)


def test_a_name_may_be_any_bytes(folder, tmp_path):
    name = os.fsdecode(b"\xff\n.png")
    (tmp_path / name).write_bytes(next((folder / "strange").glob("*.png")).read_bytes())
    forms = [["predict", "my.u2c", str(tmp_path), *form] for form in ([], ["--json"], ["--csv"])]
    code = f"from u2c.service.command import run_command; print(*map(run_command, {forms}), sep='\\n')"  # one start of Python for three
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=ENV, capture_output=True, text=True, errors="surrogateescape")
    assert done.stdout.count("known") >= 3 and done.stdout.endswith("0\n0\n0\n") and done.stderr == "", done


def test_a_large_picture_is_refused(here, capsys):
    PIL.Image.new("L", (300, 300)).save("large.png")
    found = said(capsys, "predict", "my.u2c", "large.png", "strange/105.png", "--pixels", "80000", code=1)
    assert "large.png: found 300 x 300 pixels, expected at most 80,000; --pixels raises the limit" in found.err
    assert "strange/105.png" in found.out
    assert "bomb, expected at most 40,000 pixels" in said(capsys, "predict", "my.u2c", "large.png", "--pixels", "40000", code=1).err
    said(capsys, "predict", "my.u2c", "large.png", "--pixels", "90000")


bytes_like = st.binary(max_size=300)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(bytes_like, st.sampled_from([".npz", ".safetensors", ".csv", ".txt", ""]), st.booleans())
def test_any_bytes_are_outputs_or_an_input_error(tmp_path_factory, content, ending, framed):
    path = tmp_path_factory.mktemp("bytes") / f"x{ending}"
    path.write_bytes(len(content).to_bytes(8, "little") * framed + content)
    try: assert isinstance(read_outputs(path).outputs, Outputs)
    except InputError as e: assert str(e).startswith(f"{path}: ")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    "Files that read well"
    place, rng = tmp_path_factory.mktemp("good"), np.random.default_rng(0)
    parts = dict(features=rng.normal(size=(4, 3)), logits=rng.normal(size=(4, 2)), labels=np.array([0, 1, 2, 0]))
    np.savez(place / "x.npz", **parts)
    np.savez_compressed(place / "y.npz", **parts)
    save_file({k: torch.from_numpy(v) for k, v in parts.items()}, place / "x.safetensors")
    (place / "x.csv").write_text("name,logit_0,logit_1,feature_0,label\n" + "".join(f"a{i},{i}.5,-1e3,0,{i % 3}\n" for i in range(4)))
    PIL.Image.fromarray(rng.integers(0, 256, (9, 9, 3), np.uint8)).save(place / "x.png")
    for ending in ("jpg", "gif", "bmp", "webp", "tiff", "ppm"): PIL.Image.open(place / "x.png").save(place / f"x.{ending}")
    for path in place.iterdir(): (read_outputs if path.suffix in (".npz", ".csv", ".safetensors") else read_picture)(path)
    return place


@settings(max_examples=500, deadline=None, derandomize=True)
@given(st.data())
def test_a_damaged_file_is_read_or_refused(good, tmp_path_factory, data):
    path = data.draw(st.sampled_from(sorted(good.iterdir())))
    content, places = path.read_bytes(), st.integers(0, path.stat().st_size - 1)
    for _ in range(data.draw(st.integers(1, 3))):
        start, change = data.draw(places), data.draw(st.binary(max_size=4))
        content = content[:start] + change + content[start + data.draw(st.integers(0, 6)):]
    damaged = tmp_path_factory.mktemp("damaged") / path.name
    damaged.write_bytes(content)
    try: (read_outputs if path.suffix in (".npz", ".csv", ".safetensors") else read_picture)(damaged)
    except InputError as e: assert "found" in str(e) or ": " in str(e)


lines = st.lists(st.lists(st.sampled_from(["", "1", "-2.5", "nan", "1e999", "x", "1_0", '"', '"a\nb"', "\0", "logit_0", "label", "é"]), max_size=4), max_size=4)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(lines, st.sampled_from(["logit_0", "logit_0,logit_1", "logit_0,label", "name,logit_0", "logit_1", "", "feature_0,logit_0", "logit_0,logit_00"]))
def test_any_table_is_read_or_refused_by_line(tmp_path_factory, rows, header):
    path = tmp_path_factory.mktemp("table") / "x.csv"
    path.write_text("\n".join([header, *map(",".join, rows)]))
    try: found = read_outputs(path)
    except InputError: return
    assert torch.isfinite(found.outputs.logits).all() and len(found.names) == len(found.outputs)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(max_size=12) | st.from_regex(r"[a./\\:C~]{1,12}", fullmatch=True))
def test_a_listed_name_stays_below_its_folder(line):
    try: name = listed_name(line)
    except InputError: return
    root = "/folder/of/a/list"
    assert os.path.normpath(os.path.join(root, name)).startswith(root) and not re.match("[A-Za-z]:", name)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.text(max_size=8), max_size=4))
def test_any_lines_are_images_or_left_out(listed):
    bad = []
    images = find_images(["-"], listed, bad.append)
    assert len(images.names) + len(bad) <= len(listed) and all(isinstance(why, InputError) for why in bad)
    for path in images.paths:
        if not path.is_file():
            with pytest.raises(InputError): read_picture(path)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(["predict", "watch", "evaluate", "calibrate", "-", "--json", "--csv", "--top", "0", "-1", "no.u2c", "--unknown", "--data", "-o", "x", "--alpha", "2"]), max_size=6))
def test_any_arguments_are_understood_or_refused(argv):
    try: assert parsed(argv).command
    except SystemExit as e: assert e.code == 2


def test_pipes_and_devices_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "x.png")
    os.mkfifo(tmp_path / "x.npz")
    with pytest.raises(InputError, match="found no such file"): read_picture(tmp_path / "x.png")
    with pytest.raises(InputError, match="found no such file"): read_outputs(tmp_path / "x.npz")
    with pytest.raises(InputError, match="found no such file"): read_picture("/dev/zero")


def test_folders_that_link_in_a_circle(tmp_path):
    (tmp_path / "a").mkdir()
    PIL.Image.new("L", (4, 4)).save(tmp_path / "a" / "1.png")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    assert class_images(tmp_path)[0].names == ["a/1.png"]


def test_intervals_hold_what_they_should():
    "Of 300 samples, about 95 % of the intervals hold the true rate; the ece of a sure and right answer is 0"
    rng = torch.Generator().manual_seed(0)
    held = [m.low <= 0.1 <= m.high for m in (share_of(torch.rand(200, generator=rng) < 0.1) for _ in range(300))]
    assert 0.93 <= np.mean(held) <= 1
    assert ece_of(torch.eye(3), torch.arange(3)) == (0, 0, 0)


@pytest.mark.parametrize("null", [False, True])
def test_a_slow_pipe_gets_each_answer_before_it_asks_again(folder, null):
    "One process answers names and rows of JSON, line by line, while its input is still open; a bad line is named, and the next one is served"
    x, end = digits_outputs().te, "\0" if null else "\n"
    calibrated = folder / "rows.u2c"
    np.savez(folder / "rows.npz", **{k: v.numpy() for k, v in digits_outputs().va.parts().items()})
    run(folder, "calibrate", "--data", "rows.npz", "-o", calibrated)
    command = [sys.executable, "-c", "from u2c.service.command import main; main()", "predict", str(calibrated), "-", "--json", *["-0"] * null]
    with subprocess.Popen(command, cwd=folder, env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        answers = []
        for i in range(3):
            row = {"name": f"row {i}", "features": x.features[i].tolist(), "logits": x.logits[i].tolist()}
            for line in ("{}", json.dumps(row | {"features": [1.0]}), json.dumps(row)):
                process.stdin.write(line + end)
                process.stdin.flush()
            answers.append(strict(process.stdout.readline()))  # waits for ever if it is not answered now
        out, errors = process.communicate()
    assert [a["name"] for a in answers] == ["row 0", "row 1", "row 2"] and not out and process.returncode == 1
    assert len(errors.splitlines()) == 6 and "line 4: found '{}'" in errors and "features" in errors


def test_pictures_on_a_slow_pipe(folder):
    command = [sys.executable, "-c", "from u2c.service.command import main; main()", "predict", "my.u2c", "-", "--csv"]
    with subprocess.Popen(command, cwd=folder, env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        header, (first, second, *_) = None, sorted(f"strange/{f.name}" for f in (folder / "strange").iterdir())
        for name in (first, "nothing.png", second):
            process.stdin.write(name + "\n")
            process.stdin.flush()
            if header is None: header = process.stdout.readline()
            if name != "nothing.png": assert process.stdout.readline().startswith(name)
        process.communicate()
    assert process.returncode == 1

"Exported files answer as the classifier does, whatever was calibrated and how, and are not written when they do not."
import json
import subprocess
import sys

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from u2c import Outputs, RankU2C, RejectOrClassify, U2CClassifier, export, load
from u2c.bench.backbones import train_backbone
from u2c.bench.small import load_benchmark
from u2c.demo import digits_outputs
from u2c.held_out import p_value
from u2c.left_out import LeftOutU2C
from u2c.scores.base import make_scorer, register_scorer
from u2c.scores.combined import Combined
from u2c.scores.head import MaxLogit
from u2c.service.artifact import save_calibrator
from u2c.service.classifier import methods
from u2c.service.command import run_command
from u2c.service.export import MOST_OFF, OUTPUTS, Head, answer_ranges, check_answer
from u2c.service.export import export_calibrator, nudged, read_note, run_file, twins

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # a network of one epoch draws every warning there is

FORMATS = (".onnx", ".pt2")
UNKNOWN = ("held-out", "letters", "textures")


@pytest.fixture(scope="module")
def bench():
    return load_benchmark("small", 240)


@pytest.fixture(scope="module")
def nets(bench):
    torch.set_num_threads(1)
    train = bench["train"]
    return {name: train_backbone(name, train.images, train.labels, 8, epochs=2) for name in ("resnet_small", "vit_small")}


def scorers(head):
    parts = {name: make_scorer(name, **({"head": head} if name == "ash" else {})) for name in ("maxlogit", "ash", "mahalanobis", "knn")}
    return parts | {"combined": Combined(), "ash and knn": Combined([parts["ash"], "knn"])}


def fitted(net, bench, scorer, method, **options):
    va = bench["digits-va"]
    # U2C's recipe at a tenth of its steps: what is exported is the same formula
    few = {"steps": 1000} if method.startswith("u2c") else {}
    return U2CClassifier(net, scorer, method, **few, **options).fit((va.images, va.labels))


def agree(clf, path, x):
    "The file's answers lie within the original's range, and most are the same; where a network runs, features round."
    outputs, run = clf.outputs(x, labels=False), run_file(path)
    whole = path.stem == "whole"
    seen = [outputs, *(nudged(outputs, seed) for seed in range(8 * whole))]
    answer = run(x) if whole else run(outputs.features, outputs.logits)
    plain = clf.predict_proba(outputs).double()
    found = check_answer(answer, answer_ranges(clf.calibrator, clf.reference, seen), plain)
    assert found.at_steps < (0.5 if whole else 0.02) * len(x)


SCORES = ["maxlogit", "ash", "mahalanobis", "knn", "combined", "ash and knn"]
# A score and a method are modules of their own, so each format takes every score once and every method at least once,
# and the two formats pair them differently.
HEADS = [(score, [*methods][(i + shift) % len(methods)], suffix) for shift, suffix in enumerate(FORMATS) for i, score in enumerate(SCORES)]


@pytest.mark.parametrize("score, method, suffix", HEADS)
def test_every_head_agrees_on_the_benchmark(nets, bench, tmp_path, score, method, suffix):
    net = nets["resnet_small"]
    clf = fitted(net, bench, scorers(net.head)[score], method)
    path = tmp_path / f"head{suffix}"
    found = export(clf, path, backbone=False)
    assert found.rows == 64 + 64 and found.difference <= MOST_OFF
    for name in ("digits-te", *UNKNOWN):
        agree(clf, path, bench[name].images)


@pytest.mark.parametrize("net, score, method, suffix", [
    ("resnet_small", "combined", "rank", ".onnx"), ("vit_small", "knn", "u2c_linear", ".onnx"),
    ("resnet_small", "ash", "rc", ".pt2"), ("vit_small", "mahalanobis", "u2c", ".pt2"),
])  # fmt: skip
def test_whole_files_agree_on_the_benchmark(nets, bench, tmp_path, net, score, method, suffix):
    clf = fitted(nets[net], bench, scorers(nets[net].head)[score], method)
    path = tmp_path / f"whole{suffix}"
    assert export(clf, path).difference <= MOST_OFF
    for name in ("digits-te", *UNKNOWN):
        agree(clf, path, bench[name].images)
    for n in (1, 2, 17):
        assert [len(part) for part in run_file(path)(bench["digits-te"].images[:n])] == [n] * 3


@pytest.fixture(scope="module")
def clf(nets, bench):
    return fitted(nets["resnet_small"], bench, "knn", "rank", classes=[f"digit {i}" for i in range(8)], unknown="none of them")


@pytest.fixture(scope="module")
def files(clf, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for suffix in FORMATS:
        export(clf, folder / f"whole{suffix}")
        export(clf, folder / f"head{suffix}", backbone=False)
    return folder


def test_an_onnx_file_is_one_valid_file_with_names_and_a_note(clf, files):
    for kind, takes in {"head": Head.takes, "whole": ("images",)}.items():
        model = onnx.load(files / f"{kind}.onnx")
        onnx.checker.check_model(model, full_check=True)
        assert [i.name for i in model.graph.input] == list(takes)
        assert [o.name for o in model.graph.output] == list(OUTPUTS)
        sides = [v.type.tensor_type.shape.dim[0] for v in (*model.graph.input, *model.graph.output)]
        assert {side.dim_param for side in sides} == {"n"}, "any number of rows"
        note = json.loads({p.key: p.value for p in model.metadata_props}["u2c"])
        assert note == read_note(files / f"{kind}.onnx") and note["classes"][3] == "digit 3" and note["unknown"] == "none of them"
        assert note["versions"].keys() == {"u2c", "torch"} and note["backbone"] == clf.weights
    assert sorted(p.name for p in files.iterdir()) == ["head.onnx", "head.pt2", "whole.onnx", "whole.pt2"]


def test_the_same_classifier_gives_the_same_onnx_file(clf, files, tmp_path):
    export(clf, tmp_path / "head.onnx", backbone=False)
    assert (tmp_path / "head.onnx").read_bytes() == (files / "head.onnx").read_bytes()


def test_files_run_without_this_library(bench, files, clf):
    "In a process that cannot import u2c, by onnxruntime and by torch alone."
    x = bench["digits-te"].images[:5]
    torch.save(x, files.parent / "x.pt")
    code = f"""
import sys
sys.modules["u2c"] = None
import onnxruntime, torch
x = torch.load({str(files.parent / 'x.pt')!r})
p = onnxruntime.InferenceSession({str(files / 'whole.onnx')!r}).run(None, {{"images": x.numpy()}})[0]
q = torch.export.load({str(files / 'whole.pt2')!r}).module()(x)[0]
torch.save((torch.from_numpy(p), q), {str(files.parent / 'p.pt')!r})
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, cwd=files.parent)
    for p in torch.load(files.parent / "p.pt"):
        assert (p - clf.predict_proba(x)).abs().max() < MOST_OFF


@pytest.mark.parametrize("row", [torch.zeros(64), torch.full((64,), 1e30), torch.full((64,), 1e-30), -torch.ones(64)])
def test_odd_rows_have_the_same_answers(clf, files, row):
    logits = torch.tensor([[0.0] * 8, [1e4] + [-1e4] * 7])
    x = Outputs(row.repeat(2, 1), logits)
    for suffix in FORMATS:
        answer = run_file(files / f"head{suffix}")(x.features, x.logits)
        check_answer(answer, answer_ranges(clf.calibrator, clf.reference, [x]), clf.predict_proba(x).double())


def test_a_rank_is_the_same_at_every_known_score(tmp_path):
    "MaxLogit's scores are computed alike to the bit, so even ties have one answer."
    g = torch.Generator().manual_seed(0)
    va = Outputs(torch.randn(200, 4, generator=g), 3 * torch.randn(200, 3, generator=g), torch.arange(200) % 3)
    model = RankU2C("maxlogit").fit(va)
    export_calibrator(tmp_path / "x.onnx", model, va)
    _, u, p = run_file(tmp_path / "x.onnx")(va.features, va.logits)
    assert torch.equal(u, model.scorer.score(va))
    assert torch.equal(p, p_value(u, model.reference).float())


@pytest.mark.parametrize("fault, suffix", [("level", ".onnx"), ("tau", ".pt2"), ("pages", ".onnx")])
def test_a_wrong_file_is_refused_and_what_was_there_stays(clf, tmp_path, monkeypatch, fault, suffix):
    twin = twins[RankU2C]

    class Wrong(twin):
        def __init__(self, fitted):
            super().__init__(fitted)
            if fault == "pages":
                self.rank.pages[3] += 0.01
            else:
                setattr(self, fault, getattr(self, fault) * 1.001)

    path = tmp_path / f"head{suffix}"
    path.write_text("what was there")
    monkeypatch.setitem(twins, RankU2C, Wrong)
    with pytest.raises(ValueError, match="export: found probabilities in row .* nothing was written"):
        export(clf, path, backbone=False)
    assert [p.name for p in tmp_path.iterdir()] == [path.name] and path.read_text() == "what was there"


def test_a_moved_left_out_file_agrees_and_says_that_costs_stay_behind(tmp_path):
    d = digits_outputs()
    model = LeftOutU2C().fit(d.va)
    far = d.unknown.map(lambda x: x * 1000 if x.is_floating_point() else x)
    for suffix, moved in zip(FORMATS, (model.at(alpha=0.8), model.at(prior=0.3, costs=(1, 0.1, 9)))):
        path = tmp_path / f"head{suffix}"
        if moved.costs is None: export_calibrator(path, moved, d.te)
        else:
            with pytest.warns(UserWarning, match="costs decide in predict alone"): export_calibrator(path, moved, d.te)
        for x in (d.te, d.unknown, far):
            torch.testing.assert_close(run_file(path)(x.features.float(), x.logits.float())[0], moved.predict_proba(x), atol=MOST_OFF, rtol=0)
        assert (run_file(path)(far.features.float(), far.logits.float())[0].argmax(1) == 8).all()  # its alarms are in the file


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("name", ["msp", "gen", "energy", "ashp", "ashs", "react", "dice", "she", "nnguide"])
def test_every_score_by_itself_is_its_twin(tmp_path, name, suffix):
    "u, its p-value and the answer, of known, unknown and far rows, as the original gives them"
    d = digits_outputs()
    scorer = make_scorer(name, **({} if name in ("msp", "gen", "energy", "she", "nnguide") else {"head": d.head}))
    model = RankU2C(scorer).fit(d.va)
    found = export_calibrator(tmp_path / f"x{suffix}", model, d.te)
    assert found.difference <= MOST_OFF and found.rows > len(d.te)
    far = d.unknown.map(lambda x: x * 10 if x.is_floating_point() else x)
    for x in (d.te, d.unknown, far):
        p, u, chance = run_file(tmp_path / f"x{suffix}")(x.features.float(), x.logits.float())
        expected = model.scorer.score(x)
        assert expected.unique().numel() > len(x) / 10  # a score that is one number proves nothing
        torch.testing.assert_close(u, expected.float(), rtol=1e-4, atol=1e-5)
        same = (chance - p_value(expected, model.reference)).abs() < 1.5 / (len(model.reference) + 1)
        assert same.double().mean() > 0.98 and (p.argmax(1) == model.predict(x)).double().mean() > 0.98


def test_a_score_without_a_twin_is_named(bench, nets, tmp_path):
    class Own(MaxLogit):
        "Registered, and unknown to export"

    from u2c.scores.base import scorers

    register_scorer(Own)
    try:
        own = fitted(nets["resnet_small"], bench, Own(), "rank")
        with pytest.raises(ValueError, match="export: found Own, expected one of MaxLogit, "):
            export(own, tmp_path / "x.onnx")
    finally:
        del scorers["own"]


def test_what_cannot_be_done_is_said(clf, nets, bench, tmp_path):
    with pytest.raises(ValueError, match="U2CClassifier: found no fitted state"):
        export(U2CClassifier(nets["resnet_small"]), tmp_path / "x.onnx")
    with pytest.raises(ValueError, match="path: found 'x.tflite', expected a name that ends in .onnx or .pt2"):
        export(clf, tmp_path / "x.tflite")
    with pytest.raises(FileNotFoundError, match="path: found no folder"):
        export(clf, tmp_path / "none/x.onnx")
    outputs = clf.outputs((bench["digits-va"].images, bench["digits-va"].labels))
    from_arrays = U2CClassifier(nets["resnet_small"], "knn").fit(outputs)
    with pytest.raises(ValueError, match="data: found no images, expected a few images"):
        export(from_arrays, tmp_path / "x.onnx")
    assert export(from_arrays, tmp_path / "x.pt2", backbone=False).rows == 128
    te = bench["digits-te"]
    assert export(from_arrays, tmp_path / "x.pt2", (te.images, te.labels)).rows == 16
    blank = RejectOrClassify("maxlogit").fit(Outputs(None, outputs.logits, outputs.labels))
    with pytest.raises(ValueError, match="rows: found no features, expected some"):
        export_calibrator(tmp_path / "y.onnx", blank)


def test_without_onnx_the_error_says_what_to_install(clf, tmp_path, monkeypatch):
    for name in ("onnxscript", "onnxruntime"):
        with monkeypatch.context() as m:
            m.setitem(sys.modules, name, None)
            with pytest.raises(ImportError, match=rf'{name}: found not installed, expected it, for ONNX, from pip install "u2c\[export\] @ '):
                export(clf, tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())


def test_the_network_stays_as_it_is(clf, bench, tmp_path):
    net, x = clf.net.model, bench["digits-te"].images[:64]
    before = clf.predict_proba(x)
    net.train()
    for suffix in FORMATS:
        export(clf, tmp_path / f"x{suffix}")
    modes = [m.training for m in net.modules()]
    net.eval()
    assert all(modes) and not any(m._forward_hooks for m in net.modules())
    assert torch.equal(clf.predict_proba(x), before)


def test_a_loaded_classifier_exports_the_same(clf, bench, files, tmp_path):
    clf.save(tmp_path / "x.u2c")
    back = load(tmp_path / "x.u2c", clf.net.model)
    assert export(back, tmp_path / "whole.onnx", bench["digits-te"].images).rows == 16
    assert read_note(tmp_path / "whole.onnx") == read_note(files / "whole.onnx")
    x = bench["letters"].images
    for a, b in zip(run_file(tmp_path / "whole.onnx")(x), run_file(files / "whole.onnx")(x)):
        assert torch.equal(a, b)


def test_the_command_exports_a_calibrator_of_arrays(clf, bench, tmp_path, capsys):
    outputs = clf.outputs((bench["digits-va"].images, bench["digits-va"].labels))
    save_calibrator(tmp_path / "arrays.u2c", RankU2C("mahalanobis").fit(outputs))
    assert run_command(["export", str(tmp_path / "arrays.u2c"), str(tmp_path / "arrays.pt2")]) == 0
    assert "takes features and logits; 64 rows agree" in capsys.readouterr().out
    assert run_command(["export", str(tmp_path / "arrays.u2c"), str(tmp_path / "arrays.pb")]) == 2
    assert "expected a name that ends in .onnx or .pt2" in capsys.readouterr().err


def test_a_network_with_an_embedding_is_asked_about_its_own_numbers(tmp_path):
    torch.manual_seed(0)
    words = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 3))
    x, y = torch.randint(20, (300, 3)), torch.randint(3, (300,))
    clf = U2CClassifier(words, "knn").fit((x, y))
    assert export(clf, tmp_path / "x.onnx").rows == 16
    assert (run_file(tmp_path / "x.onnx")(x)[0] - clf.predict_proba((x, y))).abs().max() < 0.05


@pytest.mark.parametrize("method", methods)
@pytest.mark.parametrize("suffix", FORMATS)
def test_what_is_no_number_is_declined(tmp_path, method, suffix):
    "A nan or an inf in features, logits or images, which this library refuses, by every method"
    g = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 3
    x = torch.randn(300, 4, generator=g) + 2 * torch.eye(3, 4)[y]
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    few = {"steps": 50} if method.startswith("u2c") else {}
    clf = U2CClassifier(net, "knn", method, **few).fit((x, y))
    clf.net.ndim = 2
    head, whole = tmp_path / f"head{suffix}", tmp_path / f"whole{suffix}"
    export(clf, head, backbone=False)
    export(clf, whole, x[:8])
    x = x + 0.1  # between the rows of the reference, where rounding changes no rank
    seen, odd = clf.outputs(x[:5]), torch.tensor([torch.nan, torch.inf, -torch.inf])
    features, logits, images = seen.features.clone(), seen.logits.clone(), x[:5].clone()
    features[:3, 2], logits[3, 0], images[:3, 1] = odd, torch.nan, odd
    for path, given, bad in ((head, (features, logits), 4), (whole, (images,), 3)):
        p, _, p_value = run_file(path)(*given)
        assert (p[:bad] == torch.eye(4)[3]).all() and (p_value[:bad] == 1 / torch.tensor(301.0)).all()
        assert torch.allclose(p[bad:], clf.predict_proba(x[bad:5]), atol=1e-4)


def test_bfloat16_is_for_pt2_files(tmp_path):
    x, y = torch.randn(300, 4, generator=torch.Generator().manual_seed(0)), torch.arange(300) % 3
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval().bfloat16()
    clf = U2CClassifier(net, "maxlogit").fit((x, y))
    clf.net.ndim = 2
    with pytest.raises(ValueError, match="export: found weights in bfloat16, which ONNX's runtime does not compute with"):
        export(clf, tmp_path / "a.onnx", x[:8])
    assert not [*tmp_path.iterdir()] and export(clf, tmp_path / "a.pt2", x[:8]).rows

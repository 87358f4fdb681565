"The scores of more_scores beside other implementations, and through everything that takes a score."
import json
import warnings

import numpy as np
import pytest
import torch
from pytorch_ood import detector as theirs
from torch import nn

from u2c.bench.small import load_benchmark
from u2c.core import Outputs, own_copy
from u2c.held_out import stratified_folds
from u2c.rank import RankU2C
from u2c.reject import RejectOrClassify
from u2c.run.experiment import SCORERS, Config, describe, evaluate, finished, run
from u2c.run.reproduce import command_line, configurations
from u2c.scores.base import DetectorScorer, FunctionScorer, list_scorers, make_scorer
from u2c.scores.combined import Combined
from u2c.scores.head import HeadScorer, give_head
from u2c.service.artifact import ArtifactError, load_calibrator, save_calibrator
from u2c.service.classifier import U2CClassifier

MORE = ["msp", "entropy", "energy", "gen", "ashp", "ashs", "react", "dice", "she", "residual", "vim", "nnguide", "fdbd"]
LOGITS_ONLY = {"maxlogit", "msp", "entropy", "energy", "gen"}
c, d = 6, 20
g = torch.Generator().manual_seed(0)
centers = torch.rand(c, d, generator=g)
weight = 5 * (centers - centers.mean(0)) + 0.5 * torch.randn(c, d, generator=g)
bias = torch.randn(c, generator=g)
layer = nn.Linear(d, c)
layer.load_state_dict({"weight": weight, "bias": bias})


def outputs(n, scale=1.0, labels=True):
    "Features as after a ReLU, around a centre for each class, and the head's logits of them"
    y = torch.arange(n) % c
    phi = (centers[y] + scale * 0.3 * torch.randn(n, d, generator=g)).clamp_min(0)
    return Outputs(phi, phi @ weight.T + bias, y if labels else None)


va, x = outputs(300), outputs(80, 2.0, labels=False)


def scorer(name, **options):
    made = make_scorer(name, **options)
    give_head(made, layer)
    return made


def close(u, v, eps=1e-4):
    u, v = (torch.as_tensor(t, dtype=torch.float64) for t in (u, v))
    assert u.shape == v.shape and (u - v).abs().max() <= eps * u.std(), (u - v).abs().max() / u.std()


maps = nn.Sequential(nn.Flatten(), layer)
THEIRS = {  # name, options -> the detector; by what to multiply its scores, and what to add
    "msp": ({}, lambda: theirs.MaxSoftmax(None), 1, 1),
    "entropy": ({}, lambda: theirs.Entropy(None), 1, 0),
    "energy": ({}, lambda: theirs.EnergyBased(None), 1, 0),
    "energy, T = 10": ({"temperature": 10.0}, lambda: theirs.EnergyBased(None, t=10.0), 1, 0),
    "gen": ({}, lambda: theirs.GEN(None), c, 0),  # the mean over classes there
    "gen, M = 3": ({"gamma": 0.5, "m": 3}, lambda: theirs.GEN(None, 0.5, 3), 3, 0),
    "ash": ({"percentile": 65}, lambda: theirs.ASH(None, maps, "ash-b", 0.65), 1, 0),
    "ashp": ({"percentile": 65}, lambda: theirs.ASH(None, maps, "ash-p", 0.65), 1, 0),
    "ashs": ({"percentile": 65}, lambda: theirs.ASH(None, maps, "ash-s", 0.65), 1, 0),
    "react": ({}, lambda: theirs.ReAct(None, maps), 1, 0),
    "react, 60": ({"percentile": 60}, lambda: theirs.ReAct(None, maps, percentile=0.6), 1, 0),
    "dice": ({}, lambda: theirs.DICE(None, weight, bias, 0.9), 1, 0),
    "dice, 30": ({"p": 30}, lambda: theirs.DICE(None, weight, bias, 0.3), 1, 0),
    "she": ({}, lambda: theirs.SHE(None, layer), 1, 0),
    "vim": ({}, lambda: theirs.ViM(None, d // 2, weight, bias), 1, 0),
    "vim, 7": ({"dim": 7}, lambda: theirs.ViM(None, 7, weight, bias), 1, 0),
    "nnguide": ({}, lambda: theirs.NNGuide(None, layer, 100), 1, 0),
    "nnguide, 3": ({"k": 3}, lambda: theirs.NNGuide(None, layer, 3), 1, 0),
    "fdbd": ({}, lambda: theirs.fDBD(None, layer), 1, 0),
}


@pytest.mark.parametrize("title", THEIRS)
def test_beside_pytorch_ood(title):
    options, make, factor, constant = THEIRS[title]
    other = make_scorer(make(), refit=True).fit(va)
    new = Outputs(x.features, x.logits / 8) if title.startswith("gen") else x  # it keeps 1e-7 away from 0 and 1
    close(scorer(title.split(",")[0], **options).fit(va).score(new), factor * other.score(new) + constant)


def rows_of(x):
    return zip(x.features.double().numpy(), x.logits.double().numpy())


def lse(f):
    return f.max() + np.log(np.exp(f - f.max()).sum())


def test_residual_by_singular_vectors():
    W, b = weight.double().numpy(), bias.double().numpy()
    origin = -np.linalg.pinv(W) @ b
    principal = np.linalg.svd(va.features.double().numpy() - origin)[2][:10]
    def one(p):
        p = p - origin
        return np.linalg.norm(p - principal.T @ (principal @ p))
    close(scorer("residual").fit(va).score(x), [one(p) for p, _ in rows_of(x)])


def test_generalized_entropy_keeps_what_single_precision_loses():
    sure = Outputs(logits=torch.tensor([[20.0 + i, 0.0, -1.0] for i in range(30)]))
    def one(f):  # in double precision, and with the sum of the others for one minus the largest
        p = np.exp(f - lse(f))
        q = np.array([np.delete(p, j).sum() for j in range(len(p))])
        return (p**0.1 * q**0.1).sum()
    u = scorer("gen").fit(sure).score(sure)
    close(u, [one(f) for f in sure.logits.double().numpy()])
    assert len(u.unique()) == 30 and len(scorer("msp").fit(sure).score(sure).unique()) == 30
    rounded = theirs.MaxSoftmax(None).predict_logits(sure.logits)
    assert len(rounded.unique()) == 1, "what the definition avoids"


@pytest.mark.parametrize("metric", ["inner_product", "euclidean", "cosine"])
def test_patterns_by_hand(metric):
    like = {
        "inner_product": lambda p, s: p @ s,
        "euclidean": lambda p, s: -np.linalg.norm(p - s),
        "cosine": lambda p, s: p @ s / np.linalg.norm(p) / np.linalg.norm(s)}[metric]
    phi, y, answer = va.features.double().numpy(), va.labels.numpy(), va.logits.argmax(1).numpy()
    assert 0.5 < (y == answer).mean() < 1
    pattern = [phi[(y == k) & (answer == k)].mean(0) for k in range(c)]
    u = scorer("she", metric=metric).fit(va).score(x)
    close(u, [-like(p, pattern[f.argmax()]) for p, f in rows_of(x)])


@pytest.mark.parametrize("distance", [True, False])
def test_boundaries_by_hand(distance):
    W, mean = weight.double().numpy(), va.features.double().numpy().mean(0) * distance
    def one(p, f):
        k = f.argmax()
        far = [(f[k] - f[j]) / np.linalg.norm(W[k] - W[j]) for j in range(c) if j != k]
        return -np.mean(far) / np.linalg.norm(p - mean)
    close(scorer("fdbd", distance_as_normalizer=distance).fit(va).score(x), [one(p, f) for p, f in rows_of(x)])


def test_diagonal_mahalanobis_by_hand():
    phi, y = va.features.double().numpy(), va.labels.numpy()
    means = np.stack([phi[y == k].mean(0) for k in range(c)])
    within, total = ((phi - means[y])**2).mean(0) + 1e-6, phi.var(0) + 1e-6
    def one(p): return min(np.sqrt(((p - m)**2 / within).sum()) for m in means) - np.sqrt(((p - phi.mean(0))**2 / total).sum())
    s = make_scorer("mahalanobis", diagonal=True).fit(va)
    close(s.score(x), [one(p) for p, _ in rows_of(x)])
    fold = stratified_folds(va.labels)
    held = s.held_out(va)
    close(held[fold == 2], own_copy(s).fit(va[fold != 2]).score(va[fold == 2]), 1e-6)


def test_temperature_is_the_one_found_where_none_is_named():
    for name in ("msp", "entropy", "gen"):
        cooled = Outputs(logits=x.logits / 2.5)
        close(make_scorer(name, temperature=None).fit(va, 2.5).score(x), make_scorer(name).fit(va).score(cooled), 1e-6)
    close(make_scorer("energy", temperature=None).fit(va, 2.5).score(x), 2.5 * make_scorer("energy").fit(va).score(Outputs(logits=x.logits / 2.5)), 1e-6)


# ---- through the package ----

def quietly(f, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return f(*args, **kwargs)


def test_the_names_of_the_issue_are_registered():
    assert {*MORE, "ash", "mahalanobis", "knn", "maxlogit", "combined"} <= set(list_scorers())


@pytest.mark.parametrize("name", MORE)
def test_a_score_is_one_number_a_row_and_says_what_it_needs(name):  # the checks, on the card's page, ask for the rest
    s = scorer(name)
    quietly(s.fit, va, 1.5)
    u = s.score(x)
    assert u.shape == (80,) and u.dtype == torch.float32 and u.isfinite().all()
    needs = "logits" if name in LOGITS_ONLY else "features"
    bare = Outputs(logits=va.logits, labels=va.labels)
    if needs == "logits":
        assert scorer(name).fit(bare).score(bare).shape == (300,)
    else:
        with pytest.raises(ValueError, match=f"features: found None, expected an .n, d. matrix, which {name} works on"):
            scorer(name).fit(bare)


@pytest.mark.parametrize("name", MORE)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(name, dtype):
    parts = (va.features.to(dtype), va.logits.to(dtype))
    wide = Outputs(*(p.to(torch.float32 if dtype != torch.float64 else dtype) for p in parts), va.labels)
    close(quietly(scorer(name).fit, Outputs(*parts, va.labels)).score(wide), quietly(scorer(name).fit, wide).score(wide), 1e-5)


@pytest.mark.parametrize("name", [name for name in MORE if name != "nnguide"])  # it leaves one out, see 03_more_scores
def test_held_out_scores_are_of_other_rows(name):
    s, fold = scorer(name), stratified_folds(va.labels)
    held = quietly(s.held_out, va, 1.5)
    part = quietly(own_copy(s).fit, va[fold != 3], 1.5).score(va[fold == 3])
    close(held[fold == 3], part, 1e-6)


@pytest.mark.parametrize("name", MORE)
def test_into_a_file_and_back(name, tmp_path):
    model = quietly(RankU2C(Combined([scorer(name), "maxlogit"])).fit, va)
    save_calibrator(tmp_path / "a.u2c", model)
    assert torch.equal(load_calibrator(tmp_path / "a.u2c").predict_proba(x), model.predict_proba(x))


def test_what_is_code_is_in_no_file(tmp_path):
    margin = make_scorer(lambda x: -x.logits.amax(1))
    other = make_scorer(theirs.ViM(None, 8, weight, bias), refit=True)
    for s, name, found in ((margin, "FunctionScorer", "a function"), (other, "DetectorScorer", "a detector of another library")):
        for made in (s, Combined(["knn", s])):
            model = RankU2C(made).fit(va)
            with pytest.raises(ArtifactError, match=f"{name}: found {found}, which no file can hold"):
                save_calibrator(tmp_path / "a.u2c", model)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [n for n in MORE if isinstance(make_scorer(n), HeadScorer)])
def test_a_classifier_hands_over_its_head(name):
    net = nn.Sequential(nn.Linear(5, d), nn.ReLU(), layer)
    images, y = torch.randn(200, 5, generator=g), torch.arange(200) % c
    clf = quietly(U2CClassifier(net, name).fit, (images, y))
    assert torch.equal(clf.calibrator.scorer.weight, layer.weight.detach())
    assert clf.predict_proba(images).shape == (200, c + 1)


def test_a_function_is_a_score():
    f = make_scorer(lambda x: (-x.logits.amax(1)).tolist())
    u = RejectOrClassify(f, temperature=1.0).fit(va)
    assert isinstance(f, FunctionScorer)
    assert torch.equal(u.predict_proba(x), RejectOrClassify("maxlogit", temperature=1.0).fit(va).predict_proba(x))
    with pytest.raises(ValueError, match="u of FunctionScorer: found 1 nan or inf"):
        make_scorer(lambda x: [float("nan")] + [0.0] * (len(x) - 1)).fit(va).score(x)


def test_a_fitted_detector_stays_as_it_is():
    detector = theirs.Mahalanobis(None).fit_features(va.features, va.labels)
    given = make_scorer(detector)
    assert isinstance(given, DetectorScorer)
    expected = detector.predict_features(x.features)
    assert torch.equal(given.fit(outputs(60)).score(x), expected)
    assert torch.equal(given.held_out(va), given.score(va)), "it has learned elsewhere, so each row is held out"
    refitted = make_scorer(detector, refit=True).fit(outputs(60))
    assert not torch.equal(refitted.score(x), expected)
    assert torch.equal(detector.predict_features(x.features), expected), "a copy learns"
    fold, held = stratified_folds(va.labels), refitted.held_out(va)
    part = own_copy(refitted).fit(va[fold != 1]).score(va[fold == 1])
    close(held[fold == 1], part, 1e-6)


def test_no_library_is_imported_for_an_adapter():
    import subprocess, sys
    code = "import sys; from u2c import make_scorer; make_scorer(lambda x: x); print('pytorch_ood' in sys.modules, 'scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == ["False", "False"]


# ---- experiments ----

def test_evaluate_takes_every_score():
    data = {"va": va, "te": outputs(150), "far": Outputs(x.features, x.logits, torch.full((80,), c))}
    groups = {"va": "in-domain", "te": "in-domain", "far": "far-ood"}
    names = ["vim", "combined"]
    records = quietly(evaluate, data, groups, (weight, bias), resamples=5, scorers=names)
    assert records.scorer.unique().tolist() == names and len(records) == 3 * 2 * 5
    assert np.isfinite(records.nll_floored).all()


def test_the_papers_four_are_the_default_and_leave_no_trace():
    assert Config().scorers == SCORERS == ("maxlogit", "ash", "mahalanobis", "knn")
    assert "scorers" not in describe(Config(limit=20))["config"]
    assert describe(Config(limit=20, scorers=["vim"]))["config"]["scorers"] == ("vim",)
    given = vars(command_line().parse_args([]))["scorers"]
    assert given == SCORERS
    given = command_line().parse_args(["--scorers", "vim, knn"]).scorers
    assert configurations("small", ["resnet_small"], 1, limit=20, scorers=given)[0].scorers == ("vim", "knn")
    with pytest.raises(ValueError, match="scorers: found 'odin', expected one of ash, "):
        configurations("small", ["resnet_small"], 1, scorers=["odin"])


def test_a_run_with_other_scores_keeps_its_network(tmp_path):
    first, second = (Config(limit=130, epochs=2, resamples=2, scorers=s) for s in (("nnguide",), ("gen",)))
    times = []
    for config in (first, second):
        assert quietly(run, config, tmp_path).scorer.unique().tolist() == list(config.scorers)
        assert finished(config, tmp_path)
        assert json.loads((tmp_path / "about.json").read_text())["config"]["scorers"] == list(config.scorers)
        times.append((tmp_path / "weights.safetensors").stat().st_mtime_ns)
    assert not finished(first, tmp_path) and times[0] == times[1], "trained once"
    load_benchmark.cache_clear()

"Members' logits on their way through everything that takes outputs."
import json
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.stats import entropy

from u2c.bench.features import ImageFiles, extract_files, load_shards
from u2c.core import Outputs
from u2c.guards import seeded
from u2c.rank import RankU2C
from u2c.reject import RejectOrClassify
from u2c.run.experiment import Config, evaluate, run_outputs
from u2c.scores.base import make_scorer
from u2c.scores.members import join_members
from u2c.service.artifact import load_calibrator, save_calibrator
from u2c.service.classifier import U2CClassifier
from u2c.service.command import run_command
from u2c.unified import U2C

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # tiny random data draw every warning there is
NAMES = ("variance", "mutual_information", "chosen_variance")
quick = settings(max_examples=40, deadline=None, derandomize=True)


def outputs(n=80, m=4, c=3, d=5, seed=0, unknown=False):
    "Members that agree about known rows and differ about unknown ones"
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % c
    members = torch.randn(n, m, c, generator=g) * (3 if unknown else 1) + 3 * torch.eye(c)[y][:, None] * (not unknown)
    return Outputs(torch.randn(n, d, generator=g) + y[:, None], labels=y * 0 + c if unknown else y, members=members)


def by_hand(members):
    "The three scores of each row, one member and one class at a time"
    rows = []
    for row in members.double().numpy():
        p = np.exp(row - row.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        mean = p.mean(0)
        variance = sum(np.mean([(q[k] - mean[k]) ** 2 for q in p]) for k in range(len(mean)))
        rows.append((variance, np.mean([entropy(q, mean) for q in p]), np.var(p[:, mean.argmax()])))
    return np.array(rows)


@quick
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 5), st.sampled_from([0.01, 1.0, 8.0]), st.sampled_from([torch.float32, torch.float64]))
def test_scores_are_what_a_loop_makes_of_their_formulas(seed, m, c, scale, dtype):
    g = torch.Generator().manual_seed(seed)
    x = Outputs(members=(torch.randn(7, m, c, generator=g) * scale).to(dtype))
    expected = by_hand(x.members)
    for name, u in zip(NAMES, expected.T):
        assert np.allclose(make_scorer(name).fit(x).score(x).numpy(), u, rtol=1e-6, atol=1e-12), name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_precision_in_every_block(name, dtype, monkeypatch):
    x = outputs(300).map(lambda t: t.to(dtype) if t.is_floating_point() else t)
    whole = make_scorer(name).fit(x).score(x)
    assert whole.dtype == torch.float64 and torch.isfinite(whole).all() and (whole >= 0).all()
    parts = torch.cat([make_scorer(name).fit(x).score(x[i : i + 7]) for i in range(0, 300, 7)])
    assert torch.equal(parts, whole)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", [RejectOrClassify, lambda s: U2C(s, steps=20), RankU2C])
def test_a_file_brings_a_calibrator_back(tmp_path, name, method):
    va, te = outputs(), outputs(seed=1)
    model = method(make_scorer("combined", parts=(name, "knn")) if method is RankU2C else name).fit(va)
    save_calibrator(tmp_path / "m.u2c", model)
    back = load_calibrator(tmp_path / "m.u2c")
    assert torch.equal(back.predict_proba(te), model.predict_proba(te))
    with pytest.raises(ValueError, match="members: found 3, expected 4"):
        back.predict_proba(outputs(m=3))
    with pytest.raises(ValueError, match="members: found None"):
        back.predict_proba(Outputs(te.features, te.logits))


def test_without_members_the_averaged_prediction_is_all_that_counts():
    "Scores of logits and features do not know whether members are there."
    va, te = outputs(), outputs(seed=1)
    bare = [Outputs(x.features, x.logits, x.labels) for x in (va, te)]
    for name in ("maxlogit", "knn", "mahalanobis"):
        for method in (RejectOrClassify, RankU2C):
            assert torch.equal(method(name).fit(va).predict_proba(te), method(name).fit(bare[0]).predict_proba(bare[1]))


def test_evaluate_takes_members_and_their_scores(monkeypatch):
    monkeypatch.setattr("u2c.run.experiment.U2C", partial(U2C, steps=20))  # what a link learns is not the question
    data = {"va": outputs(), "te": outputs(seed=1), "far": outputs(seed=2, unknown=True)}
    groups = {"va": "in-domain", "te": "in-domain", "far": "far-ood"}
    head = torch.zeros(3, 5), torch.zeros(3)
    records = evaluate(data, groups, head, resamples=10, scorers=("maxlogit", *NAMES))
    assert len(records) == 3 * 4 * 5 and set(records.scorer) == {"maxlogit", *NAMES}
    auroc = records[records.dataset == "far"].groupby("scorer").auroc.first()
    assert (auroc[list(NAMES)] > 0.8).all()  # members were made to differ there


class Sampler(torch.nn.Module):
    "Two linear networks on small pictures"
    def __init__(self):
        super().__init__()
        with seeded(0):
            self.heads = torch.nn.ModuleList(torch.nn.Linear(48, 3) for _ in range(2))
        self.about, self.transform = {"name": "sampler"}, lambda im: torch.tensor(np.asarray(im)).permute(2, 0, 1) / 255
        self.pixels = self.transform  # a reader does all of it

    def sample(self, x):
        phi = x.flatten(1)
        return phi, torch.stack([head(phi) for head in self.heads], 1)


def test_shards_keep_members(tmp_path):
    rng = np.random.default_rng(0)
    names = [f"{i}.png" for i in range(7)]
    for name in names:
        Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).save(tmp_path / name)
    (tmp_path / "6.png").write_bytes(b"no picture")
    files, net = ImageFiles(tmp_path, names, [0, 1, 2, 3, 0, 1, 2]), Sampler()
    shards = extract_files(net, files, tmp_path / "out", shard=3, batch=2, workers=0, skip_bad=True)
    found = load_shards(shards)  # the last of them is empty
    assert len(shards) == 3 and found.members.shape == (6, 2, 3) and found.labels.tolist() == [0, 1, 2, 3, 0, 1]
    pictures = torch.stack([net.transform(Image.open(tmp_path / name)) for name in names[:6]])
    assert torch.allclose(found.members, net.sample(pictures)[1], atol=1e-6)
    assert torch.equal(load_shards(shards[:1]).members, found.members[:3])


def test_a_run_reads_members_back(tmp_path, monkeypatch):
    config = Config("small", "resnet_mimo", limit=20, epochs=1)
    made, head = run_outputs(config, tmp_path)
    monkeypatch.setattr("u2c.run.experiment.train_backbone", None)  # whoever trains again, fails
    monkeypatch.setattr("u2c.run.experiment.extract", None)
    again, _ = run_outputs(config, tmp_path)
    for name, x in made.items():
        assert x.members.shape == (20, 3, 8) and list(again[name].parts()) == list(x.parts())
        assert all(torch.equal(a, b) for a, b in zip(x.parts().values(), again[name].parts().values()))
        assert torch.allclose(x.features @ head[0].T + head[1], x.members.mean(1), atol=1e-4)


def test_the_command_reads_members(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, x in {"va": outputs(), "te": outputs(seed=1)}.items():
        np.savez(f"{name}.npz", members=x.members, labels=x.labels, features=x.features)
    np.savez("new.npz", members=outputs(10, seed=2, unknown=True).members)
    run_command(["calibrate", "--data", "va.npz", "--scorer", "mutual_information", "-o", "m.u2c"])
    run_command(["evaluate", "m.u2c", "te.npz"])
    capsys.readouterr()
    run_command(["predict", "m.u2c", "new.npz", "te.npz", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    model, new = RankU2C("mutual_information").fit(outputs()), [outputs(10, seed=2, unknown=True), outputs(seed=1)]
    assert [row["u"] for row in rows] == [u for x in new for u in model.scorer.score(x).tolist()]
    assert [row["abstains"] for row in rows] == [k == 3 for x in new for k in model.predict(x).tolist()]


def test_a_classifier_keeps_members_of_unlabelled_rows():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(5, 3))
    clf = U2CClassifier(net, scorer="variance").fit(outputs())
    te = outputs(seed=1)
    assert torch.equal(clf.outputs(te, labels=False).members, te.members) and clf.outputs(te, labels=False).labels is None
    assert clf.predict_proba(te).shape == (80, 4)


def test_networks_trained_one_by_one_are_an_ensemble():
    "Joined by hand, outputs are those of the recipe."
    from u2c.bench.backbones import train_backbone
    from u2c.bench.features import extract

    g = torch.Generator().manual_seed(0)
    x, y = torch.rand(32, 28, 28, generator=g), torch.arange(32) % 4
    whole = extract(train_backbone("resnet_ensemble", x, y, 4, seed=1, epochs=1), x, y)
    single = [extract(train_backbone("resnet_small", x, y, 4, seed, 1), x, y) for seed in range(3, 6)]
    assert torch.equal(join_members(single).members, whole.members)
    assert torch.equal(join_members(single).features, whole.features)

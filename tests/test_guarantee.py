"A promise on answers: kept in draws, in a file, on the card, by the command, and against late labels."
import json
import re

import numpy as np
import pytest
import torch
from scipy.stats import binom, binomtest
from torch import nn
from torch.utils.data import DataLoader

from u2c import Outputs, RankU2C, RejectOrClassify, U2CClassifier, Watch, export, load
from u2c.demo import digits_outputs
from u2c.guarantee import Promise, at_most, clopper_pearson, few_wrong
from u2c.service.artifact import ArtifactError, load_calibrator, model_card, pack, read_file, save_calibrator, unpack, write_file
from u2c.service.command import run_command
from u2c.service.export import read_note, run_file

d = digits_outputs()
model = RankU2C("combined").fit(d.va)


@pytest.mark.parametrize("error", [0.01, 0.2])
def test_a_cut_passes_the_exact_test(error):
    for k, w in ((1, 0), (30, 2), (500, 3), (4000, 100)):
        assert few_wrong(w, k, error) == pytest.approx(binom.cdf(w, k, error), rel=1e-9)
        theirs = binomtest(w, k).proportion_ci(0.9, "exact")
        assert clopper_pearson(w, k, 0.05) == pytest.approx(tuple(theirs), abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_a_promise_is_broken_no_more_often_than_it_says(seed):
    "Error just above the promise wherever one cuts: whatever is promised is wrong; in steps: so is what lies below a half."
    rng, n, draws = np.random.default_rng(seed), (150, 400, 1000)[seed], 3000
    for eta in (lambda s: np.full_like(s, 0.0501), lambda s: np.where(s > 0.5, 0.0, 0.102)):
        above = np.cumsum(eta(np.linspace(1, 0, 10_001))) / np.arange(1, 10_002)
        broken = 0
        for _ in range(draws):
            s = rng.random(n)
            p = at_most(s, rng.random(n) < eta(s), error=0.05)
            broken += p.cut is not None and above[round((1 - p.cut) * 10_000)] > 0.05
        assert broken / draws <= 0.05 + 3 * (0.05 * 0.95 / draws) ** 0.5


@pytest.mark.parametrize("cls", [RankU2C, RejectOrClassify])
def test_what_is_below_the_cut_is_declined_and_nothing_else_changes(cls):
    plain = cls("combined").fit(d.va)
    promised = plain.at_most(d.te, error=0.05)
    p, said, before = promised.predict_proba(d.te), promised.predict(d.te), plain.predict(d.te)
    assert torch.equal(p, plain.predict_proba(d.te)) and plain.promise is None
    sure = p.gather(1, before[:, None])[:, 0] > promised.promise.cut
    assert torch.equal(said, torch.where((before < 8) & sure, before, 8))
    answered = said < 8
    assert promised.promise.answered == answered.sum() and promised.promise.wrong == (said != d.te.labels)[answered].sum()
    assert promised.at(alpha=0.9).promise is None  # another level has other probabilities
    assert promised.fit(d.va).promise is None


def test_a_promise_is_kept_in_a_file_and_told_on_the_card(tmp_path):
    promised = model.at_most(d.te, error=0.05)
    save_calibrator(tmp_path / "a.u2c", promised)
    back = load_calibrator(tmp_path / "a.u2c")
    assert back.promise == promised.promise and torch.equal(back.predict(d.te), promised.predict(d.te))
    assert f"It was promised that {promised.promise}." in model_card(back, {})
    header, tensors = pack(promised)
    for key, value in (("cut", 2.0), ("cut", None), ("wrong", 10**6), ("error", "0.05"), ("rows", 1.5), ("more", 1)):
        with pytest.raises(ArtifactError, match="promise|Promise"): unpack(header | {"promise": header["promise"] | {key: value}}, tensors)


def test_what_cannot_be_promised_says_how_many_rows_would_do():
    few = Outputs(d.te.features[:60], d.te.logits[:60], d.te.labels[:60])
    with pytest.raises(ValueError, match=r"cannot be promised with these 60 rows; about [\d,]+ would do"): model.at_most(few, error=0.05)
    wrong = Outputs(d.te.features, d.te.logits, (d.te.labels + 1) % 8)
    with pytest.raises(ValueError, match="a thousand times as many such rows would not do"): model.at_most(wrong, error=0.05)
    with pytest.raises(ValueError, match="unknown: found 0 of"): model.at_most(d.te, base_rate=0.1)


def test_about_as_many_rows_as_would_do_do():
    rng, found = np.random.default_rng(0), []
    draw = lambda n: (s := rng.random(n), rng.random(n) < 0.04 * (1 - s))
    for _ in range(20):
        few = at_most(*draw(100))
        if few.cut is None and few.needed: found.append(at_most(*draw(3 * few.needed)).cut is not None)
    assert len(found) > 10 and np.mean(found) > 0.7
    assert at_most(np.linspace(0.9, 1, 20), np.zeros(20)).needed < 400  # none was wrong


def test_the_command_promises_and_hears_labels(tmp_path, capsys):
    for name, x in (("va", d.va), ("te", d.te)):
        np.savez(tmp_path / f"{name}.npz", features=x.features, logits=x.logits, labels=x.labels)
    va, te, out = (str(tmp_path / name) for name in ("va.npz", "te.npz", "my.u2c"))
    make = ["calibrate", "--data", va, "-o", out]
    assert run_command([*make, "--max-error", "0.05"]) == 2 and "with --held-out" in capsys.readouterr().err
    assert run_command([*make, "--max-error", "0.0001", "--held-out", te]) == 2
    assert re.search(r"cannot be promised with these \d+ rows", capsys.readouterr().err) and not (tmp_path / "my.u2c").exists()
    assert run_command([*make, "--max-error", "0.05", "--held-out", te]) == 0
    assert "at most 5 % of the answers are wrong, with 95 % confidence" in capsys.readouterr().out
    cut = load_calibrator(out).promise.cut
    run_command(["predict", out, te, "--json"])
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(r["abstains"] or r["probability"] > cut for r in records) and any(r["abstains"] for r in records)
    assert run_command(["watch", out, "--reference", te]) == 0
    (tmp_path / "late.txt").write_text("1\n" * 40 + "0\n" * 20)
    capsys.readouterr()
    assert run_command(["watch", out, "--labels", str(tmp_path / "late.txt"), "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert (told["labelled"], told["wrong"], told["promised"]) == (60, 20, 0.05) and 40 < told["broken_at"] <= 60


def test_a_watch_keeps_labels_and_what_it_expects(tmp_path):
    promised = model.at_most(d.te, error=0.05)
    watch = Watch(promised, d.te).update(d.te).label(np.arange(100) % 30 > 0)
    watch.save(tmp_path / "a.watch")
    back = Watch.load(tmp_path / "a.watch", promised)
    assert back.report() == watch.report() and back.report().labelled == 100
    for w in (watch, back): w.label(np.zeros(20))
    assert back.report() == watch.report() and watch.report().alarmed
    header, tensors = read_file(tmp_path / "a.watch", "watch")
    old = {k: v for k, v in tensors.items() if k != "recent_said" and not k.startswith("answers.")}
    del header["answers"], header["usual"]
    write_file(tmp_path / "old.watch", "watch", header, old)  # as one of before has it
    assert Watch.load(tmp_path / "old.watch", promised).report().expected is None


def test_exported_files_tell_the_promise(tmp_path):
    from u2c.service.export import export_calibrator

    promised = model.at_most(d.te, error=0.05)
    with pytest.warns(UserWarning, match="what was promised decides in predict alone"): export_calibrator(tmp_path / "a.pt2", promised, d.te)
    assert Promise(**read_note(tmp_path / "a.pt2")["promise"]) == promised.promise


class Text(nn.Module):
    "A small transformer, with the signature and the answers of those of the trade"
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.classifier = nn.Linear(16, 3)

    def forward(self, input_ids, attention_mask, labels=None):
        h = self.encoder(self.words(input_ids), src_key_padding_mask=attention_mask == 0)
        m = attention_mask[..., None].float()
        return {"logits": self.classifier((h * m).sum(1) / m.sum(1)), "loss": None}


torch.manual_seed(0)
net = Text().eval()
ids, mask = torch.randint(1, 50, (300, 9)), (torch.arange(9) < torch.randint(3, 10, (300, 1))).long()
with torch.no_grad(): y = net(ids, mask)["logits"].argmax(1)
y[::7] = (y[::7] + 1) % 3
data = {"input_ids": ids, "attention_mask": mask}
NAMES = ["play", "stop", "next"]


def first(n: int) -> dict: return {k: v[:n] for k, v in data.items()}


def test_text_models_take_dictionaries_tuples_and_texts():
    clf = U2CClassifier(net, "combined", classes=NAMES).fit(data | {"labels": [NAMES[k] for k in y]})
    rows = [{"input_ids": i, "attention_mask": m, "labels": k} for i, m, k in zip(ids, mask, y)]
    p = clf.predict_proba(data)
    torch.testing.assert_close(U2CClassifier(net, "combined").fit(DataLoader(rows, 50)).predict_proba(DataLoader(rows, 7)), p, atol=1e-5, rtol=0)
    torch.testing.assert_close(U2CClassifier(net, "combined").fit([((ids, mask), y)]).predict_proba([((ids, mask), y)]), p, atol=1e-5, rtol=0)
    def tokenize(texts): return {"input_ids": torch.tensor([[int(w) for w in t.split()] for t in texts]), "attention_mask": torch.ones(len(texts), 9, dtype=torch.int64)}
    texts = [" ".join(map(str, row)) for row in ids.tolist()]
    spoken = U2CClassifier(net, "maxlogit", adapt=tokenize, classes=NAMES).fit((texts, [NAMES[k] for k in y]))
    assert spoken.predict(texts[0]) == spoken.predict(texts)[:1]
    assert set(clf.predict(data)) <= {*NAMES, "unknown"} and clf.explain(first(1)).answer in (*NAMES, "unknown")
    assert clf.evaluate(data | {"labels": y})["rows"] == 300


def test_what_is_wrong_with_named_inputs_is_said():
    clf = U2CClassifier(net, "maxlogit", classes=NAMES)
    for bad, why in (({"labels": ["loud"] * 300}, "labels: found 'loud', expected one of"), ({"text": ["a"] * 300, "labels": y}, "adapt= makes inputs"),
                     ({"idx": ids, "labels": y}, "idx.*unexpected keyword"), ({"attention_mask": mask[:9], "labels": y}, r"attention_mask \(9, 9\)")):
        with pytest.raises((ValueError, RuntimeError), match=why): clf.fit(data | bad)
    with pytest.raises(ValueError, match="labels: found 'play', expected classes="): U2CClassifier(net, "maxlogit").fit(data | {"labels": ["play"] * 300})


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_text_models_export_with_named_inputs_of_any_length(suffix, tmp_path):
    clf = U2CClassifier(net, "maxlogit", "u2c", classes=NAMES).fit(data | {"labels": y})
    assert export(clf, tmp_path / f"x{suffix}").rows == 16
    run = run_file(tmp_path / f"x{suffix}")
    for n, length in ((1, 9), (5, 4)):
        few = {k: v[:n, :length] for k, v in data.items()}
        torch.testing.assert_close(run(few["input_ids"], few["attention_mask"])[0], clf.predict_proba(few), atol=1e-5, rtol=0)
    clf.save(tmp_path / "my.u2c")
    assert torch.equal(load(tmp_path / "my.u2c", net).predict_proba(first(9)), clf.predict_proba(first(9)))


def test_one_logit_is_two_classes(tmp_path):
    torch.manual_seed(0)
    binary = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
    x = torch.randn(300, 5)
    with torch.no_grad(): right = (binary(x) > 0).float()
    right[::9] = 1 - right[::9]
    clf = U2CClassifier(binary, "ash").fit((x, right[:, 0]))
    p = clf.predict_proba(x)
    assert p.shape == (300, 3) and torch.equal(U2CClassifier(binary, "ash").fit([(x, right)]).predict_proba(x), p)
    with torch.no_grad(): odds = binary(x)[:, 0] / clf.calibrator.tau
    torch.testing.assert_close((p[:, 1] / p[:, 0]).log().double(), odds.double(), atol=1e-4, rtol=1e-4)
    assert export(clf, tmp_path / "x.pt2").difference < 1e-5


def test_half_precision_may_be_exported_with_a_tolerance(tmp_path):
    torch.manual_seed(0)
    half = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 4)).half()
    x = torch.randn(300, 5)
    with torch.no_grad(): clf = U2CClassifier(half, "maxlogit", "u2c").fit((x, half(x.half()).argmax(1)))
    found = export(clf, tmp_path / "x.pt2", tolerance=0.05)
    assert 0 <= found.difference <= 0.05 and "agree to" in str(found)


def test_unknown_rows_count_among_the_wrong_where_no_share_is_stated():
    "Also where the caller's own `wrong` leaves them out."
    s, strange = np.linspace(1, 0.3, 800), np.arange(800) % 4 == 0
    none = at_most(s, np.zeros(800, bool), 0.02, unknown=strange)
    assert none.cut is None and none == at_most(s, strange, 0.02)
    with pytest.raises(ValueError, match="unknown: found"): at_most(s, strange, unknown=strange[:9])


@pytest.mark.parametrize("strange", [1, 7])
def test_a_promise_that_lets_all_unknown_rows_in_is_refused_and_no_error(strange):
    "As many times as many rows are rounded: more are never let in than there are."
    s, unknown = np.r_[np.linspace(1, 0.3, 60), np.full(strange, 0.99)], np.arange(60 + strange) >= 60
    found = at_most(s, unknown, 0.02, unknown=unknown, base_rate=0.2, cuts=2)
    assert found.cut is None and found.needed is None and "would not do either" in str(found)

"""Unit tests of the unit tests: each check catches a score that is broken in its own way, and lets the others pass."""
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

import u2c.scores
from u2c import checks
from u2c.checks import CHECKS, check_scorer, plain_setting, report_card, sample
from u2c.core import in_domain_labels
from u2c.held_out import plain_scores
from u2c.scores.base import Scorer, claim, list_scorers, make_scorer, need_features
from u2c.scores.distances import KNN, Mahalanobis
from u2c.scores.more import SHE


class ToMean(Scorer):
    "Distance to the nearest class mean: it passes every check that applies, but for what the rows of its own fit say"

    def __init__(self):
        super().__init__("means")

    def _fit(self, va):
        phi, y = need_features(va, "tomean").double(), in_domain_labels(va)
        self.means = torch.stack([phi[y == k].mean(0) for k in y.unique()])

    def _score(self, x):
        return self.distance(need_features(x, "tomean").to(self.means.dtype))

    def distance(self, phi):
        return torch.cdist(phi, self.means).amin(1)


HONEST = claim(scale="times the factor")


# ---- what it sees ----


class Backwards(ToMean):
    "Falls on rays that leave the data towards the origin"

    def distance(self, phi):
        middle = self.means.mean(0)
        behind = (middle - phi) @ torch.nn.functional.normalize(middle, dim=0)
        return super().distance(phi) - 3 * (behind - 8).relu()


class Clipped(ToMean):
    "Does not see lengths beyond those of the data, only directions"

    def distance(self, phi):
        length, most = phi.norm(dim=1, keepdim=True), 1.2 * self.means.norm(dim=1).max()
        return super().distance(phi * (most / length).clamp_max(1))


class OneFeature(ToMean):
    "Looks at a single feature, of the unknown class"

    def distance(self, phi):
        return (phi[:, -2:] - self.means[:, -2:].mean(0)).sum(1).abs()


class Shy(ToMean):
    "Takes what has much of the unknown class for known, until it is very far"

    def distance(self, phi):
        marked = (phi[:, -4:].mean(1) > self.means.mean() + 1.8) & (phi[:, -4:].mean(1) < 10) & (phi[:, :-4].mean(1) < 5)
        return super().distance(phi) - 8 * marked


# ---- what moves it ----


class Taxicab(ToMean):
    "Sums of differences depend on the axes"

    def distance(self, phi):
        return torch.cdist(phi, self.means, p=1).amin(1)


class Logits(ToMean):
    "Reads something of the logits that the softmax does not see"

    def _score(self, x):
        return super()._score(x) - 0.05 * x.logits.mean(1)


class FirstRows(ToMean):
    "Learns from the first rows that come"

    def _fit(self, va):
        super()._fit(va[: 4 * len(va) // 5])


class Counting(ToMean):
    "Grows with the number of rows"

    def _fit(self, va):
        super()._fit(va)
        self.means = self.means * (1 + math.log10(len(va)) / 100)


# ---- quantiles ----


class Memory(KNN):
    "Scores a row by its neighbours, itself among them, and calls that held-out"

    _held_out = plain_scores


# ---- stable ----


class OtherK(ToMean):
    "Another number of neighbours is another score"

    def __init__(self, k=4):
        super().__init__()
        self.k = k

    def distance(self, phi):
        return super().distance(phi) + (0 if self.k == 4 else 1) * 20 * (phi[:, 0] - phi[:, 1]).abs()


class Favourite(ToMean):
    "Adds a feature to the distance, the one that happens to vary most"

    def __init__(self):
        super().__init__()
        self.register_buffer("which", None)

    def _fit(self, va):
        super()._fit(va)
        self.which = self.choose(va)

    def choose(self, va):
        return va.features.double().var(0).argmax()

    def distance(self, phi):
        return super().distance(phi) + 0.7 * phi[:, self.which]


class Dice(Favourite):
    "Throws dice for the feature, without a seed"

    def choose(self, va):
        g = torch.Generator().manual_seed(int(torch.get_rng_state()[:8].sum()))
        return torch.randint(va.features.shape[1], (), generator=g)


# ---- finite ----


class Standardized(ToMean):
    "Divides by a spread, which may be 0"

    def _fit(self, va):
        super()._fit(va)
        self.means = self.means / va.features.double().std(0)[None] * va.features.double().std(0)[None]


class Reciprocal(ToMean):
    "Divides by a square in single precision, which is next to 0 for small numbers"

    def _fit(self, va):
        super()._fit(va)
        self.means = self.means + 1e-12 / va.features.square().mean()


class Squares(ToMean):
    "Squares in single precision, which are infinite for large numbers"

    def distance(self, phi):
        return (phi.float()[:, None] - self.means.float()).square().sum(2).amin(1).sqrt()


class Narrow(ToMean):
    "Rounds what comes in half precision"

    def _score(self, x):
        phi = x.features
        narrow = phi.dtype in (torch.float16, torch.bfloat16)
        return self.distance((4 * (phi / 4).round() if narrow else phi).double())


# ---- place ----


class Centred(ToMean):
    "Compares rows with those that came along"

    def _score(self, x):
        u = super()._score(x)
        return u - 0.05 * u.mean()


class Elsewhere(ToMean):
    "Computes on the CPU, and brings the scores back"

    def _score(self, x):
        return super()._score(x).cpu().to(x.device)


class Stays(ToMean):
    "Keeps a copy of the means that does not move along; the means themselves are of no use"

    def _score(self, x):
        here = torch.zeros(x.features.shape[1], 1, dtype=torch.float64, device="cpu")
        return super()._score(x) + (x.features.double() @ here)[:, 0]


# ---- protocol ----


class Ready(ToMean):
    "Scores before it was fitted"

    def check_ready(self, x):
        if self.means is None:
            self.fit(x[x.labels < x.n_classes])


class Forgetful(ToMean):
    "Keeps a part of what it learned out of the state"

    def __init__(self):
        super().__init__()
        self.level = 0.0

    def _fit(self, va):
        super()._fit(va)
        self.level = self.means.mean().item()

    def _score(self, x):
        return super()._score(x) + self.level


class InPlace(ToMean):
    "Learns into memory that others may share"

    def _fit(self, va):
        old = self.means
        super()._fit(va)
        if old is not None and old.shape == self.means.shape:
            self.means = old.copy_(self.means)


class Scales(ToMean):
    "Writes into the rows it is given"

    def _fit(self, va):
        va.features.mul_(1 + 1e-6)
        super()._fit(va)


class Draws(ToMean):
    "Draws random numbers that somebody else would have drawn"

    def _fit(self, va):
        torch.rand(1)
        super()._fit(va)


# Each broken score with the checks that catch it: its own first, then what cannot be helped.
BROKEN = {
    "rays": [(Backwards(), {}, ["rays"])],
    "overshoot": [(Clipped(), HONEST, ["overshoot"])],
    "density": [(OneFeature(), {}, ["density"])],
    "order": [(Shy(), {}, ["order"])],
    "feature_scale": [(ToMean(), claim(), ["feature_scale"])],
    "rotation": [(Taxicab(), HONEST, ["rotation"])],
    "logit_shift": [(Logits(), HONEST | {"feature_scale": "mixed"}, ["logit_shift"])],
    "row_order": [(FirstRows(), {}, ["row_order"])],
    "duplicates": [(Counting(), HONEST, ["duplicates"])],
    "held_out_quantiles": [(Memory(k=2), KNN().claimed(), ["held_out_quantiles", "overshoot"])],
    "in_sample_quantiles": [(Mahalanobis(relative=False), Mahalanobis().claimed(), ["in_sample_quantiles"])],
    "subsamples": [(Favourite(), {}, ["subsamples"])],
    "neighbours": [(OtherK(), HONEST | {"rotation": "axes"}, ["neighbours"])],
    "seeds": [(Dice(), {}, ["seeds"])],
    "constant": [(Standardized(), HONEST, ["constant"])],
    "tiny": [(Reciprocal(), HONEST, ["tiny"])],
    "huge": [(Squares(), HONEST, ["huge"])],
    "half": [(Narrow(), HONEST, ["half"])],
    "batches": [(Centred(), {}, ["batches"])],
    "device": [(Elsewhere(), HONEST, ["device"]), (Stays(), HONEST, ["device"])],
    "unfitted": [(Ready(), HONEST, ["unfitted"])],
    "state": [(Forgetful(), {}, ["state"])],
    "untouched": [(InPlace(), HONEST, ["untouched"]), (Scales(), HONEST, ["untouched"]), (Draws(), HONEST, ["untouched"])],
}
LEARNS = {"in_sample_quantiles"}  # all that learns from rows is caught by it, if only class means
CASES = [pytest.param(name, *case, id=f"{name}-{type(case[0]).__name__}") for name, several in BROKEN.items() for case in several]


def test_every_check_has_a_score_that_it_catches():
    assert BROKEN.keys() == CHECKS.keys()


@pytest.mark.parametrize("name, scorer, claims, caught", CASES)
def test_a_broken_score_is_caught_by_its_check_and_passes_the_others(name, scorer, claims, caught):
    report = check_scorer(scorer, claims)
    assert name in report.named("fail"), report
    assert set(report.named("fail")) - LEARNS == set(caught) - LEARNS, report


def test_a_good_score_passes_all_that_apply():
    report = check_scorer(ToMean(), HONEST)
    assert set(report.named("fail")) == LEARNS and report.named("not applicable") == ["neighbours"], report


def test_in_sample_quantiles_catch_what_learns_from_rows_and_nothing_else():
    verdicts = {name: check_scorer(name, checks=LEARNS).named("fail") for name in ("maxlogit", "ash", "mahalanobis", "knn")}
    assert verdicts == {"maxlogit": [], "ash": [], "mahalanobis": [*LEARNS], "knn": [*LEARNS]}


# What the paper's four fail, and the combination of three of them. A change here is a change of a score, or of a check.
PAPER = {
    "maxlogit": {"rays", "overshoot", "density"},
    "ash": {"rays", "overshoot", "density"},
    "mahalanobis": {"rays", "density", "order", "in_sample_quantiles", "subsamples"},
    "knn": {"overshoot", "in_sample_quantiles"},
    "combined": {"in_sample_quantiles"},  # its tails go on beyond the largest known score
}


@pytest.mark.parametrize("name", PAPER)
def test_what_the_papers_scores_fail(name):
    report = check_scorer(name)
    assert set(report.named("fail")) == PAPER[name], report


@pytest.mark.parametrize("name", CHECKS)
def test_checks_parametrize_a_test(name):
    result = CHECKS[name]("maxlogit")
    assert (result.verdict == "fail") == (name in PAPER["maxlogit"]), result
    assert result.check.sentence and result.check.unit and result.check.sense in ("<=", ">=")


def test_numbers_are_the_same_each_time_and_nobody_elses_luck_changes():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = check_scorer("knn")
    torch.rand(3), np.random.rand(3)
    second = check_scorer("knn")
    assert [r.number for r in first.results] == [r.number for r in second.results]
    torch.set_rng_state(before[0])
    check_scorer(Draws())
    assert torch.equal(torch.get_rng_state(), before[0])


def test_a_scorer_stays_as_it_was():
    scorer, other = KNN(), KNN(k=3).fit(sample(50, 0))
    bank = other.bank.clone()
    check_scorer(scorer)
    check_scorer(other)
    assert scorer.bank is None and torch.equal(other.bank, bank)


def test_the_level_of_the_quantile_checks():
    "Exact held-out scores: p-values of other draws are below 5 % about as often as that"
    subject = checks.subject_of("knn")
    p = [checks.quantiles_hold(subject, lambda s, va: s.held_out(va), seed=1000 + 20 * i) for i in range(20)]
    assert sum(v < 0.05 for v in p) <= 5 and min(p) > 1e-4, p  # 6 or more of 20 happen once in 3,000
    assert sum(v < 0.5 for v in p) >= 3, p  # and they are not all large


def test_a_crash_is_a_failure_of_every_check():
    class Crash(Scorer):
        def _score(self, x):
            return x.nothing

    assert set(check_scorer(Crash()).named("fail")) == set(CHECKS)


def test_a_head_goes_with_the_features_exactly():
    s = plain_setting()
    moved = checks.mapped(s, torch.linalg.qr(torch.randn(20, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0])
    shifted, by = checks.shifted(s)
    for t in (moved, shifted, checks.magnified(s, 1e-20), checks.magnified(s, 1e20)):
        for x in (t.va, t.x):
            torch.testing.assert_close(x.features @ t.head[0].T + t.head[1], x.logits, rtol=1e-4, atol=float(x.logits.abs().max()) * 1e-5)
    torch.testing.assert_close(shifted.x.logits, s.x.logits + by[:, None])


def test_claims_speak_of_checks_and_laws():
    for name in u2c.scores.names:  # those that apply hold
        assert make_scorer(name).claimed().keys() == claim().keys() <= CHECKS.keys(), name
        report = check_scorer(name, checks=list(claim()))
        assert report, report


class Tables(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.cells, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag == "td":
            self.cells.append(dict(attrs))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


class Rude(ToMean):
    def _score(self, x):
        raise RuntimeError('<script>"&')


def test_a_report_card_prints_and_renders():
    card = report_card(["maxlogit", Rude()])
    parser = Tables()
    parser.feed(card._repr_html_())
    assert not parser.open and "script" not in parser.open
    assert len(parser.cells) == 2 * (len(CHECKS) + len({c.group for c in CHECKS.values()}))
    assert [c["title"] for c in parser.cells if "title" in c].count('fail: RuntimeError: <script>"&') == len(CHECKS)
    lines = str(card).splitlines()
    assert lines[1].split()[1:] == ["F" if n in PAPER["maxlogit"] else "-" if n == "neighbours" else "." for n in CHECKS]
    assert lines[2].split()[1:] == ["F"] * len(CHECKS)
    report = card["maxlogit"]
    one = Tables()
    one.feed(report._repr_html_())
    assert not one.open and len(one.cells) == 5 * len(CHECKS)
    assert re.search(r"^fail +rays +-1 >= 0\.9 +u rises along rays", str(report), re.M)


def test_an_ensembles_members_average_to_the_prediction():
    x = sample(200, 0)
    for factor in (1e-20, 1, 1e20):
        members = checks.members_of(x.features * factor, x.logits * factor)
        torch.testing.assert_close(members.softmax(2).mean(1), (x.logits * factor).softmax(1), atol=1e-5, rtol=0)
    assert checks.members_of(x.features, x.logits).softmax(2).std(1).mean() > 1e-4


# ---- verdicts that a reader relies on ----


class NotANumber(ToMean):
    def distance(self, phi): return super().distance(phi) * math.nan


class AColumn(ToMean):
    def distance(self, phi): return super().distance(phi)[:, None]


@pytest.mark.parametrize("scorer", [NotANumber(), AColumn()])
def test_scores_that_are_none_fail(scorer):
    report = check_scorer(scorer, checks=["order", "batches"])
    assert not report and report.named("fail") == ["order", "batches"]


def test_a_report_in_which_nothing_applies_is_no_success():
    report = check_scorer(KNN(500), checks=["order", "batches"])
    assert report.named("not applicable") == ["order", "batches"] and not report


@pytest.mark.parametrize("scorer, check", [
    (SHE("euclidean"), "feature_scale"), (SHE("cosine"), "feature_scale"), (Mahalanobis(diagonal=True), "rotation")])
def test_options_that_change_a_claim_are_known(scorer, check):
    assert check_scorer(scorer, checks=[check])[check].verdict != "fail"
    plain = type(scorer)().claimed()
    assert check_scorer(scorer, plain, [check])[check].verdict == "fail"  # held to the default's claim


def test_two_of_a_class_have_two_names():
    card = report_card([KNN(), KNN(distance="mean")])
    names = [r.name for r in card.reports]
    assert len(set(names)) == 2 and all(card[name].name == name for name in names)

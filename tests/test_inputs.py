"Wrong inputs raise an error that names the argument; odd but legal ones have a defined outcome."
import re
import threading
import warnings

import numpy as np
import pytest
import torch

from u2c.core import Outputs
from u2c.metrics import ece, err, nll
from u2c.reject import RejectOrClassify
from u2c.scores.base import Scorer, make_scorer
from u2c.scores.distances import KNN
from u2c.temperature import fit_temperature
from u2c.unified import U2C

g = torch.Generator().manual_seed(0)
n, c, d = 200, 4, 6
y = torch.arange(n) % c
phi = torch.rand(n, d, generator=g) + torch.rand(c, d, generator=g)[y]
f = torch.randn(n, c, generator=g) + 2 * torch.nn.functional.one_hot(y, c)
va = Outputs(phi, f, y)
head = torch.randn(c, d, generator=g), torch.randn(c, generator=g)
SCORERS = {"maxlogit": {}, "ash": {"head": head}, "mahalanobis": {}, "knn": {}}
METHODS = (RejectOrClassify, lambda s: U2C(s, steps=50), lambda s: U2C(s, link="linear", steps=50))


def broken(x, value):
    x = x.clone()
    x[3, 1] = value
    return x


WRONG = {
    "nan in logits": (lambda: Outputs(phi, broken(f, torch.nan), y), "logits: found 1 nan or inf"),
    "inf in logits": (lambda: Outputs(phi, broken(f, torch.inf), y), "logits: found 1 nan or inf"),
    "nan in features": (lambda: Outputs(broken(phi, torch.nan), f, y), "features: found 1 nan or inf"),
    "-inf in features": (lambda: Outputs(broken(phi, -torch.inf), f, y), "features: found 1 nan or inf"),
    "label above c": (lambda: Outputs(phi, f, y + 2), "labels: found 2..5, expected 0..4"),
    "label below 0": (lambda: Outputs(phi, f, y - 1), "labels: found -1..2, expected 0..4"),
    "nan label": (lambda: Outputs(phi, f, torch.where(y == 0, torch.nan, 1.0)), "labels: found 50 nan or inf"),
    "features of other rows": (lambda: Outputs(phi[1:], f, y), "features: found 199 rows, expected 200"),
    "labels of other rows": (lambda: Outputs(phi, f, y[1:]), "labels: found shape (199,), expected (200,)"),
    "probabilities as logits": (lambda: U2C("knn").fit(Outputs(phi, f.softmax(1), y)), "logits: found rows >= 0 that sum to 1"),
    "probabilities as logits, tau known": (lambda: U2C("knn", temperature=1.0).fit(Outputs(phi, f.softmax(1), y)), "logits: found rows >= 0 that sum to 1"),
    "half-precision probabilities as logits": (lambda: U2C("knn").fit(Outputs(phi, f.softmax(1).half(), y)), "logits: found rows >= 0 that sum to 1"),
    "nan is named by row": (lambda: Outputs(phi, broken(f, torch.nan), y), "logits: found 1 nan or inf among 800 values (row 3), expected finite numbers"),
    "complex labels": (lambda: Outputs(phi, f, y + 0j), "labels: found torch.complex64, expected real numbers"),
    "no rows": (lambda: Outputs(phi[:0], f[:0], y[:0]), "logits: found shape (0, 4)"),
    "one dimension": (lambda: Outputs(phi, f[:, 0], y), "logits: found shape (200,)"),
    "no logits": (lambda: Outputs(phi), "logits: found None"),
    "text": (lambda: Outputs(phi, np.array([["a"]])), "logits: found <U1 values"),
    "temperature: nan": (lambda: fit_temperature(broken(f, torch.nan), y), "logits: found 1 nan or inf"),
    "temperature: rows": (lambda: fit_temperature(f, y[1:]), "labels: found shape (199,)"),
    "temperature: abstain": (lambda: fit_temperature(f, y + 1), "labels: found 1..4, expected 0..3"),
    "temperature: probabilities": (lambda: fit_temperature(f.softmax(1), y), "logits: found rows >= 0 that sum to 1"),
    "temperature: no rows": (lambda: fit_temperature(f[:0], y[:0]), "logits: found shape (0, 4)"),
    "metric of logits": (lambda: err(f, y), "probs: found negative values"),
    "metric of nan": (lambda: nll(broken(f, torch.nan), y), "probs: found 1 nan or inf"),
    "metric of other rows": (lambda: ece(f.softmax(1), y[1:]), "labels: found shape (199,)"),
    "metric of a label that has no column": (lambda: ece(f.softmax(1), y + 1), "labels: found 1..4, expected 0..3"),
    "metric of nothing": (lambda: err(f[:0], y[:0]), "probs: found shape (0, 4)"),
    "metric of nan log-probabilities": (lambda: nll(broken(f.log_softmax(1), torch.nan), y, log=True), "log_probs: found a row that sums to nan"),
    "unknown scorer": (lambda: make_scorer("nearest"), "name: found 'nearest', expected one of ash, ashp, ashs, chosen_variance, combined"),
    "k of 0": (lambda: make_scorer("knn", k=0), "k: found 0"),
    "k above va": (lambda: make_scorer("knn", k=201).fit(va), "k: found 201 neighbours among 200 rows"),
    "ash without a head": (lambda: make_scorer("ash").fit(va), "head: found None"),
    "knn without features": (lambda: make_scorer("knn").fit(Outputs(logits=f)), "features: found None"),
    "mahalanobis without labels": (lambda: make_scorer("mahalanobis").fit(Outputs(phi, f)), "labels: found None"),
    "alpha of 95": (lambda: U2C("knn", alpha=95), "alpha: found 95"),
    "unknown link": (lambda: U2C("knn", link="cubic"), "link: found 'cubic'"),
    "unknown recipe": (lambda: U2C("knn", temperature="best").fit(va), "recipe: found 'best'"),
    "te of another width": (lambda: U2C("knn", steps=1).fit(va).predict_proba(Outputs(phi[:, :3], f)), "features: found 3 columns, expected 6"),
    "te of other classes": (lambda: U2C("knn", steps=1).fit(va).predict_proba(Outputs(phi, f[:, :3])), "logits: found 3 classes, expected 4"),
    "k of 1 on the rows it is fitted on": (lambda: RejectOrClassify(make_scorer("knn", k=1)).fit(va), "k: found 1, expected 2 or more: the nearest neighbour"),
    "infinite temperature": (lambda: U2C("knn", temperature=torch.inf), "temperature: found inf, expected a positive number"),
    "fit on unknowns": (lambda: U2C("knn").fit(Outputs(phi, f, y + 1)), "labels: found 50 rows labelled 4 (abstain)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_inputs_raise(case):
    call, message = WRONG[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def fitted(method):
    return method(make_scorer("knn")).fit(va)


u = make_scorer("knn").fit(va).score(va)
SCORES = {
    "too few": (u[:5], "u: found shape (5,), expected (200,), one for each row"),
    "one for all": (torch.tensor([100.0]), "u: found shape (1,), expected (200,), one for each row"),
    "a column": (u[:, None], "u: found shape (200, 1), expected (200,), one for each row"),
    "a number": (3.0, "u: found shape (), expected (200,), one for each row"),
    "nan": (torch.where(torch.arange(n) == 7, torch.nan, u), "u: found 1 nan or inf among 200 values (row 7)"),
    "inf": (np.where(np.arange(n) > 197, np.inf, u), "u: found 2 nan or inf among 200 values (rows 198, 199)"),
    "sparse": (u.to_sparse(), "u: found a tensor of layout torch.sparse_coo, expected a dense one"),
    "elsewhere": (u.to("meta"), "u: found on meta, expected cpu, where the rows are"),
    "text": (["a"] * n, "u: found <U1 values, expected numbers"),
    "complex": (u + 0j, "u: found torch.complex64, expected real numbers"),
}


@pytest.mark.parametrize("case", SCORES)
@pytest.mark.parametrize("method", METHODS)
def test_scores_are_checked_wherever_they_are_passed(method, case):
    scores, message = SCORES[case]
    model = fitted(method)
    for call in (model.fit, model.predict_proba, model.predict_log_proba, model.predict):
        with pytest.raises(ValueError, match=re.escape(message)):
            call(va, scores)


@pytest.mark.parametrize("method", METHODS)
def test_scores_may_be_of_any_kind(method):
    expected = fitted(method).predict_proba(va)
    for scores in (u.numpy(), u.tolist(), u.double()):
        assert torch.equal(method(make_scorer("knn").fit(va)).fit(va, scores).predict_proba(va, scores), expected)


@pytest.mark.parametrize("value, message", [
    (lambda x: x.logits, "u of Odd: found shape (200, 4), expected (200,)"),
    (lambda x: x.logits[:3, 0], "u of Odd: found shape (3,), expected (200,)"),
    (lambda x: x.logits[:, 0] / 0, "u of Odd: found 200 nan or inf among 200 values (rows 0, 1, 2, 3, 4, ...)"),
    (lambda x: x.logits[:, 0].to("meta"), "u of Odd: found on meta, expected cpu"),
])
def test_what_a_scorer_returns_is_checked(value, message):
    class Odd(Scorer):
        def _score(self, x): return value(x)

    with pytest.raises(ValueError, match=re.escape(message)):
        Odd().fit(va).score(va)
    with pytest.raises(ValueError, match=re.escape(message)):
        RejectOrClassify(Odd()).fit(va)


@pytest.mark.parametrize("value, message", [
    (lambda x: -x.logits.amax(1)[:1], "u: found shape (1,), expected (200,), one for each row"),
    (lambda x: -x.logits.amax(1) * torch.nan, "u: found 200 nan or inf among 200 values"),
])
@pytest.mark.parametrize("method", METHODS)
def test_what_a_scorer_returns_by_methods_of_its_own_is_checked(method, value, message):
    class Own(Scorer):
        def score(self, x): return value(x)
        def fit_score(self, va, tau=1.0): return -self.fit(va, tau)._score(va)
        def _score(self, x): return -x.logits.amax(1)

    with pytest.raises(ValueError, match=re.escape(message)):
        method(Own()).fit(va).predict(va)

    class AsWell(Own):
        def fit_score(self, va, tau=1.0): return value(va)

    with pytest.raises(ValueError, match=re.escape(message)):
        method(AsWell()).fit(va)


@pytest.mark.parametrize("x, found", [
    (phi, "Tensor of shape (200, 6)"), (phi.numpy(), "ndarray of shape (200, 6)"), (Outputs, "the class Outputs"), (None, "NoneType"), ([1.0], "list"),
])
def test_anything_but_outputs_is_told_to_be_outputs(x, found):
    model, scorer = fitted(METHODS[0]), make_scorer("knn").fit(va)
    for call, name in ((model.predict_proba, "x"), (model.predict, "x"), (model, "x"), (scorer.score, "x"), (model.fit, "va"), (make_scorer("maxlogit").fit, "va")):
        with pytest.raises(TypeError, match=re.escape(f"{name}: found {found}, expected Outputs")):
            call(x)


@pytest.mark.parametrize("scorer, found", [(KNN, "the class KNN"), (3, "int"), (torch.nn.ReLU(), "ReLU")])
def test_anything_but_a_scorer_is_told_to_be_one(scorer, found):
    for method in METHODS:
        with pytest.raises(TypeError, match=re.escape(f"scorer: found {found}, expected an object such as KNN()")):
            method(scorer)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int8", "float16", "float32"])
def test_labels_of_every_kind_are_welcome(dtype):
    for labels in (y.numpy().astype(dtype), torch.from_numpy(y.numpy().astype(dtype))):
        assert torch.equal(Outputs(phi, f, labels).labels, y)
        assert err(f.softmax(1), labels) == err(f.softmax(1), y)


def test_single_rows_are_never_taken_for_probabilities():
    rows = Outputs(logits=[[0.3, 0.7], [5.0, -2.0]])
    assert len(rows[:1]) == 1 and len(rows[[0]]) == 1 and len(rows.to("cpu")) == 2
    g = torch.Generator().manual_seed(1)
    two = Outputs(logits=torch.rand(400, 2, generator=g) * torch.tensor([2.0, 1.0]), labels=torch.arange(400) % 2)
    model = RejectOrClassify("maxlogit").fit(two)
    for x in (Outputs(logits=[[0.3, 0.7]]), Outputs(logits=[[0.5, 0.5]] * 50)):
        assert model.predict_proba(x).isfinite().all()


def test_too_few_rows_to_tell_logits_from_probabilities_are_taken_as_they_are():
    few = Outputs(logits=[[0.3, 0.7], [0.6, 0.4], [0.2, 0.8]] * 3, labels=[1, 0, 1, 1, 1, 1, 1, 0, 0])
    with pytest.warns(UserWarning, match="9 rows are too few for alpha"):
        assert RejectOrClassify("maxlogit").fit(few).tau > 0
    with pytest.raises(ValueError, match="which are probabilities"):
        RejectOrClassify("maxlogit").fit(few[[*range(9), 0]])


@pytest.mark.parametrize("name", SCORERS)
def test_use_before_fit_raises(name):
    with pytest.raises(ValueError, match="found no fitted state, expected a call of fit"):
        make_scorer(name, **SCORERS[name]).score(va)
    for method in METHODS:
        with pytest.raises(ValueError, match="found no fitted state, expected a call of fit"):
            method(make_scorer(name, **SCORERS[name])).predict_proba(va)


def refusals(scorer):
    "Ways to fail a fit, early and late"
    late = Outputs(phi * 2, f, y)
    yield lambda model: model.fit(Outputs(logits=f, labels=y))
    yield lambda model: model.fit(late, u[:5])
    def with_errors(model):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the last thing that a fit can stumble over
            model.fit(Outputs(torch.ones(n, d), f, y))
    yield with_errors


@pytest.mark.parametrize("i", range(3))
@pytest.mark.parametrize("method", METHODS)
def test_a_failed_refit_keeps_what_was_learned(method, i):
    model = fitted(method)
    before = model.predict_proba(va)
    with pytest.raises((ValueError, UserWarning)):
        list(refusals("knn"))[i](model)
    assert torch.equal(model.predict_proba(va), before)


def test_a_fitted_model_owns_its_scorer():
    shared = make_scorer("knn")
    rc = RejectOrClassify(shared).fit(va)
    before = rc.predict(va)
    U2C(shared, steps=50).fit(va[:30])
    assert torch.equal(rc.predict(va), before)
    shared.fit(va[:20])
    assert torch.equal(rc.predict(va), before)
    other = RejectOrClassify(shared)
    other.load_state_dict(RejectOrClassify("knn").fit(va[:30]).state_dict())
    again = RejectOrClassify(shared)
    again.load_state_dict(rc.state_dict())
    assert len(other.scorer.bank) == 30 and len(shared.bank) == 20 and torch.equal(again.predict(va), before)
    rc.scorer.float()  # moving one model moves no other
    assert again.scorer.tau.dtype == torch.float64
    twin = RejectOrClassify(again.scorer).fit(va, u)  # shares the bank of `again`, until it loads one of the same size
    twin.load_state_dict(RejectOrClassify("knn").fit(va.map(lambda x: x.flip(0))).state_dict())
    assert not torch.equal(twin.scorer.bank, again.scorer.bank) and torch.equal(again.predict(va), before)


def test_models_share_the_memory_of_a_scorer_that_was_fitted_once():
    scorer = make_scorer("knn").fit(va)
    models = [method(scorer).fit(va, u) for method in METHODS]
    assert {m.scorer.bank.data_ptr() for m in models} == {scorer.bank.data_ptr()}


OPTIONS = [
    (lambda: make_scorer("knn", k=50, distance="mean"), lambda: make_scorer("knn"), "found k=50, distance='mean' for KNN, expected k=10, distance='kth'"),
    (lambda: make_scorer("mahalanobis", squared=True), lambda: make_scorer("mahalanobis"), "found squared=True for Mahalanobis, expected squared=False"),
    (lambda: make_scorer("ash", head=head, percentile=50), lambda: make_scorer("ash"), "found percentile=50 for ASH, expected percentile=90"),
    (lambda: RejectOrClassify(make_scorer("knn", k=50)), lambda: RejectOrClassify("knn"), "found k=50 for KNN, expected k=10"),
    (lambda: RejectOrClassify("knn", alpha=0.9), lambda: RejectOrClassify("knn"), "found alpha=0.9 for RejectOrClassify, expected alpha=0.95"),
    (lambda: U2C("knn", standardize=True, steps=9), lambda: U2C("knn", steps=9), "found standardize=True for U2C, expected standardize=False"),
    (lambda: U2C("knn", link="linear", steps=9), lambda: U2C("knn", steps=9), "found link='linear' for U2C, expected link='mlp'"),
    (lambda: U2C("knn", temperature=2.0, steps=9), lambda: U2C("knn", steps=9), "found temperature=2.0 for U2C, expected temperature='exact'"),
]


@pytest.mark.parametrize("saved, built, message", OPTIONS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_state_of_other_options_is_refused_and_changes_nothing(saved, built, message, tmp_path):
    from safetensors.torch import load_file, save_file

    state = saved().fit(va).state_dict()
    save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "a.pt")
    for read in (load_file(tmp_path / "a.safetensors"), torch.load(tmp_path / "a.pt", weights_only=True)):
        model = built()
        with pytest.raises(ValueError, match=re.escape(f"state_dict: {message}, as it was built")):
            model.load_state_dict(read)
        assert model.tau is None
        twin = saved()
        twin.load_state_dict(read)
        answer = lambda m: m.score(va) if isinstance(m, Scorer) else m.predict_proba(va)
        assert torch.equal(answer(twin), answer(saved().fit(va)))


class Net(torch.nn.Module):
    "Somebody's network, with a model of ours in it"
    def __init__(self, scorer): super().__init__(); self.body = torch.nn.Linear(3, 3); self.head = U2C(scorer, steps=9)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("strict", [True, False])
def test_a_model_inside_a_network_refuses_a_foreign_state_before_it_changes(strict):
    saved, fresh, other = Net("knn"), Net(make_scorer("knn", k=5)), Net(make_scorer("knn", k=5))
    for net in (saved, other): net.head.fit(va[: len(va) // 2] if net is other else va)
    before = other.head.predict_proba(va)
    for net in (fresh, other):
        with pytest.raises(ValueError, match="found k=10 for KNN, expected k=5"):
            net.load_state_dict(saved.state_dict(), strict=strict)
    assert fresh.head.tau is None and torch.equal(other.head.predict_proba(va), before)


def test_a_state_of_another_scorer_with_the_same_parts_is_refused():
    class Energy(Scorer):
        def _score(self, x): return -x.logits.logsumexp(1)

    state = RejectOrClassify("maxlogit").fit(va).state_dict()
    with pytest.raises(ValueError, match="found class='MaxLogit' for Energy, expected class='Energy'"):
        RejectOrClassify(Energy()).load_state_dict(state)


def test_a_load_that_fails_changes_nothing():
    model = RejectOrClassify("knn").fit(va)
    before = model.predict_proba(va)
    broken = {k: v.to("meta") if v.dtype != torch.uint8 else v for k, v in RejectOrClassify("knn").fit(va[:50]).state_dict().items()}
    with pytest.raises(RuntimeError):
        model.load_state_dict(broken)
    assert torch.equal(model.predict_proba(va), before)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", METHODS)
def test_a_state_in_float32_loads_into_a_fresh_model(method):
    model = fitted(method)
    expected, fresh = model.predict_proba(va), method(make_scorer("knn"))
    fresh.load_state_dict(model.float().state_dict())
    torch.testing.assert_close(fresh.predict_proba(va), expected, atol=1e-4, rtol=0)


def test_a_scorer_that_cannot_be_copied_is_named():
    class Locked(Scorer):
        def __init__(self): super().__init__(); self.lock = threading.Lock()
        def _score(self, x): return -x.logits.amax(1)

    with pytest.raises(TypeError, match="scorer: found Locked, which cannot be copied"):
        RejectOrClassify(Locked()).fit(va)


def test_names_of_options_are_shown():
    assert "link=mlp, hidden=3, standardize=True" in repr(U2C("knn", hidden=3, standardize=True))
    assert repr(make_scorer("knn", k=5)) == "KNN(k=5, distance='kth', subsample=None)"
    assert repr(make_scorer("mahalanobis")) == "Mahalanobis(relative=True, squared=False, ridge=1e-06, diagonal=False)"


def tight_classes(rows, g):
    "Directions that hardly differ within a class, as a network with collapsed features has them"
    centers = torch.nn.functional.normalize(torch.randn(8, 64, generator=torch.Generator().manual_seed(5)), dim=1)
    labels = torch.arange(rows) % 8
    features = centers[labels] + 0.0025 * torch.randn(rows, 64, generator=g)
    return Outputs(features, features @ centers.T * 10 + torch.randn(rows, 8, generator=g), labels)


def test_scores_that_are_too_small_or_too_large_are_told_and_standardizing_mends_them():
    g = torch.Generator().manual_seed(0)
    known = tight_classes(800, g)
    strange = Outputs(torch.randn(400, 64, generator=g), known.logits[:400])
    share = lambda model: (model.predict(strange) == 8).double().mean().item()
    assert RejectOrClassify("knn").fit(known).scorer.score(known).max() < 1e-3
    assert share(RejectOrClassify("knn").fit(known)) == 1
    with pytest.warns(UserWarning, match="tau_u has not learned to tell them apart; its units may not suit the recipe .*, see standardize=True"):
        assert share(U2C("knn").fit(known)) < 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for times in (1e-6, 1.0, 1e6):
            model = U2C("knn", standardize=True, temperature=1.0)
            scorer = make_scorer("knn").fit(known)
            model.fit(known, scorer.score(known).double() * times)
            assert (model.predict(strange, scorer.score(strange).double() * times) == 8).all()


def test_scores_in_millionths_of_their_units_are_told():
    from u2c.demo import digits_outputs

    demo = digits_outputs()
    scorer = make_scorer("knn").fit(demo.va)
    known, strange = (scorer.score(x).double() * 1e6 for x in (demo.va, demo.unknown))
    with pytest.warns(UserWarning, match="of the 32 rows of va with u > theta it abstains on 0, and on 0 others"):
        model = U2C("knn").fit(demo.va, known)
    assert (strange > model.theta).double().mean() > 0.7 and (model.predict(demo.unknown, strange) != 8).all()
    model = U2C("knn", standardize=True).fit(demo.va, known)
    assert (model.predict(demo.unknown, strange) == 8).double().mean() > 0.7


def test_a_va_without_an_error_gets_a_temperature_one_can_use():
    from u2c.demo import digits_outputs

    demo = digits_outputs()
    right = demo.va[demo.va.logits.argmax(1) == demo.va.labels]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a good model is nothing to warn of
        tau = fit_temperature(right.logits[:60], right.labels[:60])
    gaps = [ece((demo.te.logits / t).softmax(1), demo.te.labels) for t in (tau, 1.0, 0.0014)]
    assert 0.5 < tau < 2 and gaps[0] < gaps[2] / 1.5


def test_one_tiny_error_is_worth_no_less_than_none():
    logits = torch.tensor([[5.0, 0.0, 0.0]]).repeat(101, 1)
    labels = torch.zeros(101, dtype=torch.int64)
    logits[0, 1] = 5 + 1e-5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny = fit_temperature(logits, labels)
        logits[0, 1] = 12
        real = fit_temperature(logits, labels)
        for recipe in ("exact", "paper"): assert fit_temperature(f, y, recipe) > 0
    assert real > 0.5 * tiny > 0.4




@pytest.mark.parametrize("name", SCORERS)
def test_arrays_and_tensors_agree(name):
    arrays = Outputs(phi.numpy(), f.numpy(), y.numpy())
    for method in METHODS:
        p, q = (method(make_scorer(name, **SCORERS[name])).fit(x).predict_proba(x) for x in (va, arrays))
        assert torch.equal(p, q)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", SCORERS)
def test_half_precision_is_computed_wider(name, dtype):
    half = va.map(lambda x: x.to(dtype) if x.is_floating_point() else x)
    wide = half.map(lambda x: x.float() if x.is_floating_point() else x)
    for method in METHODS:
        p, q = (method(make_scorer(name, **SCORERS[name])).fit(x).predict_proba(x) for x in (half, wide))
        assert p.dtype == torch.float32
        torch.testing.assert_close(p, q, atol=1e-6, rtol=0)


ODD = {
    "constant u": (Outputs(torch.ones(n, d), f, y), "knn", "ties at theta"),
    "ties": (Outputs(phi[torch.arange(n) // 50 * 50], f, y), "knn", "ties at theta"),
    "few rows": (va[:15], "knn", "15 rows are too few for alpha = 0.95, which needs 20"),
    "fewer rows than features": (Outputs(torch.rand(30, 40, generator=g), f[:30], y[:30]), "mahalanobis", "30 rows cannot fill a covariance of 40 features"),
    "a class without rows": (va[y < 3], "mahalanobis", "1 of 4 classes (3) have no rows here: their inputs will be called unknown"),
    "rank-deficient features": (Outputs(torch.nn.functional.layer_norm(phi, (d,)), f, y), "mahalanobis", None),
    "constant features": (Outputs(torch.ones(n, d), f, y), "mahalanobis", "ties at theta"),
    "huge features": (Outputs(torch.nn.functional.layer_norm(phi, (d,)) * 1e6, f, y), "mahalanobis", "below what float64 resolves"),
    "one class": (Outputs(phi, f[:, :1], y * 0), "knn", "every row has equal logits"),
    "all correct": (Outputs(phi, f + 20 * torch.nn.functional.one_hot(y, c), y), "knn", None),
    "logits of 1e4": (Outputs(phi, f.tanh() * 1e4, y), "knn", None),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", ODD)
def test_odd_inputs_have_a_defined_outcome(case, method, recwarn):
    data, name, warning = ODD[case]
    model = method(name).fit(data)
    said = " ".join(str(w.message) for w in recwarn if "tau_u has not learned" not in str(w.message))  # 50 steps are too few
    assert (warning in said) if warning else not said, said
    p = model.predict_proba(data)
    assert p.isfinite().all() and torch.allclose(p.sum(1), torch.ones(len(data)), atol=1e-5)
    assert float(model.tau) > 0


def test_ties_reject_all_in_rc_and_relabel_none_in_u2c():
    data = Outputs(torch.ones(n, d), f, y)
    with pytest.warns(UserWarning, match="ties at theta"):
        assert (RejectOrClassify("knn").fit(data).predict(data) == c).all()
    with pytest.warns(UserWarning, match="no row lies above theta"), pytest.warns(UserWarning, match="ties at theta"):
        assert (U2C("knn").fit(data).predict(data) != c).all()


def test_read_only_arrays_are_welcome():
    arrays = [x.numpy().copy() for x in (phi, f, y)]
    for a in arrays:
        a.flags.writeable = False
    assert torch.equal(Outputs(*arrays).logits, f)

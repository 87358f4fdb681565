"Wrong inputs raise a ValueError that names the argument; odd but legal ones have a defined outcome."
import re

import numpy as np
import pytest
import torch

from u2c.core import Outputs
from u2c.metrics import ece, err, nll
from u2c.reject import RejectOrClassify
from u2c.scorers import make_scorer
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
    "probabilities as logits": (lambda: Outputs(phi, f.softmax(1), y), "logits: found rows >= 0 that sum to 1"),
    "half-precision probabilities as logits": (lambda: Outputs(phi, f.softmax(1).half(), y), "logits: found rows >= 0 that sum to 1"),
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
    "unknown scorer": (lambda: make_scorer("nearest"), "name: found 'nearest', expected one of ash, knn, mahalanobis, maxlogit"),
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
    "fit on unknowns": (lambda: U2C("knn").fit(Outputs(phi, f, y + 1)), "labels: found 50 rows labelled 4 (abstain)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_inputs_raise(case):
    call, message = WRONG[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.parametrize("name", SCORERS)
def test_use_before_fit_raises(name):
    with pytest.raises(ValueError, match="found no fitted state, expected a call of fit"):
        make_scorer(name, **SCORERS[name]).score(va)
    for method in METHODS:
        with pytest.raises(ValueError, match="found no fitted state, expected a call of fit"):
            method(make_scorer(name, **SCORERS[name])).predict_proba(va)


def test_a_failed_refit_keeps_what_was_learned():
    model = U2C("knn", steps=50).fit(va)
    before = model.predict_proba(va)
    with pytest.raises(ValueError):
        model.fit(Outputs(logits=f, labels=y))
    assert torch.equal(model.predict_proba(va), before)


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
    "a class without rows": (va[y < 3], "mahalanobis", "1 of 4 classes have no rows"),
    "rank-deficient features": (Outputs(torch.nn.functional.layer_norm(phi, (d,)), f, y), "mahalanobis", None),
    "constant features": (Outputs(torch.ones(n, d), f, y), "mahalanobis", "ties at theta"),
    "huge features": (Outputs(torch.nn.functional.layer_norm(phi, (d,)) * 1e6, f, y), "mahalanobis", "below what float64 resolves"),
    "one class": (Outputs(phi, f[:, :1], y * 0), "knn", "every row has equal logits"),
    "all correct": (Outputs(phi, f + 20 * torch.nn.functional.one_hot(y, c), y), "knn", "every row is classified correctly"),
    "logits of 1e4": (Outputs(phi, f.tanh() * 1e4, y), "knn", None),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", ODD)
def test_odd_inputs_have_a_defined_outcome(case, method, recwarn):
    data, name, warning = ODD[case]
    model = method(name).fit(data)
    said = " ".join(str(w.message) for w in recwarn)
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

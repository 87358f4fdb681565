"What must hold for any data."
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from u2c.core import Outputs
from u2c.held_out import cross_fitted, p_value
from u2c.lemmas import error_gap, error_gap_by_regions, nll_u2c
from u2c.metrics import aurc, auroc, brier, ece, ece_apart, err, nll
from u2c.rank import RankU2C
from u2c.regions import compare, last_logit, regions
from u2c.reject import RejectOrClassify
from u2c.scores.base import Scorer, make_scorer
from u2c.scores.combined import Combined
from u2c.temperature import fit_temperature
from u2c.unified import U2C, mlp_gradient

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # tiny random data draw every warning there is
quick = settings(max_examples=25, deadline=None, derandomize=True)


def random_outputs(seed, n=60, c=4, d=5, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(c, (n,), generator=g)
    phi = torch.rand(n, d, generator=g, dtype=dtype) + torch.rand(c, d, generator=g, dtype=dtype)[y]
    logits = torch.randn(n, c, generator=g, dtype=dtype) * 2 + 2 * torch.nn.functional.one_hot(y, c)
    return Outputs(phi, logits, y), (torch.randn(c, d, generator=g), torch.randn(c, generator=g))


def scorer(name, head):
    return make_scorer(name, **{"ash": {"head": head}, "knn": {"k": 3}}.get(name, {}))


def method(kind, scorer):
    if kind == "rank":
        return RankU2C(scorer)
    return RejectOrClassify(scorer) if kind == "rc" else U2C(scorer, link=kind, steps=60)


seeds = st.integers(0, 10**6)
names = st.sampled_from(["maxlogit", "ash", "mahalanobis", "knn"])
kinds = st.sampled_from(["rc", "mlp", "linear", "rank"])


@quick
@given(seeds, names, kinds, st.integers(1, 6), st.integers(1, 80), st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]))
def test_rows_are_probabilities(seed, name, kind, c, n, dtype):
    va, head = random_outputs(seed, max(n, 4), c)  # a row, and three neighbours beside it
    va = va.map(lambda x: x.to(dtype) if x.is_floating_point() else x)
    p = method(kind, scorer(name, head)).fit(va).predict_proba(va)
    assert p.shape == (len(va), c + 1) and p.dtype == torch.promote_types(dtype, torch.float32)
    assert (p >= 0).all() and torch.allclose(p.sum(1), torch.ones((), dtype=p.dtype), atol=1e-5)


@quick
@given(seeds, names, kinds)
def test_permutation_of_rows_permutes_the_output(seed, name, kind):
    va, head = random_outputs(seed)
    te, _ = random_outputs(seed + 1)
    rows = torch.randperm(len(te), generator=torch.Generator().manual_seed(seed))
    model = method(kind, scorer(name, head)).fit(va)
    p = model.predict_proba(te)
    torch.testing.assert_close(model.predict_proba(te[rows]), p[rows], atol=1e-6, rtol=0)
    # and the order of the rows that it was fitted on does not matter
    torch.testing.assert_close(method(kind, scorer(name, head)).fit(va[rows]).predict_proba(te), p, atol=1e-5, rtol=0)
    assert ece(p, te.labels) == pytest.approx(ece(p[rows], te.labels[rows]), abs=1e-12)


@quick
@given(seeds, st.sampled_from(["mahalanobis", "knn"]), kinds)
def test_a_constant_added_to_a_row_of_logits(seed, name, kind):
    "tau, u of features, RC, ranks and the classes among themselves stay; only U2C's odds of abstaining may move"
    va, head = random_outputs(seed)
    shift = torch.randn(len(va), 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 5
    moved = Outputs(va.features, va.logits + shift, va.labels)
    assert fit_temperature(moved.logits, moved.labels) == pytest.approx(fit_temperature(va.logits, va.labels), rel=1e-9)
    model = method(kind, scorer(name, head)).fit(va)
    p, q = model.predict_proba(va), model.predict_proba(moved)
    if kind in ("rc", "rank"):
        torch.testing.assert_close(p, q)
    torch.testing.assert_close(p[:, :-1] * q[:, :-1].sum(1, keepdim=True), q[:, :-1] * p[:, :-1].sum(1, keepdim=True))
    torch.testing.assert_close(model.scorer.score(va), model.scorer.score(moved))


@quick
@given(seeds, names, st.sampled_from(["mlp", "linear"]))
def test_tau_u_at_minus_infinity_is_the_tempered_softmax(seed, name, link):
    va, head = random_outputs(seed)
    model = U2C(scorer(name, head), link=link, steps=60).fit(va)
    model.tau_u[-1].bias.fill_(-torch.inf)
    p = model.predict_proba(va)
    torch.testing.assert_close(p, torch.cat([(va.logits / model.tau).softmax(1), torch.zeros(len(va), 1, dtype=p.dtype)], 1))


@quick
@given(seeds, names, kinds)
def test_inputs_and_random_state_are_left_alone(seed, name, kind):
    va, head = random_outputs(seed)
    before = [x.clone() for x in (va.features, va.logits, va.labels, *head)]
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = method(kind, scorer(name, head)).fit(va).predict_proba(va)
    assert all(torch.equal(a, b) for a, b in zip(before, (va.features, va.logits, va.labels, *head)))
    assert torch.equal(torch_state, torch.get_rng_state()) and (numpy_state == np.random.get_state()[1]).all()
    torch.rand(3), np.random.rand(3)  # other random numbers drawn in between change nothing
    assert torch.equal(method(kind, scorer(name, head)).fit(va).predict_proba(va), first)


@quick
@given(seeds, st.floats(1e-3, 1e3))
def test_temperature_follows_the_scale_of_the_logits(seed, scale):
    va, _ = random_outputs(seed)
    assert fit_temperature(va.logits * scale, va.labels) == pytest.approx(scale * fit_temperature(va.logits, va.labels), rel=1e-7)


@quick
@given(seeds, st.integers(1, 40), st.integers(1, 9), st.booleans())
def test_prefix_sums_are_the_gradient(seed, n, h, ties):
    g = torch.Generator().manual_seed(seed)
    u = torch.randn(n, generator=g, dtype=torch.float64).sort().values
    if ties:
        u = u.round()
    lse, abstain = torch.randn(n, generator=g, dtype=torch.float64) * 3, torch.rand(n, generator=g) < 0.3
    p = torch.randn(3 * h + 1, generator=g, dtype=torch.float64, requires_grad=True)
    w, b, v = p[:-1].reshape(3, -1)
    z = (u[:, None] * w + b).relu() @ v + p[-1]
    (torch.logaddexp(lse, z) - torch.where(abstain, z, 0)).mean().backward()
    ours = mlp_gradient(u.numpy(), lse.numpy(), abstain.numpy())(p.detach().numpy())
    np.testing.assert_allclose(ours, p.grad, atol=1e-12)


@quick
@given(seeds, st.integers(2, 6), st.integers(1, 60), st.integers(1, 20), st.booleans(), st.booleans())
def test_metrics_stay_in_range(seed, c, n, n_bins, closed, mass):
    rng = np.random.default_rng(seed)
    p, y = rng.dirichlet(np.full(c, 0.3), n), rng.integers(c, size=n)
    assert 0 <= err(p, y) <= 1 and nll(p, y) >= 0
    assert 0 <= ece(p, y, n_bins, closed, mass) <= ece(p, y, n_bins, closed, mass, norm="l2") + 1e-12 <= ece(p, y, n_bins, closed, mass, norm="max") + 2e-12 <= 1 + 3e-12
    a, b = rng.normal(size=n).round(1), rng.normal(size=n).round(1)
    assert auroc(a, b) == pytest.approx(1 - auroc(b, a), abs=1e-12)
    assert aurc(a, y == 0) == pytest.approx(aurc(np.exp(a), y == 0), abs=1e-12)  # only the order of u counts


@quick
@given(seeds, names, st.sampled_from([0.8, 0.9, 0.95]), st.sampled_from([1.0, 1.5, 2.0, 3.0]), st.integers(20, 90))
def test_ranks_abstain_on_as_many_rows_as_rc(seed, name, alpha, power, n):
    va, head = random_outputs(seed, n)
    rc = RejectOrClassify(scorer(name, head), alpha, scores="held-out").fit(va)
    rank = RankU2C(scorer(name, head), alpha, power).fit(va)
    counts = [int((model.predict(va, model.scorer.held_out(va, float(model.tau))) == 4).sum()) for model in (rc, rank)]
    assert counts[0] == counts[1] and abs(counts[1] - (1 - alpha) * n) <= 1


@quick
@given(seeds, names)
def test_ranks_know_scores_by_their_order_alone(seed, name):
    va, head = random_outputs(seed)
    te, _ = random_outputs(seed + 1)
    u, v = (scorer(name, head).fit(va).score(x) for x in (va, te))
    fit = lambda f: RankU2C(scorer(name, head)).fit(va, f(u)).predict_proba(te, f(v))
    plain = fit(lambda x: x)
    for f in (lambda x: 1e9 * x, lambda x: x * 2**-30 - 5, lambda x: x.double().tanh()):
        kept = len(f(torch.cat([u, v])).unique()) == len(torch.cat([u, v]).unique())  # rounding may merge two scores
        assert not kept or torch.equal(fit(f), plain)


@quick
@given(seeds, st.sampled_from(["mahalanobis", "knn"]), st.integers(12, 60), st.booleans())
def test_a_held_out_score_is_that_of_a_fit_without_the_row(seed, name, n, duplicates):
    va, head = random_outputs(seed, n)
    if duplicates:
        va = va.map(lambda x: torch.cat([x, x[: n // 2]]))
    u = scorer(name, head).held_out(va)
    for i in range(0, len(va), 5):
        rest = torch.arange(len(va)) != i
        expected = scorer(name, head).fit(va[rest]).score(va[~rest])
        torch.testing.assert_close(u[i : i + 1], expected, rtol=1e-8 if name == "mahalanobis" else 1e-5, atol=1e-6)


@quick
@given(seeds, names, st.integers(2, 7))
def test_cross_fitting_scores_every_row_once(seed, name, folds):
    va, head = random_outputs(seed)
    u = cross_fitted(scorer(name, head), va, 1.0, folds)
    assert u.shape == (len(va),) and u.isfinite().all()
    if name in ("maxlogit", "ash"):
        torch.testing.assert_close(u, scorer(name, head).fit(va).score(va))


@quick
@given(seeds, st.integers(1, 6), st.integers(1, 60))
def test_brier_and_ece_apart_stay_in_range(seed, c, n):
    rng = np.random.default_rng(seed)
    p, y = rng.dirichlet(np.full(c + 1, 0.3), n), rng.integers(c + 1, size=n)
    assert 0 <= brier(p, y) <= 2 and ece(p, y) <= ece_apart(p, y) + 1e-12 <= 1 + 2e-12


def test_seed_decides():
    va, _ = random_outputs(0)
    fit = lambda seed: U2C("mahalanobis", seed=seed, steps=60).fit(va).predict_proba(va)
    assert torch.equal(fit(0), fit(0)) and not torch.equal(fit(0), fit(1))


def hard_and_ranks(va, name, head, alpha=0.95, power=2.0):
    return RejectOrClassify(scorer(name, head), alpha, scores="held-out").fit(va), RankU2C(scorer(name, head), alpha, power).fit(va)


@quick
@given(seeds, names, st.sampled_from([0.8, 0.9, 0.95]), st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.integers(20, 90))
def test_ranks_exchange_unsure_rows_for_as_many_sure_ones(seed, name, alpha, power, n):
    "As many rows of va lie in B as in C, and on any data all rows of C are surer than all rows of B"
    va, head = random_outputs(seed, n)
    te, _ = random_outputs(seed + 1, 200)
    pair = hard_and_ranks(va, name, head, alpha, power)
    u = pair[0].scorer.held_out(va, float(pair[0].tau))
    inside, turn = compare(*pair, va, u), last_logit(pair[1], pair[1].theta[None]).item()
    ties = len(u.unique()) < n
    assert abs((inside.region == "B").sum() - (inside.region == "C").sum()) <= ties
    for part in (inside, compare(*pair, te)):
        sure = part.logits.amax(1)
        assert (sure[part.region == "B"] <= turn + 1e-12).all() and (sure[part.region == "C"] >= turn - 1e-12).all()


@quick
@given(seeds, names, st.booleans())
def test_the_lemmas_hold_for_ranks(seed, name, outside):
    va, head = random_outputs(seed)
    te, _ = random_outputs(seed + 1, 100)
    if outside:
        te = Outputs(te.features, te.logits, torch.full((100,), te.n_classes))
    part = compare(*hard_and_ranks(va, name, head, 0.8), te)
    assert error_gap(part) == pytest.approx(error_gap_by_regions(part), abs=1e-12)
    assert nll(part.u2c, part.labels, log=True) == pytest.approx(nll_u2c(part), abs=1e-10)
    assert set(part.region) != {"A"}


@quick
@given(seeds, st.sampled_from(["mahalanobis", "knn"]))
def test_the_letters_of_ranks_know_no_shift_of_the_logits(seed, name):
    "Neither a row's own shift nor the way to the paper's plane, where tau_u holds the log-sum-exp, moves a letter"
    va, head = random_outputs(seed)
    te, _ = random_outputs(seed + 1, 100)
    pair = hard_and_ranks(va, name, head, 0.8)
    part, shift = compare(*pair, te), torch.randn(100, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    assert (compare(*pair, Outputs(te.features, te.logits + 8 * shift, te.labels)).region == part.region).all()
    lse = (te.logits / pair[1].tau).logsumexp(1)
    assert (regions(part.tau_u + lse, (te.logits / pair[1].tau).amax(1), part.rejects) == part.region).all()


@quick
@given(seeds, names)
def test_where_the_p_value_is_below_the_level_no_logit_helps(seed, name):
    va, head = random_outputs(seed)
    rc, rank = hard_and_ranks(va, name, head)
    u = torch.cat([rank.reference, rank.reference[-1:] + 1])
    sure = Outputs(None, torch.tensor([[1e9, 0, 0, 0]]).double().expand(len(u), 4))
    strange = p_value(u, rank.reference) < rank.level
    assert strange.any() and np.isin(compare(rc, rank, sure, u).region[strange], ["B", "D"]).all()
    assert (last_logit(rank, u).diff() >= 0).all()


@pytest.mark.parametrize("pair, complaint", [
    (lambda va: (RejectOrClassify("knn").fit(va), RankU2C("knn").fit(va)), "in RejectOrClassify and .* in RankU2C, .* both on scores='in-sample' or both on 'held-out'"),
    (lambda va: (RejectOrClassify("knn", 0.8).fit(va), U2C("knn", steps=9).fit(va)), "theta: found .* in RejectOrClassify and .* in U2C, expected a pair fitted on the same data with the same score$"),
    (lambda va: (RankU2C("knn").fit(va), RankU2C("knn").fit(va)), "rc, u2c: found RankU2C and RankU2C, expected RejectOrClassify, then a soft method"),
    (lambda va: (RejectOrClassify("knn").fit(va), RejectOrClassify("knn").fit(va)), "found RejectOrClassify and RejectOrClassify"),
    (lambda va: (RejectOrClassify("knn").fit(va), RankU2C("knn")), "RankU2C: found no fitted state"),
])
def test_methods_that_cannot_be_compared_are_named(pair, complaint):
    va, _ = random_outputs(0)
    with pytest.raises((ValueError, TypeError), match=complaint):
        compare(*pair(va), va)


def test_the_parts_of_a_combined_score_are_asked_once(monkeypatch):
    va, _ = random_outputs(0, 80)
    asked, u = [], make_scorer("combined").fit(va).held_out(va)
    held_out = Scorer.held_out
    monkeypatch.setattr(Scorer, "held_out", lambda part, *args: (asked.append(type(part).__name__), held_out(part, *args))[1])
    once = make_scorer("combined")
    assert torch.equal(once.fit_held_out(va), u) and asked == ["MaxLogit", "KNN", "Mahalanobis"]
    assert torch.equal(once.score(va), make_scorer("combined").fit(va).score(va))
    del asked[:]
    RankU2C("combined").fit(va)
    assert asked == ["MaxLogit", "KNN", "Mahalanobis"]


def test_a_combined_score_that_scores_another_way_is_held_out_another_way():
    class Largest(Combined):
        def _score(self, x): return torch.stack([-p_value(s.score(x), known).log() for s, known in zip(self.parts, self.reference)]).amax(0)

    va, _ = random_outputs(0, 80)
    assert torch.equal(Largest().fit_held_out(va), cross_fitted(Largest(), va))


@pytest.mark.parametrize("cast", [lambda m: m.half(), lambda m: m.bfloat16(), lambda m: m.to("cpu", torch.float16), lambda m: torch.nn.Sequential(m).half()[0]])
@pytest.mark.parametrize("name", ["maxlogit", "ash", "mahalanobis", "knn", "combined"])
def test_half_precision_spares_what_was_fitted(name, cast):
    va, head = random_outputs(0, 200)
    te, _ = random_outputs(1, 200)
    for kind in ("rc", "mlp", "linear", "rank"):
        model = method(kind, scorer(name, head)).fit(va)
        before = model.predict_proba(te)
        assert torch.equal(cast(model).predict_proba(te), before)
        assert torch.equal(model.float().predict(te), before.argmax(1))  # single precision is allowed

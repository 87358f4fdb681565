"The watch: the same however a stream is cut and whenever it is saved, and false alarms as rare as promised."
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from u2c.core import Outputs, own_copy
from u2c.held_out import p_value
from u2c.rank import RankU2C
from u2c.reject import RejectOrClassify
from u2c.service.artifact import ArtifactError, read_file, write_file
from u2c.guarantee import clopper_pearson
from u2c.service.watch import RateEvidence, RateWatch, Watch
from u2c.service.watch import confidence_sequence, packed_watch
from u2c.unified import U2C

quick = settings(max_examples=25, deadline=None, derandomize=True)
seeds = st.integers(0, 10**6)
rates = st.sampled_from([0.0, 0.01, 0.05, 0.3, 1.0])
kinds = st.sampled_from(["rc", "u2c", "rank"])


def outputs(n=200, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    return Outputs(logits=torch.randn(n, 3, generator=g) + 2 * torch.eye(3)[y], labels=y)


MODELS = {
    "rc": RejectOrClassify("maxlogit").fit(outputs()),
    "u2c": U2C("maxlogit", link="linear", steps=200, standardize=True).fit(outputs()),
    "rank": RankU2C("maxlogit").fit(outputs())}


def stream(seed, n, strange=0.0):
    "Scores around those of va, some of them far beyond"
    rng = np.random.default_rng(seed)
    u = rng.choice(MODELS["rank"].reference.numpy(), n) + rng.normal(size=n) * 0.01
    return np.where(rng.random(n) < strange, u + 50, u)


def parts(x, seed):
    "A stream cut at random places, some parts of a single row"
    rng = np.random.default_rng(seed)
    places = rng.choice(np.arange(1, len(x)), min(len(x) - 1, rng.integers(0, 20)), replace=False)
    return np.split(x, np.sort(places))


def everything(watch):
    header, tensors = packed_watch(watch)
    return header, {k: v.tolist() for k, v in tensors.items()}


def assert_same(a, b):
    assert (a.rate.n, a.rate.count, a.rate.alarms) == (b.rate.n, b.rate.count, b.rate.alarms)
    np.testing.assert_allclose(a.rate.log_e, b.rate.log_e, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(a.rate.history, b.rate.history, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(a.rate.evidence.stake, b.rate.evidence.stake, rtol=1e-9, atol=1e-9)
    assert (a.rate.evidence.least_at == b.rate.evidence.least_at).all()
    np.testing.assert_array_equal(a.recent_u, b.recent_u)
    np.testing.assert_array_equal(a.recent_p, b.recent_p)


@quick
@given(seeds, kinds, st.integers(2, 3000), rates, st.integers(1, 400))
def test_cuts_do_not_matter(seed, kind, n, strange, window):
    u, reference = stream(seed, n, strange), stream(seed + 1, 300)
    whole = Watch(MODELS[kind], reference, window=window).update(u)
    cut = Watch(MODELS[kind], reference, window=window)
    for part in parts(u, seed):
        cut.update(part)
    assert_same(whole, cut)


def test_cuts_do_not_matter_over_the_blocks_of_a_long_batch():
    u, reference = stream(0, 20_000), stream(1, 300)
    cut = Watch(MODELS["rc"], reference)
    for part in np.split(u, range(777, 20_000, 777)):
        cut.update(part)
    assert_same(Watch(MODELS["rc"], reference).update(u), cut)
    assert len(cut.rate.history) <= 513 and len(cut.recent_u) == 1000


@quick
@given(seeds, kinds, st.integers(2, 800), rates, st.floats(0, 1))
def test_saved_at_any_point_it_goes_on_exactly(tmp_path_factory, seed, kind, n, strange, place):
    u, at = stream(seed, n, strange), int(place * n)
    path = tmp_path_factory.mktemp("watch") / "a.watch"
    watch = Watch(MODELS[kind], stream(seed + 1, 200), delta=0.1, window=100)
    if at:
        watch.update(u[:at])
    watch.save(path)
    loaded = Watch.load(path, MODELS[kind])
    assert str(everything(loaded)) == str(everything(watch))
    if at < n:
        assert str(everything(loaded.update(u[at:]))) == str(everything(watch.update(u[at:])))
    assert str(loaded.report()) == str(watch.report())


@quick
@given(seeds, st.integers(1, 300), rates)
def test_a_row_more_beyond_is_never_less_evidence_of_more(seed, n, rate):
    rng = np.random.default_rng(seed)
    x = rng.random(n) < rate
    more = x.copy()
    more[rng.integers(n)] = True
    e, e_more = (RateEvidence(0.03, 0.07).update(y)[-1] for y in (x, more))
    assert e_more[0] >= e[0] - 1e-9 and e_more[1] <= e[1] + 1e-9


@quick
@given(seeds, st.integers(1, 2000), st.floats(0, 1), st.sampled_from([0.01, 0.05, 0.3]))
def test_the_confidence_sequence_holds_the_rate_and_is_wider_for_less_error(seed, n, rate, error):
    k = np.random.default_rng(seed).binomial(n, rate)
    low, high = confidence_sequence(k, n, error)
    assert 0 <= low <= k / n <= high <= 1
    lower, higher = confidence_sequence(k, n, error / 2)
    assert lower <= low and high <= higher
    mirrored = confidence_sequence(n - k, n, error)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-9)


def test_the_confidence_sequence_covers_a_rate_that_changes():
    rng, misses = np.random.default_rng(0), 0
    p = np.where(np.arange(1000) < 300, 0.02, 0.2)
    n, mean = np.arange(1, 1001), p.cumsum() / np.arange(1, 1001)
    for _ in range(200):
        low, high = confidence_sequence((rng.random(1000) < p).cumsum()[::10], n[::10], 0.1)
        misses += bool(((mean[::10] < low) | (mean[::10] > high)).any())
    assert misses <= binom(200, 0.1).ppf(0.999)


@pytest.mark.parametrize("references,rate", [(100, 0.05), (1000, 0.05), (300, 0.5)])
def test_false_alarms_are_as_rare_as_promised(references, rate):
    "Each stream has a reference of its own; a bound that chance alone breaks once in a thousand"
    rng, delta, streams = np.random.default_rng(references), 0.2, 200
    watch = Watch(MODELS["rc"], [0.0, 1.0], delta)
    z = lambda n: np.where(rng.random(n) < rate, watch.theta + 1, watch.theta - 1)  # noqa: E731
    alarms = sum(Watch(MODELS["rc"], z(references), delta).update(z(2000)).alarm is not None for _ in range(streams))
    assert alarms <= binom(streams, delta).ppf(0.999)


def test_at_the_very_edge_each_side_alarms_no_more_often_than_its_share():
    "The rate lies on the end of the interval: the least favourable case, where the bound is nearly met"
    rng, streams, limit = np.random.default_rng(0), 400, 5.0
    up = sum("up" in RateWatch(0.02, 0.1, limit).update(rng.random(2000) < 0.1).alarms for _ in range(streams))
    down = sum("down" in RateWatch(0.1, 0.2, limit).update(rng.random(2000) < 0.1).alarms for _ in range(streams))
    assert 0 < up <= binom(streams, 1 / limit).ppf(0.999) and 0 < down <= binom(streams, 1 / limit).ppf(0.999)


@quick
@given(seeds, kinds, st.sampled_from([0, 500, 2000]))
def test_both_directions_are_seen_early_and_late(seed, kind, calm):
    reference = stream(seed, 2000)
    up, down = (Watch(MODELS[kind], reference, delta=1e-3) for _ in range(2))
    if calm:
        up.update(stream(seed + 1, calm))
        down.update(stream(seed + 1, calm))
    assert up.alarm is None and down.alarm is None
    assert up.update(stream(seed + 2, 200, 0.8)).alarm == "up"
    assert down.update(np.full(5000, reference.min())).alarm == "down"
    report = up.report()
    assert calm < report.alarm_at <= calm + 200 and abs(report.began - calm) < 60 and report.e_up >= report.limit
    low, high = report.reference_interval
    assert low < report.reference_rate < high and report.e_down < 1


@quick
@given(seeds, st.integers(1, 500))
def test_p_values_in_single_precision_are_the_same_stream(seed, n):
    model, u = MODELS["rank"], stream(seed, n, 0.1)
    p = p_value(torch.from_numpy(u), model.reference)
    by_u, by_p = Watch(model, stream(seed + 1, 100)).update(u), Watch(model, stream(seed + 1, 100)).update(p=p.float())
    assert by_u.rate.alarms == by_p.rate.alarms and by_u.rate.count == by_p.rate.count
    assert by_u.report().p == by_p.report().p and np.isnan([*by_p.report().u.values()]).all()


@pytest.mark.parametrize("theirs", [[], [1e308, -1e308], [True, False], np.float16([1, 2]), np.arange(6.0)[::-2], torch.ones(3, dtype=torch.int8)])
def test_odd_scores_are_taken_or_named(theirs):
    watch = Watch(MODELS["rc"], stream(0, 100))
    if len(theirs) == 0:
        with pytest.raises(ValueError, match="u: found shape"):
            watch.update(theirs)
    else:
        assert watch.update(theirs).rate.n == len(theirs)


@pytest.mark.parametrize("change", [
    dict(delta=0), dict(delta="0.05"), dict(window=0), dict(window=True), dict(n=-1), dict(n="3"), dict(n=2.5), dict(count=99), dict(alarms=[]),
    dict(alarms={"up": 3}), dict(alarms={"sideways": [1, 1]}), dict(stake=torch.ones(3)), dict(history=torch.ones(3)), dict(recent_p=torch.ones(1)),
    dict(recent_u=torch.ones(2, 2)), dict(reference=torch.tensor([torch.nan])), dict(reference=torch.zeros(0)), dict(log_e=torch.ones(2)), dict(least=None)])
def test_a_file_with_odd_content_is_refused(tmp_path, change):
    watch, path = Watch(MODELS["rc"], stream(0, 100)).update(stream(1, 50)), tmp_path / "a.watch"
    header, tensors = packed_watch(watch)
    for name, value in change.items():
        target = tensors if name in tensors else header
        target[name] = value
        if value is None:
            del target[name]
    write_file(path, "watch", header, tensors)
    with pytest.raises(ArtifactError, match="a.watch: found what cannot be read"):
        Watch.load(path, MODELS["rc"])


@quick
@given(st.data())
def test_no_change_of_bytes_goes_unnoticed(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("watch") / "a.watch"
    Watch(MODELS["rc"], stream(0, 20)).update(stream(1, 5)).save(path)
    good = path.read_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    bad = data.draw(st.sampled_from([good[:at], good[:at] + bytes([good[at] ^ (1 << data.draw(st.integers(0, 7)))]) + good[at + 1:]]))
    path.write_bytes(bad)
    with pytest.raises(ArtifactError):
        Watch.load(path, MODELS["rc"])
    with pytest.raises(ArtifactError):
        read_file(path, "watch")


@pytest.mark.parametrize("kind", MODELS)
def test_threads_lose_no_row_and_whatever_they_save_can_be_loaded(kind, tmp_path):
    watch, u = Watch(MODELS[kind], stream(0, 300)), stream(1, 2000)
    def feed(i):
        for row in u[i::8]: watch.update(row[None])
        watch.save(tmp_path / f"{i}.watch")
        watch.report()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool: list(pool.map(feed, range(8)))
    finally: sys.setswitchinterval(interval)
    assert (watch.rate.n, watch.rate.count, len(watch.recent_p)) == (2000, Watch(MODELS[kind], stream(0, 300)).update(u).rate.count, 1000)
    for i in range(8): assert 250 <= Watch.load(tmp_path / f"{i}.watch", MODELS[kind]).rate.n <= 2000


def test_another_model_is_refused_even_if_it_differs_by_an_option(tmp_path):
    path = tmp_path / "a.watch"
    Watch(MODELS["rc"], stream(0, 100)).save(path)
    for other in (MODELS["rank"], RejectOrClassify("maxlogit").fit(outputs(seed=1)), RejectOrClassify("maxlogit", alpha=0.9).fit(outputs())):
        with pytest.raises(ArtifactError, match="a.watch: found the watch of another model"):
            Watch.load(path, other)
    again = RejectOrClassify("maxlogit").fit(outputs())
    assert Watch.load(path, again).rate.n == 0


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_fitted_anew_leaves_its_watch_alone(tmp_path, kind):
    model, path = own_copy(MODELS[kind]), tmp_path / "a.watch"
    watch, untouched = Watch(model, outputs(300, 1)), Watch(MODELS[kind], outputs(300, 1))
    model.fit(outputs(200, 7))
    assert_same(watch.update(outputs(100, 2)), untouched.update(outputs(100, 2)))
    watch.save(path)
    assert_same(Watch.load(path, MODELS[kind]), untouched)
    with pytest.raises(ArtifactError, match="the watch of another model"):
        Watch.load(path, model)


@quick
@given(seeds, st.integers(8, 500), st.sampled_from([np.float32, np.float64]))
def test_p_values_in_the_place_of_scores_are_refused_and_scores_are_not(seed, n, kind):
    model, u = MODELS["rank"], stream(seed, n, 0.1)
    p = p_value(torch.from_numpy(u), model.reference).numpy().astype(kind)
    u = (u - u.min() + 0.01) / (2 * np.ptp(u) + 1)  # between 0 and 1 as well
    watch = Watch(model, stream(seed + 1, 100))
    if len(np.unique(p)) >= 8:
        with pytest.raises(ValueError, match="u: found multiples of 1/201, as p-values are"):
            watch.update(p)
        with pytest.raises(ValueError, match="expected scores u, or p-values by name"):
            Watch(model, p)
    assert watch.rate.n == 0 and watch.update(u.astype(kind)).update(p=p).rate.n == 2 * n


def test_scores_that_lie_on_the_grid_by_nature_are_taken():
    "A table of scores in hundredths, and 99 validation rows"
    va = outputs(99)
    model = RankU2C("maxlogit").fit(va, torch.arange(1, 100) / 100)
    assert Watch(model, np.arange(1, 51) / 50).update(np.arange(1, 21) / 20).rate.n == 20


@pytest.mark.parametrize("inputs", [torch.rand(2, 3, 8, 8), np.zeros((5, 4), np.uint8), ["a.png", "b.png"], [[1.0], [1.0, 2.0]], object()])
def test_inputs_in_the_place_of_scores_are_told_where_to_go(inputs):
    with pytest.raises(ValueError, match="u: found .* or Outputs: a classifier's outputs"):
        Watch(MODELS["rank"], inputs)


@pytest.mark.parametrize("count, n, error, what", [
    (-1, 3, 0.05, "count: found -1"), (np.nan, 3, 0.05, "count: found nan"),
    (1, np.nan, 0.05, "n: found nan"), (1, np.inf, 0.05, "n: found inf"), (1, 3, 1.0, "error: found 1.0"),
    ([1, 4], [3, 3], 0.05, "count: found")])
def test_counts_that_cannot_be_are_named(count, n, error, what):
    for interval in (confidence_sequence, clopper_pearson):
        with pytest.raises(ValueError, match=what):
            interval(count, n, error)


def test_a_plot_without_matplotlib_names_the_extra(monkeypatch):
    watch = Watch(MODELS["rc"], stream(0, 100)).update(stream(1, 5))
    for name in ("matplotlib", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r'plot: found no matplotlib.*pip install "u2c\[reproduce\] @ '):
        watch.plot()

"The comparison with what one would use instead: its records, and the rivals themselves."
import re

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import u2c.study.beside as beside
from u2c.bench.backbones import recipes
from u2c.core import Outputs
from u2c.reject import RejectOrClassify
from u2c.run.reproduce import published_records
from u2c.scores.combined import Combined
from u2c.study.beside import BESIDE_METRICS, LOSSES, Conformal, Detector, OpenMax, OpenMaxScore
from u2c.study.beside import all_methods, fitted, measured, rejected_share
from u2c.study.__main__ import main
from u2c.study.shared import check_records, published

pytestmark = pytest.mark.filterwarnings("ignore:conformal. found no level")  # random rows may have none
KEY = ["benchmark", "backbone", "seed", "dataset"]
SMALL = ["digits-va", "digits-te", "digits-v2", "digits-C", "digits-R", "held-out", "letters", "textures", "photos", "faces"]
FASHION = ["fashion-va", "fashion-te", "fashion-v2", "fashion-C", "fashion-R", "bags", "boots", "digits", "textures", "photos"]
DATA = {"small": SMALL, "fashion": FASHION}
MIXTURES = [f"{share} {group}" for group in ("near-ood", "far-ood") for share in ("10%", "50%", "90%")]
METHODS = list(all_methods((torch.ones(2, 3), torch.ones(2)), 1.0))
quick = settings(max_examples=15, deadline=None, derandomize=True)


def random_outputs(seed, n=200, c=4, d=5):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % c
    phi = torch.rand(n, d, generator=g) + torch.rand(c, d, generator=g)[y]
    return Outputs(phi, torch.randn(n, c, generator=g) * 2 + 2 * torch.nn.functional.one_hot(y, c), y)


@pytest.fixture(scope="module")
def records():
    return published("records_beside")


@pytest.fixture(scope="module")
def combinations():
    return published("records_combined")


@pytest.mark.parametrize("benchmark", DATA)
def test_every_method_has_a_record_on_every_data_set_of_every_network(records, benchmark):
    found = records[records.benchmark == benchmark]
    expected = pd.MultiIndex.from_product([recipes, range(3), DATA[benchmark] + MIXTURES, METHODS])
    assert sorted(found.set_index(["backbone", "seed", "dataset", "method"]).index) == sorted(expected)
    assert found.loc[~found.dataset.str.endswith("-va"), list(BESIDE_METRICS)].notna().all(axis=None)


@pytest.mark.parametrize("benchmark", DATA)
def test_every_combination_has_a_record(combinations, benchmark):
    found = combinations[combinations.benchmark == benchmark]
    assert found.scores.nunique() == 15 and len(found) == 15 * 9 * (len(DATA[benchmark]) - 1)
    assert not found.duplicated(["backbone", "seed", "dataset", "scores"]).any()


def test_every_rival_rejects_as_many_rows_of_va_as_rc(records):
    va = records[records.dataset.str.endswith("-va")]
    free = ["openmax_itself", "u2c", "u2c_linear"]  # at their own rejection
    tuned = va[~va.method.isin(free)]
    assert tuned.abstain.between(0.045, 0.0525).all()  # one network has no conformal level that rejects fewer
    exact = tuned[tuned.method != "conformal"]  # whose levels are steps of several rows
    assert np.allclose(exact.abstain, 0.05, atol=6e-4)


def test_records_agree_with_those_of_the_reproduction(records):
    same = ["err", "ece", "ece_apart", "nll", "brier", "abstain"]
    published = published_records("small").drop(columns="nll").rename(columns={"nll_floored": "nll"})
    theirs = published.groupby([*KEY, "method"])[same].mean()
    ours = records[records.benchmark == "small"].set_index([*KEY, "method"])[same]
    both = ours.merge(theirs, left_index=True, right_index=True, suffixes=("", "_published")).dropna()
    assert len(both) == 9 * 9 * 4  # networks, data sets without va, methods
    for m in same:
        assert np.allclose(both[m], both[f"{m}_published"], rtol=5.1e-5), m  # five digits are saved


def test_mixtures_are_mixtures(records):
    means = records.groupby(["benchmark", "group", "method"])[list(LOSSES)].mean()
    te = records[records.dataset.str.endswith("-te")].groupby(["benchmark", "method"])[list(LOSSES)].mean()
    for name in MIXTURES:
        share, group = float(name.split("%")[0]) / 100, name.split()[1]
        expected = (1 - share) * te + share * means.xs(group, level="group")
        found = records[records.dataset == name].groupby(["benchmark", "method"])[list(LOSSES)].mean()
        assert np.allclose(found, expected.loc[found.index], rtol=1e-2, atol=1e-3)


def test_both_comparisons_agree(records, combinations):
    pure = records[records.group != "mixture"].set_index([*KEY, "method"])[list(LOSSES)].dropna()
    single = combinations[~combinations.scores.str.contains("+", regex=False)]
    mean = single.groupby(KEY)[list(LOSSES)].mean()
    assert np.allclose(mean, pure.xs("u2c_rank", level="method").loc[mean.index], rtol=1e-4)
    default = "+".join(s for s in beside.SCORERS if s in ("maxlogit", "knn", "mahalanobis"))
    assert {type(p).__name__.lower() for p in Combined().parts} == set(default.split("+"))
    usual = combinations[combinations.scores == default].set_index(KEY)[list(LOSSES)]
    assert np.allclose(usual, pure.xs("u2c_rank_combined", level="method").loc[usual.index], rtol=1e-4)


@quick
@given(st.integers(0, 10**6), st.floats(0.2, 5))
def test_chows_rule_is_rc_with_the_largest_probability(seed, tau):
    va, te = random_outputs(seed), random_outputs(seed + 1)
    chow = RejectOrClassify(Detector("MaxSoftmax", tempered=True), temperature=tau).fit(va)
    u = lambda x: -(x.logits / tau).softmax(1).amax(1)
    rc = RejectOrClassify("maxlogit", temperature=tau).fit(va, u(va))
    assert torch.equal(chow.predict_proba(te), rc.predict_proba(te, u(te)))


@quick
@given(st.integers(0, 10**6), st.sampled_from([0.8, 0.9, 0.95]))
def test_conformal_abstention_rejects_no_more_of_va_than_rc(seed, alpha):
    va = random_outputs(seed)
    model = Conformal(alpha).fit(va)
    meant = int((RejectOrClassify("maxlogit", alpha).fit(va).predict(va) == 4).sum())
    sizes = beside.set_sizes(model.known, beside.tempered(va, model.tau), [model.level])[:, 0]
    found = int((model.predict(va) == 4).sum())
    least = (beside.set_sizes(model.known, model.known[0], np.linspace(0.5, 0.99, 200)) != 1).sum(0).min()
    assert found == (sizes != 1).sum() and found <= max(meant, least + 1)  # no level may reject so few


@quick
@given(st.integers(0, 10**6))
def test_what_learns_nothing_does_not_depend_on_the_order_of_rows(seed):
    va, te = random_outputs(seed), random_outputs(seed + 1)
    rows = torch.randperm(len(va), generator=torch.Generator().manual_seed(seed))
    for name in ("MaxSoftmax", "Entropy", "EnergyBased"):
        model = lambda x: RejectOrClassify(Detector(name), temperature=1.0).fit(x).predict(te)  # noqa: B023
        assert torch.equal(model(va), model(va[rows]))


def test_openmax_thresholded_ranks_rows_as_openmax_itself():
    va, te = random_outputs(0, 400), random_outputs(1)
    p = OpenMax().fit(va).predict_proba(te)
    model = RejectOrClassify(OpenMaxScore(), temperature=1.0, scores="held-out").fit(va)
    rejected = model.predict(te) == 4
    assert rejected_share(model, va) == pytest.approx(0.05)
    assert not rejected.any() or p[rejected, -1].min() >= p[~rejected, -1].max()


def test_a_failed_fit_of_openmax_changes_nothing():
    va = random_outputs(0, 400)
    scorer = OpenMaxScore().fit(va)
    before = scorer.score(va)
    with pytest.raises(ValueError, match="labels: found None"):
        scorer.fit(Outputs(va.features, va.logits))
    assert torch.equal(scorer.score(va), before)


def test_a_missing_package_is_named(monkeypatch):
    def absent(name): raise ModuleNotFoundError(f"No module named {name!r}")
    monkeypatch.setattr(beside.importlib, "import_module", absent)
    with pytest.raises(ImportError, match=r'pip install "u2c\[beside\] @ git'):
        Conformal().fit(random_outputs(0))


def test_perfect_probabilities_have_perfect_scores():
    y = torch.tensor([0, 1, 2, 2])
    found = measured(torch.eye(3)[y], y, torch.tensor([0, 1, 0, 1]))
    assert all(found[m] == pytest.approx(0, abs=2e-6) for m in ("err", "ece", "ece_apart", "nll", "brier"))
    assert found["aurc"] == pytest.approx(np.mean([0, 0, 1 / 3, 2 / 4])) and found["abstain"] == 0.5


def test_a_hard_rejection_is_answered_by_the_networks_class_if_it_must_be():
    rejects = torch.tensor([[0.0, 0, 1], [0, 0, 1]])
    assert measured(rejects, torch.tensor([0, 1]), torch.tensor([0, 1]))["aurc"] == 0
    assert measured(rejects, torch.tensor([0, 1]), torch.tensor([1, 0]))["aurc"] == 1


def test_networks_that_are_not_there_are_not_trained_and_other_records_not_mixed(tmp_path, capsys):
    records = published("records_combined")
    records.to_csv(tmp_path / "c.csv", index=False)
    check_records(tmp_path / "c.csv", "scores", "combinations")
    few = ["--limit", "20", "--epochs", "1", "--runs", str(tmp_path / "typo"), "--out"]
    for path, found in (("n.csv", "runs: found no such outputs in .*resnet_small-seed0, expected"), ("", "out: found the folder"), ("c.csv", "out: found other records")):
        with pytest.raises(SystemExit):
            main(["beside", *few, str(tmp_path / path)])
        assert re.search(found, capsys.readouterr().err)
    assert [p.name for p in tmp_path.iterdir()] == ["c.csv"]


@pytest.mark.parametrize("method", METHODS)
def test_rows_are_probabilities(method):
    va, te = random_outputs(0, 400), random_outputs(1)
    g = torch.Generator().manual_seed(0)
    head = torch.randn(4, 5, generator=g), torch.randn(4, generator=g)
    for model in fitted({method: all_methods(head, 1.0)[method]}, va)[method]:
        p = model.predict_proba(te)
        assert p.shape == (200, 5) and (p >= 0).all() and torch.allclose(p.sum(1).float(), torch.ones(200), atol=1e-5)

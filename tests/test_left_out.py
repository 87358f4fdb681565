"Left-out classes on odd data: answers are probabilities, whatever the validation rows are like, and what cannot be is refused."
import copy
import pickle
import threading
import warnings

import pytest
import torch
from torch import nn

from u2c.core import Outputs
from u2c.demo import digits_outputs
from u2c.guards import seeded
from u2c.left_out import LeftOutU2C, left_out, left_out_report
from u2c.rank import RankU2C
from u2c.scores.base import make_scorer
from u2c.scores.head import give_head

pytestmark = pytest.mark.filterwarnings("ignore")  # such rows draw every warning there is
d = digits_outputs()
va = Outputs(d.va.features, d.va.logits, d.va.labels)
phi, f, y = va.features, va.logits, va.labels


def first(*counts):
    "So many rows of each class"
    return va[torch.cat([(y == k).nonzero()[:n, 0] for k, n in enumerate(counts)])]


def lot():
    with seeded(0):
        return torch.randint(8, y.shape)


ODD = {
    "constant features": lambda: Outputs(torch.ones_like(phi), f, y),
    "a feature that never moves": lambda: Outputs(torch.cat([phi, torch.ones(len(phi), 1)], 1), f, y),
    "features that copy others": lambda: Outputs(torch.cat([phi, phi], 1), f, y),
    "more features than rows": lambda: Outputs(phi.repeat(1, 11), f, y),
    "huge features": lambda: Outputs(phi * 1e30, f, y),
    "tiny features": lambda: Outputs(phi * 1e-30, f, y),
    "no features": lambda: Outputs(None, f, y),
    "equal logits": lambda: Outputs(phi, torch.zeros_like(f), y),
    "whole logits": lambda: Outputs(phi, f.round().long(), y),
    "log-probabilities": lambda: Outputs(phi, f.log_softmax(1), y),
    "half precision": lambda: Outputs(phi.half(), f.half(), y),
    "bfloat16": lambda: Outputs(phi.bfloat16(), f.bfloat16(), y),
    "labels by lot": lambda: Outputs(phi, f, lot()),
    "one row, many times": lambda: Outputs(phi[:1].expand(640, -1), f[:1].expand(640, -1), y),
    "one row a class": lambda: first(*[1] * 8),
    "five rows a class": lambda: first(*[5] * 8),
    "six rows a class": lambda: first(*[6] * 8),
    "one class has nearly all": lambda: first(80, *[2] * 7),
    "one class has nearly none": lambda: first(*[80] * 7, 1),
    "one class alone": lambda: first(80),
    "two classes": lambda: Outputs(phi[y < 2], f[y < 2, :2], y[y < 2]),
    "three classes": lambda: Outputs(phi[y < 3], f[y < 3, :3], y[y < 3]),
    "sorted by class": lambda: va[y.argsort(stable=True)],
}


@pytest.mark.parametrize("kind", ODD)
def test_answers_to_odd_rows_are_probabilities(kind):
    x = ODD[kind]()
    model = LeftOutU2C().fit(x)
    p = model.predict_proba(x)
    assert torch.isfinite(p).all() and p.shape == (len(x), x.n_classes + 1)
    torch.testing.assert_close(p.sum(1), torch.ones_like(p[:, 0]), atol=1e-4, rtol=0)
    assert torch.isfinite(torch.stack([model.weight, model.intercept])).all() and model.weight > 0
    again = LeftOutU2C()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.predict_proba(x), p)


@pytest.mark.parametrize("kind", ["labels by lot", "two classes", "one row a class", "six rows a class", "one class has nearly all"])
def test_what_lies_far_away_is_declined_whatever_was_learned(kind):
    x = ODD[kind]()
    model = LeftOutU2C().fit(x)
    far = Outputs(1e4 * x.features, 1e4 * x.logits)
    assert (model.predict(far) == x.n_classes).double().mean() > 0.95


def test_a_few_classes_without_rows_do_not_end_all_scores():
    "At most a share of 1 - alpha of the classes: their inputs are as many as may be declined"
    gone = va[y > 0]
    with pytest.warns(UserWarning, match=r"1 of 8 classes have no rows \(0\): their inputs will be called unknown"):
        assert len(LeftOutU2C(alpha=0.8).fit(gone).scorer.parts) == 7
    with pytest.warns(UserWarning, match=r"1 of 8 classes have no rows \(0\): only scores that learn nothing"):
        model = LeftOutU2C().fit(gone)
    assert (model.predict(va[y == 0]) == 8).double().mean() < 0.3  # the network knows them


def test_a_class_that_holds_nearly_all_rows_stays():
    shown = LeftOutU2C().fit(first(80, *[2] * 7)).shown
    assert {t.group[0] for t in shown.trials} == set(range(1, 8))


def test_groups_are_checked():
    for group in ([], [8], [-1], list(range(8)), 3, [0.5]):
        with pytest.raises(ValueError, match="groups: found .*, expected some of the classes 0 to 7, not all"):
            left_out(va, ["knn"], groups=[group])
    with pytest.raises(ValueError, match="most: found 0"):
        left_out(va, ["knn"], most=0)
    with pytest.raises(ValueError, match="head: found None"):
        left_out(va, ["vim"])


def embeddings(n, seed):
    "Rows of length 1 with few strong directions among 384, and the head on them"
    draw = torch.Generator().manual_seed(99)
    means = torch.randn(8, 384, generator=draw) / 384**0.5
    basis = torch.linalg.qr(torch.randn(384, 384, generator=draw)).Q
    spread = 0.2 * torch.arange(1, 385) ** -0.7
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 8
    noise = torch.randn(n, 384, generator=draw) * spread * (0.5 + torch.rand(n, 1, generator=draw))
    rows = nn.functional.normalize(means[labels] + noise @ basis)
    head = 12 * nn.functional.normalize(means), torch.zeros(8)
    return Outputs(rows, rows @ head[0].T, labels), head


@pytest.mark.parametrize("n", [60, 150, 283, 330, 479, 480, 600])
def test_fresh_known_rows_are_answered_however_few_taught(n):
    "ViM takes 256 directions of 384, and four fifths of so many rows may leave nothing over"
    declined = []
    for seed in (10, 11):
        rows, head = embeddings(n, seed)
        model = LeftOutU2C()
        give_head(model, head)
        model.fit(rows)
        declined.append((model.predict(embeddings(2000, 1)[0]) == 8).double().mean().item())
        assert ("ViM" in [type(p).__name__ for p in model.scorer.parts]) == (n >= 480)
    assert 0.02 < sum(declined) / len(declined) < 0.12 and max(declined) < 0.2


def test_vim_stays_where_nothing_else_was_asked_for():
    rows, head = embeddings(283, 10)
    model = LeftOutU2C([make_scorer("vim", head=head)])
    with pytest.warns(UserWarning, match="vim: 226 rows for 256 principal directions"):
        model.fit(rows)


def test_one_half_is_asked_where_each_has_enough_rows():
    few, all_ = left_out(va, ["maxlogit"], most=20), left_out(va, ["maxlogit"])
    assert [t.group for t in few] == [[k] for k in range(8)] and len(all_) == 16
    sides = [set(t.rows.tolist()) for t in all_]
    for k, t in enumerate(few):
        assert len(t.rows) == 40 and set(t.rows.tolist()) <= sides[2 * k + k % 2]  # the halves take turns


def test_states_of_others_are_refused():
    model, rank = LeftOutU2C().fit(va), RankU2C("combined").fit(va)
    for own, other in ((RankU2C("combined"), model), (LeftOutU2C(), rank), (LeftOutU2C(alpha=0.9), model), (LeftOutU2C(("knn", "maxlogit")), model)):
        with pytest.raises(ValueError, match="state_dict: found"):
            own.load_state_dict(other.state_dict())


def test_several_scores_of_one_class_come_back_from_a_state():
    make = lambda: LeftOutU2C([make_scorer("knn", k=k) for k in (50, 5, 20)] + ["maxlogit"], keep=2)
    model, again = make().fit(va), make()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.predict_proba(d.unknown), model.predict_proba(d.unknown))


def test_copies_answer_alike_and_a_fit_that_fails_changes_nothing():
    model = LeftOutU2C().fit(va)
    p, report = model.predict_proba(d.te), left_out_report(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other.predict_proba(d.te), p)
    for wrong in (va[:1], d.unknown, Outputs(phi, f)):
        with pytest.raises(ValueError): model.fit(wrong)
    assert torch.equal(model.predict_proba(d.te), p) and left_out_report(model) == report
    assert torch.equal(model.fit(va[:500]).predict_proba(d.te), LeftOutU2C().fit(va[:500]).predict_proba(d.te))


def test_threads_fit_alike():
    found = []
    threads = [threading.Thread(target=lambda: found.append(LeftOutU2C().fit(va).predict_proba(d.te))) for _ in range(3)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert len(found) == 3 and all(torch.equal(p, found[0]) for p in found)


def test_an_ordinary_fit_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LeftOutU2C().fit(va)


@pytest.mark.parametrize("kind", ["two classes", "labels by lot", "six rows a class", "one class has nearly all"])
def test_a_file_brings_back_what_learned_nothing_too(kind, tmp_path):
    from u2c.service.artifact import load_calibrator, save_calibrator

    x = ODD[kind]()
    model = LeftOutU2C().fit(x)
    save_calibrator(tmp_path / "a.u2c", model)
    back = load_calibrator(tmp_path / "a.u2c")
    assert torch.equal(back.predict_proba(x), model.predict_proba(x))
    assert torch.equal(back.at(alpha=0.8).predict_proba(x), model.at(alpha=0.8).predict_proba(x))
    for m in (model, back):
        if m.odds is not None: m.at(prior=0.1)
        else:
            with pytest.raises(ValueError, match="prior: found 0.1"): m.at(prior=0.1)

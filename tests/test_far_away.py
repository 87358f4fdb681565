"What lies far beyond all validation rows in one score is rejected, whatever the other scores say of it."
from functools import cache

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from torch import nn

from u2c.core import Outputs
from u2c.guards import seeded
from u2c.left_out import LeftOutU2C
from u2c.rank import RankU2C
from u2c.reject import Calibrator
from u2c.scores.combined import scorers_of, tail_scale
from u2c.service.sklearn import AbstainingClassifier

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # a hundred rows draw every warning there is
SIZES = (100, 300, 1000, 10_000)
MODELS = {"combined": lambda: RankU2C("combined"), "left-out": lambda: LeftOutU2C()}


@cache
def pixels(n, seed):
    "Pictures of digits, each with noise of its own, so that there are as many as one likes"
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(x), n)
    return np.clip(x[rows] / 16 + rng.normal(0, 0.05, (n, 64)), 0, 1).astype(np.float32), y[rows]


def odd(x):
    "Inputs that are no digits"
    rng = np.random.default_rng(9)
    return {"scaled": x * 1000, "inverted": 1 - x, "blank": np.zeros_like(x) + rng.normal(0, 1e-3, x.shape).astype(np.float32),
            "noise": rng.random(x.shape, dtype=np.float32)}


@cache
def network():
    x, y = map(torch.from_numpy, pixels(1000, 1))
    with seeded(0):
        net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-3)
        for _ in range(150):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    return net.requires_grad_(False)


def outputs(x, y=None):
    phi = network()[1](network()[0](torch.from_numpy(x)))
    return Outputs(phi, network()[2](phi), y)


@cache
def fitted(name, n) -> Calibrator:
    return MODELS[name]().fit(outputs(*pixels(n, 2)))


def far_beyond(model, x, scales=30):
    "(n,) Does some part lie that far beyond the largest score that it knows, in units of its tail?"
    parts = zip(scorers_of(model.scorer), model.scorer.reference)
    return torch.stack([(p.score(x).double() - known[-1]) / tail_scale(known) > scales for p, known in parts]).any(0)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("n", SIZES)
def test_one_alarm_is_enough(name, n):
    model, seen = fitted(name, n), 0
    for kind, x in odd(pixels(200, 3)[0]).items():
        rows = outputs(x)
        rejected, far = model.predict(rows) == 10, far_beyond(model, rows)
        assert rejected[far].all(), kind
        seen += int(far.sum())
        if kind == "scaled": assert rejected.double().mean() > 0.95
    assert seen >= 200  # it was asked
    known = outputs(pixels(2000, 4)[0])
    assert (model.predict(known) == 10).double().mean() < 0.2  # and ordinary rows are answered


@pytest.mark.parametrize("method, scorer", [("rank", "combined"), ("left-out", "combined")])
@pytest.mark.parametrize("n", [100, 1000])
def test_a_table_times_a_thousand_is_rejected(method, scorer, n):
    train, (x, y) = pixels(1000, 1), pixels(n, 2)
    lr = LogisticRegression(max_iter=500).fit(*train)
    clf = AbstainingClassifier(FrozenEstimator(lr), scorer, method).fit(x, y)
    strange = odd(pixels(200, 3)[0])
    assert (clf.predict(strange["scaled"]) == -1).mean() > 0.95
    assert (clf.predict(pixels(1000, 4)[0]) == -1).mean() < 0.25

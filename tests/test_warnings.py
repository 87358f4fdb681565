"A warning points at the line of the person who can do something about it."
import inspect
import re
import warnings
from pathlib import Path

import pytest
import torch

from u2c.core import Outputs
from u2c.guards import warn
from u2c.reject import RejectOrClassify, fit_threshold
from u2c.scores.base import make_scorer
from u2c.temperature import fit_temperature
from u2c.unified import U2C

g = torch.Generator().manual_seed(0)
n, c, d = 120, 4, 6
y = torch.arange(n) % c
phi = torch.randn(n, d, generator=g) + 2 * torch.randn(c, d, generator=g)[y]
f = torch.randn(n, c, generator=g) + 2 * torch.nn.functional.one_hot(y, c)
va, few = Outputs(phi, f, y), Outputs(phi, f, y)[:5]
flat, equal = Outputs(torch.ones(n, d), f, y), Outputs(phi, torch.ones(n, c), y)
gap, large = Outputs(phi, torch.cat([f, f[:, :1]], 1), y), Outputs(torch.nn.functional.layer_norm(phi, (d,)) * 1e6, f, y)
head = torch.randn(c, d, generator=g), torch.zeros(c)

WARNINGS = {
    "temperature": ("every row has equal logits", lambda: fit_temperature(equal.logits, y), lambda: RejectOrClassify("knn").fit(equal)),
    "too few rows": ("5 rows are too few", lambda: fit_threshold(few.logits[:, 0]), lambda: RejectOrClassify("maxlogit").fit(few)),
    "ties": ("ties at theta", lambda: fit_threshold(torch.ones(n)), lambda: RejectOrClassify("knn").fit(flat)),
    "ash": ("of the features are negative", lambda: make_scorer("ash", head=head).fit(va), lambda: RejectOrClassify(make_scorer("ash", head=head)).fit(va)),
    "few for a covariance": ("cannot fill a covariance", lambda: make_scorer("mahalanobis").fit(few), lambda: RejectOrClassify("mahalanobis").fit(few)),
    "no rows of a class": ("1 of 5 classes (4) have no rows here: their inputs will be called unknown", lambda: make_scorer("mahalanobis").fit(gap), lambda: RejectOrClassify("mahalanobis").fit(gap)),
    "ridge": ("below what float64 resolves", lambda: make_scorer("mahalanobis").fit(large), lambda: RejectOrClassify("mahalanobis").fit(large)),
    "nothing relabelled": ("no row lies above theta", lambda: U2C("knn", steps=9).fit(flat), lambda: U2C("knn", steps=9).fit(flat)),
    "apart": ("tau_u has not learned", lambda: U2C("knn", steps=9).fit(va), lambda: U2C("knn", steps=9).fit(va, make_scorer("knn").fit(va).score(va))),
}


@pytest.mark.parametrize("how", ["directly", "through fit"])
@pytest.mark.parametrize("case", WARNINGS)
def test_a_warning_names_the_line_that_called(case, how):
    message, direct, through = WARNINGS[case]
    call = direct if how == "directly" else through
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    found = [w for w in caught if message in str(w.message)]
    assert found and {w.category for w in found} == {UserWarning}
    assert {Path(w.filename).name for w in found} == {Path(__file__).name}
    assert {w.lineno for w in found} == {call.__code__.co_firstlineno}


def test_a_warning_passes_through_what_calls_a_module():
    package = {"__name__": "u2c.somewhere", "warn": warn, "nn": torch.nn}
    exec("class Loud(nn.Module):\n    def forward(self, x): warn('careful')", package)
    loud = package["Loud"]()
    with pytest.warns(UserWarning, match="careful") as caught:
        loud(1); line = inspect.currentframe().f_lineno
    assert (Path(caught[0].filename).name, caught[0].lineno) == (Path(__file__).name, line)


def test_no_module_counts_stack_levels_by_hand():
    sources = {p.name: p.read_text() for p in Path(inspect.getfile(Outputs)).parent.rglob("*.py")}
    assert [name for name, text in sources.items() if re.search(r"warnings\.warn\(", text)] == ["guards.py"]

"PyTorch's defaults for new tensors, and faiss, change nothing but speed."
import subprocess
import sys

import pytest
import torch

from u2c.core import Outputs
from u2c.demo import digits_outputs
from u2c.metrics import aupr, auroc, ece, err, nll
from u2c.reject import RejectOrClassify
from u2c.scores.base import make_scorer
from u2c.unified import U2C


def everything():
    "Numbers from every part that makes tensors"
    d = digits_outputs()
    va = Outputs(d.va.features.numpy(), d.va.logits.tolist(), d.va.labels.numpy())
    out = [va.features, va.logits, d.te.logits]
    linear = torch.nn.Linear(64, 8, bias=False, device="cpu", dtype=torch.float32)
    linear.weight.data = d.head[0].clone()
    for scorer in ("maxlogit", make_scorer("ash", head=linear), make_scorer("ash", head=[h.tolist() for h in d.head]), "mahalanobis", "knn"):
        for model in (RejectOrClassify(scorer), U2C(scorer, steps=20), U2C(scorer, link="linear", steps=20, standardize=True)):
            p = model.fit(va).predict_proba(d.te)
            out += [p, model.tau, model.theta, model.scorer.score(d.unknown)]
            out += [torch.tensor([m(p, d.te.labels) for m in (err, ece, nll)] + [ece(p, d.te.labels, mass=True)], dtype=torch.float64, device="cpu")]
    u, v = (make_scorer("knn").fit(va).score(x) for x in (d.te, d.unknown))
    return [*out, torch.tensor([auroc(u, v), aupr(u, v)], dtype=torch.float64, device="cpu")]


def small_networks():
    "Initial weights, a step of training and what is extracted"
    from u2c.bench.backbones import make_backbone, train_backbone
    from u2c.bench.small import data_hash, digits_benchmark, load_benchmark
    from u2c.bench.features import extract
    from u2c.lemmas import World

    load_benchmark.cache_clear()
    splits = load_benchmark("small", 40)
    train = splits["train"]
    net = train_backbone("resnet_small", train.images, train.labels, 8, epochs=1)
    world = World()
    return [*make_backbone("vit_small", 8).parameters(), extract(net, train.images, train.labels).logits, train.labels,
            world.known(50).logits, torch.tensor(list((data_hash(splits) + data_hash(digits_benchmark())).encode()), device="cpu")]


@pytest.fixture
def odd_defaults():
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def plain():
    return {f: f() for f in (everything, small_networks)}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("f", [everything, small_networks])
def test_default_device_and_type_change_nothing(f, plain, odd_defaults):
    ours = f()
    assert len(ours) == len(plain[f])
    for a, b in zip(ours, plain[f]):
        assert a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


WITHOUT = """
import sys, warnings
sys.modules["faiss"] = None  # importing it now fails
warnings.simplefilter("ignore")
from u2c.demo import digits_outputs
from u2c.unified import U2C
d = digits_outputs()
for name in ("maxlogit", "mahalanobis", "knn"): print(*U2C(name, steps=20).fit(d.va).predict_proba(d.te)[:20, -1].tolist())
"""


def with_faiss() -> list[float]:
    import faiss  # noqa: F401

    d = digits_outputs()
    return [p for name in ("maxlogit", "mahalanobis", "knn") for p in U2C(name, steps=20).fit(d.va).predict_proba(d.te)[:20, -1].tolist()]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_without_faiss_neighbours_are_found_all_the_same():
    a = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True).stdout.split()
    b = with_faiss()
    assert len(a) == 60
    assert [float(x) for x in a] == pytest.approx(b, abs=1e-6)


def test_faiss_is_loaded_when_neighbours_are_looked_for():
    code = "import sys; from u2c.unified import U2C; U2C('maxlogit'); U2C('knn'); print('faiss' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"

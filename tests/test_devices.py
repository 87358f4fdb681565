"""What runs on a GPU, where no GPU is at hand: PyTorch's fake tensors say which device, type and layout each operation would have."""
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from u2c import core, guards
from u2c.bench.backbones import load_pretrained
from u2c.bench.features import ImageFiles, forward_batch
from u2c.core import Outputs
from u2c.reject import RejectOrClassify
from u2c.run import experiment
from u2c.run.experiment import Config, imagenet_outputs
from u2c.scores import distances
from u2c.scores.base import make_scorer
from u2c.unified import U2C


class Operations(TorchDispatchMode):
    "Write down every operation with its result"
    def __init__(self):
        super().__init__()
        self.results: list[tuple[str, torch.Tensor]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor): self.results.append((str(function), result))
        return result

    def named(self, name: str) -> list[torch.Tensor]: return [x for op, x in self.results if name in op]


def as_if_on_a_gpu(net: torch.nn.Module, mode: FakeTensorMode) -> torch.nn.Module:
    "Replace weights by fake ones on cuda: shapes, types and devices, but no numbers"
    for module in net.modules():
        for table in (module._parameters, module._buffers):
            for name, x in table.items():
                if x is None: continue
                fake = mode.from_tensor(x.detach()).to("cuda", memory_format=torch.channels_last if x.ndim == 4 else torch.preserve_format)
                table[name] = torch.nn.Parameter(fake, requires_grad=False) if table is module._parameters else fake
    return net


@pytest.fixture
def forward(monkeypatch):
    "One batch through EfficientNet-Lite0 on a GPU that is not there"
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *a, **k: True)
    net = load_pretrained("efficientnet_lite0")
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        as_if_on_a_gpu(net, mode)
        with Operations() as operations: phi, logits = forward_batch(net, torch.empty(4, 3, 224, 224), torch.device("cuda"))
    return operations, phi, logits


def test_convolutions_run_on_the_gpu_in_half_precision_and_channels_last(forward):
    convolutions = forward[0].named("convolution")
    assert len(convolutions) == 49
    assert {x.device.type for x in convolutions} == {"cuda"} and {x.dtype for x in convolutions} == {torch.float16}
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in convolutions)


def test_the_head_runs_on_the_gpu_in_single_precision(forward):
    (head,) = forward[0].named("addmm")
    assert head.shape == (4, 1000) and head.device.type == "cuda" and head.dtype == torch.float32


def test_answers_come_back_to_the_cpu_in_single_precision(forward):
    _, phi, logits = forward
    assert phi.shape == (4, 1280) and logits.shape == (4, 1000)
    assert {x.device.type for x in (phi, logits)} == {"cpu"} and {x.dtype for x in (phi, logits)} == {torch.float32}


@pytest.mark.parametrize("there, expected", [(True, "cuda"), (False, "cpu")])
def test_extraction_takes_the_gpu_where_there_is_one(monkeypatch, tmp_path, there, expected):
    moved, used = [], []
    net = load_pretrained("efficientnet_lite0")
    monkeypatch.setattr(net, "to", lambda device, **layout: (moved.append((device.type, layout)), net)[1])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(experiment, "load_pretrained", lambda name, weights: net)
    monkeypatch.setattr(experiment, "imagenet_lists", lambda config: {"ImageNet-va": ImageFiles(Path("."), ["a.jpg"], [0])})
    monkeypatch.setattr(experiment, "extract_files", lambda *args, device, **options: (used.append(device.type), [])[1])
    _, (weight, bias) = imagenet_outputs(Config("imagenet", "efficientnet_lite0", data="."), tmp_path)
    assert moved == [(expected, {"memory_format": torch.channels_last})] and used == [expected]
    assert weight.device.type == bias.device.type == "cpu"


@pytest.mark.parametrize("name", ["maxlogit", "ash", "mahalanobis", "knn"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_was_fitted_answers_where_there_is_no_float64(name, monkeypatch):
    from u2c.demo import digits_outputs

    d = digits_outputs()
    options = {"head": d.head} if name == "ash" else {}
    for model in (RejectOrClassify(make_scorer(name, **options)), U2C(make_scorer(name, **options))):
        expected = model.fit(d.va).predict_proba(d.te)
        with monkeypatch.context() as m:
            for module in (core, guards, distances): m.setattr(module, "has_float64", lambda device: False)
            model.to("cpu")  # this CPU has no float64
            with Operations() as operations: p = model.predict_proba(d.te)
        assert len(operations.results) > 5 and not [op for op, t in operations.results if t.dtype == torch.float64]
        assert p.dtype == torch.float32 and (p - expected).abs().max() < 1e-3


def test_fitting_where_there_is_no_float64_says_what_to_do(monkeypatch):
    monkeypatch.setattr(guards, "check_finite", lambda *a: None)
    calls = U2C("maxlogit").fit, make_scorer("maxlogit").fit
    with FakeTensorMode():
        va = Outputs(logits=torch.empty(20, 3, device="mps"))
        for call in calls:
            with pytest.raises(ValueError, match=r"va: found on mps:0, which has no float64, expected cpu: fit there, then move the model with .to\('mps'\)"):
                call(va)


@pytest.mark.parametrize("name", ["maxlogit", "ash", "mahalanobis", "knn"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_evaluation_computes_on_the_gpu_and_brings_answers_to_the_cpu(name, monkeypatch):
    from u2c.demo import digits_outputs

    monkeypatch.setattr(guards, "check_finite", lambda *a: None)  # it looks at numbers, and there are none
    d = digits_outputs()
    methods = experiment.fit_methods(name, d.va, d.head, 1.0)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x = Outputs(mode.from_tensor(d.te.features).to("cuda"), mode.from_tensor(d.te.logits).to("cuda"))
        for model in methods.values():
            as_if_on_a_gpu(model, mode)
            model._buffers["n_classes"] = d.te.n_classes  # compared by value, which a fake one has not
        with Operations() as operations:
            u = methods["rc"].scorer.score(x)
            for model in methods.values():
                p, log_p, _ = experiment.answers(model, x, u)
                assert {t.device.type for t in (p, log_p)} == {"cpu"} and p.shape == log_p.shape == (len(d.te), d.te.n_classes + 1)
    assert u.device.type == "cuda"
    computed = [t for op, t in operations.results if not any(word in op for word in ("_to_copy", "detach", "scalar_tensor"))]
    assert len(computed) > 20 and {t.device.type for t in computed} == {"cuda"}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_evaluation_moves_models_and_data_sets_to_the_device_it_is_told(monkeypatch):
    from u2c.demo import digits_outputs

    moved: list[tuple[str, str]] = []
    d = digits_outputs()
    plain = experiment.evaluate({"va": d.va, "te": d.te}, dict.fromkeys(("va", "te"), "in-domain"), d.head, resamples=10, scorers=["maxlogit", "knn"])
    monkeypatch.setattr(Outputs, "to", lambda self, device: (moved.append(("outputs", str(device))), self)[1])
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, device: (moved.append(("model", str(device))), self)[1])
    records = experiment.evaluate({"va": d.va, "te": d.te}, dict.fromkeys(("va", "te"), "in-domain"), d.head, resamples=10, scorers=["maxlogit", "knn"], device="cuda:1")
    assert [m for m in moved if m[1] == "cuda:1"] == [("model", "cuda:1")] * 2 * 5 + [("outputs", "cuda:1")] * 2  # all that was fitted, then each data set
    assert records.equals(plain)

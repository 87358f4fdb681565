"""What runs on a GPU, where no GPU is at hand: PyTorch's fake tensors say which device, type and layout each operation would have."""
import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from u2c import core, guards
from u2c.bench.backbones import load_pretrained
from u2c.bench import features
from u2c.bench.features import ImageFiles, answered, extract_files, forward_batch, load_shards, machines
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


class Queue:
    "A GPU's queue, where there is no GPU: it writes down what is asked of it"
    said: list[str] = []

    def __init__(self, device=None): self.device = device

    def __enter__(self): return self

    def __exit__(self, *error): return None

    def wait_stream(self, other): self.said.append("wait for the copy")

    def record_event(self): return self

    def synchronize(self): self.said.append("read")


@pytest.fixture
def queues(monkeypatch):
    monkeypatch.setattr(Queue, "said", [])
    monkeypatch.setattr(torch.cuda, "Stream", Queue)
    monkeypatch.setattr(torch.cuda, "stream", lambda queue: queue)
    monkeypatch.setattr(torch.cuda, "current_stream", Queue)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, queue: None)
    return Queue.said


@pytest.fixture(params=[None, "fp16"])
def forward(request, monkeypatch, queues):
    "One batch of bytes through EfficientNet-Lite0 on a GPU that is not there, by PyTorch's own settings or in half precision"
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *a, **k: True)
    net = load_pretrained("efficientnet_lite0")
    gpu = torch.device("cuda")
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        as_if_on_a_gpu(net, mode)
        batch = features.Batch([0, 1, 2, 3], torch.empty(4, 3, 224, 224, dtype=torch.uint8), {})
        with Operations() as operations: ((_, ((phi, logits),)),) = answered([[net]], [[0]], iter([batch]), [gpu], request.param)
    return operations, phi, logits, torch.float16 if request.param else torch.float32


def test_convolutions_run_on_the_gpu_in_the_precision_that_was_chosen_and_channels_last(forward):
    convolutions = forward[0].named("convolution")
    assert len(convolutions) == 49
    assert {x.device.type for x in convolutions} == {"cuda"} and {x.dtype for x in convolutions} == {forward[3]}
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in convolutions)


def test_pictures_travel_as_bytes_and_are_normalized_on_the_gpu(forward):
    (there, *_) = [x for x in forward[0].named("_to_copy") if x.device.type == "cuda"]
    assert there.dtype == torch.uint8 and there.shape == (4, 3, 224, 224)
    scaled = [x for name in ("div_", "sub_") for x in forward[0].named(name) if x.shape == (4, 3, 224, 224)]
    assert len(scaled) == 3 and {x.device.type for x in scaled} == {"cuda"}


def test_the_head_runs_on_the_gpu_in_single_precision(forward):
    (head,) = forward[0].named("addmm")
    assert head.shape == (4, 1000) and head.device.type == "cuda" and head.dtype == torch.float32


def test_answers_come_back_to_the_cpu_in_single_precision(forward):
    _, phi, logits, _ = forward
    assert phi.shape == (4, 1280) and logits.shape == (4, 1000)
    assert {x.device.type for x in (phi, logits)} == {"cpu"} and {x.dtype for x in (phi, logits)} == {torch.float32}


@pytest.mark.parametrize("precision, expected", [(None, (True, False)), ("fp32", (False, False)), ("tf32", (True, True))])
def test_a_precision_sets_both_switches_and_puts_them_back(precision, expected):
    def switches(): return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32

    before = switches()
    with features.in_precision(precision): assert switches() == expected
    assert switches() == before == (True, False)  # PyTorch's own, which were the authors'


def test_only_a_gpu_has_other_precisions(tmp_path):
    with pytest.raises(ValueError, match="precision: found tf32 on cpu, expected fp32, or a GPU"):
        extract_files(Stub(), ImageFiles(tmp_path, ["a.png"], [0]), tmp_path / "out", precision="tf32", workers=0)


class Stub(torch.nn.Module):
    "A network that adds up bytes, and says infinity of white pictures where it is told to"
    def __init__(self, odd: bool = False):
        super().__init__()
        self.head, self.odd, self.about = torch.nn.Linear(3, 2), odd, {"name": "stub"}

    def pixels(self, image): return torch.full((3, 8, 8), image.getpixel((0, 0))[0], dtype=torch.uint8)

    def features(self, x):
        phi = x.float().mean((2, 3))
        return phi / (255 - phi) if self.odd else phi

    def to(self, device): return self


def grays(folder: Path, n: int) -> ImageFiles:
    folder.mkdir()
    for i in range(n): Image.new("RGB", (8, 8), (i, i, i)).save(folder / f"{i}.png")
    return ImageFiles(folder, [f"{i}.png" for i in range(n)], [0] * n)


def test_an_answer_that_is_no_number_is_found_in_its_batch(tmp_path):
    files = grays(tmp_path / "images", 20)
    Image.new("RGB", (8, 8), (255, 255, 255)).save(files.root / "5.png")
    found = "outputs: found nan or inf for 1 of 4 images (5.png), expected numbers; precision='fp32' has the widest range"
    with pytest.raises(ValueError, match=re.escape(found)):
        extract_files(Stub(odd=True), files, tmp_path / "out", batch=4, shard=8, workers=0)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_gpu_copies_and_computes_ahead_of_what_is_read(queues):
    net = torch.nn.Module()
    net.features = lambda x: (queues.append("ask"), x.float().mean((2, 3)))[1]
    net.head = torch.nn.Linear(3, 2)
    batches = [features.Batch([k], torch.full((1, 3, 4, 4), k, dtype=torch.uint8), {}) for k in range(3)]
    with pytest.MonkeyPatch.context() as m:
        upload = features.uploaded
        m.setattr(features, "uploaded", lambda pixels, device, side: upload(pixels, torch.device("cpu"), None))
        got = [said[0][0][0, 0].item() for _, said in answered([[net]], [[0]] * 3, iter(batches), [torch.device("cuda")])]
    assert got == [0, 1, 2] and queues == ["ask", "ask", "read", "ask", "read", "read"]


def test_two_gpus_take_batches_in_turns_and_write_what_one_would(monkeypatch, queues, tmp_path):
    used: list[str] = []
    files = grays(tmp_path / "images", 20)
    alone = extract_files(Stub(), files, tmp_path / "alone", batch=4, shard=8, workers=0)
    monkeypatch.setattr(features, "uploaded", lambda pixels, device, side: (used.append(str(device)), pixels)[1])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A GPU")
    both = extract_files(Stub(), files, tmp_path / "both", batch=4, shard=8, workers=0, device="cuda")
    assert used == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]
    a, b = load_shards(alone), load_shards(both)
    assert a.features.equal(b.features) and a.labels.equal(b.labels)
    assert machines(alone) == set() and machines(both) == {f"A GPU, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"}


def test_shards_of_two_kinds_of_gpu_do_not_mix_in_silence(monkeypatch, tmp_path):
    files, net = grays(tmp_path / "images", 4), load_pretrained("efficientnet_lite0")
    monkeypatch.setattr(experiment, "placed_network", lambda config: net)
    monkeypatch.setattr(experiment, "imagenet_lists", lambda config: {"ImageNet-va": files, "ImageNet-te": files})
    config = Config("imagenet", "efficientnet_lite0", data=str(tmp_path))
    imagenet_outputs(config, tmp_path / "out")
    for k, name in enumerate(("ImageNet-va", "ImageNet-te")):
        (path,) = (tmp_path / "out/outputs" / name).glob("*.safetensors")
        with features.safe_open(path, "pt") as f: about = features.json.loads(f.metadata()["u2c"])["about"]
        features.save_tensors(path, load_file(path), about, f"GPU {k}")
    with pytest.warns(UserWarning, match=r"made in several places, which round differently: \['GPU 0', 'GPU 1'\]"):
        imagenet_outputs(config, tmp_path / "out")


@pytest.mark.parametrize("there, expected", [(True, "cuda"), (False, "cpu")])
def test_extraction_takes_the_gpu_where_there_is_one(monkeypatch, tmp_path, there, expected):
    moved, used = [], []
    net = load_pretrained("efficientnet_lite0")
    monkeypatch.setattr(net, "to", lambda device, **layout: (moved.append((device.type, layout)), net)[1])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(experiment, "load_pretrained", lambda name, weights: net)
    monkeypatch.setattr(experiment, "imagenet_lists", lambda config: {"ImageNet-va": ImageFiles(Path("."), ["a.jpg"], [0])})
    monkeypatch.setattr(experiment, "extract_each", lambda nets, images, device, **options: (used.append(device.type), dict.fromkeys(nets, []))[1])
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
        x = Outputs(*(mode.from_tensor(t).to("cuda") for t in (d.te.features, d.te.logits)))
        x.labels = mode.from_tensor(d.te.labels).to("cuda")
        for model in methods.values():
            as_if_on_a_gpu(model, mode)
            model._buffers["n_classes"] = d.te.n_classes  # compared by value, which a fake one has not
        with Operations() as operations:
            u = methods["rc"].scorer.score(x)
            for model in methods.values():
                rows = experiment.answers(model, x, u)
                assert {t.device.type for t in rows} == {"cpu"} and {t.shape for t in rows} == {(len(d.te),)}
    assert u.device.type == "cuda"
    travelled = [t for op, t in operations.results if "_to_copy" in op and t.device.type == "cpu"]
    assert travelled and max(t.ndim for t in travelled) == 1  # nothing of (n, c + 1) crosses
    computed = [t for op, t in operations.results if not any(word in op for word in ("_to_copy", "detach", "scalar_tensor", "cat")) and t.device.type != "cpu"]
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

"""Time a calibrated answer beside the bare network's and an exported file beside both, the import beside torch's, and the watch; write _runs/bench_service.md.

Each is a ratio within one run: bare and calibrated calls take turns, and the median of the pairs' ratios is told."""
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torchvision.models import resnet50

from u2c import Outputs, RejectOrClassify, U2CClassifier, Watch, export, make_scorer

ROWS, BATCHES = 3_000, {1: 9, 16: 3}  # rows of va; how often a batch of each size is timed
# What a calibrated answer may add to the bare network's time, in percent.
MAY_ADD = {"maxlogit": 5, "ash": 5, "mahalanobis": 15}
SUBSAMPLE = 1_000


def scores(net: torch.nn.Module) -> dict:
    "The scores by what they are called in the table"
    ash = make_scorer("ash", head=(net.fc.weight.detach(), net.fc.bias.detach()))
    part = make_scorer("knn", subsample=SUBSAMPLE)
    few = f"{SUBSAMPLE:,} rows"
    whole = {name: ash if name == "ash" else name for name in ("maxlogit", "ash", "mahalanobis", "knn")}
    return whole | {f"knn, {few}": part}


def seconds(f) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def validation(net: torch.nn.Module) -> Outputs:
    "Made-up features of a ResNet50's size, with the logits of its own last layer and labels that are mostly its answers"
    g = torch.Generator().manual_seed(0)
    features = torch.randn(ROWS, 2048, generator=g).abs()
    with torch.no_grad():
        logits = net.fc(features) * 20
    guess = torch.randint(1000, (ROWS,), generator=g)
    return Outputs(features, logits, torch.where(torch.rand(ROWS, generator=g) < 0.8, logits.argmax(1), guess))


def latency() -> list[str]:
    torch.manual_seed(0)
    net = resnet50().eval()
    va = validation(net)
    lines = ["| score | may add | " + " | ".join(f"batch {b}" for b in BATCHES) + " |", "| --- | ---: |" + " ---: |" * len(BATCHES)]
    for name, scorer in scores(net).items():
        clf, most = U2CClassifier(net, scorer).fit(va), MAY_ADD.get(name)
        cells = []
        for size, times in BATCHES.items():
            x = torch.rand(size, 3, 224, 224)
            clf.predict_proba(x)  # once, to warm up and to find the last layer
            with torch.no_grad():
                pairs = [(seconds(lambda: net(x)), seconds(lambda: clf.predict_proba(x))) for _ in range(times)]
            cells.append(f"{100 * (statistics.median(ours / bare for bare, ours in pairs) - 1):+.1f} %")
        lines.append(f"| {name} | {'' if most is None else f'{most} %'} | {' | '.join(cells)} |")
    return [f"A calibrated answer beside ResNet50's alone ({ROWS:,} rows of va, 2,048 features, 1,000 classes, {torch.get_num_threads()} threads):", "", *lines]


def small() -> list[str]:
    "One image at a time by a network of a few milliseconds, where each check counts."
    torch.manual_seed(0)
    step = [torch.nn.Sequential(torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU()) for _ in range(60)]
    end = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 10)]
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, padding=1), *step, *end).eval()
    x, lines = torch.rand(400, 3, 8, 8), ["| score | bare | calibrated | more |", "| --- | ---: | ---: | ---: |"]
    for name in ("maxlogit", "combined"):
        clf = U2CClassifier(net, name).fit((x, torch.randint(10, (400,))))
        clf.predict_proba(x[:1])
        with torch.no_grad():
            pairs = [(seconds(lambda: net(x[:1])), seconds(lambda: clf.predict_proba(x[:1]))) for _ in range(200)]
        bare, ours = (1000 * statistics.median(t) for t in zip(*pairs))
        lines.append(f"| {name} | {bare:.2f} ms | {ours:.2f} ms | {ours - bare:.2f} ms |")
    return ["One image of a small network (60 convolutions):", "", *lines]


def exported() -> list[str]:
    "Answers by onnxruntime beside those of the classifier itself, images in, both on the same threads."
    import onnxruntime

    torch.manual_seed(0)
    net = resnet50().eval()
    va, options = validation(net), onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    lines = ["| score | file | " + " | ".join(f"batch {b}" for b in BATCHES) + " |", "| --- | ---: |" + " ---: |" * len(BATCHES)]
    kept = ("maxlogit", "mahalanobis", f"knn, {SUBSAMPLE:,} rows")
    for name, scorer in ((name, scorer) for name, scorer in scores(net).items() if name in kept):
        clf, cells = U2CClassifier(net, scorer).fit(va), []
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "resnet50.onnx"
            export(clf, path, [torch.rand(8, 3, 224, 224)])
            size, session = path.stat().st_size, onnxruntime.InferenceSession(path, options)
        for batch, times in BATCHES.items():
            x = torch.rand(batch, 3, 224, 224)
            given = {"images": x.numpy()}
            clf.predict_proba(x), session.run(None, given)  # once, to warm up
            pairs = [(seconds(lambda: clf.predict_proba(x)), seconds(lambda: session.run(None, given))) for _ in range(times)]
            cells.append(f"{statistics.median(theirs / ours for ours, theirs in pairs):.2f} times")
        lines.append(f"| {name} | {size / 1e6:.0f} MB | {' | '.join(cells)} |")
    return [f"An answer by onnxruntime beside the classifier's own, ResNet50 with it, {torch.get_num_threads()} threads:", "", *lines]


def imports() -> str:
    def took(line: str) -> float:
        return statistics.median(seconds(lambda: subprocess.run([sys.executable, "-c", line], check=True)) for _ in range(5))

    start, bare, ours = (took(line) for line in ("pass", "import torch", "from u2c import Outputs, RankU2C, U2C"))
    return f"Import: torch {bare - start:.2f} s, torch with u2c's public names {ours - start:.2f} s, {(ours - start) / (bare - start):.2f} times."


def watching() -> str:
    g = torch.Generator().manual_seed(0)
    va = Outputs(torch.randn(2000, 64, generator=g), torch.randn(2000, 8, generator=g), torch.arange(2000) % 8)
    rc = RejectOrClassify(make_scorer("maxlogit")).fit(va)
    u = rc.scorer.score(va)
    watch, many = Watch(rc, u), u.repeat(5)
    whole = statistics.median(seconds(lambda: watch.update(many)) for _ in range(5))
    one = statistics.median(seconds(lambda: watch.update(u[:1])) for _ in range(50))
    return f"The watch: {len(many):,} scores in {1000 * whole:.0f} ms, one score in {1000 * one:.1f} ms."


if __name__ == "__main__":
    text = [*small(), "", *latency(), "", *exported(), "", imports(), "", watching()]
    out = Path(__file__).parent.parent / "_runs/bench_service.md"
    out.parent.mkdir(exist_ok=True)
    out.write_text("\n".join(text) + "\n")
    print("\n".join(text))

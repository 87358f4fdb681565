"""How fast is it, and how far from what the machine could do? Everything beside something else, in one run: ratios travel, seconds do not.

Writes _runs/bench.csv, a row for each comparison; `--record` writes the package's own record, u2c/data/speed.csv, which the page *How fast* shows.
Sizes are such that the whole takes less than 15 minutes on two cores."""
import csv
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import faiss
import numpy as np
import onnxruntime
import skimage.data
import timm.data
import torch
import torch.nn.functional as F
from PIL import Image
from pytorch_ood import detector as theirs
from torch import nn
from torchvision.models import resnet50
from torchvision.transforms import Compose

from u2c import Outputs, RankU2C, RejectOrClassify, U2C, U2CClassifier, Watch, export, make_scorer
from u2c.bench.backbones import load_pretrained
from u2c.bench.features import ImageFiles, Pictures, _read_ahead, batched, extract_files, forward_batch, read_image, uploaded
from u2c.bench.imagenet import IMAGENET
from u2c.left_out import left_out
from u2c.metrics import brier, ece, ece_apart, err, nll
from u2c.run.experiment import evaluate, measure, resample_weights, resampled
from u2c.scores.distances import nearest_torch, one_by_one, unit_rows
from u2c.temperature import fit_temperature, tempered_lse
from u2c.unified import fit_link

ROOT = Path(__file__).parent.parent
ROWS: list[dict] = []
BEGAN = time.perf_counter()


def seconds(f) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def in_turn(*calls, times: int = 3) -> list[float]:
    "Median seconds of each, taking turns, since machines are noisy; the first round warms up"
    rounds = [[seconds(f) for f in calls] for _ in range(times + 1)][1:]
    return [statistics.median(column) for column in zip(*rounds)]


def note(part: str, what: str, ours: float, beside: str, other: float, unit: str = "s", limit: str = "", least: float = float("nan")) -> None:
    "A row: what we take, what something else takes, what the limit is and the least that it would allow"
    ROWS.append(dict(part=part, what=what, ours=ours, beside=beside, other=other, unit=unit, limit=limit, least=least))
    print(f"{time.perf_counter() - BEGAN:4.0f} s  {part}: {what}: {ours:.4g} {unit}, {beside} {other:.4g}", flush=True)


# ---- fits beside the authors' procedure: 10,000 full-batch steps of Adam on full matrices, of which a few are timed and scaled

N, C, STEPS = 25_000, 1_000, 10_000


def simulated() -> tuple[torch.Tensor, torch.Tensor]:
    "Logits of an over-confident classifier that is right on about three rows in four, of the size of ImageNet's validation half"
    g = torch.Generator().manual_seed(0)
    logits, labels = torch.empty(N, C), torch.randint(C, (N,), generator=g)
    for f, y in zip(logits.split(1000), labels.split(1000)):  # in place, so that nothing but the logits is ever held
        f.normal_(generator=g).mul_(2).scatter_add_(1, y[:, None], 4 + 5 * torch.rand(len(y), 1, generator=g))
    return logits, labels


def plain_seconds(params, loss, lr=1e-3, weight_decay=0.0, timed=5) -> float:
    optimizer = torch.optim.Adam(params, lr=lr, weight_decay=weight_decay)

    def step():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return STEPS * statistics.median([seconds(step) for _ in range(timed + 1)][1:])


def resident() -> int:
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1]) * 1024


def memory() -> None:
    "In a process of its own: the peak while U2C is fitted, logits included, over the size of the logits"
    U2C("maxlogit", steps=10).fit(Outputs(logits=torch.randn(100, 10), labels=torch.arange(100) % 10))  # load all code first
    before = resident()
    logits, labels = simulated()
    peak, done = [0], threading.Event()

    def watch():
        while not done.wait(0.001): peak[0] = max(peak[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    U2C("maxlogit").fit(Outputs(logits=logits, labels=labels))
    done.set()
    watcher.join()
    print(json.dumps((peak[0] - before) / 1e9))


def fits() -> None:
    logits, labels = simulated()
    va, authors, once = Outputs(logits=logits, labels=labels), "the authors' 10,000 steps", "memory: the logits read once"
    (read,) = in_turn(lambda: logits.amax(1))
    tau_ = nn.Parameter(torch.ones(()))
    plain = plain_seconds([tau_], lambda: F.cross_entropy(logits / tau_, labels))
    note("fits", "temperature", in_turn(lambda: fit_temperature(logits, labels))[0], authors, plain, limit=once, least=read)
    tau = fit_temperature(logits, labels)
    f, u, lse = logits / tau, -logits.amax(1) / tau, tempered_lse(logits, tau)
    abstain = u > u.quantile(0.95)
    target = torch.where(abstain, C, labels)
    nets = {"mlp": nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 1)), "linear": nn.Sequential(nn.Linear(1, 1))}
    took = {link: plain_seconds(net.parameters(), lambda net=net: F.cross_entropy(torch.cat([f, net(u[:, None])], 1), target), weight_decay=1e-4) for link, net in nets.items()}
    z = np.random.default_rng(0).normal(size=N)
    (pass_,) = in_turn(lambda: 1 / (1 + np.exp(-z)))
    for link, plain in took.items():
        (ours,) = in_turn(lambda: fit_link(u, lse, abstain, link), times=1)
        note("fits", f"U2C's link, {link}", ours, authors, plain, limit="10,000 sigmoids of the rows", least=STEPS * pass_)
    (ranked,) = in_turn(lambda: RankU2C("maxlogit", temperature=tau).fit(va, u))
    note("fits", "ranks, no link", ranked, "the authors' mlp", took["mlp"], limit=once, least=read)
    said = subprocess.run([sys.executable, __file__, "memory"], check=True, capture_output=True, text=True).stdout
    size = logits.numel() * 4 / 1e9
    note("fits", "memory of U2C's fit", json.loads(said), "the logits twice", 2 * size, "GB", "the logits", size)


# ---- scores beside pytorch-ood's, learning and scoring included

def made_up(n: int, d: int, c: int) -> tuple[Outputs, Outputs, nn.Linear]:
    "va, te and a last layer; features as after a ReLU"
    g = torch.Generator().manual_seed(0)
    centers, head = torch.rand(c, d, generator=g), nn.Linear(d, c).requires_grad_(False)

    def sample() -> Outputs:
        y = torch.randint(c, (n,), generator=g)
        phi = (centers[y] + torch.randn(n, d, generator=g)).relu_()
        return Outputs(phi, head(phi) + 4 * F.one_hot(y, c), y)

    return sample(), sample(), head


def scores(n: int = 10_000, d: int = 512, c: int = 200) -> None:
    va, te, head = made_up(n, d, c)
    weights, same = (head.weight, head.bias), nn.Identity()
    q, bank = unit_rows(te.features), unit_rows(va.features)
    (product,), (solve,) = in_turn(lambda: q @ bank.T), in_turn(lambda: torch.linalg.solve_triangular(torch.eye(d, dtype=torch.float64), te.features.T.double(), upper=False))
    (read,) = in_turn(lambda: te.logits.amax(1))
    pairs = {  # ours; theirs learned; what the limit is
        "maxlogit": ({}, theirs.MaxLogit(None), "memory: the logits read once", read), "entropy": ({}, theirs.Entropy(None), "memory: the logits read once", read),
        "energy": ({}, theirs.EnergyBased(None), "memory: the logits read once", read),
        "knn": ({"k": 10}, theirs.KNN(same, k=10), "the matrix product of rows and bank", product),
        "mahalanobis": ({}, theirs.RMD(same), "two triangular solves in float64", 2 * solve),
        "vim": ({"head": weights}, theirs.ViM(same, d=d // 2, w=head.weight, b=head.bias), "", float("nan")),
        "nnguide": ({}, theirs.NNGuide(same, head, k=10), "the matrix product of rows and bank", product)}
    for name, (options, detector, limit, least) in pairs.items():
        def ours(): make_scorer(name, **options).fit(va).score(te)
        def other():
            if hasattr(detector, "fit_features"): detector.fit_features(va.features, va.labels).predict_features(te.features)
            else: detector.score(te.logits)
        mine, its = in_turn(ours, other, times=1)
        note("scores", name, mine, "pytorch-ood", its, limit=limit, least=least)
    q, bank = (unit_rows(torch.rand(k, 2048)) for k in (2_000, 25_000))
    faiss.omp_set_num_threads(torch.get_num_threads())
    knn, by_faiss, product = in_turn(lambda: nearest_torch(q, bank, 10), lambda: faiss.knn(q.numpy(), bank.numpy(), 10), lambda: q @ bank.T)
    note("scores", "neighbours at ImageNet's size, by PyTorch", knn, "faiss", by_faiss, limit="the matrix product of rows and bank", least=product)
    knn, by_faiss, product = in_turn(lambda: one_by_one(q[:1], bank, 10), lambda: faiss.knn(q[:1].numpy(), bank.numpy(), 10), lambda: q[:1] @ bank.T, times=9)
    note("scores", "neighbours of one row, by PyTorch", 1000 * knn, "faiss", 1000 * by_faiss, "ms", "memory: the bank read once", 1000 * product)


def left_out_classes() -> None:
    va, _, head = made_up(N, 2048, C)
    names = ("maxlogit", "entropy", "knn", "mahalanobis", "vim")
    parts = [make_scorer(name, **({"head": (head.weight, head.bias)} if name == "vim" else {})) for name in names]
    one, ours = seconds(lambda: [part.fit_score(va) for part in parts]), seconds(lambda: left_out(va, parts))
    note("left-out classes", f"{', '.join(names)}", ours, "one scoring pass", one)


# ---- pictures

def photographs(folder: Path, n: int) -> ImageFiles:
    "JPEGs of about the size of ImageNet's"
    pictures = [skimage.data.astronaut(), skimage.data.chelsea(), skimage.data.coffee(), skimage.data.rocket()]
    for i in range(n): Image.fromarray(pictures[i % 4]).resize((500, 375)).save(folder / f"{i}.jpg", quality=90)
    return ImageFiles(folder, [f"{i}.jpg" for i in range(n)], [0] * n)


class Plain(torch.utils.data.Dataset):
    "Files as torchvision's and timm's datasets read them"
    def __init__(self, files: ImageFiles, transform=None): self.files, self.transform = files, transform

    def __len__(self) -> int: return len(self.files.names)

    def __getitem__(self, i: int): return self.transform(Image.open(self.files.root / self.files.names[i]).convert("RGB")), 0


def of_main_process(batches) -> float:
    "Milliseconds of this process for an image, its readers and their start not counted"
    batches, n = iter(batches), 0
    next(batches)
    start = time.process_time()
    for x in batches: n += len(x)
    return 1000 * (time.process_time() - start) / n


def pictures(n: int = 192) -> None:
    net = load_pretrained("efficientnet_lite0").to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    cpu, options = torch.device("cpu"), dict(batch_size=64, num_workers=1)
    look = timm.data.resolve_model_data_config(net.body)
    whole = Compose(net.transform.transforms)
    with tempfile.TemporaryDirectory() as d:
        files = photographs(Path(d), n)
        def read(): return (b.pixels for b in _read_ahead(Pictures(files, net.pixels), [range(n)], 64, 1))
        def by_torchvision(): return (x for x, _ in torch.utils.data.DataLoader(Plain(files, whole), **options))
        def by_timm(): return (x for x, _ in timm.data.create_loader(Plain(files), look["input_size"], 64, use_prefetcher=True, device=cpu, num_workers=1, mean=look["mean"], std=look["std"], interpolation=look["interpolation"], crop_pct=look["crop_pct"]).loader)  # bytes, as ours
        mine, tv, tm = (statistics.median(of_main_process(f()) for _ in range(3)) for f in (read, by_torchvision, by_timm))
        for name, other in (("torchvision's loader", tv), ("timm's loader", tm)):
            note("loaders", "main process, an image", mine, name, other, "ms")
        some = list(range(64))
        ours = lambda: batched([Pictures(files, net.pixels)[i] for i in some])
        plain = lambda: torch.utils.data.default_collate([Plain(files, whole)[i] for i in some])
        decode = lambda: [read_image(files.root / files.names[i]) for i in some]
        a, b, c = (1000 * t / 64 for t in in_turn(ours, plain, decode, times=2))
        note("loaders", "reader, an image", a, "torchvision's loader", b, "ms", "decoding", c)
        x = uploaded(ours().pixels, cpu)
        forward, both = in_turn(lambda: [forward_batch(net, x) for _ in range(n // 64)], lambda: extract_files(net, files, Path(tempfile.mkdtemp(dir=d))), times=1)
        note("loaders", "extraction, an image", 1000 * both / n, "reading, then the network", a + 1000 * forward / n, "ms", "the network alone", 1000 * forward / n)


# ---- a service

BATCHES = {1: 5, 8: 1}  # images at once; how often they are timed

def small() -> None:
    "One image at a time by a network of a few milliseconds, where each check counts"
    torch.manual_seed(0)
    step = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(60)]
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *step, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).eval()
    x = torch.rand(400, 3, 8, 8)
    for name in ("maxlogit", "combined"):
        clf = U2CClassifier(net, name).fit((x, torch.randint(10, (400,))))
        with torch.no_grad(): bare, ours = in_turn(lambda: net(x[:1]), lambda: clf.predict_proba(x[:1]), times=100)
        note("answers", f"{name}, 60 small convolutions", 1000 * ours, "the bare network", 1000 * bare, "ms", "the bare network", 1000 * bare)


def service(rows: int = 5_000) -> None:
    torch.manual_seed(0)
    net, g = resnet50().eval(), torch.Generator().manual_seed(0)
    phi = torch.randn(rows, 2048, generator=g).abs()
    with torch.no_grad(): logits = net.fc(phi) * 20
    guess = torch.where(torch.rand(rows, generator=g) < 0.8, logits.argmax(1), torch.randint(1000, (rows,), generator=g))
    va, few = Outputs(phi, logits, guess), make_scorer("knn", subsample=1_000)
    kinds = {"maxlogit": "maxlogit", "mahalanobis": "mahalanobis", "knn": "knn", "knn, 1,000 rows": few}
    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = torch.get_num_threads()
    for name, scorer in kinds.items():
        clf = U2CClassifier(net, scorer).fit(va)
        for size, times in BATCHES.items():
            x = torch.rand(size, 3, 224, 224)
            with torch.no_grad(): bare, ours = in_turn(lambda: net(x), lambda: clf.predict_proba(x), times=times)
            note("answers", f"{name}, batch {size}", ours, "the bare network", bare, limit="the bare network", least=bare)
        if name not in ("maxlogit", "knn, 1,000 rows"): continue
        with tempfile.TemporaryDirectory() as folder:
            export(clf, Path(folder) / "x.onnx", [torch.rand(4, 3, 224, 224)])
            session = onnxruntime.InferenceSession(Path(folder) / "x.onnx", session_options)
        for size, times in BATCHES.items():
            x = torch.rand(size, 3, 224, 224)
            file, eager = in_turn(lambda: session.run(None, {"images": x.numpy()}), lambda: clf.predict_proba(x), times=times)
            note("files", f"ONNX, {name}, batch {size}", file, "eager", eager)
    bare, with_u2c = (statistics.median(seconds(lambda: subprocess.run([sys.executable, "-c", line], check=True)) for _ in range(3)) for line in ("import torch", "import torch; from u2c import Outputs, RankU2C, U2C"))
    note("answers", "import", with_u2c, "torch alone", bare, limit="torch alone", least=bare)
    rc = RejectOrClassify("maxlogit").fit(Outputs(phi[:2000, :64], logits[:2000], guess[:2000]))
    u = rc.scorer.score(Outputs(logits=logits[:2000]))
    watch = Watch(rc, u)
    many, one = (1000 * statistics.median(seconds(lambda: watch.update(x)) / len(x) for _ in range(9)) for x in (u.repeat(5), u[:1]))
    note("answers", "watching a score", many, "one score a call", one, "ms")


# ---- one network's evaluation, at a tenth of its size

SIZES = dict(zip(IMAGENET, (25_000, 25_000, 10_000, 10_000, 30_000, 5_879, 49_000, 10_000, 5_160, 15_869, 2_000)))


def table() -> None:
    "In a process of its own: minutes for the full size from a tenth, and the memory"
    d, groups = 2048, {k: v.group for k, v in IMAGENET.items()}
    g, head = torch.Generator().manual_seed(0), nn.Linear(d, C).requires_grad_(False)
    centers = torch.rand(C, d, generator=g)

    def outputs(name: str) -> Outputs:
        n, known = SIZES[name] // 10, not groups[name].endswith("ood")
        y = torch.arange(n) % C
        phi = (centers[y] + torch.randn(n, d, generator=g)).relu_()
        return Outputs(phi, head(phi) + 4 * F.one_hot(y, C) * known, y if known else torch.full((n,), C))

    data = {name: outputs(name) for name in SIZES}
    before = resident()
    def of_processor(scorer: str) -> float:
        start = time.process_time()
        evaluate(data, groups, (head.weight, head.bias), scorers=[scorer])
        return time.process_time() - start

    # what is linear in rows takes ten times as long; neighbours, rows among rows, a hundred times
    took = {s: of_processor(s) for s in ("maxlogit", "ash", "mahalanobis", "knn")}
    minutes = (10 * sum(took.values()) + 90 * max(0, took["knn"] - took["maxlogit"])) / 60
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps([minutes, (peak - before) / 1e9]))


def evaluation() -> None:
    said = subprocess.run([sys.executable, "-W", "ignore", __file__, "table"], check=True, capture_output=True, text=True).stdout
    minutes, gigabytes = json.loads(said)
    note("evaluation", "ResNet50's whole table, extrapolated, of a processor", minutes, "", float("nan"), "min")
    note("evaluation", "memory beside a tenth of the outputs", gigabytes, "the largest data set's outputs", SIZES["SSB-Hard"] / 10 * 3048 * 4 / 1e9, "GB")
    _, te, _ = made_up(5_000, 8, C)
    model, weights = U2C("maxlogit", steps=10).fit(te), resample_weights(len(te), 1000)
    u, p = model.scorer.score(te), model.predict_proba(te)
    def plain(): return [f(p, te.labels) for f in (err, ece, nll, brier, ece_apart)], [f(p, te.labels, closed=False) for f in (ece,)], model.predict_log_proba(te, u), resampled(model.predict_proba(te, u), te.labels, weights)
    ours, other = in_turn(lambda: measure(model, te, u, weights, len(te)), plain)
    note("evaluation", "metrics of a method, 5,000 rows", ours, "the metrics one by one", other)


def spent() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 60


def write(record: Path) -> None:
    took = f"{(time.perf_counter() - BEGAN) / 60:.1f} minutes, {spent():.1f} of a processor"
    with record.open("w", newline="", encoding="utf-8") as f:
        f.write(f"# {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}; {took}\n")
        table = csv.DictWriter(f, ROWS[0])
        table.writeheader()
        table.writerows({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()} for row in ROWS)


def main() -> None:
    warnings.simplefilter("ignore")
    record = ROOT / ("u2c/data/speed.csv" if "--record" in sys.argv else "_runs/bench.csv")
    record.parent.mkdir(exist_ok=True)
    parts = {f.__name__: f for f in (fits, scores, left_out_classes, pictures, small, service, evaluation)}
    for part in [parts[word] for word in sys.argv[1:] if word in parts] or parts.values():
        part()
        write(record)
    print(f"{(time.perf_counter() - BEGAN) / 60:.1f} minutes: {record}")


if __name__ == "__main__": {"memory": memory, "table": table}.get(sys.argv[-1], main)()

"""Measure the ImageNet track on this machine, in one run, and write _runs/bench_imagenet.md.

Extraction beside its parts; KNN beside a bare matrix product; the whole table of one backbone from stored outputs
of the paper's sizes (simulated numbers, real shapes)."""
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import skimage.data
import torch
from PIL import Image

from u2c.bench.backbones import load_pretrained
from u2c.bench.features import ImageFiles, Pictures, extract_files, forward_batch, save_tensors
from u2c.bench.imagenet import IMAGENET
from u2c.core import Outputs
from u2c.run.experiment import Shards, evaluate
from u2c.scores.distances import nearest, unit_rows

SIZES = dict(zip(IMAGENET, (25_000, 25_000, 10_000, 10_000, 30_000, 5_879, 49_000, 10_000, 5_160, 15_869, 2_000)))
D, C = 2048, 1000


def seconds(f) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def extraction(n: int = 512) -> list[str]:
    "Images per second: reading alone, forward alone, and both in `extract_files`, on the same cores"
    net, cores = load_pretrained("efficientnet_lite0").to(memory_format=torch.channels_last), torch.get_num_threads()  # type: ignore[call-overload]
    with tempfile.TemporaryDirectory() as d:
        pictures = [skimage.data.astronaut(), skimage.data.chelsea(), skimage.data.coffee(), skimage.data.rocket()]
        for i in range(n):
            p = pictures[i % 4]
            Image.fromarray(p).resize((500, 375)).save(Path(d) / f"{i}.jpg", quality=90)  # about the size of ImageNet's
        files = ImageFiles(Path(d), [f"{i}.jpg" for i in range(n)], [0] * n)
        loader = lambda: torch.utils.data.DataLoader(Pictures(files, net.transform), batch_size=64, num_workers=cores, collate_fn=list)
        x = torch.stack([Pictures(files, net.transform)[i][1] for i in range(64)])  # type: ignore[arg-type]
        rates: dict[str, list[float]] = {"read": [], "forward": [], "extract": []}
        for k in range(4):  # interleaved, since machines are noisy; the first round warms up
            rates["read"].append(n / seconds(lambda: [len(b) for b in loader()]))
            rates["forward"].append(n / seconds(lambda: [forward_batch(net, x, torch.device("cpu")) for _ in range(n // 64)]))
            rates["extract"].append(n / seconds(lambda: extract_files(net, files, Path(d) / f"out{k}")))
    read, forward, extract = (statistics.median(r[1:]) for r in rates.values())
    possible = 1 / (1 / read + 1 / forward)
    return ["| extraction, EfficientNet-Lite0, images/s | |", "| --- | ---: |", f"| read and transform alone | {read:.1f} |", f"| forward alone | {forward:.1f} |",
            f"| both after each other would give | {possible:.1f} |", f"| extract_files | {extract:.1f} ({extract / possible:.0%} of that) |"]


def neighbours(n: int = 10_000, m: int = 25_000) -> list[str]:
    "KNN's arithmetic beside a bare matrix product of the same size"
    q, bank = (unit_rows(torch.rand(k, D)) for k in (n, m))
    knn = statistics.median(seconds(lambda: nearest(q, bank, 10)) for _ in range(3))
    product = statistics.median(seconds(lambda: [x @ bank.T for x in q.split(1000)]) for _ in range(3))
    return ["", f"KNN, {n:,} queries among {m:,} x {D:,}: {2 * n * m * D / knn / 1e9:.0f} GFLOP/s, {product / knn:.0%} of a float32 matrix product's {2 * n * m * D / product / 1e9:.0f}."]


def crops(names: tuple[str, ...], n: int, net, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    "What a network says about n square crops of scikit-image's pictures"
    pictures, parts = [getattr(skimage.data, name)() for name in names], []
    for start in range(0, n, 64):
        batch = []
        for i in range(start, min(start + 64, n)):
            p = pictures[i % len(pictures)]
            size = rng.integers(60, min(p.shape[:2]))
            top, left = (rng.integers(0, k - size + 1) for k in p.shape[:2])
            batch.append(net.transform(Image.fromarray(p[top:top + size, left:left + size]).convert("RGB")))
        parts.append(forward_batch(net, torch.stack(batch), torch.device("cpu")))
    return tuple(torch.cat(p) for p in zip(*parts))  # type: ignore[return-value]


def half_precision() -> list[str]:
    "How far table entries move when all features but va's are stored in float16: a real network on crops of real pictures"
    net, rng = load_pretrained("efficientnet_lite0").to(memory_format=torch.channels_last), np.random.default_rng(0)  # type: ignore[call-overload]
    known, unknown = ("astronaut", "chelsea", "coffee", "rocket", "camera", "coins", "text"), ("brick", "grass", "gravel", "moon")
    data = {}
    for name, pictures, n in (("va", known, 1600), ("te", known, 1000), ("out", unknown, 1000)):
        phi, logits = crops(pictures, n, net, rng)
        guess = torch.where(torch.from_numpy(rng.random(n) < 0.15), torch.from_numpy(rng.integers(0, C, n)), logits.argmax(1))  # in part wrong, as labels of real data are
        data[name] = Outputs(phi, logits, torch.full((n,), C) if name == "out" else guess)
    groups, head = {"va": "in-domain", "te": "in-domain", "out": "far-ood"}, (net.head.weight.detach(), net.head.bias.detach())
    def table(dtype: torch.dtype, *full: str) -> np.ndarray:
        stored = {k: x if k in full else Outputs(x.features.to(dtype).float(), x.logits, x.labels) for k, x in data.items()}
        return 100 * evaluate(stored, groups, head, resamples=2)[["err", "ece"]].to_numpy()
    exact = table(torch.float32)
    moved = {name: np.abs(table(*how) - exact).max() for name, how in (("all but va", (torch.float16, "va")), ("va too", (torch.float16,)), ("all but va, in 8 bits", (torch.float8_e4m3fn, "va")))}
    return ["", "Largest change of an err or ece by features in float16, points (EfficientNet-Lite0, 1,000 rows a data set): " + ", ".join(f"{k} {v:.4f}" for k, v in moved.items()) + "."]


def simulate(folder: Path) -> None:
    "Outputs of the real shapes on disk: features as after a ReLU, logits from a linear head"
    g = torch.Generator().manual_seed(0)
    centers, weight = torch.rand(C, D, generator=g), torch.randn(C, D, generator=g) / D**0.5
    for name, n in SIZES.items():
        y = torch.randint(C, (n,), generator=g)
        phi = (centers[y] + torch.randn(n, D, generator=g)).relu_()
        known = not IMAGENET[name].group.endswith("ood")
        logits = phi @ weight.T + 4 * torch.nn.functional.one_hot(y, C) * known
        save_tensors(folder / name / "shard-00000.safetensors", {"features": phi, "logits": logits, "labels": y if known else torch.full((n,), C)}, {})
    save_tensors(folder / "head.safetensors", {"weight": weight, "bias": torch.zeros(C)}, {})


def table(folder: Path) -> None:
    "In a process of its own: all cells of one backbone from stored outputs"
    from safetensors.torch import load_file

    head = load_file(folder / "head.safetensors")
    outputs = Shards({name: [folder / name / "shard-00000.safetensors"] for name in SIZES})
    start = time.perf_counter()
    records = evaluate(outputs, {k: v.group for k, v in IMAGENET.items()}, (head["weight"], head["bias"]))
    assert len(records) == 11 * 4 * 5 and np.isfinite(records["err"]).all()
    print(f"\nOne backbone's table from stored outputs, {sum(SIZES.values()):,} x ({D:,} + {C:,}), 4 scores, 3 methods, 1,000 resamples: "
          f"{(time.perf_counter() - start) / 60:.1f} minutes, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB.")


def main() -> None:
    text = [f"{torch.get_num_threads()} threads, torch {torch.__version__}", "", *extraction(), *half_precision(), *neighbours()]
    with tempfile.TemporaryDirectory() as d:
        simulate(Path(d))
        text += subprocess.run([sys.executable, __file__, d], check=True, stdout=subprocess.PIPE, text=True).stdout.rstrip().splitlines()
    out = Path(__file__).parent.parent / "_runs/bench_imagenet.md"
    out.parent.mkdir(exist_ok=True)
    out.write_text("\n".join(text) + "\n")
    print("\n".join(text))


if __name__ == "__main__":
    table(Path(sys.argv[1])) if len(sys.argv) > 1 else main()

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

from u2c.backbones import load_pretrained
from u2c.bench_imagenet import IMAGENET
from u2c.distances import nearest, unit_rows
from u2c.experiment import Shards, evaluate
from u2c.features import ImageFiles, Pictures, extract_files, forward_batch, save_tensors

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
    assert len(records) == 11 * 4 * 3 and np.isfinite(records["err"]).all()
    print(f"\nOne backbone's table from stored outputs, {sum(SIZES.values()):,} x ({D:,} + {C:,}), 4 scores, 3 methods, 1,000 resamples: "
          f"{(time.perf_counter() - start) / 60:.1f} minutes, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB.")


def main() -> None:
    text = [f"{torch.get_num_threads()} threads, torch {torch.__version__}", "", *extraction(), *neighbours()]
    with tempfile.TemporaryDirectory() as d:
        simulate(Path(d))
        text += subprocess.run([sys.executable, __file__, d], check=True, stdout=subprocess.PIPE, text=True).stdout.rstrip().splitlines()
    out = Path(__file__).parent.parent / "_runs/bench_imagenet.md"
    out.parent.mkdir(exist_ok=True)
    out.write_text("\n".join(text) + "\n")
    print("\n".join(text))


if __name__ == "__main__":
    table(Path(sys.argv[1])) if len(sys.argv) > 1 else main()

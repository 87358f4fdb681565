"""Time the fits beside a plain implementation of the authors' procedure, in one run, and write _runs/bench.md.

The authors' procedure takes 10,000 full-batch Adam steps on the full matrices; a few of them are timed and scaled."""
import json
import platform
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from u2c.core import Outputs
from u2c.left_out import left_out
from u2c.rank import RankU2C
from u2c.reject import fit_threshold
from u2c.scores.base import make_scorer
from u2c.scores.distances import Mahalanobis
from u2c.temperature import fit_temperature, tempered_lse
from u2c.unified import U2C, fit_link

N, C, STEPS = 25_000, 1_000, 10_000


def simulated() -> tuple[torch.Tensor, torch.Tensor]:
    "Logits of an over-confident classifier that is right on about three rows in four, of the size of ImageNet's validation half"
    g = torch.Generator().manual_seed(0)
    logits, labels = torch.empty(N, C), torch.randint(C, (N,), generator=g)
    for f, y in zip(logits.split(1000), labels.split(1000)):  # in place, so that nothing but the logits is ever held
        f.normal_(generator=g).mul_(2).scatter_add_(1, y[:, None], 4 + 5 * torch.rand(len(y), 1, generator=g))
    return logits, labels


def seconds(f) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def plain_seconds(params, loss, lr=1e-3, weight_decay=0.0, timed=7) -> float:
    "What 10,000 steps would take: the median of a few, after two to warm up, scaled"
    optimizer = torch.optim.Adam(params, lr=lr, weight_decay=weight_decay)

    def step():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return STEPS * statistics.median([seconds(step) for _ in range(timed + 2)][2:])


def resident() -> int:
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1]) * 1024


def memory() -> None:
    "In a process of its own: the peak while U2C is fitted, logits included, over the size of the logits"
    U2C("maxlogit", steps=10).fit(Outputs(logits=torch.randn(100, 10), labels=torch.arange(100) % 10))  # load all code first
    before = resident()
    logits, labels = simulated()
    peak, done = [0], threading.Event()

    def watch():
        while not done.wait(0.001):
            peak[0] = max(peak[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    U2C("maxlogit").fit(Outputs(logits=logits, labels=labels))
    done.set()
    watcher.join()
    print(json.dumps((peak[0] - before) / (logits.numel() * logits.element_size())))


def features(d: int = 2048) -> tuple[Outputs, Outputs, tuple[torch.Tensor, torch.Tensor]]:
    "Simulated va and te of a ResNet50's size, and a last layer"
    g = torch.Generator().manual_seed(0)
    mu = torch.randn(C, d, generator=g) / 2
    weight, bias = mu / d**0.5, torch.zeros(C)

    def sample() -> Outputs:
        y = torch.randint(C, (N,), generator=g)
        phi = torch.randn(N, d, generator=g) + mu[y]
        return Outputs(phi, phi @ weight.T + bias, y)

    return sample(), sample(), (weight, bias)


def held_out(va: Outputs, te: Outputs) -> str:
    "What held-out scores of Mahalanobis cost and mend"
    found: dict[str, torch.Tensor] = {}
    scorer = Mahalanobis().fit(va)
    one_pass = seconds(lambda: found.update({"in-sample": scorer.score(va)}))
    took = seconds(lambda: found.update({"held-out": scorer.held_out(va)}))
    u = scorer.score(te).double()
    shares = [f"{(u >= fit_threshold(v)).double().mean().item():.2%} {how}" for how, v in found.items()]
    cost = f"held-out scores, factorization included, take {took / one_pass:.1f} times one scoring pass ({one_pass:.0f} s)"
    size = f"{len(va):,} x {va.features.shape[1]:,} features, {va.n_classes:,} classes"
    return f"Mahalanobis on {size}: {cost}; of new rows are rejected, at nominal 5 %, {' and '.join(shares)}."


def left_out_classes(va: Outputs, head: tuple[torch.Tensor, torch.Tensor]) -> str:
    "What asking about left-out classes costs beside learning the scores and scoring va with them once"
    names = ("maxlogit", "entropy", "knn", "mahalanobis", "vim")
    parts = [make_scorer(name, **({"head": head} if name == "vim" else {})) for name in names]
    one = {name: seconds(lambda p=p: p.fit_score(va)) for name, p in zip(names, parts)}
    trials: list = []
    took, once = seconds(lambda: trials.extend(left_out(va, parts))), sum(one.values())
    shares = ", ".join(f"{name} {t:.0f} s" for name, t in one.items())
    return f"Asking {', '.join(names)} about {len(trials)} groups of left-out classes takes {took / once:.1f} times learning them and scoring va once ({shares})."


def main() -> None:
    logits, labels = simulated()
    tau_ = nn.Parameter(torch.ones(()))
    plain_tau = plain_seconds([tau_], lambda: F.cross_entropy(logits / tau_, labels))
    ours_tau = statistics.median(seconds(lambda: fit_temperature(logits, labels)) for _ in range(5))

    tau = fit_temperature(logits, labels)
    f, u = logits / tau, -logits.amax(1) / tau
    abstain = u > u.quantile(0.95)
    target = torch.where(abstain, C, labels)
    rows = []
    for link, net in (("mlp", nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 1))), ("linear", nn.Sequential(nn.Linear(1, 1)))):
        plain = plain_seconds(net.parameters(), lambda: F.cross_entropy(torch.cat([f, net(u[:, None])], 1), target), weight_decay=1e-4)
        ours = statistics.median(seconds(lambda: fit_link(u, tempered_lse(logits, tau), abstain, link)) for _ in range(3))
        rows.append((f"U2C's link, {link}, 10,000 steps", plain, ours))
    va = Outputs(logits=logits, labels=labels)
    ranked = statistics.median(seconds(lambda: RankU2C("maxlogit", temperature=tau).fit(va, u)) for _ in range(3))
    rows.append(("ranks in place of a link, beside the mlp's", rows[0][1], ranked))
    rows.insert(0, ("temperature", plain_tau, ours_tau))
    ratio = json.loads(subprocess.run([sys.executable, __file__, "memory"], check=True, capture_output=True, text=True).stdout)

    text = [f"{N:,} x {C:,} logits, {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}", ""]
    text += ["| fit | authors' procedure (s) | u2c (s) | times faster |", "| --- | ---: | ---: | ---: |"]
    text += [f"| {name} | {plain:,.0f} | {ours:.2f} | {plain / ours:,.0f} |" for name, plain, ours in rows]
    text += ["", f"Peak memory of the whole fit, logits included: {ratio:.2f} times the logits."]
    va, te, head = features()
    text += ["", held_out(va, te), "", left_out_classes(va, head)]
    out = Path(__file__).parent.parent / "_runs/bench.md"
    out.parent.mkdir(exist_ok=True)
    out.write_text("\n".join(text) + "\n")
    print("\n".join(text))


if __name__ == "__main__":
    memory() if sys.argv[1:] == ["memory"] else main()

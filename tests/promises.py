"""What each extra promises, as code that runs once it is installed: `python promises.py EXTRA`; without one, the plain install."""
import sys

CALIBRATES = """
import torch
from u2c import U2C, Outputs, RankU2C, RejectOrClassify, U2CClassifier, Watch, load
x = Outputs(torch.rand(200, 4), torch.randn(200, 3), torch.arange(200) % 3)
for method in (RejectOrClassify("knn"), U2C("mahalanobis", steps=10), RankU2C("combined")):
    assert method.fit(x).predict_proba(x).shape == (200, 4)
"""
SEARCHES = """
import faiss, torch
from u2c.scores.distances import faiss_search, nearest, nearest_torch
x = torch.randn(100, 8)
assert faiss_search() is not None
assert torch.allclose(nearest(x, x, 3), nearest_torch(x, x, 3), atol=1e-4)
"""
PROMISES = {
    "": CALIBRATES,
    "faiss": SEARCHES,
    "gpu": SEARCHES,
    "training": """
import torch
from u2c.service.training import CalibrationGap, MeanOverRows
for metric in (CalibrationGap(), MeanOverRows("nll")):
    metric.update(torch.tensor([[0.5, 0.5]]), torch.tensor([1]))
    assert metric.compute() > 0
""",
    "sklearn": """
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from u2c import AbstainingClassifier
clf = AbstainingClassifier(LogisticRegression(max_iter=1000)).fit(*load_iris(return_X_y=True))
assert len(clf.predict(load_iris().data)) == 150
""",
    "vision": """
import torch, torchvision
import u2c.bench.features, u2c.service.inputs
from PIL import Image
from u2c.bench.backbones import make_backbone
from u2c.service.network import make_transform
about = {"input_size": (3, 32, 32), "interpolation": "bilinear", "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_pct": 1.0, "crop_mode": "center"}
assert make_transform(about)(Image.new("RGB", (40, 40))).shape == (3, 32, 32)
assert make_backbone("resnet_small", 8)(torch.rand(2, 28, 28)).shape == (2, 8)
""",
    "pretrained": """
from u2c.bench.backbones import load_pretrained
load_pretrained("efficientnet_lite0")
""",
    "reproduce": """
import u2c.plots, u2c.run.experiment, u2c.run.reproduce, u2c.run.tables
from u2c.bench.small import load_benchmark
assert len(load_benchmark("small", 20)) > 5
""",
    "beside": """
import mapie
import u2c.plots
from pytorch_ood.detector import RMD
from u2c.scores.detectors import kept_detector
kept_detector(RMD(None))
""",
    "real": """
import rdata, tokenizers
from u2c.bench.files import magika_head
from u2c.bench.languages import langid_labels
from u2c.bench.sentences import intent_sentences
assert magika_head()[0].shape == (214, 512) and len(langid_labels()) == 140 and len(intent_sentences()) > 2000
import u2c.bench.cifar, u2c.bench.tables
""",
    "export": """
import onnx, onnxruntime, onnxscript
from u2c import export
""",
    "cluster": """
import fsspec, ray, yaml
import u2c.run.sweep
""",
    "words": """
from u2c.bench.words import lexique, spellings
assert len(lexique()) == 142_694 and len(spellings("it")) > 10_000
""",
}
PROMISES["all"] = "".join(code for extra, code in PROMISES.items() if extra not in ("gpu", "words"))

if __name__ == "__main__":
    exec(PROMISES[sys.argv[1]])
    print(f"u2c[{sys.argv[1]}] keeps its promises" if sys.argv[1] else "u2c keeps its promises")

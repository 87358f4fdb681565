"Other libraries, as they are: pytorch-ood's detectors in files, torchmetrics' collections, a Lightning trainer, a model of MLflow."
import pytest
import torch
from pytorch_ood import detector as theirs
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection

from u2c.core import Outputs
from u2c.demo import digits_outputs
from u2c.metrics import brier, ece, err, nll
from u2c.rank import RankU2C
from u2c.scores.base import make_scorer
from u2c.scores.detectors import LEARNED, PytorchOOD, kept_detector
from u2c.service.artifact import load_calibrator, save_calibrator
from u2c.service.classifier import load
from u2c.service.training import CalibrationGap, MeanOverRows, lightning_callback
from u2c.unified import U2C

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # small data draw every warning there is
d = digits_outputs()


@pytest.mark.parametrize("name", LEARNED)
def test_every_kept_detector_scores_as_it_does_by_itself_before_and_after_a_file(name, tmp_path):
    detector = getattr(theirs, name)(None)
    model = RankU2C(kept_detector(detector)).fit(d.va)
    by_itself = make_scorer(detector, refit=bool(LEARNED[name])).fit(d.va)
    save_calibrator(tmp_path / "my.u2c", model)
    loaded = load_calibrator(tmp_path / "my.u2c")
    for x in (d.te, d.unknown):
        assert torch.equal(model.scorer.score(x), by_itself.score(x))
        assert torch.equal(loaded.predict_proba(x), model.predict_proba(x))
    assert b"pickle" not in (content := (tmp_path / "my.u2c").read_bytes()) and content[8:9] == b"{", "safetensors: JSON, then numbers"


def test_a_file_cannot_name_another_class(tmp_path):
    model = U2C(PytorchOOD("RMD"), steps=5).fit(d.va)
    model.scorer.detector = "OpenMax"
    with pytest.raises(ValueError, match="OpenMax"):
        save_calibrator(tmp_path / "my.u2c", model)


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_metrics_do_not_depend_on_batches(size):
    p, y = torch.cat([RankU2C("combined").fit(d.va).predict_proba(x) for x in (d.te, d.unknown)]), torch.cat([d.te.labels, d.unknown.labels])
    metrics = MetricCollection({"err": MeanOverRows("err"), "nll": MeanOverRows("nll"), "brier": MeanOverRows("brier"), "ece": CalibrationGap()})
    for batch in zip(p.split(size), y.split(size)):
        metrics.update(*batch)
    found = {name: value.item() for name, value in metrics.compute().items()}
    assert found == pytest.approx({"err": err(p, y), "nll": nll(p, y), "brier": brier(p, y), "ece": ece(p, y)}, abs=2e-6)


def test_two_processes_add_up():
    "As torchmetrics joins the states of two processes: it sums them."
    p = torch.softmax(torch.randn(300, 5, generator=torch.Generator().manual_seed(0)), 1)
    y = torch.arange(300) % 5
    whole, halves = CalibrationGap(), (CalibrationGap(), CalibrationGap())
    whole.update(p, y)
    for metric, rows in zip(halves, (slice(0, 90), slice(90, 300))):
        metric.update(p[rows], y[rows])
    for name, reduce in whole._reductions.items():
        setattr(halves[0], name, reduce(torch.stack([getattr(m, name) for m in halves])))
    assert halves[0].compute().item() == pytest.approx(whole.compute().item(), abs=1e-6)


def rows(n=400):
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 4
    return TensorDataset(torch.randn(n, 6, generator=g) + 2 * torch.nn.functional.one_hot(y, 6), y)


def test_a_lightning_trainer_calibrates_after_each_validation(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed: its callback is tested on a stand-in, in nbs/service/09_training.ipynb")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))

        def training_step(self, batch, i):
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch, i): pass

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-2)

    callback, module = lightning_callback("net", tmp_path / "my.u2c", scorer="knn"), Module()
    seen = []
    callback_end = callback.on_validation_end
    callback.on_validation_end = lambda *args: (callback_end(*args), seen.append(callback.classifier))
    trainer = lightning.Trainer(max_epochs=2, callbacks=[callback], logger=False, enable_checkpointing=False, enable_progress_bar=False,
                                enable_model_summary=False, accelerator="cpu", default_root_dir=tmp_path)
    trainer.fit(module, DataLoader(rows(), 50), DataLoader(rows(200), 50))
    assert [c is not None for c in seen] == [False, True, True] and seen[1].weights != seen[2].weights, "the sanity check, and two epochs"
    x = rows(50).tensors[0]
    assert torch.equal(load(tmp_path / "my.u2c", module.net).predict_proba(x), callback.classifier.predict_proba(x))
    


def test_mlflow_saves_loads_and_asks_a_file(tmp_path):
    pyfunc = pytest.importorskip("mlflow.pyfunc", reason="MLflow is not installed: its loader is tested in nbs/service/10_pyfunc.ipynb")
    model = RankU2C("combined").fit(d.va)
    save_calibrator(tmp_path / "my.u2c", model)
    pyfunc.save_model(str(tmp_path / "model"), loader_module="u2c.service.pyfunc", data_path=str(tmp_path / "my.u2c"), pip_requirements=[])
    table = pyfunc.load_model(str(tmp_path / "model")).predict({"features": d.te.features.numpy(), "logits": d.te.logits.numpy()})
    assert torch.equal(torch.tensor(table.drop(columns="answer").to_numpy()), model.predict_proba(d.te))
    words = [*map(str, range(8)), "unknown"]
    assert table["answer"].tolist() == [words[k] for k in model.predict(Outputs(d.te.features, d.te.logits)).tolist()]

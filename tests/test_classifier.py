"A network becomes a classifier that may abstain, and stays as it was."
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from u2c.bench.backbones import make_backbone
from u2c.core import Outputs
from u2c.guards import seeded
from u2c.scores.base import make_scorer
from u2c.scores.combined import Combined
from u2c.service.artifact import ArtifactError, pack, read_file, write_file
from u2c.service.classifier import U2CClassifier, backbone_hash, load, methods
from u2c.service.network import Featurizer, find_layer, watched

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # tiny random data draw every warning there is


def small_net(seed=0, c=4):
    with seeded(seed):
        return nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(24, c))


def images(n, seed=0, c=4):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % c
    return torch.randn(n, 1, 6, 6, generator=g) + y[:, None, None, None], y


net = small_net()
x, y = images(80)
new, _ = images(30, 1)


@pytest.fixture(scope="module")
def clf():
    return U2CClassifier(net, classes=list("abcd")).fit((x, y))


def state_of(model):
    "All that must not change"
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks), m.training) for m in model.modules()]
    grads = [(p.requires_grad, p.grad) for p in model.parameters()]
    return hooks, grads, {k: v.clone() for k, v in model.state_dict().items()}


def same(a, b):
    return a[:2] == b[:2] and a[2].keys() == b[2].keys() and all(torch.equal(a[2][k], b[2][k]) for k in a[2])


@pytest.mark.parametrize("mode", ["train", "eval", "mixed"])
def test_the_network_is_left_as_it_was(mode, tmp_path):
    model = small_net(1).train(mode != "eval")
    if mode == "mixed": model[1].eval()
    model[0].weight.requires_grad_(False)
    handle = model[6].register_forward_hook(lambda *a: None)
    before, random = state_of(model), torch.get_rng_state()
    clf = U2CClassifier(model, "knn").fit((x, y))
    clf.predict(new), clf.explain(new[0]), clf.save(tmp_path / "a.u2c"), load(tmp_path / "a.u2c", model)
    for wrong in (lambda: clf.predict(new * torch.nan), lambda: clf.fit((x, y + 1)), lambda: clf.predict(torch.zeros(2, 3, 6, 6))):
        with pytest.raises(Exception): wrong()
    assert same(before, state_of(model)) and torch.equal(random, torch.get_rng_state())
    assert model(new).requires_grad  # training can go on
    handle.remove()


def test_an_error_inside_of_the_network_leaves_no_hook():
    class Breaks(nn.Module):
        def forward(self, x): raise RuntimeError("in the middle")

    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 5), Breaks(), nn.Linear(5, 4)).train()
    before = state_of(model)
    with pytest.raises(RuntimeError, match="in the middle"): Featurizer(model).outputs(x)
    assert same(before, state_of(model))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 90), st.integers(1, 30))
def test_batches_of_any_size_give_the_same(batch, n):
    clf = U2CClassifier(net, "knn")
    a, b = clf.outputs((x[:n], y[:n]), batch), clf.outputs((x[:n], y[:n]), 1000)
    torch.testing.assert_close(a.features, b.features)
    torch.testing.assert_close(a.logits, b.logits)
    assert torch.equal(a.labels, b.labels)


def test_forms_of_images(clf):
    p = clf.predict_proba(new)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(new), 7)
    forms = new.numpy(), list(new), tuple(new.numpy()), [new[:20], new[20:]], loader, (b for b in new.split(4)), new.double(), clf.outputs(new), new.numpy()[::-1][::-1]
    for form in forms: torch.testing.assert_close(clf.predict_proba(form), p)
    torch.testing.assert_close(clf.predict_proba(new[3]), p[3:4])
    torch.testing.assert_close(clf.predict_proba(new[3].numpy()), p[3:4])


@pytest.mark.parametrize("shape, layers", [((36,), [nn.Linear(36, 4)]), ((6, 6), [nn.Flatten(), nn.Linear(36, 4)])])
def test_one_input_of_any_shape_is_a_batch_of_one(shape, layers):
    data, fresh = x.reshape(80, *shape), new.reshape(30, *shape)
    clf = U2CClassifier(nn.Sequential(*layers), "maxlogit").fit((data, y))
    torch.testing.assert_close(clf.predict_proba(fresh[5]), clf.predict_proba(fresh)[5:6])


@pytest.mark.parametrize("method", methods)
@pytest.mark.parametrize("scorer", ["maxlogit", "ash", "knn", "mahalanobis", "combined", "some"])
def test_saved_and_loaded_predicts_to_the_bit(method, scorer, tmp_path):
    some = Combined(["ash", make_scorer("knn", k=3)])
    options = {"steps": 30} if "u2c" in method else {}
    clf = U2CClassifier(net, some if scorer == "some" else scorer, method, 0.9, unknown="?", **options).fit((x, y))
    clf.save(tmp_path / "a.u2c")
    back = load(tmp_path / "a.u2c", net)
    assert torch.equal(back.predict_proba(new), clf.predict_proba(new)) and back.predict(new) == clf.predict(new)
    assert torch.equal(back.p_values(new), clf.p_values(new)) and str(back) == str(clf)
    again = back.fit((x, y))  # and learns anew
    assert torch.equal(again.predict_proba(new), clf.predict_proba(new))


def test_a_scorer_that_was_passed_stays_as_it_was():
    ash = make_scorer("ash")
    U2CClassifier(net, Combined([ash, "maxlogit"])).fit((x, y))
    assert ash.weight is None and ash.tau is None


def test_p_values_are_uniform_in_domain_and_small_far_away():
    clf = U2CClassifier(net, "mahalanobis").fit(images(2000, 3))
    p = clf.p_values(images(2000, 4)[0])
    assert abs(p.mean() - 0.5) < 0.03 and abs((p < 0.1).double().mean() - 0.1) < 0.03
    assert (clf.p_values(100 * torch.randn(50, 1, 6, 6, generator=torch.Generator().manual_seed(0))) < 0.01).double().mean() > 0.9


def test_explanations_agree_with_predictions(clf):
    for image, answer, row in zip(new, clf.predict(new), clf.predict_proba(new)):
        e = clf.explain(image)
        assert e.answer == answer and e.abstains == (answer == "unknown")
        assert e.top[0][1] == pytest.approx(row.max().item(), abs=1e-5)
        assert str(answer) in str(e) or e.abstains


WRONG = {
    "label named by row": (lambda c: c.fit([(x[:10], y[:10]), (x[10:20], torch.full((10,), 7))]), "labels: found 7 in row 10, expected 0..3"),
    "negative label": (lambda c: c.fit((x, y - 1)), "labels: found -1 in row 0, expected 0..3"),
    "abstain label in fit": (lambda c: c.fit((x, y + 1)), "labels: found 4 in row 3, expected 0..3"),
    "fractions": (lambda c: c.fit((x, y + 0.5)), "labels: found"),
    "one-hot": (lambda c: c.fit([(x, nn.functional.one_hot(y))]), "labels: found shape (80, 4) with 80 images from row 0 on"),
    "too few labels": (lambda c: c.fit((x, y[:-1])), "labels: found 79, expected 80"),
    "no labels": (lambda c: c.fit(x), "labels: found None"),
    "nan": (lambda c: c.predict(torch.cat([new, new[:1] * torch.nan])), "images: found nan or inf in row 30"),
    "text": (lambda c: c.predict([["a"]]), "images: found"),
    "picture": (lambda c: c.predict(Path("a.png")), "expected a tensor, or preprocess="),
    "alpha": (lambda c: U2CClassifier(net, alpha=2), "alpha: found 2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_named_and_changes_nothing(name, clf):
    before = clf.predict_proba(new)
    with pytest.raises((ValueError, TypeError)) as e: WRONG[name][0](clf)
    assert WRONG[name][1] in str(e.value)
    assert torch.equal(clf.predict_proba(new), before)


def test_names_come_from_the_loaders_data_set():
    data = torch.utils.data.TensorDataset(x, y)
    data.classes = ["zero", "one", "two", "three"]
    loader = torch.utils.data.DataLoader(data, 16)
    assert set(U2CClassifier(net, "maxlogit").fit(loader).predict(new)) <= {*data.classes, "unknown"}
    data.classes = data.classes[:2]
    with pytest.raises(ValueError, match="classes: found 2 names in the loader's data set or the model's config, expected 4"):
        U2CClassifier(net, "maxlogit").fit(loader)


def test_threads_do_not_hear_each_other(clf):
    expected = clf.predict_proba(new)
    failed = []

    def run():
        for _ in range(20):
            try: assert torch.allclose(clf.predict_proba(new), expected, atol=1e-5)
            except Exception as e: failed.append(e)

    net.eval()
    threads = [threading.Thread(target=run) for _ in range(4)]
    for t in threads: t.start()
    for t in threads: t.join()
    net.train()
    assert not failed


def test_half_precision_and_double():
    for dtype in (torch.bfloat16, torch.float64):
        model = small_net().to(dtype)
        out = Featurizer(model).outputs(x)
        assert out.logits.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
        assert U2CClassifier(model, "maxlogit").fit((x, y)).predict_proba(new).shape == (30, 5)


def test_wrappers_are_looked_through(clf, tmp_path):
    clf.save(tmp_path / "a.u2c")
    wrapped = nn.DataParallel(net)
    assert torch.equal(load(tmp_path / "a.u2c", wrapped).predict_proba(new), clf.predict_proba(new))
    assert backbone_hash(wrapped) == backbone_hash(net) != backbone_hash(small_net(1))


def test_named_layers_and_other_answers():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.flat, self.a, self.b = nn.Flatten(), nn.Linear(36, 3), nn.Linear(36, 4)

        def forward(self, x): return {"a": self.a(self.flat(x)), "b": self.b(input=self.flat(x))}

    with pytest.raises(ValueError, match="Named, which returns a dict, no tensor, expected the layer that gives the logits, as layer=NAME: 'a', 'b'"):
        U2CClassifier(Named()).fit((x, y))
    assert U2CClassifier(Named(), "ash", layer="b").fit((x, y)).predict_proba(new).shape == (30, 5)

    class Transformers(Named):
        def forward(self, x):
            class Answer: logits = self.b(self.flat(x))
            return Answer()

    assert find_layer(Transformers(), x[:3]) == "b"

    class Shared(Named):  # one head, called twice
        def forward(self, x): return self.b(self.flat(x)) + self.b(self.flat(x))

    with pytest.raises(ValueError, match="whose output is not that of a linear layer that it calls"):
        U2CClassifier(Shared()).fit((x, y))
    with pytest.raises(ValueError, match="found 2 calls for 64 images of 'b', expected one"):
        U2CClassifier(Shared(), layer="b").fit((x, y))


def test_an_average_of_networks_is_not_one_network():
    class Averaged(nn.Module):
        def __init__(self):
            super().__init__()
            self.nets = nn.ModuleList(nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 8)) for _ in range(2))

        def forward(self, x): return torch.stack([net(x) for net in self.nets]).mean(0)

    images = torch.rand(6, 8, 8)
    for model, batch in ((Averaged(), x), (make_backbone("resnet_mimo", 3), images), (make_backbone("resnet_ensemble", 3), images)):
        with pytest.raises(ValueError, match="expected one network; of several make Outputs with members"): find_layer(model, batch[:5])


def test_a_card_lies_beside_the_file_and_another_kind_of_file_is_named(clf, tmp_path):
    clf.save(tmp_path / "a.u2c", card=True)
    assert "| validation | 80 |" in (tmp_path / "a.u2c.md").read_text()
    write_file(tmp_path / "b.u2c", "calibrator", *pack(clf.calibrator))
    with pytest.raises(ArtifactError, match="kind 'calibrator', expected one of kind 'classifier'"): load(tmp_path / "b.u2c", net)


json_like = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2) | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.data())
def test_a_made_up_header_gives_a_classifier_or_one_kind_of_error(clf, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("forged")
    clf.save(folder / "a.u2c")
    header, tensors = read_file(folder / "a.u2c", "classifier")
    header[data.draw(st.sampled_from(sorted(header)))] = data.draw(json_like)
    if data.draw(st.booleans()): tensors.pop(data.draw(st.sampled_from(sorted(tensors))))
    write_file(folder / "b.u2c", "classifier", header, tensors)
    try: back = load(folder / "b.u2c", net)
    except ArtifactError: return
    assert isinstance(back, U2CClassifier)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_a_damaged_file_is_refused_or_the_same(clf, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    clf.save(folder / "a.u2c")
    good = (folder / "a.u2c").read_bytes()
    place = data.draw(st.integers(0, len(good) - 1))
    cut = good[:place]
    if data.draw(st.booleans()): cut += bytes([good[place] ^ data.draw(st.integers(1, 255))]) + good[place + 1:]
    (folder / "a.u2c").write_bytes(cut)
    try: back = load(folder / "a.u2c", net)
    except ArtifactError: return
    assert torch.equal(back.predict_proba(new), clf.predict_proba(new))


def test_a_plain_network_imports_no_vision_library(tmp_path):
    code = """
import sys, torch
from torch import nn
from u2c.service.classifier import U2CClassifier, load
x, y = torch.randn(60, 36), torch.arange(60) % 3
net = nn.Linear(36, 3)
clf = U2CClassifier(net).fit((x, y))
clf.predict(x)
clf.save("a.u2c", card=True)
load("a.u2c", net)
print([m for m in ("timm", "torchvision", "PIL", "pandas", "matplotlib", "sklearn", "papermill") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_hooks_note_matrices_only_and_are_taken_off():
    model = small_net()  # one of its own: in training it learns statistics here
    with watched(model, ["0", "6"]) as calls: model(x[:3])
    assert [call.layer for call in calls] == ["6"]
    assert not any(m._forward_hooks for m in model.modules())
    assert isinstance(np.asarray(calls[0].input.detach()), np.ndarray)


def test_outputs_say_what_they_are(clf):
    assert isinstance(clf.outputs(new), Outputs) and clf.outputs(new).labels is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert clf.evaluate((x, torch.full_like(y, 4)), "strange").keys() == {"rows", "rejected", "err", "ece", "nll"}


def test_threads_and_a_network_in_training():
    "The first thread sets the mode, the last one restores it, and no statistics are learned"
    model = small_net(2).train()
    clf = U2CClassifier(model, "maxlogit").fit((x, y))
    expected, before, failed = clf.predict_proba(new), state_of(model), []

    def run():
        for _ in range(40):
            try: assert torch.allclose(clf.predict_proba(new, batch=7), expected, atol=1e-5)
            except BaseException as e: failed.append(e)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert not failed and same(before, state_of(model))


def test_adapters_that_merge_themselves_are_taken_apart_again():
    class Adapter(nn.Linear):
        def train(self, mode=True):
            if self.training != mode: self.weight.data.mul_(0.5 if mode else 2)  # exact
            return super().train(mode)

    model = nn.Sequential(nn.Flatten(), nn.Sequential(Adapter(36, 9), nn.Dropout()), nn.Linear(9, 4)).train()
    model[1][1].eval()
    before = state_of(model)
    U2CClassifier(model, "maxlogit").fit((x, y)).predict(new)
    assert same(before, state_of(model))


@pytest.mark.parametrize("bad", [[0], [2], [0, 1, 2, 3]])
def test_files_that_are_no_pictures_are_declined_beside_the_others(bad, tmp_path):
    clf = U2CClassifier(net, "maxlogit", preprocess={"input_size": [1, 6, 6], "mean": 0.0, "std": 1.0}).fit((x, y))
    paths = [tmp_path / f"{i}.png" for i in range(4)]
    for i, path in enumerate(paths): PIL.Image.fromarray(np.uint8(255 * np.random.default_rng(i).random((6, 6)))).save(path)
    before = clf.predict_proba(paths)
    for i in bad: paths[i].write_bytes(b"no picture")
    with pytest.raises(OSError): clf.predict_proba(paths)
    with pytest.warns(UserWarning, match=rf"{len(bad)} of 4 rows \(row {bad[0]}.*cannot be read"): after = clf.predict_proba(paths, batch=2, on_bad="unknown")
    for i in range(4): assert torch.equal(after[i], torch.eye(after.shape[1])[-1]) if i in bad else torch.allclose(after[i], before[i], atol=1e-6)
    with pytest.warns(UserWarning): assert (clf.p_values(paths, on_bad="unknown")[bad] - 1 / 81).abs().max() < 1e-8


@pytest.mark.parametrize("k", [81, 10**9])
def test_a_file_cannot_ask_for_more_neighbours_than_it_has_rows(k, tmp_path):
    clf = U2CClassifier(net, make_scorer("knn", k=5)).fit((x, y))
    clf.save(tmp_path / "a.u2c")
    header, tensors = read_file(tmp_path / "a.u2c", "classifier")
    header["modules"]["scorer"]["k"] = k
    write_file(tmp_path / "b.u2c", "classifier", header, tensors)
    with pytest.raises(ArtifactError, match=f"found 80 rows to search among, expected k = {k} or more"): load(tmp_path / "b.u2c", net)


def test_weights_that_were_trained_further_are_not_saved(tmp_path):
    model = small_net(3)
    clf = U2CClassifier(model, "maxlogit").fit((x, y))
    card = clf.card()
    with torch.no_grad(): model[6].bias += 1
    with pytest.raises(ValueError, match="model: found weights .*, those that it was fitted with: fit it again"): clf.save(tmp_path / "a.u2c", card=True)
    assert not list(tmp_path.iterdir()) and clf.card() == card
    clf.fit((x, y)).save(tmp_path / "a.u2c")
    load(tmp_path / "a.u2c", model).save(tmp_path / "b.u2c")
    assert (tmp_path / "a.u2c").read_bytes() == (tmp_path / "b.u2c").read_bytes()


def named_loader(names, size=16):
    data = torch.utils.data.TensorDataset(x, y)
    data.classes = list(names)
    return torch.utils.data.DataLoader(data, size)


def test_a_refit_takes_the_new_loaders_names_unless_names_were_given(tmp_path):
    clf = U2CClassifier(net, "maxlogit").fit(named_loader("abcd"))
    clf.save(tmp_path / "a.u2c")
    assert clf.classes == list("abcd") == load(tmp_path / "a.u2c", net).classes
    assert clf.fit(named_loader("wxyz")).classes == list("wxyz") == load(tmp_path / "a.u2c", net).fit(named_loader("wxyz")).classes
    assert clf.fit((x, y)).classes is None
    given = U2CClassifier(net, "maxlogit", classes=list("ABCD")).fit(named_loader("abcd"))
    given.save(tmp_path / "b.u2c")
    assert load(tmp_path / "b.u2c", net).fit(named_loader("wxyz")).classes == list("ABCD") == given.classes


def test_names_are_found_below_subsets():
    data = named_loader("abcd").dataset
    part, _ = torch.utils.data.random_split(data, [60, 20], torch.Generator().manual_seed(0))
    for wrapped in (part, torch.utils.data.Subset(part, range(50))):
        assert U2CClassifier(net, "maxlogit").fit(torch.utils.data.DataLoader(wrapped, 16)).classes == list("abcd")


def test_labels_are_not_looked_at_where_they_are_not_used(clf):
    p = clf.predict_proba(new)
    others = [new, torch.full((30,), -1)], (new, torch.arange(30)), (new, ["a.png"] * 30), [(new[:20], ["a"] * 20), (new[20:], None)]
    for data in others:
        torch.testing.assert_close(clf.predict_proba(data), p)
        torch.testing.assert_close(clf.p_values(data), clf.p_values(new))
        assert clf.predict(data) == clf.predict(new)
        assert clf.outputs(data, labels=False).labels is None
    assert clf.explain((new[:1], [99])) == clf.explain(new[0])
    assert clf.outputs(clf.outputs((x, y)), labels=False).labels is None
    for wrong in ((new, torch.arange(30)), (new, torch.full((30,), -1))):
        with pytest.raises(ValueError, match="labels: found"): clf.evaluate(wrong)


def test_it_abstains_where_the_kind_is_unknown_known_and_nowhere_else():
    seen = set()
    for alpha in (0.3, 0.6, 0.9):
        clf = U2CClassifier(net, "knn", alpha=alpha).fit((x, y))
        for image in new:
            e = clf.explain(image)
            seen.add((e.abstains, e.top[0][1] >= 0.5))
            assert e.abstains == (e.kind == "unknown-known")
    assert (True, False) in seen  # it abstains with less than a half as well


def test_tensors_need_no_timm_and_pictures_say_what_they_need(tmp_path):
    code = """
import sys, torch
sys.modules["timm"] = sys.modules["timm.data"] = None
import numpy as np
import PIL.Image
from torch import nn
from u2c.service.classifier import U2CClassifier
x, y = torch.randn(60, 1, 6, 6), torch.arange(60) % 3
net = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
clf = U2CClassifier(net, "maxlogit", preprocess={"input_size": [1, 6, 6], "mean": np.zeros(1), "std": 1}).fit((x, y))
clf.save("a.u2c")
print(len(clf.predict(x)))
try: clf.predict(PIL.Image.new("RGB", (9, 9)))
except ImportError as e: print(e)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["60", 'timm: found not installed, expected it, for pictures, from pip install "u2c[vision] @ git+https://github.com/u2c/u2c"'], done.stdout + done.stderr


def test_pictures_with_labels_in_two_forms_give_the_same():
    import PIL.Image
    pictures = [PIL.Image.fromarray((30 * image[0] + 90).clamp(0, 255).byte().numpy()) for image in x]
    clf = U2CClassifier(net, "maxlogit", preprocess={"input_size": [1, 6, 6], "mean": 0.0, "std": 1.0, "crop_pct": 1.0})
    expected = clf.outputs(pictures)
    for data in ((pictures, y), (pictures, y.tolist()), list(zip(pictures, y)), list(zip(pictures, y.tolist())), [[*pair] for pair in zip(pictures, y.numpy())]):
        out = clf.outputs(data, 7)
        torch.testing.assert_close(out.logits, expected.logits)
        assert torch.equal(out.labels, y)
    fitted = clf.fit((pictures, y))
    assert fitted.predict((pictures, ["?"] * 80)) == fitted.predict(pictures)
    with pytest.raises(ValueError, match="labels: found 79, expected 80"): clf.fit((pictures, y[:-1]))
    with pytest.raises(ValueError, match="images: found Image where a batch should be"): clf.fit((p, 0) for p in pictures)


NAMED = {
    "text labels": (lambda c, p: c.fit((x, ["z"] * 80)), "labels: found"),
    "one-hot": (lambda c, p: c.fit((x, nn.functional.one_hot(y))), "labels: found shape (64, 4)"),
    "channels last": (lambda c, p: c.predict(new.permute(0, 2, 3, 1).numpy()), "images: found shape (30, 6, 6, 1) of torch.float32"),
}


@pytest.mark.parametrize("name", NAMED)
def test_an_error_blames_what_is_wrong(name, clf, tmp_path):
    clf.save(tmp_path / "a.u2c")
    with pytest.raises(Exception) as e: NAMED[name][0](clf, tmp_path)
    assert str(e.value).startswith(NAMED[name][1].split()[0]) and NAMED[name][1] in str(e.value)


def test_a_vector_is_one_input_also_after_a_fit_on_outputs():
    model = nn.Linear(36, 4)
    outputs = Featurizer(model).outputs((x.flatten(1), y))
    clf = U2CClassifier(model, "maxlogit").fit(outputs)
    v = new.flatten(1)
    torch.testing.assert_close(clf.predict_proba(v[5]), clf.predict_proba(v)[5:6])
    torch.testing.assert_close(clf.predict_proba(list(v)), clf.predict_proba(v))


ODD = {"reference": [torch.tensor([0.0, torch.nan]), torch.zeros(0), torch.tensor([1.0, 0.0]), torch.arange(9), torch.zeros(2, 2), torch.tensor(1.0)],
       "unknown": [None, 3], "ndim": [0, -1, 10**9, 4.0, True, "4"], "layer": [3], "source": [[]], "classes": ["abcd", [1, 2, 3, 4]],
       "calibrator.tau": [torch.tensor(0.0, dtype=torch.float64)], "calibrator.weight": [torch.tensor(v, dtype=torch.float64) for v in (-1.0, 0.0, torch.inf)],
       "calibrator.intercept": [torch.tensor(torch.inf, dtype=torch.float64)],
       "measured": [{"test": {"rows": "many"}}, {"test": {"err": [1]}}, {"test": 3}, []]}


@pytest.mark.parametrize("name, value", [(name, value) for name in ODD for value in ODD[name]])
def test_a_made_up_value_is_refused(name, value, clf, tmp_path):
    clf.save(tmp_path / "a.u2c")
    header, tensors = read_file(tmp_path / "a.u2c", "classifier")
    (tensors if name in tensors else header)[name] = value
    write_file(tmp_path / "b.u2c", "classifier", header, tensors)
    with pytest.raises(ArtifactError): load(tmp_path / "b.u2c", net)

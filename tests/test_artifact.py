"Files that are written, damaged in every way, and read."
import json
import os
import resource
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from test_properties import method, random_outputs, scorer

from u2c.core import Outputs
from u2c.rank import RankU2C
from u2c.reject import RejectOrClassify
from u2c.scores.base import make_scorer
from u2c.scores.combined import Combined
from u2c.service.artifact import ArtifactError, checksum, load_calibrator, pack, read_file
from u2c.service.artifact import realised, save_calibrator, unpack, write_file
from u2c.unified import U2C

pytestmark = pytest.mark.filterwarnings("ignore")  # tiny random data draw every warning there is
quick = settings(max_examples=40, deadline=None, derandomize=True)
seeds = st.integers(0, 10**6)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    "A calibrator of nested parts in a file, and its bytes"
    va, head = random_outputs(0)
    model = U2C(Combined(["maxlogit", scorer("knn", head), scorer("ash", head)]), steps=5, hidden=3).fit(va)
    path = tmp_path_factory.mktemp("artifact") / "m.u2c"
    save_calibrator(path, model)
    return path, path.read_bytes(), model, va


@quick
@given(seeds, st.sampled_from(["maxlogit", "ash", "mahalanobis", "knn", "combined", "some"]), st.sampled_from(["rc", "mlp", "linear", "rank"]),
       st.sampled_from([torch.float16, torch.float32, torch.float64]), st.floats(0.05, 0.95))
def test_a_calibrator_comes_back_to_the_bit(tmp_path_factory, seed, name, kind, dtype, alpha):
    va, head = random_outputs(seed, dtype=torch.float64)
    va = va.map(lambda x: x.to(dtype) if x.is_floating_point() else x)
    some = Combined([scorer("ash", head), "maxlogit", scorer("knn", head)])
    model = method(kind, some if name == "some" else scorer(name, head))
    model.alpha = alpha
    path = tmp_path_factory.mktemp("round") / "m.u2c"
    save_calibrator(path, model.fit(va))
    first = path.read_bytes()
    back = load_calibrator(path)
    assert torch.equal(back.predict_log_proba(va), model.predict_log_proba(va)) and str(back) == str(model)
    save_calibrator(path, back)
    assert path.read_bytes() == first  # and once more
    a, b = model.state_dict(), back.state_dict()
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)
    # what came back learns anew as the original does
    assert torch.equal(back.fit(va).predict_proba(va), model.fit(va).predict_proba(va))


def test_options_in_numpy_types_come_back(tmp_path):
    va, _ = random_outputs(0)
    model = RankU2C(make_scorer("mahalanobis", ridge=np.float64(1e-3)), alpha=np.float64(0.9)).fit(va)
    save_calibrator(tmp_path / "m.u2c", model)
    assert torch.equal(load_calibrator(tmp_path / "m.u2c").predict_proba(va), model.predict_proba(va))


def test_parts_in_parts_and_one_part_twice(tmp_path):
    va, head = random_outputs(0)
    knn = scorer("knn", head)
    model = RejectOrClassify(Combined([Combined([knn, "maxlogit"]), knn])).fit(va)
    save_calibrator(tmp_path / "m.u2c", model)
    assert torch.equal(load_calibrator(tmp_path / "m.u2c").predict_proba(va), model.predict_proba(va))


def test_scores_from_elsewhere_need_no_fitted_scorer(tmp_path):
    va, _ = random_outputs(0)
    u = torch.rand(len(va))
    model = RankU2C("maxlogit").fit(va, u)
    model.scorer = make_scorer("maxlogit")
    save_calibrator(tmp_path / "m.u2c", model)
    assert torch.equal(load_calibrator(tmp_path / "m.u2c").predict_proba(va, u), model.predict_proba(va, u))


@pytest.mark.parametrize("name, anew", [("rank", RankU2C("combined")), ("rc", RejectOrClassify("knn"))])
def test_a_file_of_format_1_answers_as_ever_and_says_that_it_cannot_be_moved(tmp_path, name, anew):
    old = load_calibrator(Path(__file__).parent / f"golden/format1_{name}.u2c")
    phi = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    va = Outputs(phi, phi[:, :3] * 2, np.arange(60) % 3)
    np.testing.assert_allclose(old.predict_proba(va), anew.fit(va).predict_proba(va), atol=1e-6)
    with pytest.raises(ValueError, match="from a file that does not hold where its rows turn"): old.at(0.8)
    assert "turns" not in old.state_dict()  # a watch of it knows it by its state
    for model, moved in ((old, False), (anew, True)):
        save_calibrator(tmp_path / "m.u2c", model)
        back = load_calibrator(tmp_path / "m.u2c")
        assert torch.equal(back.predict_proba(va), model.predict_proba(va))
        if moved: assert torch.equal(back.at(0.8).predict_proba(va), type(anew)(anew.scorer, 0.8).fit(va).predict_proba(va))


def answers(path, va):
    "What a file answers; None if it is refused"
    try: return load_calibrator(path).predict_log_proba(va)
    except ArtifactError: return None


def test_every_truncation_is_refused(written):
    path, good, _, va = written
    damaged = path.with_name("cut.u2c")
    places = {*range(0, 120), *range(0, len(good), 61), len(good) - 1}
    for place in sorted(places):
        damaged.write_bytes(good[:place])
        with pytest.raises(ArtifactError, match="cut.u2c: found "):
            load_calibrator(damaged)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.data())
def test_a_changed_byte_is_refused_or_changes_nothing(written, data):
    "The one thing that may change unseen is white space in the list of tensors"
    path, good, model, va = written
    damaged = path.with_name("flip.u2c")
    place = data.draw(st.integers(0, len(good) - 1))
    byte = data.draw(st.integers(0, 255))
    damaged.write_bytes(good[:place] + bytes([byte]) + good[place + 1:])
    found = answers(damaged, va)
    assert found is None or torch.equal(found, model.predict_log_proba(va))
    if found is not None: assert byte == good[place] or chr(good[place]).isspace()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_refused(tmp_path_factory, content, framed):
    path = tmp_path_factory.mktemp("bytes") / "x.u2c"
    path.write_bytes(len(content).to_bytes(8, "little") * framed + content)
    with pytest.raises(ArtifactError):
        read_file(path, "calibrator")


json_like = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
                         lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=8), x, max_size=3), max_leaves=8)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_a_made_up_header_with_a_fine_checksum_builds_a_calibrator_or_nothing(written, data):
    path, good, model, va = written
    header, tensors = pack(model)
    place = data.draw(st.sampled_from(list(header["modules"])))
    changed = dict(header["modules"][place])
    changed[data.draw(st.sampled_from([*changed, "more"]))] = data.draw(json_like)
    modules = header["modules"] | {place: changed}
    forged = path.with_name("forged.u2c")
    write_file(forged, "calibrator", {"modules": modules}, tensors)
    try: assert isinstance(load_calibrator(forged), U2C)
    except ArtifactError: pass


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.dictionaries(st.text(max_size=10), json_like, max_size=4))
def test_any_header_comes_back(tmp_path_factory, header):
    path = tmp_path_factory.mktemp("header") / "x.u2c"
    write_file(path, "example", header, {})
    assert json.dumps(read_file(path, "example")[0], sort_keys=True) == json.dumps(header, sort_keys=True)


@pytest.mark.parametrize("note", ["[]", "null", "7", '"text"', "{}", '{"format": 1}', '{"format": 1, "checksum": 3}', "[" * 5000, "{", "9" * 5000])
def test_a_note_that_is_none(tmp_path, note):
    (tmp_path / "x.u2c").write_bytes(save({"x": torch.zeros(2)}, {"u2c": note}))
    with pytest.raises(ArtifactError):
        read_file(tmp_path / "x.u2c", "calibrator")


def test_a_note_with_a_checksum_and_no_more(tmp_path):
    note = {"format": 1}
    note["checksum"] = checksum(note, {})
    (tmp_path / "x.u2c").write_bytes(save({}, {"u2c": json.dumps(note)}))
    with pytest.raises(ArtifactError):
        read_file(tmp_path / "x.u2c", "calibrator")


def test_what_was_read_does_not_depend_on_the_file_any_more(written, tmp_path):
    _, good, model, va = written
    path = tmp_path / "m.u2c"
    path.write_bytes(good)
    back = load_calibrator(path)
    with path.open("r+b") as f: f.write(bytes(len(good)))
    assert torch.equal(back.predict_log_proba(va), model.predict_log_proba(va))


def test_writers_at_once_leave_one_whole_file(tmp_path):
    path = tmp_path / "x.u2c"
    def write(i): write_file(path, "example", {"i": i}, {"x": torch.full((1000,), float(i))})
    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for t in threads: t.start()
    for t in threads: t.join()
    header, tensors = read_file(path, "example")
    assert (tensors["x"] == header["i"]).all() and os.listdir(tmp_path) == ["x.u2c"]


def test_a_full_disk_is_an_error_of_the_system_and_leaves_the_older_file(written, tmp_path):
    path, (soft, hard) = tmp_path / "m.u2c", resource.getrlimit(resource.RLIMIT_FSIZE)
    save_calibrator(path, written[2])
    good = path.read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(good) // 2, hard))  # to the writer as if there were no room
    try:
        with pytest.raises(OSError): save_calibrator(path, written[2])
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == good and os.listdir(tmp_path) == ["m.u2c"]


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_who_may_read_a_file_is_for_the_umask_to_say(written, tmp_path, umask, mode):
    before = os.umask(umask)
    try: save_calibrator(tmp_path / "m.u2c", written[2])
    finally: os.umask(before)
    assert (tmp_path / "m.u2c").stat().st_mode & 0o777 == mode


def test_thousands_of_parts_are_refused_at_once(written, tmp_path):
    "In a file of a few hundred kilobytes; they were built once, in a time that grew with their square"
    header, tensors = pack(written[2])
    many = {f"scorer.parts.{i}": header["modules"]["scorer.parts.0"] for i in range(3000)}
    write_file(tmp_path / "m.u2c", "calibrator", {"modules": header["modules"] | many}, tensors)
    start = time.monotonic()
    with pytest.raises(ArtifactError, match="modules: found 3,002 parts, expected at most 256"): load_calibrator(tmp_path / "m.u2c")
    assert time.monotonic() - start < 2


def test_no_tensor_may_be_nan(written):
    header, tensors = pack(written[2])
    for name, x in tensors.items():
        if not x.is_floating_point(): continue
        with pytest.raises(ArtifactError, match="found"): unpack(header, tensors | {name: x * torch.nan})


def test_no_pickle_is_opened(tmp_path):
    class Evil:
        def __reduce__(self): return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"x": Evil()}, tmp_path / "x.u2c")
    with pytest.raises(ArtifactError, match="found no file of u2c"):
        load_calibrator(tmp_path / "x.u2c")
    assert not (tmp_path / "ran").exists()


def test_the_file_is_plain_safetensors(written):
    "Whatever reads safetensors reads the tensors"
    path, good, model, _ = written
    assert torch.equal(load(good)["theta"], model.theta)


def test_of_rows_without_labels_only_the_rejection_is_known(written):
    _, _, model, va = written
    assert realised(model, va[:7]).keys() == {"rows", "rejected", "err", "ece", "nll"}
    assert unpack(*pack(model)).state_dict().keys() == model.state_dict().keys()


def test_no_room_is_made_for_a_network_that_is_not_there(written):
    "Neither at the top, with or without its weights, nor inside of a scorer"
    header, tensors = pack(written[2])
    top, few = header["modules"][""], {k: v for k, v in tensors.items() if k != "tau_u.0.weight"}
    plain = {k: v for k, v in top.items() if k != "link"}
    for options in (top | {"hidden": 10**11}, plain | {"hidden": 10**11}):
        for state in (tensors, few, {}):
            with pytest.raises(ArtifactError): unpack({"modules": header["modules"] | {"": options}}, state)
    inside = {"scorer": {"class": "U2C", "hidden": 10**11}, "scorer.scorer": {"class": "MaxLogit"}}
    with pytest.raises(ArtifactError, match="a U2C inside of a calibrator"): unpack({"modules": {"": top} | inside}, tensors)


def test_a_device_is_not_replaced_by_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.u2c")
    with pytest.raises(OSError, match="path: found the device .*pipe.u2c"): write_file(tmp_path / "pipe.u2c", "calibrator", {}, {})
    assert not (tmp_path / "pipe.u2c").is_file() and len(list(tmp_path.iterdir())) == 1

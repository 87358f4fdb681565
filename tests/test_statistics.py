"Standard errors and marks against known truths: sources, seeds, and how often a mark is false."
import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import u2c.run.experiment
from u2c.bench.features import load_tensors
from u2c.bench.small import load_benchmark
from u2c.run.experiment import Config, evaluate, pooled, read_records, resample_weights, run
from u2c.run.experiment import standard_error
from u2c.run.jobs import job_folder
from u2c.run.reproduce import collect, published_records
from u2c.run.verdicts import critical, joint_error, record_cells, verdict

SMALL = Config(limit=60, epochs=1, resamples=20, scorers=["knn"])
PHOTOS = (78, 91, 62, 24, 43, 99, 115, 12)  # tiles of each photograph of the benchmark


def test_images_of_one_source_belong_together():
    small = load_benchmark("small")
    assert all(s.source.shape == s.labels.shape and s.source.dtype == torch.int64 for s in small.values())
    assert [len(small[k].source.unique()) for k in ("digits-C", "digits-R", "letters", "textures", "photos")] == [1880, 22, 33, 3, 8]
    assert all(len(small[k].source.unique()) == len(small[k].labels) for k in ("digits-te", "digits-v2", "held-out", "faces"))
    assert tuple(small["photos"].source.bincount().tolist()) == PHOTOS
    c = small["digits-C"]
    assert all(len(c.labels[c.source == s].unique()) == 1 for s in c.source.unique()[:50])  # three copies of one image
    r = small["digits-R"]
    assert (r.source[:528].bincount() == 24).all() and (r.source[528:].bincount() == 24).all()  # half and half, always
    assert (r.labels[:528][r.source[:528] == 5].bincount() == 3).all()  # a typeface has every digit in three versions


def test_resamples_depend_on_the_data_and_not_on_the_network(monkeypatch):
    seen = []

    def spy(*args):
        seen.append(resample_weights(*args))
        return seen[-1]
    monkeypatch.setattr(u2c.run.experiment, "resample_weights", spy)
    for config in (SMALL, replace(SMALL, seed=1), replace(SMALL, backbone="vit_small")):
        run(config)
    first, *others = (seen[i:i + 10] for i in (0, 10, 20))
    assert all((a == b).all() for other in others for a, b in zip(first, other, strict=True))
    textures, source = first[7], load_benchmark("small", SMALL.limit)["textures"].source
    assert all((textures[:, source == s] == textures[:, source == s][:, :1]).all() for s in range(3))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out, configs = tmp_path_factory.mktemp("runs"), [replace(SMALL, seed=s) for s in (0, 1)]
    for c in configs:
        run(c, job_folder(out, c))
    return out, configs


def test_the_joint_error_is_the_spread_of_averaged_draws(runs):
    out, configs = runs
    records = collect(configs, out)
    draws = [load_tensors(job_folder(out, c) / "draws.safetensors", u2c.run.experiment.describe(c)) for c in configs]
    changed = records[records.method != "rc"]
    assert (changed.seeds == 2).all() and records[records.method == "rc"].err_change_se_joint.isna().all()
    for row in changed[changed.seed == 0].itertuples():
        for m in ("err", "ece"):
            key = f"{row.dataset}/{row.scorer}/{row.method}/{m}_change"
            mean = (draws[0][key].double() + draws[1][key].double()).numpy() / 2
            assert getattr(row, f"{m}_change_se_joint") == pytest.approx(standard_error(mean, row.sources), rel=1e-5, abs=1e-7)  # draws are in float32
    own = changed.groupby(["dataset", "scorer", "method"]).agg(own=("err_change_se", "mean"), joint=("err_change_se_joint", "first"))
    assert (own.joint <= own.own + 1e-8).all() and (own.joint < .95 * own.own).any()


def test_pooled_records_keep_their_date_and_refuse_other_settings(runs):
    out, configs = runs
    collect(configs, out)
    stamp = (out / "records.csv").stat().st_mtime_ns
    os.utime(out / "records.csv", ns=(stamp - 10**9, stamp - 10**9))
    again = collect(configs, out)
    assert (out / "records.csv").stat().st_mtime_ns == stamp - 10**9 and not list(out.glob("*.new.csv"))
    pd.testing.assert_frame_equal(again, read_records(out / "records.csv"))
    with pytest.raises(ValueError, match="configs: found several settings"):
        collect([configs[0], replace(configs[1], alpha=.9)], out)


def test_a_part_of_the_seeds_has_no_joint_error(runs):
    records = collect(runs[1], runs[0])
    key = (records.dataset == "letters") & (records.scorer == "knn") & (records.method == "u2c")
    assert joint_error(records[key], "err") > 0 and np.isnan(joint_error(records[key & (records.seed == 0)], "err"))
    cells = record_cells(records[records.seed == 0], "resnet_small").set_index(["dataset", "metric", "scorer"])
    assert cells.loc[("letters", "err", "KNN"), "change_se"] == pytest.approx(100 * records[key].err_change_se.iloc[0])
    assert cells.loc[("letters", "err", "KNN"), "change_df"] == records[key].sources.iloc[0] - 1


def test_one_source_says_nothing_about_others():
    g = torch.Generator().manual_seed(0)

    def outputs(n):
        y = torch.arange(n) % 4
        return u2c.core.Outputs(torch.rand(n, 6, generator=g), torch.randn(n, 4, generator=g) + 3 * torch.nn.functional.one_hot(y, 4), y)
    head = torch.randn(4, 6, generator=g), torch.zeros(4)
    data, groups = dict(va=outputs(200), far=outputs(60)), dict(va="in-domain", far="in-domain")
    records = evaluate(data, groups, head, resamples=20, sources=dict(far=np.zeros(60)), scorers=["knn"])
    far = records[records.dataset == "far"]
    assert np.isinf(far[far.method != "rc"].err_change_se).all() and ((far.err_low == 0) & (far.err_high == 1)).all()
    cells = record_cells(records.assign(benchmark="b", backbone="net", seed=0), "net")
    assert {verdict(c.change, c.change_se, c.change_df) for c in cells[cells.dataset == "far"].itertuples()} == {"undecided"}


def marked(sizes, training, shared, own, *, by_source=True, experiments=400, seeds=3):
    "The share of experiments without any effect that get a mark, each a data set of the same records."
    rng, source = np.random.default_rng(0), np.repeat(np.arange(len(sizes)), sizes)
    resampled = source if by_source else np.arange(len(source))
    weights, g = resample_weights(resampled, 300), len(np.unique(resampled))
    rows, draws = [[] for _ in range(seeds)], [{} for _ in range(seeds)]
    for i in range(experiments):
        level, common = rng.normal(0, training, seeds), rng.normal(0, shared, len(sizes))
        for s in range(seeds):  # a row changes by -1, 0 or 1, by chance: more up than down where the level is above 0
            lean = np.clip(level[s] + common + rng.normal(0, own, len(sizes)), -.1, .1)[source]
            change = (rng.random(len(source)) < .1 + lean / 2).astype(float) - (rng.random(len(source)) < .1 - lean / 2)
            d = weights @ change.astype(np.float32) / weights.sum(1)
            row = dict(benchmark="made-up", backbone="net", seed=s, dataset=str(i), group="far-ood", scorer="knn", sources=g, err=.5, ece=.5)
            part = dict(err_change=change.mean(), err_change_se=standard_error(d, g))
            rows[s] += [row | dict(method="rc"), row | dict(method="u2c", ece_change=0., ece_change_se=0.) | part]
            draws[s] |= {f"{i}/knn/u2c/err_change": d, f"{i}/knn/u2c/ece_change": 0 * d}
    cells = record_cells(pooled([(pd.DataFrame(r), d) for r, d in zip(rows, draws)]), "net")
    cells = cells[cells.metric == "err"]
    return np.mean([verdict(c.change, c.change_se, c.change_df) != "undecided" for c in cells.itertuples()])


@pytest.mark.parametrize("sizes", [(300,) * 3, PHOTOS, (22,) * 33, (1,) * 900], ids=["textures", "photos", "letters", "rows"])
@pytest.mark.parametrize("noise", [(.03, 0, 0), (0, .05, 0), (0, 0, .05), (.02, .03, .03)], ids=["training", "shared", "own", "all"])
def test_marks_are_false_in_about_one_of_twenty_experiments_or_fewer(sizes, noise):
    assert marked(sizes, *noise) < .075  # 400 experiments: 5 % give or take 1.1


@pytest.mark.parametrize("sizes", [(22,) * 33, (1,) * 900], ids=["letters", "rows"])
def test_marks_are_false_more_often_where_training_dominates(sizes):
    "The worst case of the degrees of freedom: training's variance has two, and seven to nine times the share of the rest."
    assert marked(sizes, .045, 0, 0) < .115  # 400 experiments: 8 % give or take 1.4


@pytest.mark.parametrize("sources", [2, 3, 8])
def test_the_error_from_few_sources_is_right_in_the_mean(sources):
    "Resamples vary around the mean of their sources: without G / (G - 1) the variance would be 1/2, 2/3 and 7/8 of the truth."
    x = np.random.default_rng(sources).normal(0, 1, (20_000, sources))  # experiments whose truth is zero
    draws = resample_weights(sources, 400) @ x.T.astype(np.float32) / sources
    se = np.array([standard_error(d, sources) for d in draws.T])
    assert (se**2).mean() * sources == pytest.approx(1, abs=.05)
    held = (abs(x.mean(1)) <= critical(sources - 1) * se).mean()
    assert held == pytest.approx(.95, abs=.008)  # 20,000 experiments, give or take .0015; the 400 draws add .002


def test_rows_of_few_sources_would_be_marked_by_mistake():
    assert marked((300,) * 3, 0, .05, 0, by_source=False) > .3 > 4 * marked((300,) * 3, 0, .05, 0)


def test_published_records_hold_what_a_table_needs():
    records = published_records()
    changed = records[records.method != "rc"]
    assert (changed.seeds == 3).all() and (changed.err_change_se_joint <= changed.groupby(["backbone", "dataset", "scorer", "method"]).err_change_se.transform("mean") * (1 + 1e-6)).all()
    small = load_benchmark("small")
    assert records.groupby("dataset").sources.first().to_dict() == {k: len(s.source.unique()) for k, s in small.items() if k != "train"}

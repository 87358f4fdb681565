"The scikit-learn estimator, in scikit-learn's own hands and with odd data."
import pickle
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, make_blobs
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier, StackingClassifier, VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold, cross_val_predict, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from u2c.core import Outputs
from u2c.rank import RankU2C
from u2c.reject import RejectOrClassify
from u2c.scores.combined import Combined
from u2c.scores.distances import KNN, Mahalanobis
from u2c.scores.head import ASH, MaxLogit
from u2c.service import sklearn as service
from u2c.service.artifact import ArtifactError
from u2c.service.sklearn import AbstainingClassifier, as_logits, expected_failed_checks
from u2c.service.sklearn import held_out_logits, load_sklearn, save_sklearn
from u2c.service.watch import Watch
from u2c.unified import U2C

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # small data draw every warning there is
few_neighbours = Combined([MaxLogit(), KNN(k=5), Mahalanobis()])


def blobs(n=150, c=3, seed=0):
    return make_blobs(n, 4, centers=c, cluster_std=2.5, random_state=seed)


@parametrize_with_checks(
    [
        AbstainingClassifier(LogisticRegression()),
        AbstainingClassifier(LogisticRegression(), "maxlogit", "rc"),
        AbstainingClassifier(DecisionTreeClassifier(random_state=0, min_samples_leaf=5), few_neighbours, cv=3),
        AbstainingClassifier(make_pipeline(StandardScaler(), LogisticRegression()), "mahalanobis"),
    ],
    expected_failed_checks=lambda _: expected_failed_checks, xfail_strict=True)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


CLASSIFIERS = [
    LogisticRegression(), RidgeClassifier(), LinearSVC(), SVC(), GaussianNB(), RandomForestClassifier(20, random_state=0),
    KNeighborsClassifier(), LinearDiscriminantAnalysis(), QuadraticDiscriminantAnalysis(), HistGradientBoostingClassifier(max_iter=5),
    MLPClassifier((8,), max_iter=20, random_state=0), CalibratedClassifierCV(LinearSVC()), GridSearchCV(LogisticRegression(), {"C": [.1, 1]}),
    make_pipeline(StandardScaler(), PCA(2), SVC()),
]


@pytest.mark.parametrize("c", [2, 3])
@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=lambda e: type(e).__name__)
def test_any_classifier(estimator, c):
    X, y = blobs(c=c)
    clf = AbstainingClassifier(estimator).fit(X, y)
    p, q = clf.predict_extended_proba(X), clf.predict_proba(X)
    assert p.shape == (len(X), c + 1) and q.shape == (len(X), c)
    assert (p >= 0).all() and np.allclose(p.sum(1), 1) and np.allclose(q.sum(1), 1)
    assert (clf.predict(X) == clf.extended_classes_[p.argmax(1)]).all()
    assert clf.extended_classes_.tolist() == [*range(c), -1] and clf.classes_.tolist() == [*range(c)]
    assert .8 < (clf.predict(X) != -1).mean() < 1


@pytest.mark.parametrize("method, direct, scorer", [
    ("rank", RankU2C, "combined"), ("rank", RankU2C, "maxlogit"), ("rank", RankU2C, "mahalanobis"),
    ("rc", RejectOrClassify, "knn"), ("rc", RejectOrClassify, "combined"), ("u2c", U2C, "knn")])
def test_the_same_as_the_calibrator_on_the_same_arrays(method, direct, scorer):
    X, y = blobs(300)
    lr = LogisticRegression().fit(X[:100], y[:100])
    clf = AbstainingClassifier(FrozenEstimator(lr), scorer, method, alpha=.9).fit(X[100:], y[100:])
    model = direct(scorer, alpha=.9, scores="held-out").fit(Outputs(X[100:], lr.decision_function(X[100:]), y[100:]))
    p = model.predict_proba(Outputs(X, lr.decision_function(X))).numpy()
    assert np.array_equal(clf.predict_extended_proba(X), p)
    assert clf.estimator_.estimator is lr


def test_the_estimator_given_stays_as_it_was():
    X, y = blobs()
    lr, scorer = LogisticRegression(), KNN(k=5)
    clf = AbstainingClassifier(lr, scorer).fit(X, y)
    assert not hasattr(lr, "coef_") and scorer.bank is None and clf.estimator_ is not lr


def test_a_failed_fit_changes_nothing():
    X, y = blobs()
    clf = AbstainingClassifier(LogisticRegression()).fit(X, y)
    before, p = dict(vars(clf)), clf.predict_extended_proba(X)
    bad = np.where(np.eye(*X.shape) > 0, np.nan, X)
    for rows, labels in ((X[:, :2], y[:-1]), (bad, y), (X[:5, :2], y[:5]), (X[:, :2], np.full(len(y), "unknown"))):
        with pytest.raises(ValueError):
            clf.fit(rows, labels)
    assert vars(clf) == before and np.array_equal(clf.predict_extended_proba(X), p)


def test_in_a_pipeline_and_in_cross_validation():
    X, y = load_iris(return_X_y=True, as_frame=True)
    y = y.map({0: "setosa", 1: "versicolor", 2: "virginica"})
    pipe = make_pipeline(StandardScaler(), AbstainingClassifier(LogisticRegression(), alpha=.9))
    found = cross_val_predict(pipe, X, y)
    assert set(found) == {"setosa", "versicolor", "virginica", "unknown"}
    assert .8 < (found != "unknown").mean() < .98 and (found == y)[found != "unknown"].mean() > .93
    p = cross_val_predict(pipe, X, y, method="predict_proba")
    assert p.shape == (150, 3) and np.allclose(p.sum(1), 1) and (np.unique(y)[p.argmax(1)] == y).mean() > .9
    assert cross_val_score(pipe, X, y, scoring="neg_log_loss").mean() > -.5
    stack = StackingClassifier([("a", pipe), ("b", GaussianNB())]).fit(X, y)
    assert stack.score(X, y) > .9


def test_a_search_finds_its_options():
    X, y = blobs(200)
    grid = {"alpha": [.8, .95], "scorer": ["maxlogit", KNN(k=5)], "estimator__C": [.1, 1]}
    search = GridSearchCV(AbstainingClassifier(LogisticRegression()), grid, cv=3).fit(X, y)
    assert search.best_params_["alpha"] == .95  # abstaining on a known row counts as an error
    assert len(search.cv_results_["params"]) == 8 and not np.isnan(search.cv_results_["mean_test_score"]).any()


def test_clones_and_pickles_answer_alike():
    X, y = blobs()
    clf = AbstainingClassifier(LogisticRegression(), Combined([MaxLogit(), KNN(k=7)]), alpha=.9).fit(X, y)
    again = clone(clf)
    assert not hasattr(again, "classes_") and again.scorer is not clf.scorer and again.alpha == .9
    for other in (again.fit(X, y), pickle.loads(pickle.dumps(clf))):
        assert np.array_equal(other.predict_extended_proba(X), clf.predict_extended_proba(X))


def test_score_counts_abstaining_on_an_unknown_row_as_right():
    X, y = load_digits(return_X_y=True)
    known = y < 8
    clf = AbstainingClassifier(make_pipeline(MinMaxScaler(), LogisticRegression())).fit(X[known], y[known])
    unknown = X[~known]
    assert clf.score(unknown, np.full(len(unknown), -1)) == (clf.predict(unknown) == -1).mean() > .4
    assert clf.outputs(unknown, np.full(len(unknown), -1)).labels.tolist() == [8] * len(unknown)


@pytest.mark.parametrize("labels, unknown, word", [
    (["a", "b", "c"], None, "unknown"), (["a", "b", "c"], "?", "?"), (["a", "b", "c"], "a longer word than any", "a longer word than any"),
    (np.array(["a", "b", "c"], object), None, "unknown"), ([1., 2., 3.], None, -1), (np.array([1, 2, 3], np.uint8), None, -1),
    ([0, 1, 2], 99, 99), ([0, 1, 2], np.int64(7), 7), ([-1, 0, 1], 2, 2)])
def test_the_word_for_unknown(labels, unknown, word):
    X, y = blobs()
    clf = AbstainingClassifier(LogisticRegression(), alpha=.8, unknown=unknown).fit(X, np.asarray(labels)[y])
    found = clf.predict(X)
    assert set(found.tolist()) == {*np.asarray(labels).tolist(), word} and clf.extended_classes_[-1] == word


def test_labels_that_are_true_or_false_come_back_as_numbers():
    X, y = blobs(c=2)
    assert set(AbstainingClassifier(LogisticRegression()).fit(X, y == 1).predict(X).tolist()) == {0, 1, -1}


@pytest.mark.parametrize("labels, unknown, error", [
    ([-1, 0, 1], None, "unknown: found -1, which is a class of y"), ([0, 1, 2], 1, "unknown: found 1, which is a class"),
    (["a", "b", "unknown"], None, "found 'unknown', which is a class"), (["a", "b", "c"], -1, "found -1, expected a text"),
    ([0, 1, 2], "?", "found '\\?', expected a whole number"), ([0, 1, 2], .5, "found 0.5, expected a whole number"),
    ([0, 1, 2], True, "found True, expected a whole number")])
def test_words_that_do_not_fit(labels, unknown, error):
    X, y = blobs()
    with pytest.raises(ValueError, match=error):
        AbstainingClassifier(LogisticRegression(), unknown=unknown).fit(X, np.asarray(labels)[y])


@pytest.mark.parametrize("options, error", [
    (dict(estimator=LinearRegression()), "estimator: found LinearRegression, expected a scikit-learn classifier"),
    (dict(estimator=None), "estimator: found NoneType"), (dict(estimator=LogisticRegression), "found the class LogisticRegression"),
    (dict(estimator=SVC(decision_function_shape="ovo")), "a column for each pair of classes, expected one for each class"),
    (dict(estimator=GridSearchCV(SVC(decision_function_shape="ovo"), {}), scorer="maxlogit"), "a column for each pair"),
    (dict(alpha=1), "alpha: found 1"), (dict(method="no"), "method: found 'no'"), (dict(method=["rc"]), "method: found \\['rc'\\]"),
    (dict(scorer="no"), "name: found 'no'"), (dict(features="no"), "features: found 'no'"), (dict(cv=1), "k-fold"),
    (dict(features=lambda X: X[1:]), "features: found 119 rows, expected 120"), (dict(cv=KFold(4)), "cv: found no row of class 0"),
    (dict(scorer="ash", estimator=GaussianNB()), "found GaussianNB without coef_")])
def test_options_that_do_not_fit(options, error):
    X, y = blobs(120, 4)
    rows = np.argsort(y, kind="stable")
    with pytest.raises((ValueError, TypeError), match=error):
        AbstainingClassifier(**{"estimator": LogisticRegression(), **options}).fit(X[rows], y[rows])


@pytest.mark.parametrize("y, error", [
    (np.zeros(60), "class"), (np.arange(60) // 59, "cv: found no row of class 1"), (np.arange(60), "n_splits=5 cannot be greater"),
    (np.linspace(0, 1, 60), "continuous"), (np.zeros((60, 2)), "1d array"), (np.full(60, np.nan), "NaN"), (None, "1d array"),
    (np.zeros(59), "inconsistent")])
def test_labels_that_do_not_fit(y, error):
    X, _ = blobs(60)
    with pytest.raises(ValueError, match=error):
        AbstainingClassifier(LogisticRegression()).fit(X, y)


def test_one_class_is_enough_for_a_classifier_that_takes_it():
    X, _ = blobs()
    clf = AbstainingClassifier(DummyClassifier(), Mahalanobis(relative=False)).fit(X, np.full(len(X), 7))
    assert set(clf.predict(X)) == {7, -1} and (clf.predict_proba(X) == 1).all()
    assert (clf.predict(X + 1000) == -1).all()


def test_two_rows_of_a_class_are_enough():
    X, y = blobs()
    rare = np.append(np.flatnonzero(y < 2), np.flatnonzero(y == 2)[:2])
    assert AbstainingClassifier(LogisticRegression()).fit(X[rare], y[rare]).predict_proba(X).shape == (150, 3)


def test_too_few_rows_for_neighbours():
    X, y = blobs(10, 2)
    with pytest.raises(ValueError, match="k: found 10 neighbours among 9 other rows"):
        AbstainingClassifier(LogisticRegression(), "knn").fit(X, y)


def test_a_frozen_estimator_may_know_classes_that_validation_lacks_but_not_the_reverse():
    X, y = blobs(200)
    lr = LogisticRegression().fit(X[:100], y[:100])
    two = AbstainingClassifier(FrozenEstimator(lr)).fit(X[100:][y[100:] < 2], y[100:][y[100:] < 2])
    assert two.classes_.tolist() == [0, 1, 2] and two.predict_extended_proba(X).shape == (200, 4)
    with pytest.raises(ValueError, match="y: found -1, expected classes that the estimator knows: 0, 1, 2"):
        AbstainingClassifier(FrozenEstimator(lr)).fit(X[100:], np.where(y[100:] == 0, -1, y[100:]))
    with pytest.raises(NotFittedError):
        AbstainingClassifier(FrozenEstimator(LogisticRegression())).fit(X, y)
    with pytest.raises(NotFittedError):
        AbstainingClassifier(FrozenEstimator(lr)).predict(X)


def test_parts_that_are_frozen_must_know_the_same_classes():
    X, y = blobs(200)
    parts = make_pipeline(FrozenEstimator(StandardScaler().fit(X)), FrozenEstimator(LogisticRegression().fit(X, y)))
    assert AbstainingClassifier(parts).fit(X, y).predict(X).shape == (200,)
    with pytest.raises(ValueError, match="found 3 columns for the classes 0, 1, 2, expected one for each class of y: 0, 1"):
        AbstainingClassifier(parts).fit(X[y < 2], y[y < 2])


def test_features_are_what_the_classifier_sees():
    X, y = blobs()
    pipe = make_pipeline(StandardScaler(), PCA(2), LogisticRegression())
    clf = AbstainingClassifier(pipe).fit(X, y)
    assert np.allclose(clf.outputs(X).features, pipe.fit(X, y)[:-1].transform(X))
    frozen = AbstainingClassifier(FrozenEstimator(pipe)).fit(X, y)
    assert np.allclose(frozen.outputs(X).features, pipe[:-1].transform(X))
    searched = AbstainingClassifier(GridSearchCV(pipe, {"logisticregression__C": [.1, 1]})).fit(X, y)
    assert searched.outputs(X).features.shape == (150, 2)
    assert AbstainingClassifier(pipe, features=PCA(3)).fit(X, y).outputs(X).features.shape == (150, 3)
    assert AbstainingClassifier(pipe, "maxlogit").fit(X, y).outputs(X).features is None


def test_sparse_rows():
    X, y = blobs()
    S = scipy.sparse.csr_array(X)
    dense = AbstainingClassifier(LogisticRegression(), "maxlogit").fit(X, y)
    assert np.allclose(AbstainingClassifier(LogisticRegression(), "maxlogit").fit(S, y).predict_extended_proba(S), dense.predict_extended_proba(X), atol=1e-4)
    assert AbstainingClassifier(LogisticRegression(), features=TruncatedSVD(3)).fit(S, y).predict(S).shape == (150,)
    with pytest.raises(ValueError, match="Sparse data.*\n.*features=, a transformer to dense numbers, or scorer='maxlogit'"):
        AbstainingClassifier(LogisticRegression()).fit(S, y)


def test_gaps_words_and_texts():
    X, y = blobs()
    gaps = np.where(np.random.default_rng(0).random(X.shape) < .1, np.nan, X)
    trees = HistGradientBoostingClassifier(max_iter=5)
    assert AbstainingClassifier(trees, "maxlogit").fit(gaps, y).predict(gaps).shape == (150,)
    with pytest.raises(ValueError, match="features: Input features contains NaN"):
        AbstainingClassifier(trees).fit(gaps, y)
    table = pd.DataFrame(X, columns=list("abcd")).assign(colour=np.where(X[:, 0] > 0, "red", "blue"))
    columns = make_column_transformer((OneHotEncoder(), ["colour"]), remainder=StandardScaler())
    clf = AbstainingClassifier(make_pipeline(columns, LogisticRegression()), few_neighbours).fit(table, y)
    assert clf.n_features_in_ == 5 and [*clf.feature_names_in_] == ["a", "b", "c", "d", "colour"]
    assert clf.outputs(table).features.shape == (150, 6)
    texts = [f"{'good fine' if k else 'bad poor'} word{i % 7}" for i, k in enumerate(y > 0)]
    texts_clf = AbstainingClassifier(make_pipeline(TfidfVectorizer(), TruncatedSVD(3), LogisticRegression())).fit(texts, y > 0)
    assert texts_clf.predict(["good word1"]).shape == (1,)


def test_single_precision_stays_and_agrees():
    X, y = blobs()
    X32 = X.astype(np.float32)
    one, two = (AbstainingClassifier(LogisticRegression()).fit(x, y) for x in (X, X32))
    p, q = one.predict_extended_proba(X), two.predict_extended_proba(X32)
    assert two.outputs(X32).features.numpy().dtype == np.float32 and np.allclose(q.sum(1), 1, atol=1e-5)
    assert (p.argmax(1) == q.argmax(1)).mean() > .97


def test_whole_numbers_lose_no_digit():
    X = np.arange(100)[:, None] + 2**40
    assert np.array_equal(AbstainingClassifier(DummyClassifier(), "mahalanobis").fit(X, np.arange(100) % 2).outputs(X).features, X)


@pytest.mark.parametrize("c", [2, 3])
def test_ash_takes_the_coefficients_of_a_linear_model(c):
    X, y = load_digits(return_X_y=True)
    X, y = X[y < c] / 16, y[y < c]
    lr = LogisticRegression().fit(X[::2], y[::2])
    clf = AbstainingClassifier(FrozenEstimator(lr), "ash").fit(X[1::2], y[1::2])
    w, b = (lr.coef_, lr.intercept_) if c > 2 else (np.vstack([-lr.coef_, lr.coef_]) / 2, np.append(-lr.intercept_, lr.intercept_) / 2)
    direct = RankU2C(ASH((w, b))).fit(clf.outputs(X[1::2], y[1::2]))
    assert np.array_equal(direct.predict_proba(clf.outputs(X)).numpy(), clf.predict_extended_proba(X))


def test_folds_are_the_ones_asked_for():
    X, y = load_breast_cancer(return_X_y=True)
    X, cv = StandardScaler().fit_transform(X), StratifiedKFold(7, shuffle=True, random_state=3)
    logits = held_out_logits(LogisticRegression(), X, y, cv)
    for train, test in cv.split(X, y):
        direct = LogisticRegression().fit(X[train], y[train]).decision_function(X[test])
        assert np.allclose(logits[test], as_logits(direct, "decision_function"))


def test_the_share_that_is_answered_is_the_one_asked_for():
    "On new rows of the same kind, within four standard errors of 1,000 fitted and 4,000 tested"
    X, y = blobs(5000)
    for alpha in (.8, .95):
        clf = AbstainingClassifier(LogisticRegression(), alpha=alpha).fit(X[:1000], y[:1000])
        answered = (clf.predict(X[1000:]) != -1).mean()
        assert abs(answered - alpha) < 4 * np.sqrt(alpha * (1 - alpha) * (1 / 1000 + 1 / 4000))


def test_nothing_heavy_is_imported():
    "pandas is not among these: scikit-learn itself imports it where it is installed"
    heavy = "'timm', 'torchvision', 'matplotlib', 'papermill'"
    code = f"import sys, u2c.service.sklearn; print([m for m in ({heavy}) if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_stack_of_classifiers_need_not_be_fitted():
    X, y = blobs()
    parts = [("a", LogisticRegression()), ("b", GaussianNB())]
    for last, scaled in ((None, False), (GaussianNB(), False), (None, True)):
        stack = StackingClassifier(parts, last)
        clf = AbstainingClassifier(make_pipeline(StandardScaler(), stack) if scaled else stack).fit(X, y)
        assert clf.predict_extended_proba(X).shape == (150, 4) and .8 < (clf.predict(X) != -1).mean() < 1
    with pytest.raises(ValueError, match="found VotingClassifier, expected .* with decision_function or predict_proba"):
        AbstainingClassifier(VotingClassifier(parts)).fit(X, y)


@pytest.mark.parametrize("given, features, warns", [
    (make_pipeline(LinearDiscriminantAnalysis(), LogisticRegression()), None, True), (LogisticRegression(), LinearDiscriminantAnalysis(), True),
    (make_pipeline(make_column_transformer((LinearDiscriminantAnalysis(), [0, 1]), ("passthrough", [2])), LogisticRegression()), None, True),
    (GridSearchCV(make_pipeline(LinearDiscriminantAnalysis(), LogisticRegression()), {}), None, True),
    (make_pipeline(StandardScaler(), PCA(2), LogisticRegression()), None, False), (LinearDiscriminantAnalysis(), None, False),
    (make_pipeline(LinearDiscriminantAnalysis(), LogisticRegression()), PCA(2), False)])
def test_features_that_saw_the_labels_are_named(given, features, warns):
    X, y = blobs()
    few = Combined([MaxLogit(), KNN(k=5)])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        AbstainingClassifier(given, few, features=features).fit(X, y)
    found = [str(w.message) for w in seen if "which saw the labels of these rows" in str(w.message)]
    assert len(found) == warns and all("found LinearDiscriminantAnalysis" in m for m in found)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        AbstainingClassifier(FrozenEstimator(given.fit(X[:75], y[:75])), few).fit(X[75:], y[75:])
        AbstainingClassifier(given, "maxlogit").fit(X, y)  # it needs no features
    assert not [w for w in seen if "which saw the labels" in str(w.message)]


def test_the_linear_link_goes_by_the_name_it_has_elsewhere():
    X, y = blobs()
    clf = AbstainingClassifier(LogisticRegression(), "maxlogit", "u2c_linear").fit(X, y)
    assert isinstance(clf.calibrator_, U2C) and clf.calibrator_.link == "linear" and clf.calibrator_.scores == "held-out"


def test_a_watch_takes_the_estimator_itself(tmp_path):
    X, y = blobs(900)
    clf = AbstainingClassifier(LogisticRegression(), Mahalanobis(relative=False)).fit(X[:300], y[:300])
    watch = Watch(clf, clf.outputs(X[300:600])).update(clf.outputs(X[600:]))
    assert watch.rate.n == 300 and watch.alarm is None
    assert watch.update(clf.outputs(X + 100)).alarm == "up"
    watch.save(tmp_path / "a.watch")
    assert Watch.load(tmp_path / "a.watch", clf).rate.n == 1200
    with pytest.raises(ValueError, match="found shape .900, 4., expected .n,. with n >= 1, or Outputs"):
        Watch(clf, X)
    with pytest.raises(TypeError, match="model: found AbstainingClassifier, expected a fitted"):
        Watch(clone(clf), X)


def test_without_scikit_learn_the_extra_is_named():
    code = "import sys; sys.modules['sklearn'] = None\nfrom u2c import *\nassert Watch\nimport u2c.service.sklearn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'found no module sklearn.frozen, expected scikit-learn from pip install "u2c[sklearn] @ git+https://github.com/u2c/u2c"' in done.stderr.splitlines()[-1]


@pytest.fixture(params=["skops", "a stand-in"])
def writer(request, monkeypatch):
    "skops itself, and, where it is not installed, what has its three functions"
    if request.param == "skops":
        return pytest.importorskip("skops.io", reason="skops is not installed: its files are tested with a stand-in")
    found = SimpleNamespace(dumps=pickle.dumps, get_untrusted_types=lambda data: [], loads=lambda data, trusted: pickle.loads(data))
    monkeypatch.setattr(service, "skops_io", lambda: found)
    return found


@pytest.mark.parametrize("options", [
    {}, {"method": "rank", "scorer": "maxlogit"}, {"scorer": few_neighbours, "features": PCA(2), "alpha": .9},
    {"method": "rc", "scorer": "knn", "unknown": "no idea"}, {"prior": .3, "costs": (1, .2, 5)}],
    ids=["default", "rank", "features", "rc", "costs"])
def test_a_file_answers_as_what_was_saved(writer, tmp_path, options):
    X, y = blobs(300, 4)
    y = np.array(list("abcd"))[y]
    clf = AbstainingClassifier(make_pipeline(StandardScaler(), LogisticRegression()), **options).fit(X[:250], y[:250])
    save_sklearn(tmp_path/"a.u2c", clf)
    back = load_sklearn(tmp_path/"a.u2c")
    far = np.concatenate([X[250:], 50 + X[:20]])
    assert np.array_equal(back.predict(far), clf.predict(far)) and len(set(clf.predict(far))) == 5
    assert np.array_equal(back.predict_extended_proba(far), clf.predict_extended_proba(far))
    assert list(back.classes_) == list("abcd") and back.extended_classes_[-1] == options.get("unknown", "unknown")
    save_sklearn(tmp_path/"b.u2c", back)
    assert np.array_equal(load_sklearn(tmp_path/"b.u2c").predict_proba(far), clf.predict_proba(far))
    again = clone(back).fit(X[250:], y[250:])  # its estimator is frozen, its options are those of before
    assert type(again.calibrator_) is type(clf.calibrator_) and again.alpha == clf.alpha


def test_a_promise_is_in_the_file(writer, tmp_path):
    X, y = blobs(1500)
    clf = AbstainingClassifier(LogisticRegression(), "maxlogit").fit(X[:500], y[:500]).at_most(X[500:], y[500:], error=.2)
    save_sklearn(tmp_path/"a.u2c", clf)
    back = load_sklearn(tmp_path/"a.u2c")
    assert back.calibrator_.promise == clf.calibrator_.promise is not None
    assert np.array_equal(back.predict(X), clf.predict(X))


def test_types_that_nobody_knows_are_named(tmp_path):
    pytest.importorskip("skops.io", reason="skops is not installed: it alone knows which types are harmless")
    X, y = blobs()
    save_sklearn(tmp_path/"a.u2c", AbstainingClassifier(LogisticRegression(), "knn", features=halved).fit(X, y))
    with pytest.raises(ArtifactError, match=r"a.u2c: found the types .*halved.*, expected known ones, or trusted=\["):
        load_sklearn(tmp_path/"a.u2c")
    back = load_sklearn(tmp_path/"a.u2c", trusted=[f"{__name__}.halved"])
    assert back.predict(X).shape == (150,)


def halved(X):
    return X / 2


def test_without_skops_nothing_is_written_or_read(monkeypatch, tmp_path):
    X, y = blobs()
    clf = AbstainingClassifier(LogisticRegression(), "maxlogit").fit(X, y)
    with monkeypatch.context() as m:
        m.setattr(service, "skops_io", lambda: SimpleNamespace(dumps=pickle.dumps))
        save_sklearn(tmp_path/"there.u2c", clf)
    for name in ("skops", "skops.io"):
        monkeypatch.setitem(sys.modules, name, None)
    why = "skops: found no such module, expected it from pip install skops"
    with pytest.raises(ModuleNotFoundError, match=why):
        save_sklearn(tmp_path/"a.u2c", clf)
    with pytest.raises(ModuleNotFoundError, match=why):
        load_sklearn(tmp_path/"there.u2c")
    assert [p.name for p in tmp_path.iterdir()] == ["there.u2c"]

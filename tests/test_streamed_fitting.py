"""A fit on features that are read in parts gives the detector of the same features in memory."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from discopatch import Detector, Features, streamed_fitting
from discopatch.calibration import MAX_PERMUTED, are_among, calibration_size, draw_rows
from discopatch.errors import NormalImagesWarning, ParameterError, ScoresError, TooFewImagesError
from discopatch.heads import streamed
from discopatch.streamed_fitting import FeatureStream
from tests.samples import made_up_features, new_detector, tiny_weights

ROOT = Path(__file__).parents[1]
KINDS = ("logits", "statistics", "pooled")
LAYERS = tiny_weights().discriminator.architecture.layer_sizes


class Parts(FeatureStream):
    """Features in memory, handed out in parts."""

    name = "parts"

    def __init__(self, features: Features, size: int = 97) -> None:
        self.features, self.size, self.passes = features, size, 0

    def __len__(self) -> int:
        return len(self.features.logits)

    def batches(self) -> Iterator[Features]:
        self.passes += 1
        for start in range(0, len(self), self.size):
            yield self.features.select(slice(start, start + self.size))


@pytest.fixture
def always_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FeatureStream, "read_small", lambda stream: None)


def some_features(count: int, *, seed: int = 0, channels: int = 12, dimensions: int = sum(LAYERS)) -> Features:
    found = made_up_features(count, dimensions=dimensions, seed=seed)
    camera, rng = np.random.default_rng(5), np.random.default_rng([seed, 8])
    pooled = camera.normal(1, 1, channels) + rng.normal(0, 0.3, (count, channels))
    return Features(found.logits, found.statistics, pooled.astype(np.float32))


def store(features: Features, folder: Path, *, files: int = 3, fixed: bool = True, half: bool = False) -> Path:
    """The features as Parquet."""
    folder.mkdir(parents=True, exist_ok=True)
    number = pyarrow.float16() if half else pyarrow.float32()
    for file, rows in enumerate(np.array_split(np.arange(len(features.logits)), files)):
        columns = {}
        for kind in KINDS:
            values = getattr(features, kind)[rows].astype(np.float16 if half else np.float32)
            flat = pyarrow.array(values.reshape(-1), number)
            ends = np.arange(len(values) + 1) * values.shape[1]
            columns[kind] = (
                pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
                if fixed
                else pyarrow.ListArray.from_arrays(pyarrow.array(ends, pyarrow.int32()), flat)
            )
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"part-{file:03d}.parquet", row_group_size=50)
    return folder


def assert_same(found: Detector, expected: Detector, *, rtol: float = 1e-6) -> None:
    """Heads whose numbers and calibration scores agree but for rounding."""
    assert found.guarantee_ == expected.guarantee_
    first, second = found.head_.to_tensors(), expected.head_.to_tensors()
    assert first.keys() == second.keys()
    for name in first.keys() - {"early.axes", "deep.axes", "statistics.gaussian.axes", "gaussian.axes"}:  # up to signs
        np.testing.assert_allclose(first[name], second[name], rtol=rtol, atol=1e-7, err_msg=name)
    np.testing.assert_allclose(found.calibration_scores_, expected.calibration_scores_, rtol=rtol, atol=1e-6)
    new = some_features(50, seed=9)
    np.testing.assert_allclose(
        found.predict_features(new).scores, expected.predict_features(new).scores, rtol=rtol, atol=1e-6
    )


@pytest.mark.parametrize("head", ["components", "combined", "statistics", "logit", "sigmoid"])
@pytest.mark.parametrize("count", [60, 700])
def test_it_is_the_detector_of_the_features_in_memory(always_streamed: None, head: str, count: int) -> None:
    features = some_features(count)
    parts = Parts(features)
    found = new_detector(head=head).fit_features(parts)
    assert_same(found, new_detector(head=head).fit_features(features))
    assert parts.passes <= 4  # three, and the first batch of one more


def test_without_logits_pooled_features_or_known_layers_those_parts_are_left_out(always_streamed: None) -> None:
    whole = some_features(300)
    for features in (
        Features.without_logits(whole.statistics),
        Features(whole.logits, whole.statistics[:, :11]),
    ):
        found, expected = new_detector().fit_features(Parts(features)), new_detector().fit_features(features)
        assert found.head_.component_names == expected.head_.component_names
        np.testing.assert_allclose(found.calibration_scores_, expected.calibration_scores_, rtol=1e-6)


def test_a_calibration_of_its_own_may_be_an_array_or_a_stream(always_streamed: None) -> None:
    features, others = some_features(300), some_features(120, seed=4)
    expected = new_detector().fit_features(features, calibration=others)
    for calibration in (others, Parts(others)):
        assert_same(new_detector().fit_features(Parts(features), calibration=calibration), expected)


@pytest.mark.parametrize("fixed", [True, False])
def test_parquet_gives_the_same_in_memory_and_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fixed: bool
) -> None:
    features = some_features(400)
    folder = store(features, tmp_path / "features", fixed=fixed)
    expected = new_detector().fit_features(features)
    at_once = new_detector().fit_features(str(folder))
    assert np.array_equal(at_once.calibration_scores_, expected.calibration_scores_)
    monkeypatch.setattr(FeatureStream, "read_small", lambda stream: None)
    assert_same(new_detector().fit_features(folder), expected)
    single = store(features, tmp_path / "one", files=1) / "part-000.parquet"
    assert_same(new_detector().fit_features(single), expected)


def test_numbers_of_16_bits_are_taken(tmp_path: Path) -> None:
    features = some_features(100)
    half = Features(*(each.astype(np.float16).astype(np.float32) for each in features[:3]))
    found = new_detector().fit_features(store(features, tmp_path / "features", half=True))
    assert np.array_equal(found.calibration_scores_, new_detector().fit_features(half).calibration_scores_)


def test_beyond_what_is_measured_the_scales_are_those_of_some(
    always_streamed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "MAX_MEASURED", 500)
    monkeypatch.setattr(streamed, "MAX_BANK", 400)
    features = some_features(1500)
    found, expected = new_detector().fit_features(Parts(features)), new_detector().fit_features(features)
    heads = [each.head_.to_tensors() for each in (found, expected)]
    np.testing.assert_allclose(heads[0]["early.mean"], heads[1]["early.mean"], rtol=1e-6)
    assert len(heads[0]["neighbours.bank"]) == 400
    new = some_features(100, seed=9)
    first, second = (each.predict_features(new).scores for each in (found, expected))
    assert np.corrcoef(first, second)[0, 1] > 0.95


def test_of_very_many_images_a_bounded_number_is_held_out(
    always_streamed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed_fitting, "MAX_CALIBRATION", 150)
    found = new_detector(head="statistics", false_alarm_rate=0.02).fit_features(Parts(some_features(900)))
    assert (found.guarantee_.n_calibration, found.guarantee_.n_fit) == (149, 751)
    assert found.guarantee_.bound == pytest.approx(0.02)
    assert calibration_size(10_000_000, 0.01, min_fit=20, most=100_000) == 99_999


def test_rows_are_drawn_without_a_permutation_of_all() -> None:
    few = draw_rows(1000, 10, seed=0)
    assert np.array_equal(few, np.sort(np.random.default_rng(0).permutation(1000)[:10]))
    many = draw_rows(50 * MAX_PERMUTED, 1000, seed=0)
    assert len(np.unique(many)) == 1000
    assert (np.diff(many) > 0).all()
    assert abs(many.mean() / MAX_PERMUTED - 25) < 2
    assert are_among(many[::7], many).all()
    assert not are_among(np.setdiff1d(np.arange(100), many), many).any()
    assert not are_among(np.arange(5), np.empty(0, np.intp)).any()


@pytest.mark.slow
def test_false_alarms_are_as_many_as_were_allowed(always_streamed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 60 streams, with bounded draws at work: the mean share of flagged normal images is the rate."""
    monkeypatch.setattr(streamed, "MAX_MEASURED", 150)
    monkeypatch.setattr(streamed, "MAX_BANK", 100)
    monkeypatch.setattr(streamed_fitting, "MAX_CALIBRATION", 40)
    shares = []
    for seed in range(60):
        detector = new_detector(false_alarm_rate=0.1, seed=seed).fit_features(
            Parts(some_features(300, seed=seed, dimensions=12))
        )
        new = some_features(300, seed=1000 + seed, dimensions=12)
        shares.append(detector.predict_features(new).is_ood.mean())
    error = np.std(shares) / np.sqrt(len(shares))
    assert detector.guarantee_.n_calibration == 39
    assert abs(np.mean(shares) - 0.1) < 4 * error
    assert error < 0.01


def test_near_copies_and_drift_are_told(always_streamed: None) -> None:
    features = some_features(300)
    doubled = features.select(np.repeat(np.arange(150), 2))
    drifting = Features(
        features.logits,
        features.statistics + np.linspace(0, 8, 300, dtype=np.float32)[:, None],
        features.pooled,
    )
    for given in (doubled, drifting):
        cautions = []
        for source in (given, Parts(given)):
            with pytest.warns(NormalImagesWarning):
                cautions.append(new_detector().fit_features(source).cautions_)
        assert cautions[0] == cautions[1]


def test_what_cannot_be_fitted_says_what_to_do(tmp_path: Path, always_streamed: None) -> None:
    features = some_features(100)
    detector = new_detector()
    with pytest.raises(ParameterError, match="groups"):
        detector.fit_features(Parts(features), groups="auto")
    with pytest.raises(TooFewImagesError):
        detector.fit_features(Parts(some_features(10)))
    bad = Features(features.logits, features.statistics.copy(), features.pooled)
    bad.statistics[70, 3] = np.nan
    with pytest.raises(ParameterError, match="not finite"):
        detector.fit_features(Parts(bad, size=50))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ParameterError, match="no Parquet"):
        detector.fit_features(tmp_path / "empty")
    other = pyarrow.table({"embedding": pyarrow.array([[1.0, 2.0]] * 40)})
    pyarrow.parquet.write_table(other, tmp_path / "empty" / "a.parquet")
    with pytest.raises(ParameterError, match="statistics"):
        detector.fit_features(tmp_path / "empty")
    for rows in ([[1.0, 2.0]] * 30 + [[1.0]] * 10, [[1.0, 2.0]] * 39 + [None], [[1, 2]] * 40):
        pyarrow.parquet.write_table(pyarrow.table({"statistics": rows}), tmp_path / "empty" / "a.parquet")
        with pytest.raises(ParameterError, match=r"a\.parquet"):
            detector.fit_features(tmp_path / "empty")
    (tmp_path / "empty" / "a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ScoresError, match="damaged"):
        detector.fit_features(tmp_path / "empty")


MEMORY = """
import resource, sys
from discopatch import Detector, groups, streamed_fitting
from discopatch.heads import streamed
from tests.samples import tiny_weights
groups.MAX_COMPARED = 512
streamed_fitting.FeatureStream.read_small = lambda self: None  # or few rows would be read at once
streamed_fitting.MAX_CALIBRATION = streamed.MAX_MEASURED = 2_000
detector = Detector(tiny_weights(), false_alarm_rate=0.1, device="cpu").fit_features(sys.argv[1])
print(detector.guarantee_.n_fit + detector.guarantee_.n_calibration)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """120,000 rows, 145 MB in memory, in hard links to one file: hardly more memory than for 60,000."""
    features = some_features(30_000, channels=100, dimensions=200)
    first = store(features, tmp_path / "few", files=1) / "part-000.parquet"
    (tmp_path / "many").mkdir()
    for name, links in (("few", 2), ("many", 4)):
        for number in range(links):
            if not (link := tmp_path / name / f"part-{number:03d}.parquet").exists():
                os.link(first, link)
    found = []
    for name in ("few", "many"):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", MEMORY, str(tmp_path / name)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found.append([int(number) for number in done.stdout.split()])
    (few, before), (many, after) = found
    assert (few, many) == (60_000, 120_000)
    assert 1024 * (after - before) < 25e6, (before, after)  # in memory 60,000 rows more take 72 MB, and their copies

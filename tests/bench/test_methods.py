"""Methods are chosen by patterns, and encoders are known by their digests."""

from pathlib import Path

import numpy as np
import pytest

from discopatch.bench.baselines import BASELINES
from discopatch.bench.methods import (
    PATCH_COUNTS,
    DiscriminatorBenchEncoder,
    MethodName,
    choose_methods,
    default_methods,
    load_encoder,
)
from discopatch.errors import ParameterError
from discopatch.heads import HEADS
from tests.bench.bench_samples import tiny_weights


def test_a_star_matches_anything() -> None:
    assert {each.method for each in choose_methods(["resnet50/*"])} == set(BASELINES)
    assert {each.encoder for each in choose_methods(["discopatch-*/logit"])} == {
        "discopatch-small",
        *(f"discopatch-{count}" for count in PATCH_COUNTS),
    }
    assert {each.encoder for each in choose_methods(["*/energy"])} == {"resnet50", "efficientnet-lite0"}


def test_no_method_is_chosen_twice() -> None:
    chosen = choose_methods(["discopatch/logit", "discopatch/*", "*/logit"])
    assert len(chosen) == len(set(chosen))
    assert chosen[0] == MethodName("discopatch", "logit"), "in the order of the patterns"
    assert [each.method for each in chosen[1:4]] == [name for name in HEADS if name != "logit"]


def test_any_number_of_patches_and_any_folder_may_be_named() -> None:
    assert choose_methods(["discopatch-7/statistics"]) == [MethodName("discopatch-7", "statistics")]
    assert choose_methods(["regnet=/some/where/nnguide"]) == [MethodName("regnet=/some/where", "nnguide")]
    assert {each.encoder for each in choose_methods(["bit=folder/*"])} == {"bit=folder"}


@pytest.mark.parametrize(
    "name", ["resnet51/energy", "discopatch/energy", "discopatch-0/logit", "energy", "resnet50/logit"]
)
def test_an_unknown_method_is_refused_with_those_that_are_known(name: str) -> None:
    with pytest.raises(ParameterError, match=rf"'{name}'.*ENCODER/METHOD.*combined.*resnet50.*mahalanobis"):
        choose_methods([name])


def test_without_backbones_our_own_methods_are_left(tmp_path: Path) -> None:
    assert default_methods(tmp_path) == ("discopatch/*", "discopatch-small/combined", "discopatch-64/logit")
    assert default_methods(tmp_path, quick=True) == ("discopatch/*", "discopatch-small/combined")


def test_the_digest_stands_for_weights_and_patches() -> None:
    def digest(weights_seed: int, name: str, seed: int = 0) -> str:
        return load_encoder(name, tiny_weights(seed=weights_seed), seed=seed, device="cpu").digest

    same, dense, others = digest(0, "discopatch-4"), digest(0, "discopatch"), digest(1, "discopatch")
    assert same == digest(0, "discopatch-4")
    assert len({same, dense, others, digest(0, "discopatch-4", 1), digest(0, "discopatch-5")}) == 5
    assert dense == digest(0, "discopatch", 1), "one dense pass has nothing random"


def test_as_many_patches_are_scored_as_the_name_says() -> None:
    encoder = load_encoder("discopatch-5", tiny_weights(), seed=0, device="cpu")
    assert isinstance(encoder, DiscriminatorBenchEncoder)
    features = encoder.extract(np.zeros((2, 64, 64, 3), np.uint8), encoder.needs("logit"))
    assert features["logits"].shape == (2, 5)


def test_the_small_encoder_has_the_small_weights_whatever_the_others_are() -> None:
    encoder = load_encoder("discopatch-small", tiny_weights(), seed=0, device="cpu")
    assert (encoder.name, encoder.parameters) == ("discopatch-small", 455_953)
    assert load_encoder("discopatch", tiny_weights(), seed=0, device="cpu").digest != encoder.digest

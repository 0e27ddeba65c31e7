from pathlib import Path

import numpy as np
import pytest

from discopatch.baselines.named import BASELINES
from discopatch.benchmark.eyes import DiscriminatorEye
from discopatch.benchmark.methods import PATCH_COUNTS, MethodName, choose, default_methods, open_eye
from discopatch.scoring import HEADS
from discopatch.weights import released
from tests.scoring.samples import tiny_weights


def test_a_star_stands_for_any() -> None:
    assert {each.method for each in choose(["resnet50/*"])} == set(BASELINES)
    assert {each.eye for each in choose(["discopatch-*/logit"])} == {
        "discopatch-small",
        *(f"discopatch-{count}" for count in PATCH_COUNTS),
    }
    assert {each.eye for each in choose(["*/energy"])} == {"resnet50", "efficientnet-lite0"}


def test_no_method_is_chosen_twice() -> None:
    chosen = choose(["discopatch/logit", "discopatch/*", "*/logit"])
    assert len(chosen) == len(set(chosen))
    assert chosen[0] == MethodName("discopatch", "logit"), "in the order of the patterns"
    assert [each.method for each in chosen[1:4]] == [name for name in HEADS if name != "logit"]


def test_any_number_of_patches_and_any_folder_may_be_named() -> None:
    assert choose(["discopatch-7/statistics"]) == [MethodName("discopatch-7", "statistics")]
    assert choose(["regnet=/some/where/nnguide"]) == [MethodName("regnet=/some/where", "nnguide")]
    assert {each.eye for each in choose(["bit=folder/*"])} == {"bit=folder"}


@pytest.mark.parametrize(
    "name", ["resnet51/energy", "discopatch/energy", "discopatch-0/logit", "energy", "resnet50/logit"]
)
def test_a_method_that_is_not_known_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown method '{name}': it is EYE/METHOD.*combined.*resnet50.*mahalanobis"):
        choose([name])


def test_without_backbones_our_own_methods_are_left(tmp_path: Path) -> None:
    assert default_methods(tmp_path) == ("discopatch/*", "discopatch-small/combined", "discopatch-64/logit")
    assert default_methods(tmp_path, quick=True) == ("discopatch/*", "discopatch-small/combined")


def test_an_eye_is_known_by_what_it_looks_with_and_where() -> None:
    def digest(seed: int, name: str, places: int = 0) -> str:
        return open_eye(name, tiny_weights(seed=seed), seed=places, device="cpu").digest

    same, dense, others = digest(0, "discopatch-4"), digest(0, "discopatch"), digest(1, "discopatch")
    assert same == digest(0, "discopatch-4")
    assert len({same, dense, others, digest(0, "discopatch-4", 1), digest(0, "discopatch-5")}) == 5
    assert dense == digest(0, "discopatch", 1), "one dense pass has nothing random"


def test_patches_are_cut_as_many_as_the_name_says() -> None:
    eye = open_eye("discopatch-5", tiny_weights(), seed=0, device="cpu")
    assert isinstance(eye, DiscriminatorEye)
    shown = eye.look(np.zeros((2, 64, 64, 3), np.uint8), eye.needs("logit"))
    assert shown["logits"].shape == (2, 5)


def test_the_small_eye_looks_with_the_small_weights_whatever_the_others_are() -> None:
    eye = open_eye("discopatch-small", released(), seed=0, device="cpu")
    assert (eye.name, eye.parameters) == ("discopatch-small", 455_953)
    assert open_eye("discopatch", released(), seed=0, device="cpu").digest != eye.digest

"""Methods are chosen by patterns, and encoders are known by their digests."""

from pathlib import Path

import numpy as np
import pytest

from discopatch.bench.baselines import BASELINES, PENULTIMATE, RANK_BEFORE, RANK_LAST
from discopatch.bench.methods import (
    PATCH_COUNTS,
    ClassifierBenchEncoder,
    DiscriminatorBenchEncoder,
    MethodName,
    choose_methods,
    default_methods,
    load_encoder,
)
from discopatch.errors import ParameterError
from discopatch.heads import HEADS
from discopatch.pretrained import load_pretrained
from tests.bench.bench_samples import Thumbnail, tiny_weights


def test_a_star_matches_anything() -> None:
    assert {each.method for each in choose_methods(["resnet50/*"])} == set(BASELINES)
    assert {each.encoder for each in choose_methods(["discopatch-*/logit"])} == {
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
    assert choose_methods(["natural-v1-9/sigmoid"]) == [MethodName("natural-v1-9", "sigmoid")]
    assert choose_methods(["regnet=/some/where/nnguide"]) == [MethodName("regnet=/some/where", "nnguide")]
    assert {each.encoder for each in choose_methods(["bit=folder/*"])} == {"bit=folder"}


def test_options_end_a_pattern_and_belong_to_all_that_match_it() -> None:
    assert choose_methods(["*/knn:k=5", "resnet50/knn", "bit=a:b/rankfeat:blocks=3+4"]) == [
        MethodName("resnet50", "knn:k=5"),
        MethodName("efficientnet-lite0", "knn:k=5"),
        MethodName("resnet50", "knn"),
        MethodName("bit=a:b", "rankfeat:blocks=3+4"),
    ]


def test_the_same_options_make_one_method_however_they_are_written() -> None:
    written = ["ash:variant=b:percentile=65", "ash:percentile=65.0:variant=b", "ash:percentile=6.5e1:variant=b"]
    assert choose_methods([f"resnet50/{text}" for text in written]) == [
        MethodName("resnet50", "ash:variant=b:percentile=65")
    ]
    assert choose_methods(["resnet50/scale:percentile=99.99999999"])[0].method == "scale:percentile=99.99999999"


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("resnet50/knn:K=5", "choose from k"),
        ("resnet50/*:k=5", "msp has no option 'k'"),
        ("discopatch/logit:k=5", "a head has no options"),
    ],
)
def test_options_that_a_method_does_not_have_are_refused(name: str, match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        choose_methods([name])


def test_an_option_that_the_images_to_fit_on_do_not_allow_is_refused() -> None:
    encoder = ClassifierBenchEncoder(Thumbnail())
    assert encoder.settings("knn:k=30", 30) == {"k": 30}
    for method in ("knn:k=31", "nnguide:k=31", "vim:dimensions=16"):
        with pytest.raises(ParameterError, match=rf"{method}: 30 images"):
            encoder.settings(method, 30)


def test_a_network_without_what_a_method_needs_says_why() -> None:
    backbone = Thumbnail()
    encoder = ClassifierBenchEncoder(backbone)
    assert {name for name in BASELINES if encoder.refusal(name)} == {"rankfeat", "rankfeat-weight"}
    backbone.kinds = (PENULTIMATE, RANK_LAST, RANK_BEFORE)
    assert {name for name in BASELINES if encoder.refusal(name)} == {"rankfeat-weight", "statistics"}
    assert "ResNet" in encoder.refusal("rankfeat-weight")
    assert [name for name in BASELINES if encoder.needs_classes(name)] == ["mds"]


@pytest.mark.parametrize(
    "name",
    ["resnet51/energy", "discopatch/energy", "discopatch-0/logit", "unknown-v1/logit", "energy", "resnet50/logit"],
)
def test_an_unknown_method_is_refused_with_those_that_are_known(name: str) -> None:
    with pytest.raises(ParameterError, match=rf"'{name}'.*ENCODER/METHOD.*combined.*resnet50.*mahalanobis"):
        choose_methods([name])


def test_without_backbones_our_own_methods_are_left(tmp_path: Path) -> None:
    quick = ("discopatch/*", "natural-small-v1/combined")
    assert default_methods(tmp_path, quick=True) == quick
    assert default_methods(tmp_path) == (*quick, "discopatch-64/logit")


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


def test_released_weights_go_by_their_names_whatever_those_of_the_run_are() -> None:
    encoder = load_encoder("natural-small-v1-3", tiny_weights(), seed=0, device="cpu")
    assert (encoder.name, encoder.parameters) == ("natural-small-v1-3", 455_953)
    assert encoder.extract(np.zeros((2, 256, 256, 3), np.uint8), encoder.needs("logit"))["logits"].shape == (2, 3)
    assert (
        load_encoder("discopatch-3", load_pretrained("natural-small-v1"), seed=0, device="cpu").digest == encoder.digest
    )

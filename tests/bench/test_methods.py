"""Methods are chosen by patterns, and encoders are known by their digests."""

import numpy as np
import pytest

from discopatch.bench.baselines import BASELINES
from discopatch.bench.methods import WITHOUT_PLACES, BenchEncoder, choose_methods, load_encoder
from discopatch.bench.networks.base import LOCAL, PENULTIMATE, RANK_BEFORE, RANK_LAST, STATISTICS
from discopatch.bench.networks.fetch import BACKBONES
from discopatch.errors import ParameterError
from discopatch.fitting import N_SAMPLED
from discopatch.heads import HEADS
from discopatch.pretrained import load_pretrained
from tests.bench.bench_samples import Thumbnail
from tests.samples import camera_pixels, tiny_weights

OUR_HEADS = {"combined", "components", "statistics"}  # that need no logit
CLASS_FREE = {
    "mahalanobis",
    "mahalanobis++",
    "mds",
    "mds++",
    "dfm",
    "knn",
    "local",
}  # of features that all networks have


def discriminator(name: str = "discopatch") -> BenchEncoder:
    return load_encoder(name, tiny_weights(), seed=0, device="cpu")


def test_patterns_choose_methods_once_in_their_order() -> None:
    def chosen_scores(encoder: str) -> set[str]:
        return {name.removeprefix(f"{encoder}/") for name in choose_methods([f"{encoder}/*"])}

    assert chosen_scores("resnet50") == BASELINES.keys() - {"niqe"} | OUR_HEADS
    assert chosen_scores("pixels") == {*CLASS_FREE, "niqe"} - {"local"}
    assert chosen_scores("paper-v1") == {*HEADS, "knn", "local"}
    assert chosen_scores("dinov2=/some/where") == CLASS_FREE | OUR_HEADS
    assert choose_methods(["*/energy"]) == [f"{name}/energy" for name in BACKBONES]
    chosen = choose_methods(["discopatch/logit", "discopatch/*", "*/logit"])
    assert len(chosen) == len(set(chosen))
    assert chosen[0] == "discopatch/logit"
    assert choose_methods(["discopatch-7/statistics"]) == ["discopatch-7/statistics"]
    assert choose_methods(["resnet50/knn:k=5", "*e*t*0/components:place=no"]) == [
        "resnet50/knn:k=5",
        f"resnet50/{WITHOUT_PLACES}",
        f"efficientnet-lite0/{WITHOUT_PLACES}",
    ]


@pytest.mark.parametrize(
    "name", ["resnet51/energy", "discopatch-0/logit", "dinov2=a/energy", "resnet50/components:place=yes"]
)
def test_unknown_methods_and_options_are_refused(name: str) -> None:
    with pytest.raises(ParameterError):
        choose_methods([name])


def test_the_same_options_make_one_method_however_they_are_written() -> None:
    written = ["ash:variant=b:percentile=65", "ash:percentile=65.0:variant=b", "ash:percentile=6.5e1:variant=b"]
    assert choose_methods([f"resnet50/{text}" for text in written]) == ["resnet50/ash:variant=b:percentile=65"]
    exact = ["resnet50/scale:percentile=99.99999999"]
    assert choose_methods(exact) == exact


def test_an_option_that_the_images_to_fit_on_do_not_allow_is_refused() -> None:
    encoder = BenchEncoder(Thumbnail())
    assert encoder.settings("knn:k=30", 30) == {"k": 30}
    for method in ("knn:k=31", "nnguide:k=31", "vim:dimensions=16"):
        with pytest.raises(ParameterError, match=rf"{method}: 30 images"):
            encoder.settings(method, 30)


def test_a_network_without_what_a_method_needs_says_why() -> None:
    backbone = Thumbnail()
    encoder = BenchEncoder(backbone)
    others = {"adascale", "combood", "cdf"}
    assert {name for name in encoder.methods if encoder.refusal(name)} == {"rankfeat", "rankfeat-weight", *others}
    backbone.kinds = (PENULTIMATE, STATISTICS, RANK_LAST, RANK_BEFORE)
    encoder = BenchEncoder(backbone)
    refused = {name for name in encoder.methods if encoder.refusal(name)}
    assert refused == {"rankfeat-weight", "local", *others}
    assert "ResNet" in encoder.refusal("rankfeat-weight")
    assert all(encoder.refusal(name) for name in ("logit", "sigmoid"))


def test_the_digest_stands_for_weights_and_patches() -> None:
    def digest(weights_seed: int, name: str, seed: int = 0) -> str:
        return load_encoder(name, tiny_weights(seed=weights_seed), seed=seed, device="cpu").network.digest

    same, dense, others = digest(0, "discopatch-4"), digest(0, "discopatch"), digest(1, "discopatch")
    assert same == digest(0, "discopatch-4")
    assert len({same, dense, others, digest(0, "discopatch-4", 1), digest(0, "discopatch-5")}) == 5
    assert dense == digest(0, "discopatch", 1), "one dense pass has nothing random"


def test_released_weights_go_by_their_names_whatever_those_of_the_run_are() -> None:
    network = load_encoder("natural-small-v2-3", tiny_weights(), seed=0, device="cpu").network
    assert (network.name, network.parameters) == ("natural-small-v2-3", 1_077_633)
    same = load_encoder("discopatch-3", load_pretrained("natural-small-v2"), seed=0, device="cpu")
    assert same.network.digest == network.digest


def test_a_discriminator_has_all_that_needs_no_classes_and_patches_have_no_places() -> None:
    dense, patches = discriminator(), discriminator("discopatch-4")
    assert not any(map(dense.refusal, dense.methods))
    assert [name for name in patches.methods if patches.refusal(name)] == ["local"]
    assert "dense" in patches.refusal("local")
    assert dense.refusal("energy")


@pytest.mark.parametrize("method", ["components", WITHOUT_PLACES])
def test_the_components_head_of_a_classifier_scores_each_image_by_itself(method: str) -> None:
    encoder, normal, new = BenchEncoder(Thumbnail()), camera_pixels(70), camera_pixels(9, seed=1)
    kinds = encoder.needs(method)
    assert (LOCAL in kinds) == (method == "components")
    fitted = encoder.fit([method], encoder.network.extract(normal, kinds), normal[:N_SAMPLED])[method]
    found = fitted.score(encoder.network.extract(new, fitted.needs))
    alone = [fitted.score(encoder.network.extract(each[None], fitted.needs))[0] for each in new]
    np.testing.assert_allclose(found, alone, rtol=1e-9)
    assert found.mean() > fitted.score(encoder.network.extract(normal, fitted.needs)).mean()

"""Names that people know."""

import pytest

from discopatch.bench.labels import corruption_label, is_ours, method_label, patch_count, set_label, short_label
from tests.bench.sample_results import make_methods


@pytest.mark.parametrize(
    ("method", "label"),
    [
        ("discopatch/combined", "DisCoPatch, combined head (dense)"),
        ("discopatch/components", "DisCoPatch, components head (dense)"),
        ("resnet50/components", "our components head (ResNet-50 blocks)"),
        ("resnet50/components:place=no", "our components head without places (ResNet-50 blocks)"),
        ("natural-v1/components:place=no", "natural-v1, components head without places (dense)"),
        ("discopatch/logit", "DisCoPatch, mean logit (dense)"),
        ("discopatch-64/logit", "DisCoPatch-64, mean logit (the paper's scoring rule)"),
        ("paper-v1-64/sigmoid", "paper-v1-64, mean sigmoid (the paper's method)"),
        ("paper-v1/combined", "paper-v1, combined head (dense)"),
        ("natural-small-v1-16/logit", "natural-small-v1-16, mean logit"),
        ("discopatch-16/statistics", "DisCoPatch-16, statistics head"),
        ("natural-small-v1/combined", "natural-small-v1, combined head (dense)"),
        ("discopatch/knn", "DisCoPatch, kNN (dense)"),
        ("natural-small-v1/knn:k=5", "natural-small-v1, kNN k=5 (dense)"),
        ("discopatch/local", "DisCoPatch, local memory (dense)"),
        ("resnet50/energy", "Energy (ResNet-50)"),
        ("resnet50/combined", "our combined head (ResNet-50 blocks)"),
        ("efficientnet-lite0/local", "local memory (EfficientNet-Lite0)"),
        ("resnet50/statistics", "our statistics head (ResNet-50 blocks)"),
        ("efficientnet_lite0/fdbd", "fDBD (EfficientNet-Lite0)"),
        ("regnet=/models/regnet/nnguide", "NNGuide (RegNet)"),
        ("resnet50/mahalanobis", "class-free shrunk Mahalanobis (ResNet-50)"),
        ("resnet50/mds", "MDS with class means (ResNet-50)"),
        ("resnet50/knn:k=10", "kNN k=10 (ResNet-50)"),
        ("resnet50/ash:variant=b:percentile=65", "ASH variant=b percentile=65 (ResNet-50)"),
        ("newnet/newscore", "newscore (newnet)"),
    ],
)
def test_a_method_has_a_label(method: str, label: str) -> None:
    assert method_label(method) == label


def test_labels_tell_all_methods_apart() -> None:
    methods = make_methods()
    assert len({method_label(name) for name in methods}) == len({short_label(name) for name in methods}) == len(methods)


def test_patches_are_read_off_the_name() -> None:
    names = ("discopatch-64/logit", "discopatch/logit", "paper-v1/logit", "paper-v1-16/logit", "resnet50/msp")
    assert [patch_count(name) for name in names] == [64, None, None, 16, None]
    assert [is_ours(name) for name in names] == [True, True, True, True, False]


def test_sets_and_corruptions_have_labels() -> None:
    names = ("chest-xray", "ssb_hard", "textures")
    assert [set_label(name) for name in names] == ["Chest X-ray", "SSB-hard", "Textures"]
    assert corruption_label("jpeg_compression") == "JPEG compression"

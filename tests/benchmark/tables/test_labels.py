"""Names that people know."""

import pytest

from discopatch.benchmark.tables.labels import (
    corruption_label,
    is_ours,
    method_label,
    patch_count,
    set_label,
    short_label,
)

from ..report_samples import make_methods


@pytest.mark.parametrize(
    ("method", "label"),
    [
        ("discopatch/combined", "DisCoPatch, combined head (dense)"),
        ("discopatch/logit", "DisCoPatch, mean logit (dense)"),
        ("discopatch-64/logit", "DisCoPatch-64, mean logit (the paper's)"),
        ("discopatch-16/statistics", "DisCoPatch-16, statistics head"),
        ("resnet50/energy", "Energy (ResNet-50)"),
        ("resnet50/statistics", "our statistics head (ResNet-50 blocks)"),
        ("efficientnet_lite0/fdbd", "fDBD (EfficientNet-Lite0)"),
        ("regnet=/models/regnet/nnguide", "NNGuide (RegNet)"),
        ("newnet/newscore", "newscore (newnet)"),
    ],
)
def test_a_method_has_a_label(method: str, label: str) -> None:
    assert method_label(method) == label


def test_labels_tell_all_methods_apart() -> None:
    methods = make_methods()
    assert len({method_label(name) for name in methods}) == len({short_label(name) for name in methods}) == len(methods)


def test_patches_are_read_off_the_name() -> None:
    assert [patch_count(name) for name in ("discopatch-64/logit", "discopatch/logit", "resnet50/msp")] == [
        64,
        None,
        None,
    ]
    assert is_ours("discopatch-4/logit")
    assert not is_ours("resnet50/statistics")


def test_sets_and_corruptions_have_labels() -> None:
    assert [set_label(name) for name in ("chest-xray", "ssb_hard", "textures")] == [
        "Chest X-ray",
        "SSB-hard",
        "Textures",
    ]
    assert corruption_label("jpeg_compression") == "JPEG compression"

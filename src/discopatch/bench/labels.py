"""What people call methods, sets and corruptions; the ids stay in files, the labels stand in tables and plots."""

import re

_OURS = re.compile(r"discopatch(?:-(small|[1-9]\d*))?")
_HEADS = {
    "combined": "combined head",
    "statistics": "statistics head",
    "logit": "mean logit",
    "sigmoid": "mean sigmoid",
}
_SCORES = {
    "msp": "MSP",
    "maxlogit": "MaxLogit",
    "energy": "Energy",
    "ash": "ASH",
    "scale": "SCALE",
    "nnguide": "NNGuide",
    "rankfeat": "RankFeat",
    "rankfeat-weight": "RankFeat & Weight",
    "fdbd": "fDBD",
    "vim": "ViM",
    "mahalanobis": "class-free shrunk Mahalanobis",
    "mds": "MDS with class means",
    "knn": "kNN",
}
_BACKBONES = {
    "resnet50": "ResNet-50",
    "efficientnetlite0": "EfficientNet-Lite0",
    "efficientnetlite1": "EfficientNet-Lite1",
    "efficientnetlite2": "EfficientNet-Lite2",
    "regnet": "RegNet",
    "mobilenetv2": "MobileNetV2",
    "bit": "ResNetv2-101",
    "beitv2": "BEiTv2",
}
_SETS = {
    "ssbhard": "SSB-hard",
    "ninco": "NINCO",
    "inaturalist": "iNaturalist",
    "openimageo": "OpenImage-O",
    "dtd": "DTD",
    "chestxray": "Chest X-ray",
    "brainmri": "Brain MRI",
}
_GROUPS = {"near": "near-OOD", "far": "far-OOD", "covariate": "covariate shift", "control": "control"}


def split_method(method: str) -> tuple[str, str]:
    """The encoder and the score of a method: discopatch-64/logit -> discopatch-64, logit."""
    encoder, _, score = method.rpartition("/")
    return encoder, score


def is_ours(method: str) -> bool:
    """Whether the method's encoder is the discriminator, whatever the number of patches."""
    return _OURS.fullmatch(split_method(method)[0]) is not None


def patch_count(method: str) -> int | None:
    """How many patches of an image the discriminator gets; None for one dense pass and for other encoders."""
    ours = _OURS.fullmatch(split_method(method)[0])
    return int(ours[1]) if ours and ours[1] and ours[1].isdigit() else None


def method_label(method: str) -> str:
    """DisCoPatch-64, mean logit (the paper's); Energy (ResNet-50)."""
    encoder, score = split_method(method)
    if is_ours(method):
        dense, papers = patch_count(method) is None, score == "logit"
        note = " (dense)" if dense else " (the paper's)" if papers else ""
        return f"{encoder_label(encoder)}, {_HEADS.get(score, score)}{note}"
    if score == "statistics":
        return f"our statistics head ({encoder_label(encoder)} blocks)"
    return f"{score_label(score)} ({encoder_label(encoder)})"


def short_label(method: str) -> str:
    """For plots, where there is little room: DisCoPatch-64 logit, Energy (ResNet-50)."""
    encoder, score = split_method(method)
    name = encoder_label(encoder)
    return f"{name} {score}" if is_ours(method) else f"{score_label(score)} ({name})"


def score_label(score: str) -> str:
    """energy -> Energy, knn:k=10 -> kNN k=10; a head of ours keeps its id."""
    name, *options = score.split(":")
    return " ".join([_SCORES.get(name, name), *options])


def encoder_label(encoder: str) -> str:
    """resnet50 -> ResNet-50; a backbone from a folder (regnet=FOLDER) goes by its kind."""
    if ours := _OURS.fullmatch(encoder):
        return f"DisCoPatch-{ours[1]}" if ours[1] else "DisCoPatch"
    kind = encoder.partition("=")[0]
    return _BACKBONES.get(_letters(kind), kind)


def set_label(name: str) -> str:
    """chest-xray -> Chest X-ray."""
    return _SETS.get(_letters(name), _capitalised(name))


def corruption_label(name: str) -> str:
    """jpeg_compression -> JPEG compression."""
    return _capitalised(name).replace("Jpeg", "JPEG")


def group_label(group: str) -> str:
    """near -> near-OOD."""
    return _GROUPS.get(group, group)


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _capitalised(name: str) -> str:
    text = name.replace("_", " ")
    return text[:1].upper() + text[1:]

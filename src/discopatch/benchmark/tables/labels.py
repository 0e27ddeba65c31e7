"""What people call the methods, sets and corruptions."""

import re

OURS = re.compile(r"discopatch(?:-(small|[1-9]\d*))?")

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
    "mahalanobis": "Mahalanobis",
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


def split(method: str) -> tuple[str, str]:
    """discopatch-64/logit -> discopatch-64, logit."""
    eye, _, score = method.rpartition("/")
    return eye, score


def patch_count(method: str) -> int | None:
    """How many patches our method looks at; none for one dense pass."""
    found = OURS.fullmatch(split(method)[0])
    return int(found[1]) if found and found[1] and found[1].isdigit() else None


def is_ours(method: str) -> bool:
    """Whether the discriminator is what looks."""
    return OURS.fullmatch(split(method)[0]) is not None


def method_label(method: str) -> str:
    """DisCoPatch-64, mean logit (the paper's); Energy (ResNet-50)."""
    eye, score = split(method)
    if is_ours(method):
        head = _HEADS.get(score, score)
        if patch_count(method) is None:
            return f"{eye_label(eye)}, {head} (dense)"
        return f"{eye_label(eye)}, {head}" + (" (the paper's)" if score == "logit" else "")
    if score == "statistics":
        return f"our statistics head ({eye_label(eye)} blocks)"
    return f"{_SCORES.get(score, score)} ({eye_label(eye)})"


def short_label(method: str) -> str:
    """The same for figures: DisCoPatch-64 logit, Energy (ResNet-50)."""
    eye, score = split(method)
    if is_ours(method):
        return f"{eye_label(eye)} {score}"
    return f"{score_label(score)} ({eye_label(eye)})"


def score_label(score: str) -> str:
    """Energy; a head of ours under its own name."""
    return _SCORES.get(score, score)


def eye_label(eye: str) -> str:
    """resnet50 -> ResNet-50; a backbone from a folder goes by its kind."""
    ours = OURS.fullmatch(eye)
    if ours:
        return "DisCoPatch" if ours[1] is None else f"DisCoPatch-{ours[1]}"
    kind = eye.partition("=")[0]
    return _BACKBONES.get(_plain(kind), kind)


def set_label(name: str) -> str:
    """chest-xray -> Chest X-ray."""
    return _SETS.get(_plain(name), _sentence(name))


def corruption_label(name: str) -> str:
    """jpeg_compression -> JPEG compression."""
    return _sentence(name).replace("Jpeg", "JPEG")


def group_label(group: str) -> str:
    """near -> near-OOD."""
    return _GROUPS.get(group, group)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _sentence(name: str) -> str:
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]

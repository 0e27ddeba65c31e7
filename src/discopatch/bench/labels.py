"""What people call methods, sets and corruptions; the ids stay in files, the labels stand in tables and plots."""

import re

_DISCRIMINATOR = re.compile(r"(discopatch|[a-z][a-z-]*-v\d+)(?:-([1-9]\d*))?")
_PAPERS_COUNT = 64
_HEADS = {
    "combined": "combined head",
    "components": "components head",
    "components:place=no": "components head without places",
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
    "local": "local memory",
    "components:place=no": "components",
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


def split_discriminator(encoder: str) -> tuple[str, int | None] | None:
    """The weights and the number of patches: paper-v1-64 -> paper-v1, 64; one dense pass has None; others are None."""
    if not (found := _DISCRIMINATOR.fullmatch(encoder)):
        return None
    return found[1], int(found[2]) if found[2] else None


def is_ours(method: str) -> bool:
    """Whether the method's encoder is a discriminator, whatever its weights and the number of patches."""
    return split_discriminator(split_method(method)[0]) is not None


def patch_count(method: str) -> int | None:
    """How many patches of an image the discriminator gets; None for one dense pass and for other encoders."""
    found = split_discriminator(split_method(method)[0])
    return found[1] if found else None


def method_label(method: str) -> str:
    """DisCoPatch-64, mean logit (the paper's scoring rule); Energy (ResNet-50)."""
    encoder, score = split_method(method)
    if found := split_discriminator(encoder):
        weights, patches = found
        papers = patches == _PAPERS_COUNT and score in ("logit", "sigmoid")
        rule = f" (the paper's {'method' if weights.startswith('paper') else 'scoring rule'})" if papers else ""
        head = _HEADS.get(score) or score_label(score)
        return f"{encoder_label(encoder)}, {head}{' (dense)' if patches is None else rule}"
    if score in _HEADS:
        return f"our {_HEADS[score]} ({encoder_label(encoder)} blocks)"
    return f"{score_label(score)} ({encoder_label(encoder)})"


def short_label(method: str) -> str:
    """For plots, where there is little room: DisCoPatch-64 logit, Energy (ResNet-50)."""
    encoder, score = split_method(method)
    name = encoder_label(encoder)
    return f"{name} {score_label(score)}" if is_ours(method) else f"{score_label(score)} ({name})"


def score_label(score: str) -> str:
    """energy -> Energy, knn:k=10 -> kNN k=10; a head of ours keeps its id."""
    if score in _SCORES:
        return _SCORES[score]
    name, *options = score.split(":")
    return " ".join([_SCORES.get(name, name), *options])


def encoder_label(encoder: str) -> str:
    """resnet50 -> ResNet-50; a backbone from a folder (regnet=FOLDER) goes by its kind."""
    if split_discriminator(encoder):
        return encoder.replace("discopatch", "DisCoPatch")
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

"""Names of methods, sets and corruptions in tables and plots; files have their ids."""

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
_OTHERS = {
    "resnet50": "ResNet-50",
    "efficientnet-lite0": "EfficientNet-Lite0",
    "ssb_hard": "SSB-hard",
    "ninco": "NINCO",
    "inaturalist": "iNaturalist",
    "openimage_o": "OpenImage-O",
    "chest-xray": "Chest X-ray",
    "brain-mri": "Brain MRI",
    "jpeg_compression": "JPEG compression",
    "near": "near-OOD",
    "far": "far-OOD",
    "covariate": "covariate shift",
}


def split_method(method: str) -> tuple[str, str]:
    """The encoder and the score of a method: discopatch-64/logit -> discopatch-64, logit."""
    encoder, _, score = method.rpartition("/")
    return encoder, score


def split_discriminator(encoder: str) -> tuple[str, int | None] | None:
    """The weights and the number of patches, None for one dense pass: paper-v1-64 -> paper-v1, 64.

    Other encoders than discriminators have None.
    """
    if not (found := _DISCRIMINATOR.fullmatch(encoder)):
        return None
    return found[1], int(found[2]) if found[2] else None


def is_ours(method: str) -> bool:
    """Whether the method's encoder is a discriminator."""
    return split_discriminator(split_method(method)[0]) is not None


def patch_count(method: str) -> int | None:
    """The number of patches of a discriminator; None for one dense pass and for other encoders."""
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
    """For plots: DisCoPatch-64 logit, Energy (ResNet-50)."""
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
    """resnet50 -> ResNet-50; a network from outside (dinov2=FOLDER) goes by its kind."""
    return _OTHERS.get(encoder) or encoder.partition("=")[0].replace("discopatch", "DisCoPatch")


def set_label(name: str) -> str:
    """chest-xray -> Chest X-ray, jpeg_compression -> JPEG compression: of a set or a corruption."""
    text = name.replace("_", " ")
    return _OTHERS.get(name) or text[:1].upper() + text[1:]


def group_label(group: str) -> str:
    """near -> near-OOD."""
    return _OTHERS.get(group, group)

"""Worse versions of images: the corruptions of the benchmark, and the degradations that training and probes use.

`discopatch.corruptions.degradations` is imported by itself, because it needs torch.
"""

from discopatch.corruptions.imagenet_c import CORRUPTIONS, FAMILIES, SEVERITIES, corrupt, describe_corruption

__all__ = ["CORRUPTIONS", "FAMILIES", "SEVERITIES", "corrupt", "describe_corruption"]

"""What holds for every corruption: seeded, of the same shape, for every size, and worse with severity."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discopatch.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from discopatch.errors import ParameterError
from discopatch.images import Pixels

from ..images.samples import noise, photo

# Saturate first takes colour away, then adds it; snow and spatter change their flakes and drops from one severity to
# the next; frost trades the image's own light for that of the ice; glass has more passes at 3 than at 4; and the affine
# part of elastic is largest at 1 and 2.
NOT_ORDERED = ("snow", "frost", "saturate", "spatter", "glass_blur", "elastic_transform")


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name not in NOT_ORDERED])
def test_more_severe_is_further_from_the_image(name: str) -> None:
    image = photo(96, 128).astype(float)
    away = [np.abs(corrupt(photo(96, 128), name, severity, seed=0) - image).mean() for severity in (0, *SEVERITIES)]
    assert away == sorted(away)
    assert len(set(away)) == len(away)


@given(
    name=st.sampled_from(list(CORRUPTIONS)),
    severity=st.sampled_from((0, *SEVERITIES)),
    height=st.integers(32, 80),
    width=st.integers(32, 80),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=250, deadline=None)
def test_any_image_any_size_any_seed(name: str, severity: int, height: int, width: int, seed: int) -> None:
    image: Pixels = noise(height, width, seed=seed)
    before = image.copy()
    np.random.seed(1)  # noqa: NPY002 - must not be used
    corrupted = corrupt(image, name, severity, seed=seed)
    assert np.random.randint(1000) == 37, "the global random state stays"  # noqa: NPY002
    assert corrupted.shape == image.shape
    assert corrupted.dtype == np.uint8
    assert np.array_equal(image, before), "the image is left as it was"
    assert severity or np.array_equal(corrupted, image)
    assert np.array_equal(corrupted, corrupt(np.asfortranarray(image), name, severity, seed=seed)), "in any layout"


def test_an_unknown_corruption_names_the_choices() -> None:
    with pytest.raises(ParameterError, match="mud"):
        corrupt(photo(), "mud", 1, seed=0)


def test_no_corruption_needs_torch_or_the_packages_of_the_demo() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['skimage'] = sys.modules['sklearn'] = None\n"
        "import numpy as np\n"
        "from discopatch.corruptions import CORRUPTIONS, corrupt\n"
        "print(len([corrupt(np.zeros((32, 32, 3), np.uint8), name, 3, seed=0) for name in CORRUPTIONS]))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "19\n"

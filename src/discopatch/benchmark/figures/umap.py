"""A map of the discriminator's mean features, on which images that look alike to it lie together."""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from discopatch.benchmark.figures.scores import TEST
from discopatch.benchmark.figures.style import COLOURS, MARKERS, TWO_COLUMNS, new, printed
from discopatch.benchmark.tables.labels import set_label
from discopatch.extras import check_installed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEIGHBOURS = 15
Features = Mapping[str, NDArray[np.float32]]
Points = dict[str, NDArray[np.float32]]


def embed(features: Features, *, seed: int = 0) -> Points:
    """(images, channels) -> (images, 2) for each set, all on one map; the same seed gives the same map."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImportWarning)  # of TensorFlow, for a kind of UMAP that is not used here
        check_installed("umap", "bench")
        from umap import UMAP

    names = list(features)
    everything = np.concatenate([features[name] for name in names]).astype(np.float32)
    neighbours = min(NEIGHBOURS, len(everything) - 1)
    flat = UMAP(n_neighbors=neighbours, init="pca", random_state=seed, n_jobs=1)  # spectral needs one connected graph
    points = flat.fit_transform(everything)
    ends = np.cumsum([len(features[name]) for name in names])[:-1]
    return dict(zip(names, np.split(np.asarray(points, np.float32), ends), strict=True))


def umap_figure(points: Mapping[str, NDArray[np.float32]]) -> "Figure":
    """Normal images in grey below, every other set in a colour and shape of its own."""
    with printed():
        figure, ((axis,),) = new(TWO_COLUMNS, 4.0)
        names = sorted(points, key=lambda name: name != TEST)
        others = [name for name in names if name != TEST]
        for name in names:
            place = others.index(name) if name in others else 0
            axis.scatter(
                points[name][:, 0],
                points[name][:, 1],
                s=7,
                marker="o" if name == TEST else MARKERS[(place + place // len(COLOURS)) % len(MARKERS)],
                color="#9e9e9e" if name == TEST else COLOURS[place % len(COLOURS)],
                alpha=0.7,
                linewidth=0,
                label="normal images" if name == TEST else set_label(name),
            )
        axis.set(xticks=[], yticks=[], xlabel="UMAP 1", ylabel="UMAP 2")
        figure.legend(loc="outside right center", markerscale=2)
    return figure

"""A map of the discriminator's mean features, on which images with like features lie together."""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from discopatch.bench.labels import set_label
from discopatch.bench.plots.score_plots import NORMAL
from discopatch.bench.plots.style import COLOURS, MARKERS, TWO_COLUMNS, colour, new_figure, plot_style
from discopatch.utils import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEIGHBOURS = 15
Points = Mapping[str, NDArray[np.floating]]  # by set


def umap_points(features: Points, *, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """(images, channels) -> (images, 2) for each set, all on one map; the same seed gives the same map."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImportWarning)  # of TensorFlow, for a kind of UMAP that is not used here
        require("umap", "bench")
        from umap import UMAP

    images = np.concatenate([*features.values()]).astype(np.float32)
    neighbours = min(NEIGHBOURS, len(images) - 1)
    model = UMAP(n_neighbors=neighbours, init="pca", random_state=seed, n_jobs=1)  # spectral needs one connected graph
    ends = np.cumsum([len(each) for each in features.values()])[:-1]
    parts = np.split(np.asarray(model.fit_transform(images), np.float32), ends)
    return dict(zip(features, parts, strict=True))


@plot_style()
def umap_plot(points: Points) -> "Figure":
    """Normal images in grey below, every other set, (images, 2), in a colour and shape of its own."""
    figure, ((axis,),) = new_figure(TWO_COLUMNS, 4.0)
    names = sorted(points, key=lambda name: name != NORMAL)
    others = [name for name in names if name != NORMAL]
    for name in names:
        place = others.index(name) if name in others else 0
        axis.scatter(
            points[name][:, 0],
            points[name][:, 1],
            s=7,
            marker="o" if name == NORMAL else MARKERS[(place + place // len(COLOURS)) % len(MARKERS)],
            color="#9e9e9e" if name == NORMAL else colour(place),
            alpha=0.7,
            linewidth=0,
            label="normal images" if name == NORMAL else set_label(name),
        )
    axis.set(xticks=[], yticks=[], xlabel="UMAP 1", ylabel="UMAP 2")
    figure.legend(loc="outside right center", markerscale=2)
    return figure

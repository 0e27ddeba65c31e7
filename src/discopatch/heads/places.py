"""Places of an image compared with those of normal images: how unusual each cell of a grid over it is."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from discopatch.calibration import Index
from discopatch.encoders import Compare, FeatureSizes, map_on_cores, stream_on_cores, unpack_maps
from discopatch.encoders.places import finest_grid, join_maps, on_grid
from discopatch.errors import WeightsError
from discopatch.heads.base import Array, Fitted, Shapes
from discopatch.heads.parts import part_scale
from discopatch.utils import release_memory

WINDOWS = (3, 7, 13)  # cells along a side of the squares over which a map is averaged
N_AXES = 64  # principal axes in which places are compared
MAX_VECTORS = 5_000  # stored places
MAX_CANDIDATES, MAX_BLOCK = 50_000, 1_000  # places that stored ones are chosen from, in all and per block
MAX_BLOCKS = 5  # blocks at once, whose products take 20 MB
MAX_FITTED, MAX_COMPARED = 500, 150  # images whose places are candidates, and are compared with those of others
MAX_TOGETHER = {"cpu": 64, "cuda": 32768}  # places that are compared at once, with 20 kB each: they fit a cache
FOLDS = 3
MAX_GRID = 2**15  # positions at which centres and spreads are stored; between them they are interpolated
SMOOTHED = 5  # cells over which centres and spreads are averaged
MAX_EXTRA = 64  # axes that are added for accepted places
SMALLEST_SHARE = 0.01  # of the mean spread, below which no spread is
USUAL = 0.995  # the share of normal cells, averaged over the smallest window, below the level

# Numbers of images -> the places of each, (rows, columns, dimensions), or its packed maps
Vectors = Callable[[Index], Iterator[Tensor]]


class PlaceModel(Fitted):
    """How unusual each place of an image is: its distance from places of normal images, as a z-score.

    After PatchCore (Roth et al., Towards Total Recall in Industrial Anomaly Detection, 2022), with bounds on all sizes.
    A place is the features of several layers, each layer divided by its own spread. The squared distance is that from
    the nearest stored place along the principal axes, plus that from the plane of these axes, as in DFM (Ahuja et al.,
    Probabilistic Modeling of Deep Features for Out-of-Distribution and Adversarial Detection, 2019). The z-score is
    relative to the distances of normal images around the same position.
    """

    shapes: ClassVar[Shapes] = {
        "mean": ("dimensions",),
        "scale": ("dimensions",),  # of each layer
        "axes": ("dimensions", "axes"),
        "vectors": ("vectors", "axes"),  # stored places
        "centres": ("rows", "columns"),  # of distances of normal images around a position
        "spreads": ("rows", "columns"),
        "level": (),  # the z-score, averaged over the smallest window, that few places of normal images exceed
    }
    positive = ("scale", "spreads")
    derived = ("products", "lengths", "means", "factors", "plane", "grids", "accepted")
    accepted: Tensor  # (places, dimensions)

    def derive(self) -> None:
        if min(*self.centres.shape, len(self.vectors)) < 1 or not self.level > 0:
            raise WeightsError("it has places without stored ones, a grid or a level")
        bank, self.plane = self.vectors.float(), self.axes.float()
        if self._buffers["accepted"] is None:
            self.accepted = self.mean[None][:0]
        if len(self.accepted):
            self.plane, bank = self._with_accepted(self.plane, bank)
        self.products, self.lengths = (-2 * bank.T).contiguous(), bank.square().sum(1)
        self.means, self.factors = self.mean.float(), 1 / self.scale.float()
        self.grids = torch.stack((self.centres, self.spreads)).float()[:, None]

    def accept(self, places: Array) -> Self:
        """The same model to which these places (n, dimensions) are normal too, in place of those accepted before."""
        found = deepcopy(self)
        found.accepted = torch.from_numpy(places).to(self.mean)
        found.derive()
        return found

    def _with_accepted(self, plane: Tensor, bank: Tensor) -> tuple[Tensor, Tensor]:
        """Axes and stored places with the accepted ones.

        What accepted places have outside the plane gets axes of its own, on which all other stored places are 0: their
        distances stay as they are.
        """
        standard = ((self.accepted - self.mean) / self.scale).float()
        outside = torch.linalg.svd(standard - standard @ plane @ plane.T, full_matrices=False)
        extra = outside.Vh[: int((outside.S > 1e-3).sum())][:MAX_EXTRA].T
        plane = torch.cat((plane, extra), 1)
        return plane, torch.cat((F.pad(bank, (0, extra.shape[1])), standard @ plane))

    def check_sizes(self, sizes: FeatureSizes) -> None:
        if len(self.mean) != sizes.places:
            raise WeightsError(f"it compares places of {len(self.mean)} features, and its networks give {sizes.places}")

    def distances(self, maps: Sequence[Tensor]) -> Tensor:
        """Averaged maps (B, C, H, W) of all layers to distances (B, rows, columns) on the grid of the finest.

        Interpolation is linear: projections and lengths are taken of each map on its own grid, and are then
        interpolated, because they are fewer numbers.
        """
        (rows, columns), sizes = finest_grid(maps), [one.shape[1] for one in maps]
        along, squares = [], []
        parts = (each.split(sizes) for each in (self.means, self.factors, self.plane))
        for one, mean, factor, plane in zip(maps, *parts, strict=True):
            standard = (one.permute(0, 2, 3, 1) - mean) * factor
            along.append(on_grid((standard @ plane).permute(0, 3, 1, 2), rows, columns))
            squares.append(interpolated_squares(standard, rows, columns))
        total = sum(along[1:], start=along[0]).permute(0, 2, 3, 1)
        rest = sum(squares[1:], start=squares[0]) - total.square().sum(-1)
        return (rest.clamp(min=0) + self.nearest(total.flatten(0, 2)).view(rest.shape)).sqrt()

    def nearest(self, along: Tensor) -> Tensor:
        """The squared distances (n,) of projected places (n, axes) from the nearest stored ones.

        An exported graph takes all places at once, as its network does. On a GPU a kernel writes no products.
        """
        exported = torch.compiler.is_compiling()
        if along.is_cuda and not exported and along.shape[1] == N_AXES:
            from discopatch.model.kernels import nearest_kernel

            if (kernel := nearest_kernel(along.device)) is not None:
                return kernel(along.contiguous(), -0.5 * self.products.T)
        parts = (along,) if exported else along.split(MAX_TOGETHER.get(along.device.type, 64))
        found = torch.cat([torch.addmm(self.lengths, part, self.products).amin(1) for part in parts])
        return (found + along.square().sum(1)).clamp(min=0)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Averaged maps (B, C, H, W) of all layers to z-scores (B, rows, columns)."""
        return self.standardise(self.distances(maps))

    def standardise(self, distances: Tensor) -> Tensor:
        """Distances (B, rows, columns) to z-scores; an image of another shape has the same relative positions."""
        centres, spreads = F.interpolate(self.grids, distances.shape[1:], mode="bilinear", align_corners=False)
        z: Tensor = (distances - centres) / spreads
        return z


def interpolated_squares(values: Tensor, rows: int, columns: int) -> Tensor:
    """The squared lengths (B, rows, columns) of vectors (B, H, W, d) after bilinear interpolation.

    That of (1 - t) a + t b is (1 - t) a² + t b² - t (1 - t) (a - b)²: along both axes, a linear map of the squared
    lengths of vectors and of their differences on the own grid.
    """
    if values.shape[1:3] == (rows, columns):
        return values.square().sum(-1)
    down = values[:, 1:] - values[:, :-1]
    squares = [
        torch.cat((each.square().sum(-1), (each[:, :, 1:] - each[:, :, :-1]).square().sum(-1)), 2)
        for each in (values, down)
    ]
    before, after = interpolation(values.shape[1], rows, values), interpolation(values.shape[2], columns, values)
    return before @ torch.cat(squares, 1) @ after.T


def interpolation(length: int, count: int, like: Tensor) -> Tensor:
    """(count, 2 length - 1): weights of neighbours in linear interpolation, then minus the products of each pair's."""
    own, wanted = (torch.arange(each, dtype=like.dtype, device=like.device) for each in (length, count))
    position = ((wanted + 0.5) * (length / count) - 0.5).clamp(0, length - 1)
    weights = (1 - (position[:, None] - own).abs()).clamp(min=0)
    return torch.cat((weights, -weights[:, 1:] * weights[:, :-1]), 1)


def window_maxima(z: Tensor) -> Tensor:
    """z-scores (B, rows, columns) to the largest mean over a square of each size, (B, windows).

    Squares reach beyond the border, where z-scores count as 0.
    """
    return torch.stack([window_means(z, size).amax((1, 2)) for size in WINDOWS], 1)


def window_means(z: Tensor, size: int) -> Tensor:
    """The means of z-scores (B, rows, columns) over a square around each; along one axis and then the other."""
    rows = F.avg_pool2d(z[:, None], (1, size), 1, (0, size // 2))
    return F.avg_pool2d(rows, (size, 1), 1, (size // 2, 0))[:, 0]


@torch.inference_mode()
def maxima_of(places: NDArray[np.floating], compare: Compare) -> Array:
    """`window_maxima` of places (B, rows, columns, dimensions) or packed maps, compared with normal ones."""
    return window_maxima(compare(unpack_maps(torch.from_numpy(places)))).double().numpy()


class PlaceFit(NamedTuple):
    """A place model, and those of the folds, whose centres and spreads are the same."""

    model: PlaceModel
    folds: dict[int, PlaceModel]  # by the number of the fold that each was fitted without
    fold_of: dict[int, int]  # the fold of each image
    rows: Index  # images that are compared
    maxima: Array  # (rows, windows), of these images by the models that were fitted without them

    def compare(self, row: int) -> PlaceModel:
        """The model that was fitted without the image of that row: that of all where its fold was not drawn."""
        return self.folds.get(self.fold_of.get(int(row), -1), self.model)


def fit_places(vectors: Vectors, fold: Index, numbers: Index, *, blocks: Sequence[int], seed: int) -> PlaceFit:
    """The model of places of normal images.

    fold: the number of each image's fold.
    numbers: the row of each image in the result.
    blocks: the number of features of each layer.
    """
    rng = np.random.default_rng([seed, 11])
    fitted, fold = rng.permutation(len(fold))[:MAX_FITTED], fold % FOLDS
    if len(np.unique(fold[fitted])) == 1:  # nearly all images are of one group
        fold = np.arange(len(fold)) % FOLDS
    drawn = [draw(unpack_maps(each[None]), MAX_CANDIDATES // len(fitted), rng) for each in vectors(fitted)]
    release_memory()
    owners = fold[fitted].tolist()
    outside = {own: [each for each, owner in zip(drawn, owners, strict=True) if owner != own] for own in set(owners)}
    models = map_on_cores(partial(without_scale, blocks=blocks), [drawn, *(each or drawn for each in outside.values())])
    model, parts, compared = models[0], dict(zip(outside, models[1:], strict=True)), fitted[:MAX_COMPARED]
    del drawn, outside  # the candidates take up to 94 MB
    release_memory()
    with torch.inference_mode():
        given = zip(fold[compared].tolist(), vectors(compared), strict=True)
        maps = list(stream_on_cores(lambda pair: parts[pair[0]].distances(unpack_maps(pair[1][None]))[0], given))
        rows, columns = (max(each.shape[axis] for each in maps) for axis in (0, 1))
        shrink = min(1.0, (MAX_GRID / (rows * columns)) ** 0.5)
        grid = round(rows * shrink), round(columns * shrink)
        resized = [F.interpolate(each[None, None], grid, mode="bilinear", align_corners=False)[0, 0] for each in maps]
    scale = grid_scale(torch.stack(resized).double().numpy())
    for each in (model, *parts.values()):
        each.hold(**scale, level=1.0).derive()
    with torch.inference_mode():
        z = [model.standardise(each[None]) for each in maps]
        usual = [window_means(each, WINDOWS[0]).flatten() for each in z]
        maxima = torch.cat([window_maxima(each) for each in z]).double().numpy()
    model.hold(level=max(float(np.quantile(torch.cat(usual).numpy(), USUAL)), 1.0)).derive()
    return PlaceFit(model, parts, dict(zip(numbers.tolist(), fold.tolist(), strict=True)), numbers[compared], maxima)


def draw(maps: Sequence[Tensor], most: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """At most so many of the places of an image, at random, from its maps (1, C, H, W)."""
    flat = join_maps(maps).flatten(0, 2)
    chosen = torch.from_numpy(rng.permutation(len(flat))[:most]).to(flat.device)
    return flat[chosen].float().cpu().numpy()


def without_scale(candidates: Sequence[NDArray[np.float32]], blocks: Sequence[int]) -> PlaceModel:
    """The model with stored places chosen from those of some images (n, dimensions), without centres and spreads.

    Candidates take up to 94 MB, so that they are not copied. Products are on the threads of torch: those of numpy
    contend with them.
    """
    count = sum(map(len, candidates))
    mean = sum(each.sum(0, dtype=np.float64) for each in candidates) / count
    centre, products = mean.astype(np.float32), np.zeros((len(mean), len(mean)))
    for each in candidates:
        centred = torch.from_numpy(each - centre)
        products += (centred.T @ centred).numpy() / count
    variances = np.split(np.diagonal(products), np.cumsum(blocks)[:-1])
    # Each layer has a total variance of 1, except one that is nearly constant.
    totals = np.array([each.sum() for each in variances])
    scale = np.repeat(np.sqrt(np.maximum(totals, SMALLEST_SHARE**2 * totals.mean()) + 1e-12), blocks)
    axes = torch.linalg.eigh(torch.from_numpy(products / np.outer(scale, scale)))[1].flip(1)[:, :N_AXES].numpy()
    plane = torch.from_numpy((axes / scale[:, None]).astype(np.float32))
    along = torch.cat([torch.from_numpy(each - centre) @ plane for each in candidates]).numpy()
    model = PlaceModel().hold(mean=mean, scale=scale, axes=axes, vectors=choose_vectors(along), level=1.0)
    model.hold(centres=np.zeros((1, 1)), spreads=np.ones((1, 1))).derive()
    return model


def grid_scale(distances: Array) -> dict[str, Array]:
    """Centre and spread of distances (images, rows, columns) around each position.

    The images are few: both are averaged over neighbouring cells, and half of each spread is the mean over all.
    """
    shape = distances.shape[1:]
    centres, spreads = (each.reshape(shape) for each in part_scale(distances.reshape(len(distances), -1)))
    smooth = [
        F.avg_pool2d(torch.from_numpy(each)[None], SMOOTHED, 1, SMOOTHED // 2, count_include_pad=False)[0].numpy()
        for each in (centres, spreads)
    ]
    return {"centres": smooth[0], "spreads": (smooth[1] + smooth[1].mean()) / 2}


def choose_vectors(candidates: NDArray[np.float32]) -> NDArray[np.float32]:
    """The stored ones of the candidates (n, d): all, or the centres of each block of them."""
    if len(candidates) <= MAX_VECTORS:
        return candidates
    order = np.random.default_rng(len(candidates)).permutation(len(candidates))
    count, dimensions = -(-len(candidates) // MAX_BLOCK), candidates.shape[1]
    size = len(candidates) // count  # the remainder is left out
    blocks = candidates[order[: count * size]].reshape(count, size, dimensions)
    parts = [blocks[start : start + MAX_BLOCKS] for start in range(0, count, MAX_BLOCKS)]
    chosen = [np.take_along_axis(part, greedy_centres(part, MAX_VECTORS // count)[..., None], 1) for part in parts]
    return np.concatenate(chosen).reshape(-1, dimensions)


def cover(places: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """At most so many of the places (n, dimensions), which cover the others."""
    return places if len(places) <= count else places[greedy_centres(places[None], count)[0]]


def greedy_centres(blocks: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """The numbers of `count` rows that cover each block (blocks, n, d), (blocks, count).

    The first row, then each time the row farthest from those chosen, in all blocks at once.
    """
    given, every = torch.from_numpy(blocks), np.arange(len(blocks))
    products = (given @ given.mT).numpy()
    halves = np.diagonal(products, axis1=1, axis2=2) / 2
    chosen, distances = np.zeros((len(blocks), count), np.intp), np.full(blocks.shape[:2], np.inf, np.float32)
    for place in range(1, count):
        last = every, chosen[:, place - 1]
        np.minimum(distances, halves - products[last] + halves[last][:, None], out=distances)  # half of the squares
        distances[last] = -np.inf
        chosen[:, place] = distances.argmax(1)
    return chosen

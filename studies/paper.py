"""The paper's own studies: normalisation layers, batch statistics, patch counts and seeds.

python studies/paper.py run --data FOLDER --out FOLDER           # studies.json; half an hour on a GPU
python studies/paper.py run --data FOLDER --out FOLDER --tiny    # a trial run on a CPU
python studies/paper.py tables FOLDER/studies.json               # AUROC of each group by run, as Markdown

FOLDER holds natural/train-*.tar, natural/test.tar and ood/NAME.tar. The same command continues a stopped run. The
results behind docs/studies.md are docs/results/studies.json.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor

from common import compared_heads
from discopatch.bench.dataset import PART, CorruptionPool, ImageSet, list_files, shuffled
from discopatch.bench.preprocessing import matched
from discopatch.bench.suites import NATURAL_GROUPS, NATURAL_STORED, NATURAL_TEST, NATURAL_TRAIN
from discopatch.bench.summary import Estimate, estimate_auroc
from discopatch.bench.tables import markdown_table
from discopatch.corruptions import CORRUPTIONS
from discopatch.encoders import DiscriminatorEncoder, resolve_device
from discopatch.fitting import N_PROBED
from discopatch.heads import CombinedHead, LogitHead, measure_shifts
from discopatch.images import Pixels, Transform
from discopatch.images.tensors import to_unit
from discopatch.metrics import Counts, draw_resamples
from discopatch.model import Architecture, Discriminator, Normalisation, Weights, channels_last
from discopatch.pretrained import DEFAULT_WEIGHTS, load_pretrained
from discopatch.training import PRESETS, RunOptions, TrainingConfig, get_preset, train
from discopatch.utils import write_json

Floats = NDArray[np.float64]
Batches = NDArray[np.int64]  # (batches, images of a batch): indices of images
Images = Mapping[str, Pixels]  # by set
Groups = Mapping[str, Sequence[str]]
Results = dict[str, Any]

# The trained kinds and their normalisation layers; `paper` and `natural` are trained with every seed.
KINDS: dict[str, Normalisation] = {
    "paper": "patch",
    "natural": "patch",
    "group": "group",
    "instance": "instance",
    "full": "batch",
}
SEEDED = ("paper", "natural")
FIT, TEST = "fit", "test"
IMAGES_AT_ONCE, PATCHES_AT_ONCE = 64, 4096

app = typer.Typer(help=__doc__, add_completion=False)


@dataclass(frozen=True)
class Plan:
    """All sizes; the defaults are those of docs/studies.md."""

    patches_in_all: int = 400_000  # that each training sees, in the same number of steps
    seeds: int = 5
    images: int = 32
    patches: int = 16
    learning_rate: float = 2e-4
    transform: Transform = Transform()  # noqa: RUF009 - frozen
    patch_model: Architecture | None = None  # in place of those of the presets
    image_model: Architecture | None = None
    fit: int = 600
    limit: int | None = None  # of the images of each set
    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    severity: int = 3
    scored_patches: int = 64
    counts: tuple[int, ...] = (4, 16, 32, 64, 128, 512)
    count_images: int = 150  # of each set
    batch_sizes: tuple[int, ...] = (1, 16, 32, 64, 128, 256)
    resamples: int = 1000

    @classmethod
    def tiny(cls) -> "Plan":
        """The smallest plan that has every study."""
        return cls(
            patches_in_all=256,
            seeds=1,
            images=4,
            transform=Transform(size=64),
            patch_model=Architecture(patch_size=16, hidden=(4, 8), latent=4),
            image_model=Architecture(patch_size=64, hidden=(4, 8, 8, 8), latent=4),
            fit=30,
            limit=8,
            corruptions=("gaussian_noise", "brightness"),
            scored_patches=8,
            counts=(2, 4),
            count_images=6,
            batch_sizes=(1, 4),
            resamples=50,
        )

    def config(self, kind: str, seed: int) -> TrainingConfig:
        """The same steps, images a step and learning rate for all; the full-size model sees each image whole."""
        full = kind == "full"
        preset = get_preset(kind if kind in PRESETS else "paper")
        architecture = (self.image_model if full else self.patch_model) or preset.architecture
        return replace(
            preset,
            architecture=replace(architecture, normalisation=KINDS[kind]),
            transform=self.transform,
            images=self.images,
            patches=1 if full else self.patches,
            learning_rate=self.learning_rate,
            steps=ceil(self.patches_in_all / (self.images * self.patches)),
            seed=seed,
        )

    @property
    def runs(self) -> dict[str, TrainingConfig]:
        """By name: one training of each kind, then the other seeds."""
        pairs = [(kind, 0) for kind in KINDS]
        pairs += [(kind, seed) for seed in range(1, self.seeds) for kind in SEEDED]
        return {f"{kind}-{seed}": self.config(kind, seed) for kind, seed in pairs}

    @property
    def groups(self) -> dict[str, list[str]]:
        """The sets that are compared with the test photos, by group."""
        found = {
            group: [name for name, own in NATURAL_GROUPS.items() if own == group]
            for group in ("near", "far", "control")
        }
        return {**found, "covariate": list(self.corruptions)}


def load_images(root: Path, plan: Plan, workers: int) -> dict[str, Pixels]:
    """All sets; the preprocessing of everything except the photos to fit on ends in the storage that these have."""
    protocol = matched(plan.transform, NATURAL_STORED)
    train_files = [file for shard in sorted(root.glob(NATURAL_TRAIN)) for file in list_files(shard)]

    def some(path: str) -> Any:
        return tuple(shuffled(list_files(root / path), seed=0, count=plan.limit))

    test = some(NATURAL_TEST)
    sets = [
        ImageSet(FIT, tuple(shuffled(train_files, seed=0, count=plan.fit)), protocol.fit),
        ImageSet(TEST, test, protocol.normal),
        *(ImageSet(name, some(f"ood/{name}.tar"), protocol.other) for name in NATURAL_GROUPS),
        *(ImageSet(name, test, protocol.corrupted(name, plan.severity)) for name in plan.corruptions),
    ]
    parts = [(images.name, part) for images in sets for part in images.parts(PART)]
    found: dict[str, list[Pixels]] = {images.name: [] for images in sets}
    with CorruptionPool(workers, frost="frost" in plan.corruptions) as pool:
        for (name, _), pixels in zip(parts, pool.stream(part.load for _, part in parts), strict=True):
            found[name].append(pixels)
    return {name: np.concatenate(each) for name, each in found.items()}


def evaluate(weights: Weights, images: Images, plan: Plan, device: str) -> Results:
    """AUROC of every group by four scores.

    patches: the mean logit of random patches, the paper's score; logit: that of one dense pass; statistics and
    combined: heads fitted on training photos in a dense pass.
    """
    of_patches, dense = (make_encoder(weights, plan, device, patches) for patches in (plan.scored_patches, None))
    heads = compared_heads(fit_head(dense, images))
    scores = {}
    for name, pixels in images.items():
        if name != FIT:
            features = dense.extract_pixels(pixels)
            found = {head: each.score(features) for head, each in heads.items()}
            scores[name] = {"patches": LogitHead().score(of_patches.extract_pixels(pixels)), **found}
    return compare_sets(scores, plan)


def count_patches(weights: Weights, images: Images, plan: Plan, device: str) -> Results:
    """AUROC of every group by the number of random patches of an image; heads are fitted again each time."""
    found = {}
    for count in plan.counts:
        encoder = make_encoder(weights, plan, device, count)
        heads = compared_heads(fit_head(encoder, images))
        scores = {}
        for name, pixels in images.items():
            if name != FIT:
                features = encoder.extract_pixels(pixels[: plan.count_images])
                scores[name] = {head: each.score(features) for head, each in heads.items()}
        found[str(count)] = compare_sets(scores, plan)
    return found


def make_encoder(weights: Weights, plan: Plan, device: str, patches: int | None) -> DiscriminatorEncoder:
    """An encoder of so many random patches, or of one dense pass, for images of the plan's transform."""
    return DiscriminatorEncoder(
        replace(weights, transform=plan.transform),
        patches=patches or "dense",
        device=device,
        batch_size=max(1, PATCHES_AT_ONCE // patches) if patches else IMAGES_AT_ONCE,
    )


def fit_head(encoder: DiscriminatorEncoder, images: Images) -> CombinedHead:
    shifts = measure_shifts(encoder.extract_pixels, images[FIT][:N_PROBED], seed=0)
    return CombinedHead().fit(encoder.extract_pixels(images[FIT]), shifts)


def compare_sets(scores: Mapping[str, Mapping[str, Floats]], plan: Plan) -> Results:
    """By group and score: mean AUROC over the sets of the group, with its interval."""
    return {
        group: {
            score: Estimate.mean([set_auroc(normal, scores[name][score], name, plan) for name in names]).rounded()
            for score, normal in scores[TEST].items()
        }
        for group, names in plan.groups.items()
    }


def set_auroc(normal: Floats, shifted: Floats, name: str, plan: Plan) -> Estimate:
    """AUROC of a set against the test photos; a photo and its corrupted copies are drawn together."""
    own = name if name in NATURAL_GROUPS else TEST
    drawn = draw_once(len(normal), TEST, plan.resamples), draw_once(len(shifted), own, plan.resamples)
    return estimate_auroc(normal, shifted, drawn)


@lru_cache(maxsize=64)
def draw_once(images: int, name: str, resamples: int) -> Counts:
    return draw_resamples(images, seed=0, name=name, resamples=resamples)


class BatchNormScorer:
    """A discriminator of whole images with BatchNorm; scores are minus the logit.

    `score` uses the learned statistics, so that each image is scored by itself. `score_batches` normalises each batch
    by its own mean and variance, by PatchNorm whose group is the batch.
    """

    def __init__(self, discriminator: Discriminator, device: str) -> None:
        by_batch = Discriminator(replace(discriminator.architecture, normalisation="patch"))
        by_batch.load_state_dict(discriminator.state_dict(), strict=False)  # PatchNorm has no running statistics
        self.device = resolve_device(device)
        self._learned = deepcopy(discriminator).to(self.device).eval()
        self._by_batch = channels_last(by_batch.to(self.device)).eval()

    def score(self, pixels: Pixels) -> Floats:
        """(N,)."""
        return self._scores(pixels, np.arange(len(pixels))[:, None], self._learned, group=None).ravel()

    def score_batches(self, pixels: Pixels, batches: Batches) -> Floats:
        """(N,): each image's score in the first batch that holds it."""
        scores = self._scores(pixels, batches, self._by_batch, group=batches.shape[1])
        first = np.full(len(pixels), np.nan)
        first[batches.ravel()[::-1]] = scores.ravel()[::-1]  # of an image that occurs again, the last one written stays
        return first

    @torch.inference_mode()
    def _scores(self, pixels: Pixels, batches: Batches, network: Discriminator, group: int | None) -> Floats:
        images = torch.from_numpy(np.ascontiguousarray(pixels)).to(self.device)

        def logits(part: Tensor) -> Tensor:
            found: Tensor = network(to_unit(images[part.flatten()].permute(0, 3, 1, 2)), group).logits
            return found.view(part.shape)

        parts = torch.from_numpy(batches).to(self.device).split(max(1, IMAGES_AT_ONCE // batches.shape[1]))
        return -torch.cat([logits(part) for part in parts]).double().cpu().numpy()


def in_turn(images: int, count: int, each: int, rng: np.random.Generator) -> Batches:
    """(count, each): a random order of the images, over and over."""
    return np.resize(rng.permutation(images), (count, each)).astype(np.int64)


def batch_statistics(weights: Weights, images: Images, plan: Plan, device: str) -> Results:
    """AUROC of every group by the source of BatchNorm's statistics.

    learned: the running statistics. batch: those of a batch of one set. half: those of a batch whose other half are
    test photos. Sizes for which a set has too few images are left out of its group's mean.
    """
    scorer, photos = BatchNormScorer(weights.discriminator, device), images[TEST]
    found: Results = {"learned": _by_group(plan, lambda name: (scorer.score(photos), scorer.score(images[name])))}
    for size in plan.batch_sizes:

        def pure(name: str, size: int = size) -> tuple[Floats, Floats] | None:
            both, rng = (photos, images[name]), np.random.default_rng([size, len(name)])
            if min(map(len, both)) < size:
                return None
            scores = [
                scorer.score_batches(each, in_turn(len(each), ceil(len(each) / size), size, rng)) for each in both
            ]
            return scores[0], scores[1]

        def mixed(name: str, size: int = size) -> tuple[Floats, Floats] | None:
            other, half, rng = images[name], size // 2, np.random.default_rng([size, len(name), 1])
            if min(len(photos), len(other)) < half or not half:
                return None
            count = ceil(max(len(photos), len(other)) / half)
            batches = [in_turn(len(photos), count, half, rng), len(photos) + in_turn(len(other), count, half, rng)]
            scores = scorer.score_batches(np.concatenate([photos, other]), np.concatenate(batches, axis=1))
            return scores[: len(photos)], scores[len(photos) :]

        found[f"batch of {size}"] = _by_group(plan, pure)
        found[f"half, batch of {size}"] = _by_group(plan, mixed)
    return found


def _by_group(plan: Plan, score: Callable[[str], tuple[Floats, Floats] | None]) -> Results:
    found: Results = {}
    for group, names in plan.groups.items():
        scored = [(name, each) for name in names if (each := score(name)) is not None]
        if scored:
            estimates = [set_auroc(*each, name, plan) for name, each in scored]
            found[group] = {"auroc": Estimate.mean(estimates).rounded(), "sets": len(scored)}
    return found


@app.command()
def run(
    data: Annotated[Path, typer.Option(help="Folder with natural/ and ood/.")],
    out: Annotated[Path, typer.Option(help="Folder for studies.json and the trainings.")],
    runs: Annotated[list[str] | None, typer.Option("--run", help="Such as paper-0; repeat. Default: all.")] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Tiny networks and few images.")] = False,
    device: Annotated[str, typer.Option(help="auto takes a GPU where there is one.")] = "auto",
    workers: Annotated[int, typer.Option(help="Processes that prepare images.")] = os.cpu_count() or 1,
) -> None:
    """Trains and measures what is missing, and writes the results after each part."""
    plan, path = Plan.tiny() if tiny else Plan(), out / "studies.json"
    results: Results = json.loads(path.read_text()) if path.exists() else {"plan": asdict(plan)}
    images = load_images(data, plan, workers)

    def keep(section: str, name: str, measure: Callable[..., Results], weights: Weights) -> None:
        pieces = results.setdefault(section, {})
        if pieces.get(name, {}).get("weights digest") != weights.digest:
            pieces[name] = {"weights digest": weights.digest, **measure(weights, images, plan, device)}
            write_json(path, results)
            print(f"{section}, {name}", flush=True)

    for name, weights in trained(plan, data, out, runs or [*plan.runs], device):
        if name.startswith("full"):
            keep("batch normalisation", name, batch_statistics, weights)
        else:
            keep("evaluation", name, evaluate, weights)
            if name.endswith("-0"):
                keep("patch counts", name, count_patches, weights)
    if not runs and not tiny:
        keep("patch counts", "released", count_patches, load_pretrained(DEFAULT_WEIGHTS))


def trained(plan: Plan, data: Path, out: Path, names: Sequence[str], device: str) -> Iterator[tuple[str, Weights]]:
    """The discriminator of each run; complete trainings are not repeated."""
    for name in names:
        config, folder = plan.runs[name], out / "runs" / name
        steps = config.steps or 1
        if not (folder / "complete").exists():
            options = RunOptions(accelerator=device, checkpoint_every=steps, samples_every=steps)  # type: ignore[arg-type]
            shards = [str(shard) for shard in sorted(data.glob(NATURAL_TRAIN))]
            result = train(shards, folder, config, cache=out / "cache", resume=folder.exists(), options=options)
            (folder / "complete").write_text(f"{result.step}")
        yield name, Weights.load(folder / "discriminator.safetensors")


@app.command()
def tables(results: Annotated[Path, typer.Argument(help="studies.json.")]) -> None:
    """Prints the AUROC of each group by run and score."""
    found = json.loads(results.read_text())
    for section in ("evaluation", "patch counts", "batch normalisation"):
        for name, run_ in found.get(section, {}).items():
            levels = {"": run_} if section == "evaluation" else run_
            rows = [
                [
                    f"{level} {score}".strip(),
                    group,
                    f"{100 * figure[0]:.1f} [{100 * figure[1]:.1f}, {100 * figure[2]:.1f}]",
                ]
                for level, groups in levels.items()
                if isinstance(groups, dict)
                for group, scores in groups.items()
                if isinstance(scores, dict)
                for score, figure in scores.items()
                if isinstance(figure, list)
            ]
            print(f"\n{section}, {name}\n\n{markdown_table(['score', 'group', 'AUROC'], rows)}")


if __name__ == "__main__":
    app()

"""`discopatch bench`"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discopatch.cli.options import DEFAULT_WEIGHTS_TEXT, MAX_BYTES, MAX_PIXELS, WEIGHTS, limits_of, progress_bar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

GROUPS = {"near": "near", "far": "far", "covariate": "corrupt"}

data_option = partial(typer.Option, rich_help_panel="Images")
size_option = partial(typer.Option, rich_help_panel="Sizes")
machine_option = partial(typer.Option, rich_help_panel="Machine")


def bench(
    suite: Annotated[str, typer.Option(help="The suite of images: solar, natural, imagenet or folder.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder of the run; the same command continues a stopped run.")
    ],
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="Methods as ENCODER/METHOD, with * for any, such as discopatch/*, discopatch-64/logit, "
            "resnet50/energy or regnet=FOLDER/nnguide, a baseline with its options after it, such as resnet50/knn:k=10 "
            "or resnet50/ash:variant=b:percentile=65; repeat the option or separate them by commas. Default: our "
            "heads, the paper's score, and all heads and baselines on the backbones that `discopatch data fetch` "
            "downloaded."
        ),
    ] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(help="The preprocessing: matched (one transform for all images) or paper. Default: both."),
    ] = None,
    slip: Annotated[
        list[str] | None,
        typer.Option(
            help="Add the protocol paper with a slip of the authors' code: pixel-range (normal images in [0, 1], "
            "others in [-1, 1]), single-patches (corrupted images patch by patch) or corners (never the last row and "
            "column); repeat for several at once. The protocol without them is their control."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use few images and corruptions, which takes minutes on two cores.")
    ] = False,
    data: Annotated[
        Path | None,
        data_option(
            help="The root of the suite: a folder with natural/ and ood/, OpenOOD's data folder, or the folder of the "
            "solar cells' labels.csv."
        ),
    ] = None,
    normal: Annotated[Path | None, data_option(help="The normal images of suite folder.")] = None,
    other: Annotated[
        list[str] | None,
        data_option(help="Another set for suites folder and solar, NAME=FOLDER or NAME=SHARD.tar; repeat for several."),
    ] = None,
    generate: Annotated[
        bool, data_option("--generate", help="Corrupt the test images even though ImageNet-C is there.")
    ] = False,
    max_pixels: Annotated[str | None, data_option(metavar="NUMBER", help=MAX_PIXELS)] = None,
    max_bytes: Annotated[str | None, data_option(metavar="NUMBER", help=MAX_BYTES)] = None,
    fit_images: Annotated[int | None, size_option(help="How many normal images to fit on.")] = None,
    test_images: Annotated[int | None, size_option(help="How many normal images to test with.")] = None,
    other_images: Annotated[int | None, size_option(help="How many images of each other set to test with.")] = None,
    corruption: Annotated[
        list[str] | None, size_option(help="A corruption; repeat for several. Default: all 19.")
    ] = None,
    severity: Annotated[list[int] | None, size_option(help="A severity; repeat for several. Default: all 5.")] = None,
    seeds: Annotated[
        int | None, size_option(help="How often to fit, each time on other images. Default: once.", min=1)
    ] = None,
    weights: Annotated[str | None, machine_option(help=f"{WEIGHTS} {DEFAULT_WEIGHTS_TEXT}")] = None,
    backbones: Annotated[
        Path | None, machine_option(help="The folder of fetched backbones. Default: in ~/.cache/discopatch.")
    ] = None,
    cache: Annotated[Path | None, machine_option(help="The folder for features. Default: OUT/features.")] = None,
    keep_images: Annotated[
        Path | None,
        machine_option(help="A folder to keep prepared images in, for runs with other weights: 200 kB an image."),
    ] = None,
    device: Annotated[str, machine_option(help="The device of the networks: auto, cpu, cuda, ...")] = "auto",
    workers: Annotated[int, machine_option(help="How many processes prepare images.", min=1)] = os.cpu_count() or 1,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Whether to draw figures.")] = True,
) -> None:
    """Measure every method on the same images, with confidence intervals and with controls for preprocessing."""
    from rich.console import Console

    from discopatch.bench.methods import choose_methods, default_methods
    from discopatch.bench.plan import MAX_FIT, BenchPlan, default_sizes
    from discopatch.bench.pool import CorruptionPool
    from discopatch.bench.runner import SCORES, load_mean_features, run_bench
    from discopatch.bench.store import ScoreStore
    from discopatch.bench.suites import get_suite
    from discopatch.encoders import resolve_device
    from discopatch.images import Limits
    from discopatch.pretrained import load_pretrained, load_weights
    from discopatch.utils import check_output, escaped, require

    console = Console(stderr=True)
    for module in ("pandas", "matplotlib", "umap") if figures else ("pandas",):  # before the long work
        require(module, "bench")
    check_output(out, folder=True)
    resolve_device(device)
    patterns = split_commas(methods or []) or default_methods(backbones, quick=quick)
    chosen = choose_methods(patterns)
    if not methods and (note := missing_backbones(backbones)):
        console.print(note, highlight=False)
    loaded = load_pretrained() if weights is None else load_weights(weights)
    given = {
        "protocols": choose_protocols(protocol or [], slip or []),
        "fit": fit_images,
        "test": test_images,
        "other": other_images,
        "corruptions": tuple(corruption) if corruption else None,
        "severities": tuple(severity) if severity else None,
        "seeds": tuple(range(seeds)) if seeds else None,
        "limits": Limits(**limits_of(max_pixels, max_bytes)),
    }
    sizes = default_sizes(suite, quick=quick) | {name: value for name, value in given.items() if value is not None}
    images = get_suite(
        suite,
        data=data,
        normal=normal,
        others=named_paths(other or []),
        test=sizes.get("test"),
        generate=generate,
    )
    if images.copies:
        console.print(f"{images.copies:,} copies of normal images are left out", highlight=False)
    plan = BenchPlan(images, loaded.transform, **{"fit": min(MAX_FIT, len(images.fit)), **sizes})
    with CorruptionPool(workers, frost="frost" in plan.corruptions) as pool, bench_progress(console) as progress:
        results = run_bench(
            plan,
            chosen,
            out,
            loaded,
            pool,
            cache=cache,
            keep_images=keep_images,
            device=device,
            backbones=backbones,
            optional=[name for name in chosen if str(name) not in patterns],
            notice=lambda text: console.print(text, highlight=False, markup=False),
            progress=progress,
        )
        from discopatch.bench.tables import write_tables

        write_tables(out, results)
        if figures:
            from discopatch.bench.plots import write_plots

            progress("drawing figures", 0, 1)
            write_plots(out / "figures", results, ScoreStore(out / SCORES), features=load_mean_features(out))
    Console().print(summary_table(results))
    written = ["results.json", "results.csv", "tables.md", "tables.tex", *(["figures/"] if figures else [])]
    console.print(escaped(f"{out}/{', '.join(written)}"), markup=False)


def choose_protocols(given: Sequence[str], slips: Sequence[str]) -> tuple[str, ...] | None:
    """The protocols by name, None for the default; that of the slips comes after its control."""
    from discopatch.bench.preprocessing import PROTOCOLS, slipped_name
    from discopatch.errors import ParameterError

    if not slips:
        return tuple(given) or None
    if given and "paper" not in given:
        raise ParameterError("--slip is for the protocol paper, which is also its control: add --protocol paper")
    return (*(given or PROTOCOLS), slipped_name(slips))


def split_commas(given: Sequence[str]) -> list[str]:
    return [name.strip() for each in given for name in each.split(",") if name.strip()]


def named_paths(given: Sequence[str]) -> dict[str, Path]:
    """Paths by name, from NAME=PATH; a path alone is named after its last part."""
    from discopatch.errors import ParameterError

    found: dict[str, Path] = {}
    for each in given:
        name, _, path = each.rpartition("=")
        name = name or Path(path).stem
        if name in found:
            raise ParameterError(f"two sets are called {name}: give one of them another name, --other NAME=FOLDER")
        found[name] = Path(path)
    return found


def missing_backbones(folder: Path | None) -> str:
    """A note about the backbones that are not fetched; empty when all are."""
    from discopatch.bench.networks import BACKBONES, is_fetched

    missing = [name for name in BACKBONES if not is_fetched(name, folder)]
    if not missing:
        return ""
    return f"without {', '.join(missing)}: `discopatch data fetch {' '.join(missing)}` downloads them"


@contextmanager
def bench_progress(console: "Console") -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each activity on a terminal; elsewhere a line whenever an activity or a set begins."""
    with progress_bar(console, "starting") as bar:
        last = ""

        def show(text: str, done: int, total: int) -> None:
            nonlocal last
            bar.describe(text.partition(":")[0])
            bar(done, total)
            if text != last and not console.is_terminal:
                console.print(f"{datetime.now():%H:%M:%S} {text} ({done:,} of {total:,})", highlight=False)
            last = text

        yield show


def summary_table(results: dict[str, Any]) -> "Table":
    """A row for each method: the mean AUROC of each group under each protocol, beside that of the controls."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from discopatch.bench.labels import encoder_label, score_label, split_method

    table = Table(
        title=f"{results['suite']}: mean AUROC x 100 / control",
        caption="Control: normal images with the same preprocessing against normal images. Where it is far from 50, "
        "the AUROC before it measures the preprocessing.",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    table.add_column("method", no_wrap=True)
    columns = [
        (group, found) for group in GROUPS for found in results["protocols"].items() if group in found[1]["means"]
    ]
    for group, (protocol, _) in columns:
        table.add_column(f"{GROUPS[group]}\n{protocol}", justify="right", no_wrap=True)
    last = ""
    for name in results["methods"]:
        encoder, method = split_method(name)
        if encoder != last:
            table.add_section()
            table.add_row(Text(encoder_label(encoder), style="bold"))
            last = encoder
        table.add_row(score_label(method), *(auroc_text(found, group, name) for group, (_, found) in columns))
    return table


def auroc_text(found: dict[str, Any], group: str, method: str) -> str:
    """Such as 93.1/50: AUROC and control of a method in one protocol's results."""
    means = found["means"][group][method]
    control = found["control"][method] if group == "covariate" else means.get("control")
    return f"{100 * means['auroc'][0]:.1f}" + (f"/{100 * control[0]:.0f}" if control else "")

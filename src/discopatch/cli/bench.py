"""`discopatch bench`"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discopatch.cli.options import DEFAULT_WEIGHTS_TEXT, WEIGHTS, progress_bar

if TYPE_CHECKING:
    from rich.table import Table

GROUPS = {"near": "near", "far": "far", "covariate": "corrupt"}
FILE_WIDTH = 100  # columns at least, where the table is not printed on a terminal

data_option = partial(typer.Option, rich_help_panel="Images")
size_option = partial(typer.Option, rich_help_panel="Sizes")
machine_option = partial(typer.Option, rich_help_panel="Machine")

METHODS = (
    "Methods as ENCODER/METHOD, with * for any, such as discopatch/*, discopatch-64/logit or dinov2=FOLDER/knn, a "
    "baseline with its options after it, such as resnet50/knn:k=10; repeat the option or separate them by commas. "
    "Default: our heads, the paper's score, and all heads and baselines on the networks of `discopatch data fetch`."
)
PLUGIN = (
    "A file of Python that registers methods of your own; its code is run. Repeat for several. Installed packages "
    "register theirs by the entry point discopatch.plugins."
)
DATA = "Root of the suite: natural/ and ood/, OpenOOD's data folder, or the folder of the solar cells' labels.csv."
OTHER = "Another set for suites folder and solar, NAME=FOLDER or NAME=SHARD.tar; repeat for several."


def bench(
    suite: Annotated[str, typer.Option(help="Suite of images: solar, natural, imagenet or folder.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run; the same command continues it.")],
    methods: Annotated[list[str] | None, typer.Option(help=METHODS)] = None,
    plugin: Annotated[list[Path] | None, typer.Option(help=PLUGIN)] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(help="Preprocessing: matched (one transform for all images) or paper. Default: both."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few images and corruptions: minutes on two cores.")] = False,
    data: Annotated[Path | None, data_option(help=DATA)] = None,
    normal: Annotated[Path | None, data_option(help="Normal images of suite folder.")] = None,
    other: Annotated[list[str] | None, data_option(help=OTHER)] = None,
    generate: Annotated[
        bool, data_option("--generate", help="Corrupt the test images even if there is ImageNet-C.")
    ] = False,
    fit_images: Annotated[int | None, size_option(help="Number of normal images to fit on.", min=1)] = None,
    test_images: Annotated[int | None, size_option(help="Number of normal images to test with.", min=1)] = None,
    other_images: Annotated[
        int | None, size_option(help="Number of images of each other set to test with.", min=1)
    ] = None,
    corruption: Annotated[list[str] | None, size_option(help="A corruption; repeat for several. Default: all.")] = None,
    severity: Annotated[list[int] | None, size_option(help="A severity; repeat for several. Default: all.")] = None,
    seeds: Annotated[int | None, size_option(help="Number of fits, each on other images. Default: 1.", min=1)] = None,
    weights: Annotated[str | None, machine_option(help=f"{WEIGHTS} {DEFAULT_WEIGHTS_TEXT}")] = None,
    backbones: Annotated[Path | None, machine_option(help="Folder of fetched networks. Default: the cache.")] = None,
    device: Annotated[str, machine_option(help="Device of the networks: auto, cpu, cuda, ...")] = "auto",
    workers: Annotated[int, machine_option(help="Number of processes that prepare images.", min=1)] = os.cpu_count()
    or 1,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Whether to draw figures.")] = True,
) -> None:
    """Measure every method on the same images, with confidence intervals and with controls for preprocessing."""
    from rich.console import Console

    from discopatch.bench.dataset import MAX_FIT, BenchPlan, CorruptionPool, default_sizes
    from discopatch.bench.methods import choose_methods, default_methods
    from discopatch.bench.networks.fetch import BACKBONES, is_fetched
    from discopatch.bench.plots import write_plots
    from discopatch.bench.plugins import load_plugins, plugin_errors
    from discopatch.bench.runner import BenchRun
    from discopatch.bench.suites import get_suite
    from discopatch.bench.tables import write_tables
    from discopatch.encoders import resolve_device
    from discopatch.pretrained import load_pretrained, load_weights
    from discopatch.utils import check_output, escaped, require

    console = Console(stderr=True, highlight=False, markup=False)
    for module in ("pandas", "matplotlib") if figures else ("pandas",):  # before the long work
        require(module, "bench")
    check_output(out, folder=True)
    resolve_device(device)
    plugins = load_plugins(plugin or [])
    given = [name.strip() for each in methods or [] for name in each.split(",") if name.strip()]
    patterns = given or default_methods(backbones, quick=quick)
    chosen = choose_methods(patterns)
    missing = [name for name in BACKBONES if not is_fetched(name, backbones)]
    if missing and not methods:
        console.print(f"without {', '.join(missing)}: `discopatch data fetch {' '.join(missing)}` downloads them")
    loaded = load_pretrained() if weights is None else load_weights(weights)
    chosen_sizes = {
        "protocols": tuple(protocol or ()),
        "fit": fit_images,
        "test": test_images,
        "other": other_images,
        "corruptions": tuple(corruption or ()),
        "severities": tuple(severity or ()),
        "seeds": tuple(range(seeds or 0)),
    }
    sizes = default_sizes(suite, quick=quick) | {name: value for name, value in chosen_sizes.items() if value}
    others = named_paths(other or [])
    images = get_suite(suite, data=data, normal=normal, others=others, test=sizes.get("test"), generate=generate)
    if images.copies:
        console.print(f"{images.copies:,} copies of normal images are left out")
    plan = BenchPlan(images, loaded.transform, **{"fit": min(MAX_FIT, len(images.fit)), **sizes})
    with (
        plugin_errors(),
        CorruptionPool(workers, frost="frost" in plan.corruptions) as pool,
        progress_bar(console, "starting") as bar,
    ):

        def progress(text: str, done: int, total: int) -> None:
            bar.describe(text)
            bar(done, total)

        run = BenchRun(
            plan,
            chosen,
            out,
            loaded,
            pool,
            device=device,
            backbones=backbones,
            weights_name=Path(weights).name if weights and weights.endswith(".safetensors") else None,
            plugins=plugins,
            optional=[name for name in chosen if name not in patterns],
            notice=console.print,
            progress=progress,
        )
        results = run.run()
        write_tables(out, results)
        if figures:
            progress("drawing figures", 0, 1)
            write_plots(out / "figures", results)
    usual = Console()
    printed = usual if usual.is_terminal else Console(width=max(usual.width, FILE_WIDTH))
    printed.print(summary_table(results))
    written = ["results.json", "results.csv", "tables.md", "tables.tex", *(["figures/"] if figures else [])]
    console.print(escaped(f"{out}/{', '.join(written)}"))


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


def summary_table(results: dict[str, Any]) -> "Table":
    """A row for each method: the mean AUROC of each group under each protocol, its control, and below its interval."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from discopatch.utils import escaped

    table = Table(
        title=f"{results['suite']}: mean AUROC x 100 / control, and its 95 % interval",
        caption="Control: normal images with the same preprocessing against normal images. Where it is far from 50, "
        f"the AUROC before it measures the preprocessing. n: images, compared with {results['sizes']['test']:,} "
        "normal ones.",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    table.add_column("method", overflow="fold")
    columns = [(protocol, group) for group in GROUPS for protocol in results["protocols"]]
    columns = [each for each in columns if each[1] in results["protocols"][each[0]]["means"]]
    for protocol, group in columns:
        count = results["protocols"][protocol]["images"][group]
        table.add_column(f"{GROUPS[group]}\n{protocol}\nn={count:,}", justify="right", no_wrap=True)
    for name in results["methods"]:
        cells = [auroc_text(results["protocols"][protocol], name, group) for protocol, group in columns]
        table.add_row(Text(escaped(name).replace("/", "/\n", 1)), *cells)
    return table


def auroc_text(found: dict[str, Any], method: str, group: str) -> str:
    """AUROC and control of a method in one protocol's results, such as 93.1/50, and a line with the interval."""
    means = found["means"][group][method]
    control = found["control"][method] if group == "covariate" else means.get("control")
    auroc, low, high = (100 * number for number in means["auroc"])
    return f"{auroc:.1f}" + (f"/{100 * control[0]:.0f}" if control else "") + f"\n{low:.1f}-{high:.1f}"

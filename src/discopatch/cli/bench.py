"""discopatch bench"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from discopatch.benchmark.suites.suite import Suite

DATA = "Images"
SIZES = "Sizes"
MACHINE = "Machine"


def bench(
    suite: Annotated[str, typer.Option(help="solar, natural, imagenet or folder.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run; the same command goes on in it.")],
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="EYE/METHOD, with * for any, such as discopatch/*, discopatch-64/logit, resnet50/energy, "
            "regnet=FOLDER/nnguide; several times or with commas. Default: our heads, the paper's score, and all "
            "baselines on the backbones that `discopatch data fetch` has brought."
        ),
    ] = None,
    protocol: Annotated[
        list[str] | None, typer.Option(help="matched (one transform for all) or paper; default: both, side by side.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few images and corruptions: minutes on two cores.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Root of the suite: natural/ and ood/, OpenOOD's data folder, or the solar cells' labels.csv.",
            rich_help_panel=DATA,
        ),
    ] = None,
    normal: Annotated[Path | None, typer.Option(help="Of suite folder: normal images.", rich_help_panel=DATA)] = None,
    other: Annotated[
        list[str] | None,
        typer.Option(
            help="Of suites folder and solar: NAME=FOLDER or a tar shard, several times.", rich_help_panel=DATA
        ),
    ] = None,
    generate: Annotated[
        bool,
        typer.Option("--generate", help="Corrupt test images though ImageNet-C is there.", rich_help_panel=DATA),
    ] = False,
    fit_images: Annotated[int | None, typer.Option(help="To fit on.", rich_help_panel=SIZES)] = None,
    test_images: Annotated[int | None, typer.Option(help="Normal ones to test with.", rich_help_panel=SIZES)] = None,
    other_images: Annotated[int | None, typer.Option(help="Of each other set.", rich_help_panel=SIZES)] = None,
    corruption: Annotated[
        list[str] | None, typer.Option(help="Several times; default: all 19.", rich_help_panel=SIZES)
    ] = None,
    severity: Annotated[
        list[int] | None, typer.Option(help="Several times; default: all 5.", rich_help_panel=SIZES)
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="How often to fit, each time on other images.", min=1, rich_help_panel=SIZES)
    ] = None,
    weights: Annotated[
        str, typer.Option(help="Released weights by name, or a .safetensors file.", rich_help_panel=MACHINE)
    ] = "natural-v1",
    backbones: Annotated[
        Path | None, typer.Option(help="Where fetched backbones lie (~/.cache/discopatch).", rich_help_panel=MACHINE)
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Where features go (OUT/features).", rich_help_panel=MACHINE)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...", rich_help_panel=MACHINE)] = "auto",
    workers: Annotated[
        int, typer.Option(help="Processes that prepare pictures.", min=1, rich_help_panel=MACHINE)
    ] = os.cpu_count() or 1,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="With pictures.")] = True,
    studies: Annotated[
        Path | None,
        typer.Option(help="Folder that `benchmarks/studies.py run` wrote: its tables and figures are added."),
    ] = None,
) -> None:
    """Measure every method on the same images, with intervals and with controls that show what the route does."""
    from rich.console import Console

    from discopatch.benchmark.benchplan import BenchPlan
    from discopatch.benchmark.methods import choose, default_methods
    from discopatch.benchmark.pool import Pool
    from discopatch.benchmark.quick import MOST_TO_FIT, sizes_of
    from discopatch.benchmark.run import Setting, run_bench, stored_features
    from discopatch.benchmark.runner import SCORES
    from discopatch.benchmark.scorestore import ScoreStore
    from discopatch.benchmark.studies.stored import Stored
    from discopatch.benchmark.tables import write_tables
    from discopatch.cli.benchprint import following, left_out, summary
    from discopatch.extras import check_installed
    from discopatch.weights import load_weights

    console = Console(stderr=True)
    for module in ("matplotlib", "umap") if figures else ():
        check_installed(module, extra="bench")
    studied = Stored.read(studies) if studies else Stored()
    chosen = choose(split_commas(methods) or default_methods(backbones, quick=quick))
    if not methods and (absent := left_out(backbones)):
        console.print(absent, highlight=False)
    loaded = load_weights(weights)
    asked = {
        "protocols": tuple(protocol) if protocol else None,
        "fit": fit_images,
        "test": test_images,
        "other": other_images,
        "corruptions": tuple(corruption) if corruption else None,
        "severities": tuple(severity) if severity else None,
        "seeds": tuple(range(seeds)) if seeds else None,
    }
    sizes = sizes_of(suite, quick=quick) | {name: value for name, value in asked.items() if value is not None}
    opened = open_suite(suite, data=data, normal=normal, other=other or [], test=sizes.get("test"), generate=generate)
    if opened.copies:
        console.print(f"{opened.copies:,} copies of normal images are left out", highlight=False)
    sizes.setdefault("fit", min(MOST_TO_FIT, len(opened.fit)))
    plan = BenchPlan(opened, loaded.transform, **sizes)
    setting = Setting(out, loaded, cache or out / "features", device, backbones)
    with Pool(workers, frost="frost" in plan.corruptions) as pool, following(console) as tell:
        report = run_bench(plan, chosen, setting, pool, tell)
        write_tables(out, report, studied.report)
        if figures:
            from discopatch.benchmark.figures.write import write_figures

            tell("drawing figures", 0, 1)
            write_figures(
                out / "figures",
                report,
                ScoreStore(out / SCORES),
                features=stored_features(out),
                studies=studied.report,
                losses=studied.losses,
            )
    Console().print(summary(report))
    written = ["results.json", "results.csv", "tables.md", "tables.tex"]
    written += ["studies.json"] * bool(studies) + ["figures/"] * figures
    console.print(f"{out}/{', '.join(written)}")


def split_commas(given: list[str] | None) -> list[str]:
    """Several in one option, or several options."""
    return [name.strip() for each in given or [] for name in each.split(",") if name.strip()]


def open_suite(
    name: str,
    *,
    data: Path | None = None,
    normal: Path | None = None,
    other: Sequence[str] = (),
    test: int | None = None,
    generate: bool = False,
) -> "Suite":
    """The files of the suite of that name; nothing is decoded."""
    from discopatch.benchmark.quick import FULL
    from discopatch.benchmark.suites.folder import folder_suite
    from discopatch.benchmark.suites.imagenet import imagenet_suite
    from discopatch.benchmark.suites.natural import natural_suite
    from discopatch.benchmark.suites.solar import solar_suite

    match name:
        case "solar":
            return solar_suite(data, named(other), test=test or FULL["solar"]["test"], seed=0)
        case "natural":
            return natural_suite(needed(data, "--data ROOT with natural/ and ood/"))
        case "imagenet":
            found = imagenet_suite(
                needed(data, "--data ROOT, OpenOOD's data folder with images_largescale/"), seed=0, per_cell=test
            )
            return replace(found, corrupted={}) if generate else found
        case "folder":
            return folder_suite(needed(normal, "--normal FOLDER"), named(other), test=test, seed=0)
        case _:
            raise ValueError(f"unknown suite {name!r}: choose solar, natural, imagenet or folder")


def needed(path: Path | None, option: str) -> Path:
    """The path, or an error that says how to give it."""
    if path is None:
        raise ValueError(f"this suite needs to know where its images lie: give {option}")
    return path


def named(other: Sequence[str]) -> dict[str, Path]:
    """NAME=FOLDER; a folder by itself has its own name."""
    found: dict[str, Path] = {}
    for each in other:
        name, _, place = each.rpartition("=")
        path = Path(place)
        name = name or path.stem
        if name in found:
            raise ValueError(f"two sets are called {name}: give one of them another name, --other NAME=FOLDER")
        found[name] = path
    return found

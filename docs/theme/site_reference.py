"""The reference of the package: a page for each of its public parts, from the names that these export."""

import ast
from pathlib import Path

TITLES = {
    "images": "files, folders, shards, tables and stores become images",
    "corruptions": "the corruptions of ImageNet-C",
    "model": "patches become logits and statistics",
    "encoders": "images become features",
    "heads": "features become one score an image",
    "training": "the paper's training, and ours",
    "export": "a detector without torch",
    "report": "the report and its heatmaps",
    "watch": "folders in which images arrive",
    "cluster": "many images: shards in, Parquet out",
}
FIRST = ("load", "Detector", "Runtime", "Predictions", "Prediction", "Explanation", "Monitor", "Client", "folder_test")
BENCH = ("suites", "baselines", "tables", "plots")
OTHERS = {  # modules with public names of their own
    "sklearn": ("ImageOutlierDetector",),
    "history": ("History",),
    "calibration": ("Guarantee", "p_values", "threshold"),
    "metrics": ("auroc", "fpr95", "fpr95_in", "aupr_in", "aupr_out"),
    "corruptions.places": ("change_place",),
}


def exported_names(package: Path) -> list[str]:
    """The names in `__all__` of the package in this folder, in its order, without importing it."""
    for statement in ast.parse((package / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return list(ast.literal_eval(statement.value))
    return []


def ordered(names: list[str]) -> list[str]:
    """What is met first comes first, and errors come last."""
    others = [name for name in names if name not in FIRST]
    errors = [name for name in others if name.endswith("Error")]
    return [*FIRST, *(name for name in others if name not in errors), *errors]


def python_pages(root: Path) -> dict[str, str]:
    """The text of each page by its place on the site. A name that several parts export stands on the first alone."""
    seen: dict[str, str] = {}
    pages = {"discopatch": _page("discopatch", "what most people need", {"": ordered(exported_names(root))}, seen)}
    for part, title in TITLES.items():
        pages[part] = _page(f"discopatch.{part}", title, {part: exported_names(root / part)}, seen)
    parts = {f"bench.{each}": exported_names(root / "bench" / each) for each in BENCH}
    pages["bench"] = _page("discopatch.bench", "suites, baselines, tables and plots", parts, seen)
    others = {part: list(names) for part, names in OTHERS.items()}
    pages["others"] = _page("Other modules", "scikit-learn, the history, calibration, metrics", others, seen)
    return {f"reference/{name}.md": text for name, text in pages.items()}


def _page(name: str, title: str, parts: dict[str, list[str]], seen: dict[str, str]) -> str:
    lines = [f"# {name}", "", f"{title[0].upper()}{title[1:]}.", ""]
    for part, names in parts.items():
        module = f"discopatch.{part}".rstrip(".")
        for each in names:
            if each == "__version__":
                lines += ["`discopatch.__version__` is the version, as text.", ""]
            elif each in seen:
                lines += [f"`{module}.{each}` is [`{seen[each]}`][{seen[each]}].", ""]
            else:
                seen[each] = f"{module}.{each}"
                lines += [f"::: {module}.{each}", ""]
    return "\n".join(lines)


def index_page() -> str:
    rows = [f"- [`discopatch.{part}`]({part}.md): {title}" for part, title in TITLES.items()]
    return "\n".join(
        [
            "# Reference",
            "",
            "Made from the code, so that it says what the code does.",
            "",
            "- [Commands](commands.md): every command with its options",
            "- [`discopatch`](discopatch.md): `Detector`, `Runtime`, `Monitor`, `Client`, predictions, errors",
            *rows,
            "- [`discopatch.bench`](bench.md): suites, baselines, tables and plots",
            "- [Other modules](others.md): scikit-learn, the history, calibration, metrics",
            "",
        ]
    )

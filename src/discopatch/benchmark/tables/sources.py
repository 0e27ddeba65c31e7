"""Which images the figures rest on."""

from discopatch.benchmark.tables.find import Report, look, protocols
from discopatch.benchmark.tables.labels import set_label
from discopatch.benchmark.tables.table import Cell, Heading, Number, Table

CELL = "/"  # in the name of corrupted images, which are the test images once more


def sources_table(report: Report) -> Table:
    """How many images, and digests by which one can tell whether one's own are the same."""
    data = report["data"]
    names = list(dict.fromkeys(name for protocol in protocols(report) for name in data.get(protocol, {})))
    rows = tuple(
        (set_label(name), _images(report, name), *(_digest(report, protocol, name) for protocol in protocols(report)))
        for name in names
        if CELL not in name
    )
    headings = (Heading("Set"), Heading("Images"), *(Heading(name, "Digest") for name in protocols(report)))
    caption = "A digest stands for all pixels as the network sees them."
    return Table("sources", "Images", caption, headings, rows)


def _images(report: Report, name: str) -> Cell:
    counts = (look(report, "data", protocol, name, "images") for protocol in protocols(report))
    return next(((Number(count, digits=0),) for count in counts if count is not None), "")


def _digest(report: Report, protocol: str, name: str) -> str:
    return look(report, "data", protocol, name, "digest") or ""

"""discopatch serve"""

from pathlib import Path
from typing import Annotated

import typer

from discopatch.cli import options

DETECTORS = (
    "Detectors that `discopatch fit` or `discopatch export` wrote, as PATH or NAME=PATH; or hf:// addresses of the "
    "Hugging Face hub, whose commit stays the same until the service ends."
)
HISTORY = (
    "SQLite file for predictions and the monitor; or postgresql://USER@HOST/DATABASE, which services may share. "
    "Default: discopatch/serve-PORT.sqlite in the user's state folder."
)
MAX_DECODED = "Pixels that all threads decode at the same time, for memory. Default: that of --max-pixels."
CLIENT_RATE = "Images a minute of each token, or of each address without tokens. Default: no limit."
TOKENS = "File with the tokens of callers, one per line as in `read TOKEN`; the roles are read, score and admin."
SIGNED = "Public key of minisign: load only detectors with a signature of its owner. Default: load all."
THREADS = "Scoring threads. Default: one per core for exports, one for other detectors."


def serve(
    detectors: Annotated[list[str], typer.Argument(help=DETECTORS)],
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.", min=0, max=65535)] = 8080,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    token_file: Annotated[Path | None, typer.Option(help=TOKENS)] = None,
    require_signature: Annotated[Path | None, typer.Option(metavar="KEY.pub", help=SIGNED)] = None,
    history: Annotated[str | None, typer.Option(metavar="FILE|URL", help=HISTORY)] = None,
    no_history: Annotated[bool, typer.Option("--no-history", help="Keep the last images in memory only.")] = False,
    keep: Annotated[int, typer.Option(help="Predictions of each detector in the history.", min=1)] = 100_000,
    rate: Annotated[float, typer.Option(help="Largest chance of a false alarm of the monitor, ever.")] = 0.01,
    device: options.Device = "auto",
    networks: options.Networks = None,
    batch_size: options.BatchSize = None,
    threads: Annotated[int | None, typer.Option(help=THREADS, min=1)] = None,
    max_pixels: options.MaxPixels = None,
    max_decoded: Annotated[int | None, options.size_option(help=MAX_DECODED)] = None,
    max_bytes: Annotated[int, options.size_option(help="Refuse images of more bytes.")] = "64Mi",  # type: ignore[assignment]
    max_request_bytes: Annotated[int, options.size_option(help="Refuse requests of more bytes.")] = "128Mi",  # type: ignore[assignment]
    max_files: Annotated[int, typer.Option(help="Images in one request.", min=1)] = 64,
    max_queue: Annotated[int, typer.Option(help="Images in the queue.", min=1)] = 256,
    client_rate: Annotated[int | None, typer.Option(help=CLIENT_RATE, min=1)] = None,
    timeout: Annotated[float, typer.Option(help="Seconds from the whole request to its answer.", min=0.1)] = 60,
) -> None:
    """Serve detectors over HTTP, with a page at /, until Ctrl-C or SIGTERM. SIGHUP reloads all detectors.

    Exports need no torch. The log on standard error has one JSON object per line.
    """
    given = {name: value for name, value in locals().items() if value is not None and name != "no_history"}
    if history is not None and no_history:
        raise typer.BadParameter("choose one of --history and --no-history")

    from discopatch.utils import require

    for module in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        require(module, "serve")
    from discopatch.history import default_path
    from discopatch.serve.server import run
    from discopatch.serve.settings import ServeSettings

    if history is None and not no_history and port:
        given["history"] = str(default_path(f"serve-{port}"))
    given |= {"detectors": detector_paths(detectors), "networks": tuple(networks or ())}
    run(ServeSettings(**given), announce=lambda address: print(address, flush=True))


def detector_paths(given: list[str]) -> dict[str, Path]:
    """The detectors given as NAME=PATH or PATH, by name, or else by their file, folder or repository."""
    from discopatch.errors import ParameterError
    from discopatch.serve.settings import NAME

    found: dict[str, Path] = {}
    for each in given:
        name, equals, place = each.partition("=")
        if not (equals and NAME.fullmatch(name)):
            name, place = "", each
        located = options.detector_of(place)
        own = "" if located.address else Path(place).name  # a link keeps its name
        name = name or (own or located.name).removesuffix(".safetensors")
        if name in found:
            raise ParameterError(f"two detectors are named {name}: name one of them, as in {name}-2={place}")
        found[name] = located.path
    return found

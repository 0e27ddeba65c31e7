"""discopatch serve"""

from pathlib import Path
from typing import Annotated

import typer

from discopatch.cli import options

LISTENING, LIMITS, HISTORY = "Who may call", "Limits", "History and monitor"


def serve(
    detectors: Annotated[
        list[str],
        typer.Argument(
            help="Detectors that `discopatch fit` or `discopatch export` wrote, as PATH or NAME=PATH; or hf:// "
            "addresses of the Hugging Face hub, whose commit stays the same until the service ends."
        ),
    ],
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any that is free.", min=0, max=65535)] = 8080,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with tokens, one a line, of which callers must have one.", rich_help_panel=LISTENING),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(help="Origin whose pages may call, such as https://factory.example.", rich_help_panel=LISTENING),
    ] = None,
    host_name: Annotated[
        list[str] | None,
        typer.Option(
            help="Further name under which a service without tokens is called on its own machine.",
            rich_help_panel=LISTENING,
        ),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            help="SQLite file for predictions and the monitor's state. Default: discopatch/serve-PORT.sqlite in the "
            "folder for states of programs.",
            rich_help_panel=HISTORY,
        ),
    ] = None,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Keep the last images in memory alone.", rich_help_panel=HISTORY)
    ] = False,
    keep: Annotated[
        int, typer.Option(help="Predictions of each detector that the history keeps.", min=1, rich_help_panel=HISTORY)
    ] = 100_000,
    rate: Annotated[
        float,
        typer.Option(help="Largest chance that the monitor ever raises a false alarm.", rich_help_panel=HISTORY),
    ] = 0.01,
    device: options.Device = "auto",
    weights: Annotated[list[str] | None, typer.Option(help=options.PLACES)] = None,
    batch_size: options.BatchSize = 8,
    threads: Annotated[
        int | None,
        typer.Option(help="Threads that score. Default: one a core for exports, one for other detectors.", min=1),
    ] = None,
    max_pixels: Annotated[
        str | None, typer.Option(metavar="NUMBER", help=options.MAX_PIXELS, rich_help_panel=LIMITS)
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="Refuse images of more bytes. Default: 64Mi.", rich_help_panel=LIMITS),
    ] = None,
    max_request_bytes: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="Refuse requests of more bytes. Default: 128Mi.", rich_help_panel=LIMITS),
    ] = None,
    max_files: Annotated[int, typer.Option(help="Images in one request.", min=1, rich_help_panel=LIMITS)] = 64,
    max_queue: Annotated[int, typer.Option(help="Images that may wait.", min=1, rich_help_panel=LIMITS)] = 256,
    max_queue_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER", help="Bytes of images that wait or arrive. Default: 512Mi.", rich_help_panel=LIMITS
        ),
    ] = None,
    max_connections: Annotated[int, typer.Option(help="Open connections.", min=1, rich_help_panel=LIMITS)] = 512,
    timeout: Annotated[
        float, typer.Option(help="Seconds from the whole request to its answer.", min=0.1, rich_help_panel=LIMITS)
    ] = 60,
    drain: Annotated[
        float, typer.Option(help="Seconds for which a stopping service still listens.", min=0, rich_help_panel=LIMITS)
    ] = 1,
) -> None:
    """Serve detectors over HTTP, with a page at /, until Ctrl-C or SIGTERM; SIGHUP loads all detectors anew.

    With an export nothing of torch is needed. The log is JSON, a line a request, on the standard error.
    """
    if history is not None and no_history:
        raise typer.BadParameter("choose one of --history and --no-history")

    from discopatch.utils import require

    for module in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        require(module, "serve")
    from discopatch.serve.server import run
    from discopatch.serve.settings import ServeSettings, default_history, named_paths

    sizes = {
        "max_pixels": max_pixels,
        "max_bytes": max_bytes,
        "max_request_bytes": max_request_bytes,
        "max_queue_bytes": max_queue_bytes,
    }
    given = {
        name: options.size_of(text, f"--{name.replace('_', '-')}") for name, text in sizes.items() if text is not None
    }
    if history is None and not no_history and port:
        history = default_history(port)
    settings = ServeSettings(
        detectors=named_paths(detectors, options.detector_of),
        host=host,
        port=port,
        token_file=token_file,
        cors=tuple(cors or ()),
        host_names=tuple(host_name or ()),
        history=history,
        keep=keep,
        monitor_rate=rate,
        device=device,
        weights=tuple(weights or ()),
        batch_size=batch_size,
        threads=threads,
        max_files=max_files,
        max_queue=max_queue,
        max_connections=max_connections,
        timeout=timeout,
        drain=drain,
        **given,
    )
    run(settings, announce=lambda address: print(address, flush=True))

"""A tiny run as a process of its own: python -m tests.training.run_tiny PHOTOS CACHE OUT [--resume]."""

import argparse
from pathlib import Path

from rich.console import Console

from discopatch.training import RunOptions, train
from tests.training.tiny import tiny_config


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("photos", "cache", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--checkpoint-every", type=int, default=3)
    given = parser.parse_args()
    train(
        str(given.photos),
        given.out,
        tiny_config(steps=given.steps, weight_degraded=1.0, weight_classified=0.5),
        cache=given.cache,
        resume=given.resume,
        options=RunOptions(
            accelerator="cpu",
            devices=given.ranks,
            checkpoint_every=given.checkpoint_every,
            samples_every=1000,
            log_every=4,
        ),
        console=Console(stderr=True),
    )


if __name__ == "__main__":
    main()

"""Scoring on three nodes of Ray while workers, drivers and a node are stopped at random times.

DISCOPATCH_IMAGES=10000 DISCOPATCH_RESULT=docs/results/ray-interruptions.json pytest tests/batch/test_interruptions.py
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discopatch import Detector
from discopatch.batch import read_scores, score_to
from discopatch.images import NamedImage
from tests.samples import one_camera, save_images

from .samples import OBJECT_STORE, contents, part_files, tar_shard, three_nodes, working_actors

IMAGES = int(os.environ.get("DISCOPATCH_IMAGES", "1000"))
PARTS = max(40, IMAGES // 50)
STOPS = {"worker": 20, "driver": 3, "node": 2}  # at most: a part must have the time to end


def write_images(folder: Path, count: int) -> None:
    """Half of the images in shards, half of them loose, each of a noise of its own, and one that is none."""
    base, rng, each = one_camera(20), np.random.default_rng(1), count // PARTS
    for part in range(PARTS):
        changed = [
            NamedImage(
                f"{part:03d}-{number:03d}", np.clip(pixels + rng.integers(0, 20, pixels.shape), 0, 255).astype(np.uint8)
            )
            for number, pixels in ((number, base[number % len(base)].pixels.astype(int)) for number in range(each))
        ]
        if part % 2:
            save_images(folder, changed)
        else:
            tar_shard(folder / f"{part:03d}.tar", changed)
    (folder / "001-000.png").write_text("no image")


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_rows_are_equal_to_the_bit_whatever_is_stopped(tiny: Detector, tiny_file: Path, tmp_path: Path) -> None:
    source, out, expected, printed = (tmp_path / name for name in ("in", "scores", "expected", "printed.txt"))
    write_images(source, IMAGES)
    score_to(tiny, source, expected)
    rng, stopped, statuses = np.random.default_rng(0), Counter[str](), list[int]()
    start = time.monotonic()
    with three_nodes() as cluster:
        given = ["score", source, "--detector", tiny_file, "--out", out, "--device", "cpu", "--ray", cluster.address]
        command = [sys.executable, "-m", "discopatch", *map(str, given)]
        while not statuses or statuses[-1] != 0:
            with printed.open("w") as file:  # a pipe may fill
                driver = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
            while driver.poll() is None:
                time.sleep(float(rng.uniform(0.2, 2)))
                working = working_actors(os.getpid())
                number = signal.SIGTERM if rng.random() < 0.5 else signal.SIGINT
                kind = str(rng.choice(["worker", "worker", "worker", "driver", "node"])) if working else ""
                if stopped[kind] >= STOPS.get(kind, 0):
                    continue
                if kind == "worker":
                    with suppress(ProcessLookupError):
                        os.kill(int(rng.choice(working)), number)
                elif kind == "driver":
                    driver.send_signal(number)
                else:
                    cluster.remove_node(max(cluster.worker_nodes, key=id), allow_graceful=False)
                    cluster.add_node(num_cpus=1, object_store_memory=OBJECT_STORE)
                stopped[kind] += 1
            statuses.append(driver.returncode)
            ended_by_second = (-signal.SIGINT, -signal.SIGTERM)
            assert driver.returncode in (0, 130, 143, *ended_by_second), printed.read_text()[-3000:]
    assert contents(out) == contents(expected)
    table = read_scores(out).to_table()
    assert table.num_rows == IMAGES
    assert table.equals(read_scores(expected).to_table())
    if (result := os.environ.get("DISCOPATCH_RESULT")) is not None:
        found: dict[str, Any] = {"images": IMAGES, "parts": len(part_files(out)), "nodes": 3, "stopped": dict(stopped)}
        found |= {"drivers": len(statuses), "seconds": round(time.monotonic() - start), "equal rows": table.num_rows}
        Path(result).write_text(json.dumps(found, indent=1) + "\n")

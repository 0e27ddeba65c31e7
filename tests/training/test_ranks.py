"""Two processes that train together, over gloo, under torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from discopatch.images import NamedImage, open_cache, read_images
from discopatch.images.tensors import to_unit
from discopatch.model import Networks, extract_patches, random_corners
from discopatch.training import TrainingConfig
from discopatch.training.augment import DegradedBatch
from discopatch.training.auxiliary import AuxiliaryDiscriminator
from discopatch.training.batches import image_order, step_generator
from discopatch.training.checkpoint import RunFolder
from discopatch.training.logging import read_losses
from discopatch.training.step import Noise, adversarial_step
from tests.training.shards import write_shards
from tests.training.tiny import ARCHITECTURE, tiny_config

ROOT = Path(__file__).parents[2]

ONE_STEP = """
import sys
from pathlib import Path
from safetensors.torch import save_file
from discopatch.images import open_cache
from discopatch.training import Hardware, RunOptions
from discopatch.training.checkpoint import RunFolder
from discopatch.training.hardware import leave_together, start_fabric
from discopatch.training.loop import Trainer
from tests.training.tiny import tiny_config

photos, cache, out = map(Path, sys.argv[1:])
hardware, config = Hardware(accelerator="cpu", devices=2), tiny_config()
fabric = start_fabric(hardware)
images = open_cache(str(photos), config.transform, cache)
trainer = Trainer(fabric, config, images, RunFolder(out), hardware, RunOptions())
trainer.one_step()
found = {}
for name, part in trainer.trainables.items():
    for key, parameter in part.network.named_parameters():
        found[f"gradient/{name}/{key}"] = parameter.grad.contiguous()
        found[f"weight/{name}/{key}"] = parameter.detach().contiguous()
save_file(found, out / f"rank-{fabric.global_rank}.safetensors")
leave_together(fabric, "one step")
"""


def torchrun(*arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def gradients_of_rank(rank: int, photos: Path, cache: Path, config: TrainingConfig) -> dict[str, torch.Tensor]:
    """What that rank's batch alone would give, computed by one process without Fabric."""
    networks = Networks.from_seed(ARCHITECTURE, config.seed)
    discriminator = AuxiliaryDiscriminator.from_config(networks.discriminator, config)
    still = [torch.optim.SGD(network.parameters(), lr=0.0) for network in (networks.vae, discriminator)]
    pixels = torch.from_numpy(np.array(open_cache(str(photos), config.transform, cache).pixels))
    which = image_order(rank * config.images, config.images, images=len(pixels), seed=config.seed)
    generator = step_generator(config.seed, 0, rank, "cpu")
    corners = random_corners(config.images, config.patches, size=64, patch_size=16, generator=generator)
    real = to_unit(extract_patches(pixels[which], corners, 16))
    noise = Noise.draw(len(real), ARCHITECTURE.latent, generator)
    whole = to_unit(pixels[which]).permute(0, 3, 1, 2)
    batch = DegradedBatch.draw(whole, generator, step=0) if config.weight_degraded else None
    adversarial_step(networks.vae, discriminator, still, real, noise, config, degraded=batch)
    return {
        f"gradient/{name}/{key}": parameter.grad
        for name, network in (("vae", networks.vae), ("discriminator", discriminator))
        for key, parameter in network.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"weight_degraded": 1.0, "weight_classified": 0.5}])
def test_both_ranks_have_the_mean_gradient_and_the_same_weights(photos, cache, tmp_path, changes) -> None:
    script = tmp_path / "one_step.py"
    script.write_text(ONE_STEP.replace("tiny_config()", f"tiny_config(**{changes})"))
    open_cache(str(photos), tiny_config().transform, cache)
    torchrun(script, photos, cache, tmp_path)
    first, second = (load_file(tmp_path / f"rank-{rank}.safetensors") for rank in (0, 1))
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []

    alone = [gradients_of_rank(rank, photos, cache, tiny_config(**changes)) for rank in (0, 1)]
    assert not torch.equal(alone[0]["gradient/vae/to_mean.weight"], alone[1]["gradient/vae/to_mean.weight"])
    for name, gradient in alone[0].items():
        torch.testing.assert_close(first[name], (gradient + alone[1][name]) / 2, rtol=1e-4, atol=1e-7)


TAKEN = """
import sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from discopatch.images import open_index
from discopatch.training import Hardware, RunOptions
from discopatch.training.checkpoint import RunFolder
from discopatch.training.hardware import leave_together, start_fabric
from discopatch.training.loop import Trainer
from tests.training.tiny import tiny_config

shards, cache, out = map(Path, sys.argv[1:])
hardware, config = Hardware(accelerator="cpu", devices=2), tiny_config(stream=True)
fabric = start_fabric(hardware)
trainer = Trainer(fabric, config, open_index(str(shards), cache), RunFolder(out), hardware, RunOptions())
taken = []
for step in range(5):
    taken.append(trainer.next_images().clone())
    trainer.one_step()
trainer.images.close()
save_file({"taken": torch.cat(taken)}, out / f"rank-{fabric.global_rank}.safetensors")
leave_together(fabric, "taken")
"""


@pytest.mark.slow
def test_two_ranks_take_disjoint_halves_of_each_epoch_of_the_shards(cache, tmp_path) -> None:
    shards = write_shards(tmp_path / "shards", (7, 3, 10))
    script = tmp_path / "taken.py"
    script.write_text(TAKEN)
    torchrun(script, shards, cache, tmp_path)
    seen = [load_file(tmp_path / f"rank-{rank}.safetensors")["taken"].numpy() for rank in (0, 1)]
    every = [each.pixels for each in read_images(str(shards)) if isinstance(each, NamedImage)]
    numbers = [[number for image in rank for number, own in enumerate(every) if (image == own).all()] for rank in seen]
    assert [len(each) for each in numbers] == [10, 10]
    assert sorted(numbers[0] + numbers[1]) == list(range(20))


@pytest.mark.slow
@pytest.mark.parametrize("way", [(), ("--stream",)])
def test_a_run_of_two_ranks_is_whole_and_resumes_to_the_bit(photos, cache, tmp_path, way) -> None:
    ranks = ("--ranks", 2, "--checkpoint-every", 4, *way)
    if way:
        photos = write_shards(tmp_path / "shards", (7, 3, 10), broken=(4,))
    script = ROOT / "tests" / "training" / "run_tiny.py"
    torchrun(script, photos, cache, tmp_path / "whole", "--steps", 12, *ranks)
    torchrun(script, photos, cache, tmp_path / "parts", "--steps", 8, *ranks)
    torchrun(script, photos, cache, tmp_path / "parts", "--steps", 12, "--resume", *ranks)
    whole, parts = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "parts")
    assert [line[0] for line in read_losses(whole.losses)] == list(range(1, 13))
    assert whole.losses.read_text() == parts.losses.read_text()
    expected, found = (load_file(run.weights) for run in (whole, parts))
    assert all(torch.equal(expected[name], found[name]) for name in expected)

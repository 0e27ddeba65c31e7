"""Two processes that train together, over gloo, under torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from discopatch.images import open_cache
from discopatch.model import Pair
from discopatch.patches import cut, random_corners, to_unit
from discopatch.training.lesson import Lesson
from discopatch.training.log import read_losses
from discopatch.training.loop import critic_of
from discopatch.training.order import pictures_at, step_generator
from discopatch.training.recipe import Recipe
from discopatch.training.run import Run
from discopatch.training.step import Noise, adversarial_step
from tests.training.tiny import ARCHITECTURE, tiny_recipe

ROOT = Path(__file__).parents[2]

ONE_STEP = """
import sys
from pathlib import Path
from safetensors.torch import save_file
from discopatch.images import open_cache
from discopatch.training.loop import Habits, Training
from discopatch.training.machine import Machine, leave_together, start_fabric
from discopatch.training.run import Run
from tests.training.tiny import tiny_recipe

photos, cache, out = map(Path, sys.argv[1:])
machine, recipe = Machine(accelerator="cpu", devices=2), tiny_recipe()
fabric = start_fabric(machine)
pictures = open_cache(str(photos), recipe.transform, cache)
training = Training(fabric, recipe, pictures, Run(out), machine, Habits())
training.one_step()
found = {}
for name, part in training.trained.items():
    for key, parameter in part.network.named_parameters():
        found[f"gradient/{name}/{key}"] = parameter.grad.contiguous()
        found[f"weight/{name}/{key}"] = parameter.detach().contiguous()
save_file(found, out / f"rank-{fabric.global_rank}.safetensors")
leave_together(fabric, "one step")
"""


def torchrun(*words: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def gradients_of_rank(rank: int, photos: Path, cache: Path, recipe: Recipe) -> dict[str, torch.Tensor]:
    """What that rank's batch alone would give, computed by one process without Fabric."""
    pair = Pair.from_seed(ARCHITECTURE, recipe.seed)
    critic = critic_of(pair.discriminator, recipe)
    still = [torch.optim.SGD(network.parameters(), lr=0.0) for network in (pair.vae, critic)]
    pixels = torch.from_numpy(np.array(open_cache(str(photos), recipe.transform, cache).pixels))
    which = pictures_at(rank * recipe.images, recipe.images, pictures=len(pixels), seed=recipe.seed)
    generator = step_generator(recipe.seed, 0, rank, "cpu")
    corners = random_corners(recipe.images, recipe.patches, size=64, patch_size=16, generator=generator)
    real = to_unit(cut(pixels[which], corners, 16))
    noise = Noise.draw(len(real), ARCHITECTURE.latent, generator)
    whole = to_unit(pixels[which]).permute(0, 3, 1, 2)
    lesson = Lesson.draw(whole, generator, first=0) if recipe.weight_spoiled else None
    adversarial_step(pair.vae, critic, still, real, noise, recipe, lesson=lesson)
    return {
        f"gradient/{name}/{key}": parameter.grad
        for name, network in (("vae", pair.vae), ("critic", critic))
        for key, parameter in network.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"weight_spoiled": 1.0, "weight_named": 0.5}])
def test_both_ranks_have_the_mean_gradient_and_the_same_weights(photos, cache, tmp_path, changes) -> None:
    script = tmp_path / "one_step.py"
    script.write_text(ONE_STEP.replace("tiny_recipe()", f"tiny_recipe(**{changes})"))
    open_cache(str(photos), tiny_recipe().transform, cache)
    torchrun(script, photos, cache, tmp_path)
    first, second = (load_file(tmp_path / f"rank-{rank}.safetensors") for rank in (0, 1))
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []

    alone = [gradients_of_rank(rank, photos, cache, tiny_recipe(**changes)) for rank in (0, 1)]
    assert not torch.equal(alone[0]["gradient/vae/to_mean.weight"], alone[1]["gradient/vae/to_mean.weight"])
    for name, gradient in alone[0].items():
        torch.testing.assert_close(first[name], (gradient + alone[1][name]) / 2, rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_a_run_of_two_ranks_is_whole_and_resumes_to_the_bit(photos, cache, tmp_path) -> None:
    ranks = ("--ranks", 2, "--checkpoint-every", 4)
    script = ROOT / "tests" / "training" / "run_tiny.py"
    torchrun(script, photos, cache, tmp_path / "whole", "--steps", 12, *ranks)
    torchrun(script, photos, cache, tmp_path / "parts", "--steps", 8, *ranks)
    torchrun(script, photos, cache, tmp_path / "parts", "--steps", 12, "--resume", *ranks)
    whole, parts = Run(tmp_path / "whole"), Run(tmp_path / "parts")
    assert [line[0] for line in read_losses(whole.losses)] == list(range(1, 13))
    assert whole.losses.read_text() == parts.losses.read_text()
    expected, found = (load_file(run.weights) for run in (whole, parts))
    assert all(torch.equal(expected[name], found[name]) for name in expected)

"""A checkpoint is whole or not there: what is restored is what was saved, to the bit."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from discopatch.errors import CheckpointError
from discopatch.model import Networks
from discopatch.training.auxiliary import AuxiliaryDiscriminator
from discopatch.training.checkpoint import CheckpointHeader, Checkpoints, Trainable
from discopatch.training.step import Noise, adversarial_step
from tests.training.tiny import ARCHITECTURE, tiny_config


def trained(seed: int, steps: int = 2) -> dict[str, Trainable]:
    """Both networks after a few steps, so that the optimisers have a state."""
    networks = Networks.from_seed(ARCHITECTURE, seed)
    parts = {
        name: Trainable(network, torch.optim.Adam(network.parameters(), lr=1e-3))
        for name, network in (("vae", networks.vae), ("discriminator", networks.discriminator))
    }
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        real = torch.rand(8, 3, 16, 16, generator=generator) * 2 - 1
        noise = Noise.draw(8, ARCHITECTURE.latent, generator)
        optimisers = [part.optimiser for part in parts.values()]
        auxiliary = AuxiliaryDiscriminator(networks.discriminator)
        adversarial_step(networks.vae, auxiliary, optimisers, real, noise, tiny_config())
    return parts


def state(parts: dict[str, Trainable]) -> dict[str, torch.Tensor]:
    return {f"{part}/{name}": value.clone() for part in parts for name, value in parts[part].state()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def test_networks_and_optimisers_come_back_to_the_bit(tmp_path: Path) -> None:
    saved, fresh = trained(seed=0), trained(seed=1, steps=0)
    Checkpoints(tmp_path).save(2, 16, saved)
    assert Checkpoints(tmp_path).restore(fresh) == CheckpointHeader(2, 16)
    assert any("exp_avg_sq" in name for name in state(saved))
    assert_same(state(saved), state(fresh))


def test_what_is_restored_keeps_the_memory_order_of_its_parameter(tmp_path: Path) -> None:
    saved, fresh = trained(seed=0), trained(seed=1, steps=0)
    Checkpoints(tmp_path).save(2, 16, saved)
    Checkpoints(tmp_path).restore(fresh)
    for part in fresh.values():
        for parameter, slot in part.optimiser.state.items():
            assert slot["exp_avg"].stride() == parameter.stride()


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2, 3, 10):
        checkpoints.save(step, 8 * step, trained(seed=0, steps=0))
    assert [path.name for path in checkpoints.newest_first()] == [
        "step-000000010.safetensors",
        "step-000000003.safetensors",
    ]


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    before = trained(seed=0)
    checkpoints.save(1, 8, before)
    newest = checkpoints.save(2, 16, trained(seed=1))
    newest.write_bytes(newest.read_bytes()[:-100])
    fresh = trained(seed=2, steps=0)
    assert checkpoints.restore(fresh) == CheckpointHeader(1, 8)
    assert_same(state(before), state(fresh))


def test_no_checkpoint_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--resume"):
        Checkpoints(tmp_path).restore(trained(seed=0, steps=0))


FULL_DISK = """
import resource, sys
from pathlib import Path
from discopatch.errors import CheckpointError
from discopatch.training.checkpoint import Checkpoints
from tests.training.test_checkpoint import trained
checkpoints = Checkpoints(Path(sys.argv[1]))
size = checkpoints.newest_first()[0].stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))
try:
    checkpoints.save(2, 16, trained(seed=1))
except CheckpointError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_previous_checkpoint_and_the_error_names_it(tmp_path: Path) -> None:
    saved = trained(seed=0)
    Checkpoints(tmp_path).save(1, 8, saved)
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "step 2" in done.stdout
    assert str(tmp_path / "step-000000001.safetensors") in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001.safetensors"]
    fresh = trained(seed=2, steps=0)
    assert Checkpoints(tmp_path).restore(fresh) == CheckpointHeader(1, 8)
    assert_same(state(saved), state(fresh))

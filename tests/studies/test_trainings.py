"""The trainings: alike in all but what is studied, continued rather than begun again."""

from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from discopatch.errors import ParameterError
from discopatch.model.layers import Block
from discopatch.training import Ending
from discopatch.training.auxiliary import AuxiliaryDiscriminator
from discopatch.training.loop import Trainer
from paper.plan import Plan, all_jobs, make_job
from tests.studies.samples import SMALL, make_trainings


@pytest.mark.parametrize("plan", [Plan(), Plan.tiny()])
def test_every_training_sees_as_many_images_and_pixels_in_as_many_steps(plan: Plan) -> None:
    jobs = all_jobs(plan)
    assert {(job.config.steps, job.config.images, job.config.learning_rate) for job in jobs} == {
        (plan.steps, plan.images, plan.learning_rate)
    }
    assert len({job.patches_seen * job.config.architecture.patch_size**2 for job in jobs}) == 1
    assert {job.patches_seen for job in jobs if job.of_patches} == {plan.steps * plan.images * plan.patches}
    assert plan.steps * plan.images * plan.patches >= plan.patches_in_all


def test_the_trainings_are_one_of_each_kind_and_then_the_other_seeds() -> None:
    names = [job.name for job in all_jobs(Plan())]
    assert names[:5] == ["paper-0", "natural-0", "group-0", "instance-0", "full-0"]
    assert sorted(names[5:]) == sorted(f"{kind}-{seed}" for kind in ("paper", "natural") for seed in (1, 2, 3, 4))


def test_the_configs_differ_in_what_is_studied() -> None:
    configs = {job.kind: job.config for job in all_jobs(Plan(seeds=1))}
    layers = {kind: config.architecture.normalisation for kind, config in configs.items()}
    expected = {"paper": "patch", "natural": "patch", "group": "group", "instance": "instance", "full": "batch"}
    assert layers == expected
    assert configs["natural"].weight_degraded > 0 == configs["paper"].weight_degraded
    assert configs["full"].architecture.patch_size == Plan().transform.size


@pytest.mark.parametrize("change", [{"seeds": 0}, {"precision": "bf8"}])
def test_a_plan_of_nothing_is_refused(change) -> None:
    with pytest.raises(ParameterError):
        replace(SMALL, **change)


def test_a_complete_training_is_not_begun_again(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainings, job = make_trainings(folders, tmp_path), make_job("group", 0, SMALL)
    assert trainings.train(job) is Ending.COMPLETE
    assert trainings.is_complete(job)
    assert not trainings.run_folder(job).checkpoints.newest_first(), "large, and of no more use"
    digest = trainings.weights(job).digest
    monkeypatch.delattr(Trainer, "run")
    assert trainings.train(job) is Ending.COMPLETE
    described = trainings.describe(job)
    assert described["weights digest"] == digest
    assert described["steps"] == SMALL.steps
    assert described["passes"] == "plain"


def test_a_training_that_ran_out_of_time_continues_and_ends_as_if_it_had_not(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job("natural", 1, SMALL)
    whole, parted = make_trainings(folders, tmp_path / "whole"), make_trainings(folders, tmp_path / "parted")
    whole.train(job)
    with monkeypatch.context() as patch:
        patch.setattr("paper.trainings.MIN_MINUTES", 1e-9)
        assert parted.train(job, minutes=1e-9, keep_vae=True) is Ending.OUT_OF_TIME
    assert not parted.is_complete(job)
    assert parted.train(job, keep_vae=True) is Ending.COMPLETE
    assert parted.run_folder(job).checkpoints.newest_first()
    assert parted.weights(job).digest == whole.weights(job).digest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "passes"),
    [
        ("paper", "fused"),
        ("natural", "fused, whole images plain"),
        ("instance", "fused, discriminator plain"),
        ("full", "plain"),
    ],
)
def test_whole_images_take_the_plain_passes_and_patches_the_fused(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind, passes: str
) -> None:
    asked: set[tuple[bool, bool]] = set()
    original = Block.forward

    def watched(block: Block, x, group=None, *, statistics: bool = False):
        asked.add((x.shape[-1] > 16, block.fused is not None))
        return original(block, x, group, statistics=statistics)

    monkeypatch.setattr(Block, "forward", watched)
    trainings, job = make_trainings(folders, tmp_path, compile=True), make_job(kind, 0, SMALL)
    trainings.train(job)
    assert trainings.note(job)["passes"] == passes
    if kind == "natural":  # its patches have 16 pixels a side, its images more
        assert (True, False) in asked
        assert (True, True) not in asked
    assert ((False, True) in asked) == (passes != "plain"), "patches are fused wherever anything is"
    norms = {type(module) for module in trainings.weights(job).discriminator.modules()}
    assert (nn.BatchNorm2d in norms) == (kind == "full")
    assert AuxiliaryDiscriminator.forward.__module__ == "discopatch.training.auxiliary", "nothing stays replaced"

"""The trainings: alike in all but what is studied, gone on with rather than begun again."""

from pathlib import Path

import pytest
from torch import nn

from discopatch.benchmark.studies.jobs import all_jobs, make_job
from discopatch.benchmark.studies.plan import Plan
from discopatch.model.blocks import Block
from discopatch.training.critic import Critic
from discopatch.training.loop import Ending, Training
from tests.benchmark.studies.samples import SMALL, make_school


@pytest.mark.parametrize("plan", [Plan(), Plan.tiny()])
def test_every_training_sees_as_many_pictures_and_pixels_in_as_many_steps(plan: Plan) -> None:
    jobs = all_jobs(plan)
    assert {(job.recipe.steps, job.recipe.images, job.recipe.learning_rate) for job in jobs} == {
        (plan.steps, plan.images, plan.learning_rate)
    }
    assert len({job.patches * job.recipe.architecture.patch_size**2 for job in jobs}) == 1
    assert {job.patches for job in jobs if job.of_patches} == {plan.steps * plan.images * plan.patches}
    assert plan.steps * plan.images * plan.patches >= plan.patches_in_all


def test_the_trainings_are_one_of_each_kind_and_then_the_other_seeds() -> None:
    names = [job.name for job in all_jobs(Plan())]
    assert names[:5] == ["paper-0", "natural-0", "group-0", "instance-0", "full-0"]
    assert sorted(names[5:]) == sorted(f"{kind}-{seed}" for kind in ("paper", "natural") for seed in (1, 2, 3, 4))


def test_the_recipes_differ_in_what_is_studied() -> None:
    recipes = {job.kind: job.recipe for job in all_jobs(Plan(seeds=1))}
    layers = {kind: recipe.architecture.normalisation for kind, recipe in recipes.items()}
    expected = {"paper": "patch", "natural": "patch", "group": "group", "instance": "instance", "full": "batch"}
    assert layers == expected
    assert recipes["natural"].weight_spoiled > 0 == recipes["paper"].weight_spoiled
    assert recipes["full"].architecture.patch_size == Plan().transform.size


def test_a_complete_training_is_not_begun_again(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    school, job = make_school(tree, tmp_path), make_job("group", 0, SMALL)
    assert school.train(job) is Ending.COMPLETE
    assert school.is_complete(job)
    assert not school.run_of(job).checkpoints.newest_first()  # large, and of no more use
    digest = school.weights_of(job).digest
    monkeypatch.delattr(Training, "one_step")
    assert school.train(job) is Ending.COMPLETE
    described = school.describe(job)
    assert described["weights digest"] == digest
    assert described["steps"] == SMALL.steps
    assert described["passes"] == "plain"


def test_a_training_that_ran_out_of_time_goes_on_and_ends_as_if_it_had_not(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job("natural", 1, SMALL)
    whole, parted = make_school(tree, tmp_path / "whole"), make_school(tree, tmp_path / "parted")
    whole.train(job)
    with monkeypatch.context() as patch:
        patch.setattr("discopatch.benchmark.studies.training.SHORTEST", 1e-9)
        assert parted.train(job, minutes=1e-9, keep_vae=True) is Ending.OUT_OF_TIME
    assert not parted.is_complete(job)
    assert parted.train(job, keep_vae=True) is Ending.COMPLETE
    assert parted.run_of(job).checkpoints.newest_first()
    assert parted.weights_of(job).digest == whole.weights_of(job).digest


def test_whole_pictures_take_the_plain_passes_and_patches_the_fused(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[bool, bool]] = []
    plain = Critic.forward

    def watched(critic: Critic, *args, whole: bool = False):
        blocks = [block for block in critic.modules() if isinstance(block, Block)]
        asked.append((whole, all(block.fused for block in blocks)))
        assert len({block.fused for block in blocks}) == 1
        return plain(critic, *args, whole=whole)

    monkeypatch.setattr(Critic, "forward", watched)
    school, job = make_school(tree, tmp_path, compile=True), make_job("natural", 0, SMALL)
    school.train(job)
    assert school.note_of(job)["passes"] == "fused, whole pictures plain"
    assert set(asked) == {(True, False), (False, True)}


@pytest.mark.parametrize(
    ("kind", "passes"), [("paper", "fused"), ("instance", "fused, discriminator plain"), ("full", "plain")]
)
def test_what_is_fused_is_noted(tree: Path, tmp_path: Path, kind, passes: str) -> None:
    school, job = make_school(tree, tmp_path, compile=True), make_job(kind, 0, SMALL)
    school.train(job)
    assert school.note_of(job)["passes"] == passes
    norms = {type(module) for module in school.weights_of(job).discriminator.modules()}
    assert (nn.BatchNorm2d in norms) == (kind == "full")

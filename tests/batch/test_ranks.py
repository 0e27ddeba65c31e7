"""Which parts are a process's: as it is told, or as torchrun and SLURM tell."""

import pytest

from discopatch import ParameterError
from discopatch.batch.ranks import Ranks, device_of, find_ranks


def test_alone_a_process_takes_all_parts() -> None:
    ranks = find_ranks(environment={})
    assert (ranks.rank, ranks.world) == (0, 1)
    assert all(ranks.takes(number) for number in range(5))


def test_every_part_is_taken_once() -> None:
    taken = [number for rank in range(3) for number in range(10) if find_ranks(rank, 3).takes(number)]
    assert sorted(taken) == list(range(10))


def test_torchrun_and_slurm_tell_the_rank() -> None:
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    assert find_ranks(environment=torchrun) == Ranks(5, 8, 1, "torchrun")
    slurm = {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "2"}
    assert find_ranks(environment=slurm) == Ranks(2, 4, 2, "SLURM")
    step = {**slurm, "SLURM_STEP_NUM_TASKS": "3"}  # a job of four tasks, in which a step has three
    assert find_ranks(environment=step).world == 3


def test_what_is_given_counts_more_than_the_environment() -> None:
    assert find_ranks(0, 1, {"RANK": "5", "WORLD_SIZE": "8"}) == Ranks(0, 1)


@pytest.mark.parametrize(("rank", "world"), [(0, None), (None, 2), (2, 2), (-1, 2), (0, 0)])
def test_a_rank_that_cannot_be_is_refused(rank: int | None, world: int | None) -> None:
    with pytest.raises(ParameterError, match=r"rank|world"):
        find_ranks(rank, world, {})


def test_a_rank_that_is_no_number_is_refused() -> None:
    with pytest.raises(ParameterError, match="RANK"):
        find_ranks(environment={"RANK": "first", "WORLD_SIZE": "2"})


def test_each_process_of_a_machine_takes_another_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [device_of("auto", Ranks(rank, 4, rank)) for rank in range(4)] == ["auto", "cuda:1", "cuda:0", "cuda:1"]
    assert device_of("cpu", Ranks(1, 2, 1)) == "cpu"
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert device_of("auto", Ranks(1, 2, 1)) == "auto"

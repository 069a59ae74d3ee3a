"""The proofs of memory order hold, and fail with a named race and a schedule for each ordering left out."""

import pytest

from spec.proofs import orderings, orderings_bounded
from spec.proofs.prover import Prover
from spec.report import Check, Status

RACES_WITHOUT = {
    "copy_after_forward": {"copy_read_after_write"},
    "forward_after_copy": {"forward_read_after_write"},
    "reuse_after_copy": {"forward_write_after_read", "forward_write_after_write"},
    "reuse_after_forward": set(),
    "destination_after_forward": {"copy_write_after_read", "copy_write_after_write"},
}
"""By ordering left out, the races between a forward and a copy that an issue then lets happen."""

REUSES_WITHOUT = {
    "reuse_after_copy": {"copy_reads", "copy_writes"},
    "reuse_after_forward": {"forward_reads", "forward_writes"},
}

FIRST_SHOWN_AT = {
    "copy_after_forward": (3, {"read-after-write"}),
    "forward_after_copy": (5, {"read-after-write", "write-after-read"}),
    "reuse_after_copy": (7, {"write-after-read", "write-after-write"}),
    "reuse_after_forward": (7, {"write-after-write"}),
    "destination_after_forward": (6, {"write-after-write"}),
}
"""By ordering left out, the shortest programs of the bounded model that have a race, and its kinds."""


@pytest.fixture(scope="module")
def prover() -> Prover:
    return Prover()


def prove_timed(prover: Prover, depth: int, without: str | None = None) -> list[Check]:
    return [prover.prove(proof) for proof in orderings_bounded.proofs_at(depth, 3, without)]


def refuted(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks if check.status is Status.REFUTED}


def test_every_ordering_is_known_by_name_and_no_other() -> None:
    assert set(orderings.guards()) == set(RACES_WITHOUT) == set(FIRST_SHOWN_AT)
    with pytest.raises(ValueError, match="there is no ordering of_the_day"):
        orderings.proofs(without="of_the_day")


def test_the_orderings_exclude_every_race(prover: Prover) -> None:
    checks = [prover.prove(proof) for proof in orderings.proofs(quick=True)]
    assert len({check.name for check in checks}) == len(checks)
    for check in checks:
        is_bounded = ".run." in check.name or ".timed." in check.name
        assert check.status is (Status.PROVED_BOUNDED if is_bounded else Status.PROVED), check
        assert bool(check.detail) is is_bounded, "bounds are stated"
        assert check.figures["rlimit"] > 0 and check.covers


@pytest.mark.parametrize("ordering", orderings.guards())
def test_without_an_ordering_the_watermark_model_has_its_races(prover: Prover, ordering: str) -> None:
    failed = refuted([prover.prove(proof) for proof in orderings.proofs_of_watermarks(ordering)])

    races, reuses = RACES_WITHOUT[ordering], REUSES_WITHOUT.get(ordering, set())
    inductive = {f"orderings.issue_{race.split('_')[0]}.{race}" for race in races}
    runs = {f"orderings.run.{race}" for race in races} | {f"orderings.run.reuse_{name}" for name in reuses}
    assert set(failed) == inductive | runs | {f"orderings.reuse.{name}" for name in reuses}
    for name, check in failed.items():
        assert "is in flight" in check.detail and "-after-" in check.detail
        if ".run." in name:
            assert "is issued, reads" in check.detail


def test_a_schedule_says_what_is_issued_and_which_race_it_is(prover: Prover) -> None:
    proofs = {proof.name: proof for proof in orderings.proofs_of_watermarks("copy_after_forward")}
    check = prover.prove(proofs["orderings.run.copy_read_after_write"])
    assert "forward 1 is issued" in check.detail
    assert "copy 1 reads the slot while forward 1, which writes it, is in flight" in check.detail
    assert "read-after-write" in check.detail


@pytest.mark.parametrize("ordering", orderings.guards())
def test_without_an_ordering_the_timed_model_has_a_race_too(prover: Prover, ordering: str) -> None:
    depth, kinds = FIRST_SHOWN_AT[ordering]
    assert not refuted(prove_timed(prover, depth - 1, ordering)), "the depth is the shortest one"
    failed = refuted(prove_timed(prover, depth, ordering))
    told = {kind for kind in kinds if any(f'race = "{kind}"' in check.detail for check in failed.values())}
    assert told == kinds
    for check in failed.values():
        assert "schedule = " in check.detail and " from " in check.detail and ": alloc slot" in check.detail


def test_the_full_bounded_model_is_deep_enough_for_every_ordering() -> None:
    assert orderings_bounded.DEPTH >= 12
    assert max(depth for depth, _ in FIRST_SHOWN_AT.values()) < orderings_bounded.QUICK_DEPTH
    assert all(
        f"{orderings_bounded.DEPTH} host actions" in proof.bounds for proof in orderings_bounded.proofs()
    )


def test_programs_too_short_for_a_conflict_are_vacuous_and_not_proved(prover: Prover) -> None:
    assert {check.status for check in prove_timed(prover, 2)} == {Status.VACUOUS}

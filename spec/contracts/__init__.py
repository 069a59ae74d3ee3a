"""CrossHair contracts on the pure parts of the spec: planner, token table, waste, eligibility.

Each file of contracts is a list of plain functions; CrossHair runs them with symbolic values, path by
path. One process, whatever ``Options.jobs`` says.
"""

import time
from itertools import chain

from spec.contracts import acceptance, arithmetic, planning, reclaiming, refusal, selection, tables
from spec.contracts.contract import Contract
from spec.report import Check, Options, Progress, Section, Status

SECTION_S, CONTRACT_S = 240.0, 20.0
QUICK_SECTION_S, QUICK_CONTRACT_S = 30.0, 10.0
QUICK = (
    "arithmetic.num_blocks_for_is_the_least_that_hold",
    "arithmetic.one_more_block_holds_one_block_more",
    "planning.a_commit_replaces_the_last_sources",
    "planning.copy_on_write_takes_every_resident_token",
    "planning.packed_plan_within_a_bound",
    "reclaiming.pressure_lasts_from_the_low_to_the_high_watermark",
    "refusal.faults_of_a_copy_on_write_are_refused",
    "selection.one_destination_more_never_frees_less",
    "tables.new_tokens_take_the_next_slots",
    "tables.waste_is_the_share_of_slots_without_a_live_token",
)
"""Those that CrossHair confirms in a few seconds; the quick check takes no other."""

CONTRACTS: tuple[Contract, ...] = tuple(
    chain.from_iterable(
        module.CONTRACTS
        for module in (arithmetic, selection, tables, reclaiming, refusal, acceptance, planning)
    )
)

_FIGURES = (Status.CONFIRMED, Status.NOT_CONFIRMED, Status.REFUTED, Status.UNKNOWN, Status.VACUOUS)


def covers() -> dict[str, tuple[str, ...]]:
    """Return the names of the contracts, each with the ids that it speaks for."""
    return {contract.name: contract.covers for contract in CONTRACTS}


def run(options: Options, progress: Progress) -> Section:
    """Check every contract that is asked for.

    None gets more than twice its fair share of the time left, so that a short deadline still lets each
    be tried; one that is cut short by that and not confirmed is ``unknown``.

    Raises:
        ImportError: CrossHair is not installed.

    """
    from spec.contracts.crosshair_check import check_contract  # the only part that needs CrossHair

    section_s, contract_s = (QUICK_SECTION_S, QUICK_CONTRACT_S) if options.quick else (SECTION_S, CONTRACT_S)
    if options.deadline_s is not None:
        section_s = min(section_s, options.deadline_s)
    deadline = time.monotonic() + section_s
    wanted = [contract for contract in CONTRACTS if options.wants(contract.name)]
    if options.quick:
        wanted = [contract for contract in wanted if contract.name in QUICK]
    checks = []
    for number, contract in enumerate(wanted):
        progress(contract.name, number, len(wanted))
        left_s = deadline - time.monotonic()
        share_s = 2 * left_s / (len(wanted) - number)
        if left_s <= 0:
            checks.append(Check(contract.name, Status.UNKNOWN, "out of time", covers=contract.covers))
        else:
            checks.append(check_contract(contract, min(contract_s, share_s), share_s < contract_s))
    progress("contracts", len(wanted), len(wanted))
    section = Section("contracts", tuple(checks))
    section.figures.update({status.name.lower(): section.count(status) for status in _FIGURES})
    return section

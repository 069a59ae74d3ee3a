"""CrossHair contracts on the pure parts of the spec: planner, token table, waste, eligibility.

Each file of contracts is a list of plain functions; CrossHair runs them with symbolic values, path by
path. One process, whatever ``Options.jobs`` says.
"""

import time
from itertools import chain

from spec.contracts import acceptance, arithmetic, planning, reclaiming, refusal, selection, tables
from spec.contracts.contract import Contract
from spec.report import Check, Options, Progress, Section, Status

SECTION_S, CONTRACT_S = 240.0, 60.0
QUICK_SECTION_S, QUICK_CONTRACT_S = 25.0, 0.5

CONTRACTS: tuple[Contract, ...] = tuple(
    chain.from_iterable(
        module.CONTRACTS
        for module in (arithmetic, selection, planning, acceptance, refusal, tables, reclaiming)
    )
)

_FIGURES = (Status.CONFIRMED, Status.NOT_CONFIRMED, Status.REFUTED, Status.UNKNOWN, Status.VACUOUS)


def run(options: Options, progress: Progress) -> Section:
    """Check every contract that is asked for.

    Raises:
        ImportError: CrossHair is not installed.

    """
    from spec.contracts.crosshair_check import check_contract  # the only part that needs CrossHair

    section_s, contract_s = (QUICK_SECTION_S, QUICK_CONTRACT_S) if options.quick else (SECTION_S, CONTRACT_S)
    if options.deadline_s is not None:
        section_s = min(section_s, options.deadline_s)
    deadline = time.monotonic() + section_s
    wanted = [contract for contract in CONTRACTS if options.wants(contract.name)]
    checks = []
    for number, contract in enumerate(wanted):
        progress(contract.name, number, len(wanted))
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            checks.append(Check(contract.name, Status.UNKNOWN, "out of time", covers=contract.covers))
        else:
            checks.append(check_contract(contract, min(contract_s, left_s), left_s < contract_s))
    progress("contracts", len(wanted), len(wanted))
    section = Section("contracts", tuple(checks))
    section.figures.update({status.name.lower(): section.count(status) for status in _FIGURES})
    return section

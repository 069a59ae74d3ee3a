"""The rows of SPEC.md: each rule as it is stated there."""

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

COLUMNS = ("id", "code", "serves", "source", "rule", "rationale")

CELL_BORDER = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True, slots=True)
class SpecRow:
    """One row of a table of rules, by the columns that the table has; an absent cell is empty.

    Attributes:
        id: permanent, such as ``VT-MAP-008``.
        code: what an error carries.
        serves: the invariant.
        source: the section of the paper, or what else the rule comes from.
        rule: the sentence with its MUST.
        rationale: why the rule is there.
        is_whole: the table has exactly the columns of ``COLUMNS``, and the row a cell for each.

    """

    id: str
    code: str = ""
    serves: str = ""
    source: str = ""
    rule: str = ""
    rationale: str = ""
    is_whole: bool = False

    def empty_columns(self) -> list[str]:
        """Return the columns in which this row says nothing."""
        return [name for name in COLUMNS if not getattr(self, name)]


def spec_rows(text: str) -> list[SpecRow]:
    """Return the rows of rules in a text like SPEC.md, in order; duplicates stay."""
    rows = []
    columns: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            columns = []
            continue
        cells = _cells(line)
        columns = columns or cells
        if cells[0].startswith("VT-"):
            named = {name: cell for name, cell in zip(columns, cells, strict=False) if name in COLUMNS[1:]}
            is_whole = tuple(columns) == COLUMNS and len(cells) == len(COLUMNS)
            rows.append(SpecRow(cells[0], **named, is_whole=is_whole))
    return rows


def invariant_names(text: str) -> dict[str, str]:
    """Return the names of the invariants that a text like SPEC.md defines, by id."""
    return dict(re.findall(r"^\| (I\d+) \| ([^|]+?) \|", text, re.MULTILINE))


def spec_text() -> str:
    """Return SPEC.md as it is installed."""
    return files("spec").joinpath("SPEC.md").read_text()


def sentence_of(rule_id: str) -> str:
    """Return the sentence of a rule.

    Raises:
        KeyError: SPEC.md has no such rule.

    """
    return _sentences()[rule_id]


@cache
def _sentences() -> dict[str, str]:
    return {row.id: row.rule for row in spec_rows(spec_text())}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in CELL_BORDER.split(line.strip().removeprefix("|").removesuffix("|"))]

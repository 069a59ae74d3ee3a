"""The rules in code and in spec/SPEC.md are the same, and each one is enforced somewhere."""

import re
from pathlib import Path

import pytest

from spec.rules import invariant_names, spec_rows
from vtoken_ref.rules import Rule, VTokenError

ROOT = Path(__file__).parents[1]
SPEC = (ROOT / "spec" / "SPEC.md").read_text()
ROWS = spec_rows(SPEC)


def test_spec_and_code_list_the_same_rules_in_the_same_order() -> None:
    stated = [(row.id, row.code, row.serves) for row in ROWS]
    assert stated == [(rule.id, rule.code, rule.invariant) for rule in Rule]


def test_every_table_row_of_a_rule_is_read_by_this_test() -> None:
    assert SPEC.count("\n| VT-") == len(ROWS)


def test_ids_and_codes_are_unique() -> None:
    assert len({rule.id for rule in Rule}) == len({rule.code for rule in Rule}) == len(Rule)
    assert len(Rule.__members__) == len(Rule)


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.id)
def test_ids_and_codes_have_one_form(rule: Rule) -> None:
    assert re.fullmatch(r"VT-[A-Z]+-\d{3}", rule.id)
    assert rule.code == rule.name.lower().replace("_", "-")
    assert rule.invariant in {"trace", "policy", *invariant_names(SPEC)}


def test_every_rule_says_must_in_one_sentence() -> None:
    for row in ROWS:
        assert "MUST" in row.rule and row.rule.endswith("."), row.id


def test_rules_named_in_the_prose_exist() -> None:
    assert set(re.findall(r"VT-[A-Z]+-\d+", SPEC)) == {rule.id for rule in Rule}


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.id)
def test_every_rule_is_enforced_in_the_code(rule: Rule) -> None:
    places = [
        path.name
        for package in ("vtoken_ref", "conformance")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "rules.py" and re.search(rf"\bRule\.{rule.name}\b", path.read_text())
    ]
    assert places


def test_an_error_carries_its_rule() -> None:
    error = VTokenError(Rule.STALE_SOURCE, "token 3 is elsewhere")
    assert (error.code, error.rule, error.invariant) == ("stale-source", "VT-MAP-008", "I1")
    assert error.detail == "token 3 is elsewhere"
    assert str(error) == "VT-MAP-008 stale-source: token 3 is elsewhere"

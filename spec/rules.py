"""The sentence of a rule, as SPEC.md states it."""

import re
from importlib.resources import files

ROW = re.compile(r"^\| (VT-[A-Z]+-\d+) \| [\w-]+ \| \w+ \| (.+) \|$", re.MULTILINE)


def sentence_of(rule_id: str) -> str:
    """Return the sentence of a rule.

    Raises:
        KeyError: SPEC.md has no such rule.

    """
    sentences: dict[str, str] = dict(ROW.findall(files("spec").joinpath("SPEC.md").read_text()))
    return sentences[rule_id]

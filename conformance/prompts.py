"""Prompts as token ids: long real text that every Python ships, or the user's own file."""

import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from conformance.errors import UsageError

EXCERPT = "\N{OBJECT REPLACEMENT CHARACTER}"
READING_TASK = (
    "Here is a part of the Python language reference.\n\n"
    + EXCERPT
    + "\n\nExplain in your own words what this part says, point by point, with short examples."
)
SUMMARY_TASK = "Summarise the text above."
CHAT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "system": "system",
}
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
SHAPES = '{"prompt": ...}, {"text": ...}, {"context": ..., "input": ...} or {"conversations": [...]}'


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    chat_template: Any

    def encode(self, text: str, *, add_special_tokens: bool, verbose: bool) -> list[int]:
        """Return the token ids of a text."""

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any:
        """Return the turns of a conversation as the one text that the model was trained on."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's prompt; ``name`` says where it comes from, and no two of a list share it."""

    name: str
    token_ids: tuple[int, ...]


def python_reference(
    tokenizer: Tokenizer, count: int, min_tokens: int = 300, max_tokens: int = 1500, seed: int = 0
) -> list[Prompt]:
    """Return prompts that ask for an explanation of an excerpt of the Python language reference.

    The lengths are spread evenly over the range and shuffled. Excerpts never overlap, and as long as
    there are enough long topics each is of another one. The same arguments give the same prompts
    under the same Python release, whose ``pydoc_data.topics`` is the text.

    Args:
        tokenizer: the model's; its chat template is used if it has one.
        count: number of prompts.
        min_tokens: shortest length of a prompt in tokens, instruction and chat template included.
        max_tokens: longest length.
        seed: of the choice of topics and the order of lengths.

    Raises UsageError when the arguments leave no such prompts.
    """
    head, tail = chat_text(tokenizer, user_turn(READING_TASK)).split(EXCERPT)
    before = tokenizer.encode(head, add_special_tokens=not tokenizer.chat_template, verbose=False)
    after = encode(tokenizer, tail)
    if count < 1 or max_tokens < min_tokens or min_tokens <= len(before) + len(after):
        raise UsageError(
            f"cannot make {count} prompts of {min_tokens} to {max_tokens} tokens: ask for at least one, the "
            f"minimum above the instruction's {len(before) + len(after)} tokens and not above the maximum"
        )
    step = (max_tokens - min_tokens) / max(count - 1, 1)
    lengths = [max_tokens - round(step * index) for index in range(count)]
    excerpts = take_excerpts(tokenizer, [length - len(before) - len(after) for length in lengths], seed)
    prompts = [Prompt(f"python-reference:{name}", (*before, *ids, *after)) for name, ids in excerpts]
    random.Random(seed).shuffle(prompts)
    return prompts


def take_excerpts(tokenizer: Tokenizer, lengths: Sequence[int], seed: int) -> Iterator[tuple[str, list[int]]]:
    """Yield a name, topic and part, and the token ids of one excerpt for each length, longest first.

    Raises UsageError when the text runs out.
    """
    from pydoc_data.topics import topics

    rest = {topic: encode(tokenizer, topics[topic]) for topic in sorted(topics)}
    parts = dict.fromkeys(rest, 0)
    order = list(rest)
    random.Random(seed).shuffle(order)
    for taken, length in enumerate(lengths):
        topic = next((topic for topic in order if len(rest[topic]) >= length), None)
        if topic is None:
            raise UsageError(
                f"the Python language reference has text for {taken} of {len(lengths)} such prompts: ask for "
                "fewer or shorter ones, or bring your own in a file"
            )
        excerpt, rest[topic] = rest[topic][:length], rest[topic][length:]
        order.remove(topic)
        order.append(topic)
        parts[topic] += 1
        yield f"{topic}:{parts[topic]}", excerpt


def load(path: Path, tokenizer: Tokenizer, limit: int | None = None) -> list[Prompt]:
    """Return the prompts of a file, in its order.

    A file whose name ends in .jsonl or .json, or whose first line starts with ``{``, holds one JSON
    object a line (or one JSON array of them): ``{"prompt": ...}`` or ``{"text": ...}`` is taken as it
    stands; LongBench's ``{"context": ..., "input": ...}`` and ShareGPT's ``{"conversations": [...]}``
    up to the last human turn go through the model's chat template. Of any other file each line that
    is not blank is a prompt as it stands.

    Args:
        path: the file, UTF-8.
        tokenizer: the model's.
        limit: how many prompts to read, None for all.

    Raises UsageError naming file and line for whatever is not so, and when there is no prompt.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"the limit of {limit} prompts leaves none: give at least 1")
    text = read_utf8(path)
    texts = json_texts(path, text, tokenizer) if holds_json(path, text) else plain_texts(path, text)
    prompts = [to_prompt(place, *content, tokenizer) for place, content in islice(texts, limit)]
    if not prompts:
        raise UsageError(f"{path} has no prompts: write one a line")
    return prompts


def check_lengths(prompts: Iterable[Prompt], max_model_len: int, max_new_tokens: int) -> None:
    """Raise UsageError for the first prompt that leaves no room for its output.

    Args:
        prompts: the prompts to be served.
        max_model_len: longest sequence, in tokens, of model and engine.
        max_new_tokens: tokens to generate for each.
    """
    for prompt in prompts:
        num_tokens = len(prompt.token_ids)
        if num_tokens + max_new_tokens > max_model_len:
            raise UsageError(
                f"prompt {prompt.name} has {num_tokens} tokens, and with {max_new_tokens} new ones that "
                f"is above the maximum model length {max_model_len}: shorten it or ask for fewer new tokens"
            )


Content = tuple[str, bool]
"""A prompt's text, and whether the model's chat template has already been applied to it."""


def to_prompt(place: str, text: str, templated: bool, tokenizer: Tokenizer) -> Prompt:
    """Return one prompt; raises UsageError when it is empty or, from a cut JSON escape, not text."""
    if LONE_SURROGATE.search(text):
        raise UsageError(f"{place}: the prompt has half of a surrogate pair: repair its \\u escapes")
    token_ids = tokenizer.encode(text, add_special_tokens=not templated, verbose=False)
    if not text.strip() or not token_ids:
        raise UsageError(f"{place}: the prompt is empty: give it some text or drop the line")
    return Prompt(place, tuple(token_ids))


def read_utf8(path: Path) -> str:
    """Return a file's text without a byte order mark; raises UsageError when it cannot be read."""
    try:
        content = path.read_bytes()
        return content.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"the prompt file {path} cannot be read ({error.strerror}): name another") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: this is not UTF-8: save the file as UTF-8") from error


def holds_json(path: Path, text: str) -> bool:
    """Return whether a prompt file is to be read as JSON."""
    return path.suffix in (".jsonl", ".json") or text.lstrip().startswith("{")


def plain_texts(path: Path, text: str) -> Iterator[tuple[str, Content]]:
    """Yield place and content of each line that is not blank."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{path}:{number}", (line.removesuffix("\r"), False)


def json_texts(path: Path, text: str, tokenizer: Tokenizer) -> Iterator[tuple[str, Content]]:
    """Yield place and content of each JSON object; raises UsageError at the first malformed one."""
    for place, row in json_rows(path, text):
        yield place, row_text(place, row, tokenizer)


def json_rows(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """Yield place and value of each JSON line, or of each element when the file is one array."""
    if text.lstrip().startswith("["):
        for number, row in enumerate(parse_json(path, 1, text), start=1):
            yield f"{path}, element {number}", row
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{path}:{number}", parse_json(path, number, line)


def parse_json(path: Path, first_line: int, text: str) -> Any:
    """Return the JSON value that starts at a line of a file; raises UsageError when it is malformed."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{path}:{first_line + error.lineno - 1}: this is not JSON ({error.msg}): write one JSON object "
            "a line, or plain text in a .txt file"
        ) from error


def row_text(place: str, row: Any, tokenizer: Tokenizer) -> Content:
    """Return the content of one JSON object; raises UsageError when its shape is none of ``SHAPES``."""
    match row:
        case {"conversations": list(turns)}:
            return conversation_text(place, turns, tokenizer)
        case {"context": str(context), "input": str(question)}:
            content = f"{context}\n\n{question.strip() or SUMMARY_TASK}" if context.strip() else ""
            return chat_content(place, user_turn(content), tokenizer)
        case {"prompt": str(text)} | {"text": str(text)}:
            return text, False
    raise UsageError(f"{place}: unknown kind of prompt: write {SHAPES}")


def conversation_text(place: str, turns: list[Any], tokenizer: Tokenizer) -> Content:
    """Return the content of a ShareGPT conversation: all turns up to the last human one."""
    messages = []
    for turn in turns:
        match turn:
            case {"from": str(speaker), "value": str(value)} if speaker in CHAT_ROLES:
                messages.append({"role": CHAT_ROLES[speaker], "content": value})
            case _:
                raise UsageError(
                    f'{place}: unknown kind of turn: write {{"from": "human" (gpt, system), "value": ...}}'
                )
    human = [index for index, message in enumerate(messages) if message["role"] == "user"]
    if not human:
        raise UsageError(f"{place}: the conversation has no human turn: add one or drop the line")
    return chat_content(place, messages[: human[-1] + 1], tokenizer)


def chat_content(place: str, messages: list[dict[str, str]], tokenizer: Tokenizer) -> Content:
    """Return the content of a chat; raises UsageError when it asks nothing or the template refuses it."""
    from jinja2 import TemplateError

    if not messages[-1]["content"].strip():
        return "", False
    try:
        return chat_text(tokenizer, messages), bool(tokenizer.chat_template)
    except TemplateError as error:
        raise UsageError(
            f"{place}: the model's chat template refuses this conversation ({error}): change or drop it"
        ) from error


def user_turn(content: str) -> list[dict[str, str]]:
    """Return a chat of one user message."""
    return [{"role": "user", "content": content}]


def chat_text(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> str:
    """Return a chat as the model's chat template writes it, or its first user message without one."""
    if not tokenizer.chat_template:
        return next(message["content"] for message in messages if message["role"] == "user")
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the token ids of a piece of a longer text: without the tokens that begin or end a text."""
    return tokenizer.encode(text, add_special_tokens=False, verbose=False)

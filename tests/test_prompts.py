"""Prompts: real text of the asked lengths, and files that are read or refused with a clear sentence."""

import json
from pathlib import Path

import pytest

from conformance.errors import UsageError
from conformance.prompts import Prompt, check_lengths, load, python_reference

BOS = 1


class ByteTokenizer:
    """One token a byte, BOS in front where special tokens are asked for, and optionally a chat template."""

    def __init__(self, chat_template: str | None = None) -> None:
        self.chat_template = chat_template

    def encode(self, text: str, *, add_special_tokens: bool, verbose: bool) -> list[int]:
        return [BOS] * add_special_tokens + [10 + byte for byte in text.encode()]

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize and add_generation_prompt
        turns = "".join(f"<{message['role']}>{message['content']}" for message in conversation)
        return turns + "<assistant>"


PLAIN = ByteTokenizer()
CHAT = ByteTokenizer(chat_template="any")


def text_of(prompt: Prompt) -> str:
    return bytes(token_id - 10 for token_id in prompt.token_ids if token_id != BOS).decode()


def texts(path: Path, tokenizer: ByteTokenizer = PLAIN, limit: int | None = None) -> list[str]:
    return [text_of(prompt) for prompt in load(path, tokenizer, limit)]


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def conversation(*turns: tuple[str, str]) -> dict[str, object]:
    return {"conversations": [{"from": speaker, "value": value} for speaker, value in turns]}


class TestPythonReference:
    def test_lengths_spread_over_the_whole_range(self) -> None:
        prompts = python_reference(CHAT, 5, min_tokens=1000, max_tokens=3000)
        lengths = sorted(len(prompt.token_ids) for prompt in prompts)
        assert lengths == [1000, 1500, 2000, 2500, 3000]

    def test_one_prompt_has_the_maximum_length(self) -> None:
        (prompt,) = python_reference(CHAT, 1, max_tokens=1200)
        assert len(prompt.token_ids) == 1200

    def test_each_is_an_excerpt_of_another_topic_while_there_are_enough(self) -> None:
        prompts = python_reference(CHAT, 20)
        assert len({prompt.name.split(":")[1] for prompt in prompts}) == 20

    def test_long_topics_give_several_excerpts_that_do_not_overlap(self) -> None:
        prompts = python_reference(CHAT, 150, min_tokens=2000, max_tokens=2000)
        assert (
            len({prompt.name for prompt in prompts}) == len({prompt.token_ids for prompt in prompts}) == 150
        )
        assert len({prompt.name.split(":")[1] for prompt in prompts}) < 150

    def test_the_seed_decides_everything(self) -> None:
        assert python_reference(CHAT, 6, seed=3) == python_reference(CHAT, 6, seed=3)
        assert python_reference(CHAT, 6, seed=3) != python_reference(CHAT, 6, seed=4)

    def test_the_excerpt_stands_between_the_instruction_and_the_answer(self) -> None:
        text = text_of(python_reference(CHAT, 1, min_tokens=900, max_tokens=900)[0])
        assert text.startswith("<user>Here is a part of the Python language reference.\n\n")
        assert text.endswith(" point by point, with short examples.<assistant>")

    def test_without_a_chat_template_the_instruction_stands_alone_after_bos(self) -> None:
        (prompt,) = python_reference(PLAIN, 1)
        assert prompt.token_ids[0] == BOS
        assert text_of(prompt).startswith("Here is a part")

    @pytest.mark.parametrize(
        ("count", "shortest", "longest"), [(0, 300, 1500), (4, 300, 200), (4, 20, 1500), (10_000, 300, 1500)]
    )
    def test_what_the_text_cannot_give_is_refused(self, count: int, shortest: int, longest: int) -> None:
        with pytest.raises(UsageError, match="ask for"):
            python_reference(CHAT, count, shortest, longest)


class TestJsonFile:
    @pytest.mark.parametrize("key", ["prompt", "text"])
    def test_a_prompt_is_taken_as_it_stands(self, tmp_path: Path, key: str) -> None:
        (prompt,) = load(write(tmp_path / "p.jsonl", {key: "Hi  there"}), CHAT)
        assert prompt == Prompt(f"{tmp_path}/p.jsonl:1", (BOS, *(10 + byte for byte in b"Hi  there")))

    def test_sharegpt_goes_through_the_template_up_to_the_last_human_turn(self, tmp_path: Path) -> None:
        row = conversation(("system", "S"), ("human", "A"), ("gpt", "B"), ("human", "C"), ("gpt", "D"))
        (prompt,) = load(write(tmp_path / "p.jsonl", row), CHAT)
        assert text_of(prompt) == "<system>S<user>A<assistant>B<user>C<assistant>"
        assert BOS not in prompt.token_ids

    def test_sharegpt_without_a_template_is_the_first_human_turn(self, tmp_path: Path) -> None:
        path = write(tmp_path / "p.jsonl", conversation(("human", "A"), ("gpt", "B"), ("human", "C")))
        assert load(path, PLAIN)[0].token_ids == (BOS, 10 + ord("A"))

    @pytest.mark.parametrize(("question", "asked"), [("Why?", "Why?"), ("", "Summarise the text above.")])
    def test_longbench_asks_its_question_after_its_context(
        self, tmp_path: Path, question: str, asked: str
    ) -> None:
        row = {"input": question, "context": "Long.", "answers": ["x"], "length": 1}
        assert texts(write(tmp_path / "p.jsonl", row), CHAT) == [f"<user>Long.\n\n{asked}<assistant>"]

    def test_order_is_kept_blank_lines_skipped_and_a_limit_stops_the_reading(self, tmp_path: Path) -> None:
        path = tmp_path / "p.jsonl"
        path.write_text('{"text": "a"}\n\n{"text": "b"}\r\n{"text": "c"}\nnot JSON')
        assert texts(path, limit=3) == ["a", "b", "c"]
        assert load(path, PLAIN, limit=2)[1].name == f"{path}:3"

    def test_one_array_of_objects_is_read_as_sharegpt_publishes_it(self, tmp_path: Path) -> None:
        path = tmp_path / "p.json"
        path.write_text(json.dumps([conversation(("human", "A")), {"text": "b"}], indent=1))
        assert texts(path) == ["A", "b"]

    def test_json_is_recognised_by_its_first_line_under_any_name(self, tmp_path: Path) -> None:
        assert texts(write(tmp_path / "prompts", {"text": "a"})) == ["a"]

    def test_a_template_that_refuses_the_turns_is_reported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from jinja2 import TemplateError

        tokenizer = ByteTokenizer(chat_template="any")

        def refuse(*_: object, **__: object) -> str:
            raise TemplateError("roles must alternate")

        monkeypatch.setattr(tokenizer, "apply_chat_template", refuse)
        with pytest.raises(UsageError, match=r"p.jsonl:1: .*roles must alternate"):
            load(write(tmp_path / "p.jsonl", conversation(("human", "A"))), tokenizer)

    @pytest.mark.parametrize(
        ("line", "complaint"),
        [
            ('{"text": "b"', "not JSON"),
            ("plain", "not JSON"),
            ('"b"', "unknown kind of prompt"),
            ("[]", "unknown kind of prompt"),
            ('{"question": "b"}', "unknown kind of prompt"),
            ('{"prompt": ["b"]}', "unknown kind of prompt"),
            ('{"prompt": " "}', "empty"),
            ('{"text": ""}', "empty"),
            ('{"context": "", "input": "b"}', "empty"),
            ('{"conversations": []}', "no human turn"),
            ('{"conversations": [{"from": "gpt", "value": "b"}]}', "no human turn"),
            ('{"conversations": [{"from": "human", "value": ""}]}', "empty"),
            ('{"conversations": ["b"]}', "unknown kind of turn"),
            ('{"conversations": [{"from": "alien", "value": "b"}]}', "unknown kind of turn"),
            (r'{"text": "b \ud83d"}', "surrogate"),
        ],
    )
    @pytest.mark.parametrize("tokenizer", [PLAIN, CHAT], ids=["plain", "chat"])
    def test_a_bad_line_is_refused_by_its_number(
        self, tmp_path: Path, line: str, complaint: str, tokenizer: ByteTokenizer
    ) -> None:
        path = tmp_path / "p.jsonl"
        path.write_text(f'{{"text": "a"}}\n{line}\n{{"text": "c"}}\n')
        with pytest.raises(UsageError, match=rf"p\.jsonl:2: .*{complaint}"):
            load(path, tokenizer)

    def test_a_malformed_array_is_refused_by_the_line_of_its_fault(self, tmp_path: Path) -> None:
        path = tmp_path / "p.json"
        path.write_text('[{"text": "a"},\n{"text": }]')
        with pytest.raises(UsageError, match=r"p\.json:2: .*not JSON"):
            load(path, PLAIN)


class TestPlainFile:
    def test_each_line_that_is_not_blank_is_a_prompt(self, tmp_path: Path) -> None:
        path = tmp_path / "p.txt"
        path.write_bytes(b"\xef\xbb\xbfone\r\n\n  two\n[3]\nna\xc3\xafve")
        assert texts(path) == ["one", "  two", "[3]", "naïve"]
        assert [prompt.name for prompt in load(path, PLAIN)] == [f"{path}:{line}" for line in (1, 3, 4, 5)]

    def test_text_that_is_not_utf8_is_refused_by_its_line(self, tmp_path: Path) -> None:
        path = tmp_path / "p.txt"
        path.write_bytes(b"one\ntwo\nna\xefve\n")
        with pytest.raises(UsageError, match=r"p\.txt:3: .*UTF-8"):
            load(path, PLAIN)


@pytest.mark.parametrize("content", ["", "\n \n"])
@pytest.mark.parametrize("name", ["p.txt", "p.jsonl"])
def test_a_file_without_prompts_is_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match="no prompts"):
        load(tmp_path / name, PLAIN)


def test_a_file_that_cannot_be_read_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.txt .*No such file"):
        load(tmp_path / "missing.txt", PLAIN)
    with pytest.raises(UsageError, match="directory"):
        load(tmp_path, PLAIN)


def test_a_limit_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        load(write(tmp_path / "p.jsonl", {"text": "a"}), PLAIN, limit=0)


def test_prompt_and_output_have_to_fit_the_model() -> None:
    prompts = [Prompt("short", (5,) * 10), Prompt("long", (5,) * 91)]
    check_lengths(prompts, max_model_len=101, max_new_tokens=10)
    with pytest.raises(UsageError, match=r"long has 91 tokens, and with 10 new .* length 100: shorten"):
        check_lengths(prompts, max_model_len=100, max_new_tokens=10)

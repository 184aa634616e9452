from __future__ import annotations

from typing import Any

import pytest

from llm_guard.mock.content import say
from llm_guard.mock.continuation import has_prefill, speak, why_refused
from llm_guard.mock.exchange import MockDialect, MockRequest

TOKENS = 30
TEXT = "".join(say(TOKENS))
CUTS = range(1, len(TEXT))
USER: Any = {"role": "user", "content": "hi"}
PATHS: dict[str, tuple[MockDialect, str]] = {
    "/chat/completions": ("openai", "messages"),
    "/responses": ("openai", "input"),
    "/messages": ("anthropic", "messages"),
}
conversations = pytest.mark.parametrize("path", PATHS)


def ask(path: str, **fields: Any) -> MockRequest:
    dialect = PATHS[path][0] if path in PATHS else "openai"
    return MockRequest(dialect, 1, "POST", path, {}, {}, fields, prompt_tokens=1)


def talk(path: str, *turns: Any, **fields: Any) -> MockRequest:
    return ask(path, **{PATHS[path][1]: list(turns)}, **fields)


def assistant(content: Any, **fields: Any) -> Any:
    return {"role": "assistant", "content": content, **fields}


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


def continued(given: str, order: str, *, overlap: int | None = None) -> str:
    asked = talk("/chat/completions", USER, assistant(given), user(order))
    asked.overlap = overlap
    return "".join(speak(asked, TOKENS))


@conversations
def test_response_begins_exactly_where_its_given_beginning_ends(path: str) -> None:
    for cut in CUTS:
        assert "".join(speak(talk(path, USER, assistant(TEXT[:cut])), TOKENS)) == TEXT[cut:]


@conversations
def test_beginning_may_be_in_blocks(path: str) -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "Breakers op"},
        {"type": "text", "text": "en"},
    ]
    assert speak(talk(path, USER, assistant(blocks)), 4) == [" when ", "providers "]


def test_pieces_after_a_cut_are_words_again() -> None:
    def after(given: str) -> list[str]:
        return speak(talk("/messages", USER, assistant(given)), 4)

    assert after("Breakers open") == [" when ", "providers "]
    assert after("Breakers open ") == ["when ", "providers "]
    assert after("Breakers op") == ["en ", "when ", "providers "]
    assert after("".join(say(4)).rstrip()) == [" "]
    assert after("".join(say(4))) == []


@conversations
def test_whitespace_of_its_own_after_the_beginning_is_overlooked(path: str) -> None:
    assert "".join(speak(talk(path, USER, assistant("Breakers open\n\n")), 4)) == " when providers "


@conversations
@pytest.mark.parametrize("given", ["Breakers shut", "breakers", TEXT + "more", "when"])
def test_other_text_than_a_beginning_is_not_continued(path: str, given: str) -> None:
    assert speak(talk(path, USER, assistant(given)), TOKENS) == say(TOKENS)
    assert speak(talk(path, USER, assistant(given), user("go on")), TOKENS) == say(TOKENS)


@pytest.mark.parametrize("field", ["", "partial", "continue_final_message"])
def test_other_marks_of_a_beginning_are_taken_like_none(field: str) -> None:
    flags = {field: True, "add_generation_prompt": False} if field == "continue_final_message" else {}
    last = assistant("Breakers open", **({"partial": True} if field == "partial" else {}))
    asked = talk("/chat/completions", USER, last, **flags)
    assert why_refused(asked) is None
    assert "".join(speak(asked, 3)) == " when "


def test_prefix_is_repeated_in_a_piece_of_its_own_as_mistral_does() -> None:
    def after(given: str) -> list[str]:
        return speak(talk("/chat/completions", USER, assistant(given, prefix=True)), 4)

    assert after("Breakers open ") == ["Breakers open", " when ", "providers "]
    assert after("Something else") == ["Something else", *say(4)]
    assert after("") == say(4)
    for cut in CUTS:
        assert "".join(speak(talk("/chat/completions", assistant(TEXT[:cut], prefix=True)), TOKENS)) == TEXT


def test_prompt_that_ends_in_a_beginning_is_continued() -> None:
    for cut in CUTS:
        for prompt in (TEXT[:cut], "say: " + TEXT[:cut]):
            assert "".join(speak(ask("/completions", prompt=prompt), TOKENS)) == TEXT[cut:]
    assert "".join(speak(ask("/completions", prompt="Breakers Breakers open\n"), 3)) == " when "
    for other in ("hi", "", None, ["Breakers"], "Breakers shut"):
        assert speak(ask("/completions", prompt=other), 3) == say(3)


@pytest.mark.parametrize("order", ['Begin with "{}".', "Repeat <last>{}</last> first", "Repeat:\n{}\n", "`…{}`"])
def test_instruction_with_its_last_words_makes_it_repeat_them_and_continue(order: str) -> None:
    for cut in CUTS:
        begun = TEXT[:cut].rstrip()
        quote = " ".join(begun.split(" ")[-3:])
        assert continued(TEXT[:cut], order.format(quote)) == TEXT[len(begun) - len(quote) :]


def test_the_longest_quotation_of_its_end_is_repeated() -> None:
    assert continued("Breakers open when", 'After "when", or "open when", or "shut when"').startswith(
        "open when providers"
    )


@pytest.mark.parametrize(
    ("given", "order"),
    [
        ("Breakers open when providers fail, and calls go", "Please go on where you stopped, do not repeat: go on"),
        ("Breakers open when", 'Go on after "hen".'),
        ("Breakers open when", 'Go on after "open".'),
        ("Breakers open when", 'Go on after "".'),
    ],
)
def test_words_that_do_not_quote_its_end_are_not_repeated(given: str, order: str) -> None:
    assert continued(given, order) == TEXT[len(given) + 1 :]


def test_instruction_without_a_quotation_continues_without_a_leading_space() -> None:
    for cut in CUTS:
        begun = TEXT[:cut].rstrip()
        expected = TEXT if begun == TEXT.rstrip() else TEXT[len(begun) :].lstrip()
        assert continued(TEXT[:cut], "Go on.") == expected


def test_part_of_a_word_is_quoted_with_the_words_before_it() -> None:
    assert continued("Breakers open wh", 'Begin with "rs open wh"').startswith("rs open when ")


@conversations
def test_instruction_to_continue_is_understood_in_every_conversation(path: str) -> None:
    begun = [{"type": "output_text" if path == "/responses" else "text", "text": "Breakers open"}]
    order = [{"type": "input_text" if path == "/responses" else "text", "text": 'Begin with "open".'}]
    turns = [USER, {"type": "message", **assistant(begun)}, user(order)]
    assert speak(talk(path, *turns), 4) == ["open ", "when ", "providers "]


def test_next_question_after_a_whole_answer_starts_from_scratch() -> None:
    assert continued(TEXT, "And what else?") == TEXT
    assert continued(TEXT, 'Begin with "go3".') == TEXT
    assert continued(TEXT, f'Begin with "{TEXT.split()[-1]}".') == TEXT.split()[-1] + " "


def test_earlier_or_empty_beginning_is_not_continued() -> None:
    far = talk("/chat/completions", assistant("Breakers"), USER, assistant("Hm."), USER)
    assert speak(far, 3) == say(3)
    assert continued("", "Go on.") == TEXT
    assert speak(talk("/chat/completions", USER, user("Breakers open"), user("Go on.")), 3) == say(3)


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [(0, "providers"), (1, "when providers"), (2, "open when providers"), (9, "Breakers open when providers")],
)
def test_overlap_overrides_the_instruction(overlap: int, expected: str) -> None:
    assert continued("Breakers open when ", 'Begin with "open when".', overlap=overlap).startswith(expected)


def test_other_text_is_continued_by_its_own_beginning_alone() -> None:
    asked = talk("/chat/completions", USER, assistant("Breakers"))
    asked.is_another = True
    assert speak(asked, 3) == ["srekaerB ", "nepo ", "nehw "]
    asked.fields["messages"][-1]["content"] = "srekaerB"
    assert speak(asked, 3) == [" nepo ", "nehw "]


@conversations
def test_prefill_is_a_last_message_of_the_assistant(path: str) -> None:
    assert has_prefill(talk(path, USER, assistant("Breakers")))
    assert not has_prefill(talk(path, USER, assistant("Breakers"), USER))


@pytest.mark.parametrize("fields", [{}, {"input": "hi"}, {"input": None}, {"input": [3, "x"]}, {"input": [{}]}])
def test_odd_conversations_hold_no_prefill(fields: dict[str, Any]) -> None:
    asked = ask("/responses", **fields)
    assert (has_prefill(asked), why_refused(asked), speak(asked, 3)) == (False, None, say(3))


def test_only_anthropic_minds_whitespace_at_the_end() -> None:
    for content in ("Breakers ", "Breakers\n", [{"type": "text", "text": "Breakers "}]):
        refused = why_refused(talk("/messages", USER, assistant(content)))
        assert refused == "messages: final assistant content cannot end with trailing whitespace"
        assert why_refused(talk("/chat/completions", USER, assistant(content))) is None
        assert why_refused(talk("/messages", USER, assistant(content), USER)) is None
    assert why_refused(talk("/messages", USER, assistant("Breakers"))) is None


def test_final_message_to_be_continued_needs_the_generation_prompt_off() -> None:
    for wrong in ({}, {"add_generation_prompt": True}):
        asked = talk("/chat/completions", USER, assistant("Breakers"), continue_final_message=True, **wrong)
        assert "add_generation_prompt" in (why_refused(asked) or "")

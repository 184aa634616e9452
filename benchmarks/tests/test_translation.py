"""The corpus of translation, how it is judged, and the pages of translation and its cost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.translation import corpus, measure
from benchmarks.translation.checks import problem, value_at
from benchmarks.translation.corpus import CLASSES, Case, CorpusError
from benchmarks.translation.cost import PROMISES, Cost
from benchmarks.translation.cost_provider import pieces
from benchmarks.translation.library_calls import from_sse
from benchmarks.translation.measure import Judged, Score, judge, with_plain_texts
from benchmarks.translation.replies import reply_of
from benchmarks.translation.report import cost_page, page
from benchmarks.translation.rules import refusals
from benchmarks.translation.stand_in import Received, as_understood, chat_stream, filled, messages_stream
from benchmarks.translation.ways import Response
from llm_guard.dialects.sse import events_in

LEAST_CASES, LEAST_OF_A_CLASS = 150, 4
SAID = [{"role": "user", "content": "hi"}]
CASE = Case("one", 1, "chat", "messages", "thread", "claude-sonnet-4-5", {"messages": SAID})
WELL = {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}


def test_corpus_has_enough_cases_of_each_class() -> None:
    cases = corpus.read()
    assert len(cases) >= LEAST_CASES
    counts = Counter(case.number for case in cases)
    assert set(counts) == set(CLASSES)
    assert min(counts.values()) >= LEAST_OF_A_CLASS
    assert all("#" in case.source for case in cases)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[{name: a, from: chat, source: s}]", "no 'class'"),
        ("[{name: a, from: chat, source: s, class: 1}]", "nothing has to be true"),
        ("[{name: a, from: chat, source: s, class: 1, refused: n, wrong: 1}]", "wrong"),
        ("[{name: a, from: chat, source: s, class: 99, refused: n}]", "no such class"),
        (2 * "- {name: a, from: chat, source: s, class: 1, refused: n}\n", "same name"),
    ],
)
def test_case_that_cannot_be_read_is_named(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "cases.yaml").write_text(text)
    with pytest.raises(CorpusError, match=why):
        corpus.read(tmp_path)


def test_gateway_serves_the_corpus() -> None:
    told: list[str] = []
    (score,) = measure.run(told.append, ())
    assert [(each.name, each.problems) for each in score.judged if not each.passed] == []
    assert [each.name for each in score.judged if each.is_5xx] == []
    assert told[0].startswith("llm_guard: ")


@pytest.mark.parametrize(
    ("comparison", "right", "wrong"),
    [
        (["is", 1], 1, 2), (["is", True], True, 1), (["is", None], None, 0), (["among", [1, None]], None, 2),
        (["absent"], {}, 1), (["has", "a"], ["a"], ["b"]), (["lacks", "a"], "b", "ab"), (["lacks", "a"], "b", None),
        (["matches", "[a-z]+"], ["ab", "c"], ["ab", "1"]), (["matches", ".*"], "", None), (["above", 1], 2, 1),
        (["below", 1], 0.5, True), (["count", 1], ["a"], "a"), (["distinct", 2], ["a", "b"], ["a", "a"]),
    ],
)  # fmt: skip
def test_each_comparison_can_fail(comparison: list[Any], right: Any, wrong: Any) -> None:
    assert problem({"reply": right}, ["reply", *comparison]) == ""
    assert problem({"reply": wrong}, ["reply", *comparison]).startswith("reply ")


def test_paths_lead_through_members_indexes_and_lists() -> None:
    seen = {"sent": {"messages": [{"role": "user"}, {"role": "assistant"}]}}
    assert value_at(seen, "sent.messages.1.role") == "assistant"
    assert value_at(seen, "sent.messages.*.role") == ["user", "assistant"]
    assert value_at(seen, "sent.messages.2.role") is None
    assert value_at(seen, "reply.text") is None


def parsed(raw: list[str]) -> list[dict[str, Any]]:
    return from_sse("".join(raw).encode())


def test_streams_of_the_stand_in_are_read_whole() -> None:
    blocks = ["Hi.", {"thinking": ["Hm."]}, {"call": ["t1", "now"], "pieces": ['{"a"', ": 1}"]}]
    reply = reply_of("messages", None, parsed(messages_stream({"blocks": blocks, "stop": "tool_use"}, "claude")))
    assert (reply["text"], reply["stop"], reply["ended"]) == ("Hi.", "tool_use", True)
    assert reply["calls"] == [{"id": "t1", "name": "now", "arguments": {"a": 1}}]
    chunks = [{"content": "Hi."}, {"calls": [[0, "c1", "now", ""]]}, {"finish": "tool_calls"}]
    reply = reply_of("chat", None, parsed(chat_stream({"chunks": chunks})))
    assert (reply["text"], reply["stop"], reply["indexes"], reply["is_broken"]) == ("Hi.", "tool_calls", [0], False)
    assert reply["calls"][0]["arguments"] == ""


def test_streams_that_no_sdk_could_put_together_are_wrong() -> None:
    events = parsed(messages_stream({"blocks": ["a", "b"]}, "claude"))
    overlapping = [event for event in events if event["type"] != "content_block_stop"]
    assert "while another one is open" in reply_of("messages", None, overlapping)["wrong"]
    numbered = parsed(chat_stream({"chunks": [{"calls": [[1, "c1", "now", "{}"]]}, {"finish": "tool_calls"}]}))
    assert "has index 1" in reply_of("chat", None, numbered)["wrong"]
    assert (
        "begins without an id"
        in reply_of("chat", None, parsed(chat_stream({"chunks": [{"calls": [[0, None, None, ""]]}]})))["wrong"]
    )
    assert reply_of("chat", {}, None)["wrong"].startswith("KeyError")


def test_broken_streams_are_broken() -> None:
    cut = parsed(messages_stream({"blocks": ["a"], "break": ""}, "claude"))
    assert reply_of("messages", None, cut)["is_broken"]
    failed = parsed(chat_stream({"chunks": [{"content": "a"}, 'data: {"error": {"message": "no"}}\n\n']}))
    reply = reply_of("chat", None, failed)
    assert (reply["text"], reply["error"], reply["is_broken"]) == ("a", {"message": "no"}, True)


def test_answers_name_what_was_sent() -> None:
    assert filled({"blocks": [{"call": ["a", "{{sent.name}}"]}]}, {"name": "x"}) == {"blocks": [{"call": ["a", "x"]}]}


def test_stand_in_understands_messages_as_the_api_does() -> None:
    body = {"messages": [*SAID, *SAID], "output_format": {"type": "json_schema"}}
    understood = as_understood(body, {"anthropic-beta": "structured-outputs-2025-11-13"})
    assert [message["role"] for message in understood["messages"]] == ["user"]
    assert understood["output_config"] == {"format": {"type": "json_schema"}}
    assert "output_format" in as_understood(body, {})
    sent = with_plain_texts({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]})
    assert sent["messages"] == SAID


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"temperature": 1.6}, "range"), ({"stop_sequences": ["\n"]}, "non-whitespace"), ({"seed": 1}, "seed"),
        ({"tools": [{"name": "f", "input_schema": {"anyOf": [], "type": "object"}}]}, "top level"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9000}}, "must be greater"),
        ({"thinking": {"type": "adaptive"}, "tool_choice": {"type": "any"}}, "forces tool use"),
        ({"messages": [*SAID, {"role": "assistant", "content": "a "}]}, "trailing whitespace"),
        ({"model": "claude-opus-4-7", "messages": [*SAID, {"role": "assistant", "content": "a"}]}, "prefill"),
        ({"max_tokens": 9999}, "maximum allowed"),
    ],
)  # fmt: skip
def test_stand_in_refuses_what_anthropic_refuses(fields: dict[str, Any], why: str) -> None:
    body = {"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": SAID}
    assert refusals(body, 8192, is_chat=False) == []
    assert why in "; ".join(refusals({**body, **fields}, 8192, is_chat=False))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"stop": list("abcde")}, "maximum length 4"), ({"top_k": 1}, "top_k"), ({"reasoning_effort": "low"}, "effort"),
        ({"model": "o3", "max_tokens": 9}, "max_tokens"), ({"model": "o3", "temperature": 0.2}, "temperature"),
    ],
)  # fmt: skip
def test_stand_in_refuses_what_openai_refuses(fields: dict[str, Any], why: str) -> None:
    body = {"model": "gpt-4o", "messages": SAID}
    assert refusals(body, None, is_chat=True) == []
    assert why in "; ".join(refusals({**body, **fields}, None, is_chat=True))


def changed(**fields: Any) -> Case:
    return Case(**{name: fields.get(name, getattr(CASE, name)) for name in Case.__slots__})


def test_result_is_compared_with_what_must_be_true() -> None:
    sent = Received([{"messages": SAID}], [{}])
    case = changed(checks=[["reply.text", "is", "ok"]], dropped=["seed"])
    assert judge(case, Response(200, {"x-llm-guard-dropped": "user, seed"}, WELL), sent).passed
    assert judge(case, Response(200, {}, WELL), sent).problems == ["not said to be dropped: seed"]
    assert judge(case, Response(body=WELL), sent).passed  # a library has no headers
    assert not judge(case, Response(502, {}, raised="bad gateway"), sent).passed
    assert judge(case, Response(502, {}, raised="bad gateway"), sent).is_5xx
    refused = Received([{"messages": SAID}], [{}], ["top_k is unknown"])
    assert "the provider refused it" in judge(case, Response(raised="400"), refused).problems[0]
    assert judge(case, Response(200, {"x-llm-guard-dropped": "seed"}, WELL), refused).passed  # the second try


def test_refusal_names_what_is_in_the_way_before_the_provider_has_it() -> None:
    case, sent = changed(refused="audio"), Received([{"messages": SAID}], [{}])
    assert judge(case, Response(400, {}, raised="cannot express audio"), Received()).passed
    assert judge(case, Response(raised="no audio"), sent).passed
    for response, received in (
        (Response(400, {}, raised="cannot express it"), Received()),
        (Response(400, {}, raised="no audio"), sent),
        (Response(503, {}, raised="no audio"), Received()),
        (Response(body=WELL), sent),
    ):
        assert not judge(case, response, received).passed


def test_promises_are_of_all_cases_and_of_each_class() -> None:
    well = [Judged(f"{number}", number) for number in CLASSES]
    assert Score("llm_guard", well).broken == []
    missed = Score("llm_guard", [*well[1:], Judged("1", 1, ["no"])]).broken
    assert missed == ["96.4% of the corpus", "class 1, streamed arguments are lost: 0%"]
    assert Score("llm_guard", [*well[1:], Judged("1", 1, is_5xx=True)]).broken == ["1: answered by a 5xx"]


def test_page_has_a_row_for_each_class_and_names_what_is_missed() -> None:
    scores = [Score("llm_guard", [Judged("a", 1), Judged("b", 1, ["no"])]), Score("litellm", [Judged("a", 1)], 1)]
    lines = page(scores, {"commit": "abc"})
    assert "| 1. streamed arguments are lost | 2 | 1 of 2 | 1 of 1 |" in lines
    assert "| all | 2 | **1 of 2** | **1 of 1** |" in lines
    assert "- 1, `b`" in lines
    assert lines[-2] == "Measured at commit `abc`."


def test_cost_is_the_median_of_the_rounds() -> None:
    cost = Cost(PROMISES[0], "chat", 150e-6, (40e-6, 70e-6, 50e-6))
    assert cost.broken == []
    dear = Cost(PROMISES[0], "chat", 150e-6, (61e-6,))
    assert dear.broken == ["a call of 1.5 kB, client of chat: 61.0 µs more against 60"]
    machine: dict[str, str | int | None] = {
        "commit": "abc",
        "processors": 2,
        "processor": "p",
        "system": "s",
        "kernel": "k",
        "python": "3",
    }
    assert "| a call of 1.5 kB | chat | 150.0 µs | **50.0 µs** (40.0, 70.0) | 60 µs |" in cost_page([cost], machine)


@pytest.mark.parametrize("kind", ["text", "tool"])
@pytest.mark.parametrize("is_chat", [True, False])
def test_streams_of_the_provider_have_as_many_deltas(kind: str, is_chat: bool) -> None:
    events = [*events_in(b"".join(pieces(kind, 5, is_chat=is_chat)))]
    mark = b'"content"' if kind == "text" else b'"arguments"'
    deltas = [event for event in events if (mark if is_chat else b"_delta") in event.data and b"name" not in event.data]
    assert len(deltas) - (not is_chat) == 5  # message_delta

"""The description of a wrong response with a success status."""

from __future__ import annotations

import pytest

from llm_guard.outcome import FailureKind
from llm_guard.resilience.classification.invalid_response import (
    InvalidReason,
    ObservedResponse,
    media_type,
    page_in,
    wrong_answer,
)

PAGE = b"\n<!-- x --><!doctype HTML><html><head><title>\n Log  in &amp; go\x07</title></head>secret"


def seen(head: bytes, content_type: str = "text/html; charset=utf-8") -> ObservedResponse:
    return ObservedResponse(200, content_type, 99, head)


def test_page_is_misrouted_and_named_by_its_title_alone() -> None:
    failure = wrong_answer(seen(PAGE), "a chat completion", "text")
    assert failure.kind is FailureKind.MISROUTED
    assert failure.detail == (
        'answered 200 with an HTML page titled "Log in & go" (text/html, 99 bytes) instead of a chat completion: '
        "check base_url"
    )


@pytest.mark.parametrize("fault", ["empty", "encoding", "shape", "stream", "text", "unary"])
def test_wrong_form_is_malformed_and_no_evidence(fault: InvalidReason) -> None:
    failure = wrong_answer(seen(b"secret words", "text/plain"), "a message", fault)
    assert (failure.kind, failure.is_shape_only) == (FailureKind.MALFORMED, True)
    assert "secret" not in failure.detail


def test_cut_json_is_evidence() -> None:
    failure = wrong_answer(seen(b'{"a', ""), "a message", "cut")
    assert (failure.kind, failure.is_shape_only) == (FailureKind.TRUNCATED, False)
    assert "(no content type, 99 bytes)" in failure.detail


@pytest.mark.parametrize("head", [b"<html>", b" <HTML lang=en>", b"<!DOCTYPE html>", b"<head>", b"<title>x</title>"])
def test_page_is_recognized_by_its_beginning_for_any_type(head: bytes) -> None:
    assert page_in(head, "application/json") is not None


@pytest.mark.parametrize("head", [b"", b"no", b"{}", b"<htmlx>", b"<svg>", b"text <html>", b"<" * 5000])
def test_other_text_is_no_page(head: bytes) -> None:
    assert page_in(head, "text/plain") is None


def test_title_is_short_and_printable() -> None:
    words = page_in(b"<html><title>" + b"a\x1b " * 90 + b"</title>", "")
    assert words is not None
    assert words.isprintable()
    assert len(words) < 120


@pytest.mark.parametrize(
    ("content_type", "media"),
    [
        ("Application/JSON; charset=x", "application/json"), (" text/html ", "text/html"), ("", ""), ("a b", ""),
        ("\u00e9/x", ""), ("x\x1b/y", ""), ("a" * 99, "a" * 60),
    ],
)  # fmt: skip
def test_media_type_is_plain(content_type: str, media: str) -> None:
    assert media_type(content_type) == media

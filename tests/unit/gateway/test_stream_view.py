from __future__ import annotations

import gzip
import zlib

import pytest

from llm_guard.dialect.openai import ChatReader
from llm_guard.gateway.stream_view import InflatedView, OpaqueView, StreamView, view_of

STREAM = (
    b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
)


def new_view(encoding: str) -> StreamView:
    return view_of(ChatReader(1), encoding)


@pytest.mark.parametrize(
    ("encoding", "kind"),
    [
        ("", StreamView), ("identity", StreamView), ("gzip", InflatedView), ("x-gzip", InflatedView),
        ("deflate", InflatedView), ("br", OpaqueView), ("zstd", OpaqueView), ("gzip, br", OpaqueView),
    ],
)  # fmt: skip
def test_encoding_says_how_a_stream_is_seen(encoding: str, kind: type) -> None:
    assert type(new_view(encoding)) is kind


def test_plain_stream_passes_event_by_event_and_gives_its_rest_at_the_end() -> None:
    view = new_view("")
    assert view.feed(STREAM[:-3]) == STREAM[: STREAM.index(b"\n\n") + 2]
    assert view.rest() == STREAM[STREAM.index(b"\n\n") + 2 : -3]
    assert view.takes_events


@pytest.mark.parametrize(("encoding", "packed"), [("gzip", gzip.compress(STREAM)), ("deflate", zlib.compress(STREAM))])
def test_compressed_stream_passes_as_it_came_and_is_watched(encoding: str, packed: bytes) -> None:
    view = new_view(encoding)
    assert [view.feed(packed[at : at + 1]) for at in range(len(packed))] == [bytes([each]) for each in packed]
    assert view.rest() == b""
    assert view.watch is not None
    assert (view.watch.has_token, view.watch.has_ended) == (True, True)
    assert not view.takes_events


def test_compressed_stream_that_was_cut_has_not_ended() -> None:
    view = new_view("gzip")
    view.feed(gzip.compress(STREAM)[:-20])
    assert view.watch is not None
    assert not view.watch.may_end


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_stream_that_is_not_in_its_encoding_passes_unseen(encoding: str) -> None:
    view = new_view(encoding)
    assert view.feed(STREAM) + view.feed(STREAM) == STREAM * 2
    assert (view.rest(), view.watch, view.takes_events) == (b"", None, False)


def test_chunk_that_inflates_to_much_is_watched_to_its_end() -> None:
    packed = gzip.compress(b": comment\n\n" * 50_000 + STREAM)
    view = new_view("gzip")
    assert view.feed(packed) == packed
    assert view.watch is not None
    assert view.watch.has_ended


def test_stream_in_an_unknown_encoding_passes_unseen() -> None:
    view = new_view("br")
    assert view.feed(b"\x8b\x00\n\n") == b"\x8b\x00\n\n"
    assert (view.rest(), view.watch, view.takes_events) == (b"", None, False)

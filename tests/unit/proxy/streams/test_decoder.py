from __future__ import annotations

import gzip
import random
import zlib
from itertools import pairwise

import pytest

from llm_guard.dialects.openai import ChatReader
from llm_guard.outcome import FailureKind
from llm_guard.proxy.response import content_decoding
from llm_guard.proxy.response.content_decoding import unreadable
from llm_guard.proxy.streams import decoder
from llm_guard.proxy.streams.decoder import CompressedStreamDecoder, InflatingStreamDecoder, PlainStreamDecoder, view_of

STREAM = (
    b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
)


def new_view(encoding: str, *, is_plain_wanted: bool = False) -> PlainStreamDecoder:
    return view_of(ChatReader(1), encoding, is_plain_wanted=is_plain_wanted)


def failure_kind(view: PlainStreamDecoder) -> FailureKind | None:
    return view.failure.kind if view.failure else None


def flushed(*parts: bytes, wbits: int = 31) -> list[bytes]:
    """Compresses like a server that flushes each part."""
    packer = zlib.compressobj(wbits=wbits)
    chunks = [packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH) for part in parts]
    return [*chunks, packer.flush()]


@pytest.mark.parametrize(
    ("encoding", "kind"),
    [
        ("", PlainStreamDecoder), ("identity", PlainStreamDecoder), ("none", PlainStreamDecoder),
        ("utf-8", PlainStreamDecoder), ("gzip", CompressedStreamDecoder), ("x-gzip", CompressedStreamDecoder),
        ("deflate", CompressedStreamDecoder), (" GZIP ", CompressedStreamDecoder),
    ],
)  # fmt: skip
def test_encoding_decides_how_a_stream_is_decoded(encoding: str, kind: type) -> None:
    assert type(new_view(encoding)) is kind


def test_plain_stream_passes_event_by_event_and_its_trailing_bytes_at_the_end() -> None:
    view = new_view("")
    assert view.feed(STREAM[:-3]) == STREAM[: STREAM.index(b"\n\n") + 2]
    assert view.trailing_bytes() == STREAM[STREAM.index(b"\n\n") + 2 : -3]
    assert view.takes_events


@pytest.mark.parametrize(("encoding", "packed"), [("gzip", gzip.compress(STREAM)), ("deflate", zlib.compress(STREAM))])
def test_compressed_stream_passes_unchanged_and_is_watched(encoding: str, packed: bytes) -> None:
    view = new_view(encoding)
    assert [view.feed(packed[at : at + 1]) for at in range(len(packed))] == [bytes([each]) for each in packed]
    assert view.trailing_bytes() == b""
    assert (view.watch.has_token, view.watch.has_ended) == (True, True)
    assert not view.takes_events


def test_compressed_stream_that_was_cut_has_not_ended() -> None:
    view = new_view("gzip")
    view.feed(gzip.compress(STREAM)[:-20])
    assert not view.watch.may_end


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_stream_that_is_not_in_its_encoding_fails(encoding: str) -> None:
    view = new_view(encoding)
    assert view.feed(STREAM) + view.feed(STREAM) == b""
    assert (view.is_closed, failure_kind(view)) == (True, FailureKind.MALFORMED)


def test_garbage_after_a_compressed_stream_passes_unchanged() -> None:
    view, packed = new_view("gzip"), gzip.compress(STREAM) + b"\x00\x00trailing"
    assert view.feed(packed) + view.feed(b"more") == packed + b"more"
    assert (view.is_closed, view.failure) == (False, None)


def test_decompression_bomb_is_cut_off_where_a_copy_is_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "MAX_INFLATED_BYTES", 300_000)
    first, second, _ = flushed(STREAM[: STREAM.index(b"\n\n") + 2], b": bomb\n\n" * 50_000)
    view = new_view("gzip")
    assert view.feed(first) == first
    assert view.feed(second) == b""
    assert (view.is_closed, failure_kind(view)) == (True, FailureKind.MALFORMED)


def test_chunk_that_inflates_to_much_is_watched_to_its_end() -> None:
    packed = gzip.compress(b": comment\n\n" * 50_000 + STREAM)
    view = new_view("gzip")
    assert view.feed(packed) == packed
    assert view.watch.has_ended


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("", ""), ("identity", ""), ("gzip", ""), ("X-Gzip", ""), ("none", ""), ("utf-8", ""), ("identity, gzip", ""),
        ("br", "br"), ("Zstd", "zstd"), ("gzip, br", "gzip, br"), ("gzip,gzip", "gzip, gzip"), ("dcz", "dcz"),
    ],
)  # fmt: skip
def test_encoding_that_cannot_be_inspected_is_named(encoding: str, packed: str) -> None:
    assert unreadable(encoding) == packed


# streams that are passed on decompressed


@pytest.mark.parametrize(
    ("encoding", "kind"),
    [
        ("", PlainStreamDecoder), ("identity", PlainStreamDecoder), ("none", PlainStreamDecoder),
        ("utf-8", PlainStreamDecoder), ("gzip", InflatingStreamDecoder), ("x-gzip", InflatingStreamDecoder),
        ("deflate", InflatingStreamDecoder), (" GZIP ", InflatingStreamDecoder),
    ],
)  # fmt: skip
def test_stream_that_may_be_written_into_is_plain_where_it_can_be(encoding: str, kind: type) -> None:
    view = new_view(encoding, is_plain_wanted=True)
    assert type(view) is kind
    assert view.takes_events


@pytest.mark.parametrize("wbits", [31, 15])
def test_inflated_events_are_passed_on_at_once_and_whole(wbits: int) -> None:
    head, first, second = STREAM[:30], STREAM[30 : STREAM.index(b"\n\n") + 12], STREAM[STREAM.index(b"\n\n") + 12 :]
    view = new_view("gzip", is_plain_wanted=True)
    passed = [view.feed(chunk) for chunk in flushed(head, first, second[:-1], wbits=wbits)]
    end = STREAM.index(b"\n\n") + 2
    assert passed == [b"", STREAM[:end], b"", b""]
    assert view.trailing_bytes() == STREAM[end:-1]
    assert (view.watch.has_token, view.watch.has_ended, view.failure) == (True, False, None)


def test_inflated_stream_is_the_same_however_its_chunks_are_cut() -> None:
    dice = random.Random(5)
    stream = STREAM * 400
    packed = gzip.compress(stream[:50_000]) + gzip.compress(stream[50_000:])
    for _ in range(20):
        cuts = sorted(dice.sample(range(len(packed)), 8))
        view = new_view("gzip", is_plain_wanted=True)
        assert b"".join(view.feed(packed[at:to]) for at, to in pairwise([0, *cuts, len(packed)])) == stream
        assert view.trailing_bytes() == b"data: [DONE]\n\n"


@pytest.mark.parametrize("is_plain_wanted", [True, False])
def test_each_event_may_be_compressed_on_its_own(is_plain_wanted: bool) -> None:
    end = STREAM.index(b"\n\n") + 2
    view = new_view("gzip", is_plain_wanted=is_plain_wanted)
    for part in (STREAM[:end], STREAM[end:]):
        assert view.feed(gzip.compress(part)) == (part if is_plain_wanted else gzip.compress(part))
    assert view.watch.has_ended


def test_inflater_retains_no_received_data(monkeypatch: pytest.MonkeyPatch) -> None:
    # A piece may be full just when all input was consumed, with more output pending.
    monkeypatch.setattr(content_decoding, "_PIECE_BYTES", 64)
    view, whole = new_view("gzip", is_plain_wanted=True), zlib.decompressobj(wbits=31)
    passed, came = b"", b""
    for byte in gzip.compress(b": " + b"x" * 3000 + b"\n\n" + STREAM * 20):
        passed += view.feed(bytes([byte]))
        came += whole.decompress(bytes([byte]))
        assert passed + view.watch.held == came


def test_broken_compression_fails_a_stream_that_has_not_ended() -> None:
    end = STREAM.index(b"\n\n") + 2
    view = new_view("gzip", is_plain_wanted=True)
    assert view.feed(flushed(STREAM[:end])[0]) == STREAM[:end]
    assert (view.is_closed, view.failure) == (False, None)
    assert view.feed(b"\xff" * 9) == b""
    assert (view.is_closed, failure_kind(view)) == (True, FailureKind.MALFORMED)
    assert view.feed(flushed(STREAM[end:])[0]) == b""
    assert (view.watch.has_token, view.watch.has_ended) == (True, False)


def test_garbage_after_a_compressed_stream_is_dropped() -> None:
    view = new_view("gzip", is_plain_wanted=True)
    assert view.feed(gzip.compress(STREAM) + b"\x00\x00trailing") == STREAM
    assert view.feed(b"trailing") == b""
    assert (view.is_closed, view.failure) == (True, None)


def test_stream_that_is_not_in_its_encoding_fails_where_it_must_be_plain() -> None:
    view = new_view("gzip", is_plain_wanted=True)
    assert view.feed(STREAM) == b""
    assert view.failure is not None


def test_decompression_bomb_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "MAX_INFLATED_BYTES", 300_000)
    view = new_view("gzip", is_plain_wanted=True)
    token, bomb, end = STREAM[: STREAM.index(b"\n\n") + 2], b": bomb\n\n" * 38_000, STREAM
    first, second, _ = flushed(token + bomb, end)
    passed = view.feed(first)
    assert 200_000 < len(passed) <= 300_000
    assert (view.is_closed, failure_kind(view)) == (True, FailureKind.MALFORMED)
    assert view.feed(second) == b""


def test_large_stream_in_small_pieces_is_no_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "MAX_INFLATED_BYTES", 100_000)
    view = new_view("gzip", is_plain_wanted=True)
    parts = [b": note\n\n" * 10_000] * 5
    assert [view.feed(chunk) for chunk in flushed(*parts)] == [*parts, b""]
    assert not view.is_closed


@pytest.mark.parametrize(("encoding", "is_plain_wanted"), [("", False), ("gzip", False), ("gzip", True)])
def test_decoder_counts_tokens_up_to_the_wanted_number(encoding: str, is_plain_wanted: bool) -> None:
    end = STREAM.index(b"\n\n") + 2
    view = view_of(ChatReader(1), encoding, 2, is_plain_wanted=is_plain_wanted)
    seen = []
    for chunk in flushed(*[STREAM[:end]] * 2) if encoding else [STREAM[:end]] * 2:
        view.feed(chunk)
        seen.append((view.watch.has_token, view.watch.has_enough))
    assert seen[:2] == [(True, False), (True, True)]

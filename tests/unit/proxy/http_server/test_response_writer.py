"""Framing of responses to clients."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from llm_guard.proxy.http_server.request import Request, RequestFields
from llm_guard.proxy.http_server.response_writer import ResponseConnection, ResponseWriter, bare_answer
from llm_guard.proxy.request_body.model_field import BadRequest

TYPE = ("Content-Type", "text/plain")


class FakeTransport:
    """Has no socket."""

    def get_extra_info(self, _name: str) -> None:
        return None


class FakeConnection:
    """Records each write separately."""

    def __init__(self) -> None:
        self.transport = FakeTransport()
        self.writes: list[bytes] = []
        self.is_stuck = self.is_full = False
        self.end = ""

    def push(self, data: bytes) -> bool:
        self.writes.append(data)
        return not self.is_full

    async def wait_room(self) -> None:
        raise ConnectionResetError("the client disconnected")

    def close(self) -> None:
        self.end = "closed"

    def abort(self) -> None:
        self.end = "aborted"


def reply_to(method: str = "GET", version: str = "1.1", **facts: Any) -> tuple[ResponseWriter, FakeConnection]:
    request = Request(method, "/v1/x", version, RequestFields((("Host", "a"),), {"host": "a"}))
    request.is_keep_alive = version == "1.1"
    request.complete()
    for name, value in facts.items():
        setattr(request, name, value)
    connection = FakeConnection()
    return ResponseWriter(request, cast("ResponseConnection", connection)), connection


async def test_whole_response_is_one_write() -> None:
    reply, connection = reply_to()
    await reply.send(200, "", [TYPE], b"hello")
    assert connection.writes == [b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"]
    assert reply.is_over


async def test_whole_response_has_reached_the_client_only_when_there_is_room_again() -> None:
    reply, connection = reply_to()
    connection.is_full = True
    with pytest.raises(ConnectionResetError):
        await reply.send(200, "", [TYPE], b"hello")


async def test_reason_phrase_of_the_provider_is_preserved() -> None:
    reply, connection = reply_to()
    await reply.send(529, "Site is overloaded", [], b"")
    assert connection.writes[0].startswith(b"HTTP/1.1 529 Site is overloaded\r\n")


async def test_stream_is_chunked_and_its_head_is_sent_with_its_first_piece() -> None:
    reply, connection = reply_to()
    reply.begin(200, "OK", [TYPE])
    assert connection.writes == []
    await reply.write(b"hello")
    await reply.write(b"x" * 17)
    assert not reply.is_over
    await reply.end()
    assert connection.writes == [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"11\r\n" + b"x" * 17 + b"\r\n",
        b"0\r\n\r\n",
    ]
    assert reply.is_over


async def test_body_of_known_length_is_not_chunked() -> None:
    reply, connection = reply_to()
    reply.begin(200, "OK", [], 4)
    await reply.write(b"ab")
    await reply.write(b"cd")
    await reply.end()
    assert connection.writes == [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab", b"cd"]


async def test_stream_to_http_1_0_ends_with_the_connection() -> None:
    reply, connection = reply_to(version="1.0")
    reply.begin(200, "OK", [])
    await reply.write(b"ab")
    await reply.end()
    assert connection.writes == [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nab"]
    assert reply.closes_connection


async def test_head_has_the_length_and_no_body() -> None:
    reply, connection = reply_to("HEAD")
    await reply.send(404, "", [], b"nothing here")
    assert connection.writes == [b"HTTP/1.1 404 Not Found\r\nContent-Length: 12\r\n\r\n"]


async def test_head_of_unknown_length_is_not_chunked() -> None:
    reply, connection = reply_to("HEAD")
    reply.begin(200, "", [])
    await reply.end()
    assert connection.writes == [b"HTTP/1.1 200 OK\r\n\r\n"]


@pytest.mark.parametrize("status", [204, 304])
async def test_answer_without_a_body_has_no_framing(status: int) -> None:
    reply, connection = reply_to()
    await reply.send(status, "", [], b"")
    assert b"ength" not in connection.writes[0]
    assert b"ransfer" not in connection.writes[0]


async def test_answer_before_the_request_is_whole_ends_the_connection() -> None:
    reply, connection = reply_to(has_arrived=False)
    await reply.send(400, "", [], b"no")
    assert b"\r\nConnection: close\r\n" in connection.writes[0]
    assert reply.closes_connection


async def test_bytes_of_a_provider_are_written_unchanged() -> None:
    reply, connection = reply_to()
    await reply.send(200, "", [("x-note", "caf\xe9 \x80")], b"")
    assert b"x-note: caf\xe9 \x80\r\n" in connection.writes[0]


async def test_name_of_ours_may_be_anything() -> None:
    reply, connection = reply_to()
    await reply.send(200, "", [("x-llm-guard-deployment", "modèle/猫")], b"")
    assert "x-llm-guard-deployment: modèle/猫\r\n".encode() in connection.writes[0]


async def test_broken_answer_is_closed_without_an_end() -> None:
    reply, connection = reply_to()
    reply.begin(200, "OK", [])
    await reply.write(b"ab")
    await reply.break_off(b"last")
    assert connection.writes[1:] == [b"4\r\nlast\r\n"]
    assert connection.end == "closed"


@pytest.mark.parametrize(("last_words", "end"), [(b"", "aborted"), (b"{}", "aborted"), (b"data: {}\n\n", "closed")])
async def test_broken_answer_without_framing_does_not_end_like_a_whole_one(last_words: bytes, end: str) -> None:
    reply, connection = reply_to(version="1.0")
    reply.begin(200, "OK", [])
    await reply.write(b"ab")
    await reply.break_off(last_words)
    assert connection.end == end


async def test_client_that_is_stuck_gets_no_final_event() -> None:
    reply, connection = reply_to()
    reply.begin(200, "OK", [])
    connection.is_stuck = True
    await reply.break_off(b"last")
    assert connection.writes == []
    assert connection.end == "aborted"


def test_bare_answer_is_read_by_clients_of_both_dialects() -> None:
    head, _, body = bare_answer(BadRequest(431, "head_too_large", "too long")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert b"\r\nContent-Length: %d\r\n" % len(body) in head + b"\r\n"
    assert b"Connection: close" in head
    said = json.loads(body)
    assert said["type"] == "error"
    assert said["error"]["type"] == "invalid_request_error"
    assert said["error"]["code"] == "head_too_large"


@pytest.mark.parametrize(("status", "retry"), [(400, b"false"), (431, b"false"), (408, b"true"), (503, b"true")])
def test_bare_response_states_whether_to_retry(status: int, retry: bytes) -> None:
    assert b"\r\nx-should-retry: " + retry + b"\r\n" in bare_answer(BadRequest(status, "x", "x"))

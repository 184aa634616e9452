"""JSON that two parsers read differently, or that exhausts a parser.

The gateway refuses what it needs to read and cannot parse. It passes on everything else byte for byte for the provider
to judge: a number that is parsed and written again could be another number.
"""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from tests.chaos.forms import CHAT
from tests.chaos.wire import Reply, ask
from tests.security.stand import Front, fronting

DEEP = 100_000
RENAMED = {"alias": {"deployments": [{"upstream": "one", "model": "real"}]}}
_PATTERN = {"gpt-*": {"deployments": [{"upstream": "one"}]}}


def bodies(of: dict[str, bytes]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in of.items()])


async def post(front: Front, body: bytes, **headers: str) -> Reply:
    return await ask(front.url, CHAT.path, body, headers)


async def check_refused(front: Front, body: bytes, statuses: tuple[int, ...] = (400,), **headers: str) -> None:
    """Expects an error in the dialect's format, no request to a provider, and nothing counted but a refusal."""
    reply = await post(front, body, **headers)
    assert reply.status in statuses, reply
    error = CHAT.error_of(reply)
    assert error["code"]
    assert len(reply.body) < 1000
    assert reply.headers["x-llm-guard-refused-by"] in ("request", "route")
    await front.check_reached()
    (line, *_) = await front.stand.calls()
    assert line["outcome"] == "refused"


async def check_passed_on(front: Front, body: bytes, **headers: str) -> None:
    """Expects the body to reach the provider unchanged."""
    assert (await post(front, body, **headers)).status == 200
    await front.check_reached(body)


@bodies({
    "C31 lists, cut": b'{"model":"gpt","messages":' + b"[" * DEEP,
    "C31 lists, whole": b'{"model":"gpt","messages":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "C31 before the model": b'{"messages":' + b"[" * DEEP + b"]" * DEEP + b',"model":"gpt"}',
    "C31 mappings": b'{"model":"gpt","messages":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "C31 in the model": b'{"model":' + b"[" * DEEP + b"]" * DEEP + b"}", "C31 nothing else": b"[" * DEEP,
    "C31 a million": b'{"model":"gpt","x":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
})  # fmt: skip
async def test_depth_bomb_is_refused_without_being_climbed(body: bytes) -> None:
    async with fronting(models=RENAMED) as front:
        await check_refused(front, body)
        assert not [line for line in front.stand.log if line.get("log_level") == "error"]


@pytest.mark.parametrize(
    ("body", "is_known"),
    [
        (b'{"model":"unknown","model":"gpt"}', True),
        (b'{"model":"gpt","model":"unknown"}', False),
        (b'{"model":"gpt","mod\\u0065l":"unknown"}', False),
        (b'{"mod\\u0065l":"unknown","model":"gpt"}', True),
        (b'{"model":"unknown","x":{"model":"gpt"}}', False),
        (b'{"x":{"model":"unknown"},"model":"gpt"}', True),
        (b'{"x":"\\"model\\":\\"unknown\\"","model":"gpt"}', True),
        (b'{"Model":"unknown","model":"gpt","MODEL":"unknown"}', True),
        (b'{"model":"g\\u0070t"}', True),
    ],
)
async def test_model_routed_by_is_the_one_that_the_provider_reads(body: bytes, is_known: bool) -> None:
    """C32: the last of two models is used, as in every common parser, or the request is refused."""
    assert (json.loads(body)["model"] == "gpt") is is_known
    async with fronting() as front:
        reply = await post(front, body)
        if reply.status == 200:
            assert is_known
            await front.check_reached(body)
        else:
            assert reply.status in (400, 404)
            await front.check_reached()


@bodies({
    "C32 twice the same": b'{"model":"alias","model":"alias"}',
    "C32 another before": b'{"model":"gpt","model":"alias"}',
    "C32 escaped behind": b'{"model":"alias","mod\\u0065l":"alias"}',
    "C32 escaped before": b'{"mod\\u0065l":"alias","model":"alias"}',
    "C32 inside another": b'{"x":{"model":"alias"},"model":"alias"}',
    "C32 inside a text": b'{"x":"\\"model\\":\\"alias\\"","model":"alias"}',
    "C32 inside a list, behind": b'{"model":"alias","x":[{"model":"alias"}]}',
})  # fmt: skip
async def test_renamed_body_names_the_new_model_to_parsers_that_take_the_last_duplicate(body: bytes) -> None:
    async with fronting(models=RENAMED) as front:
        reply = await post(front, body)
        if reply.status != 200:
            assert reply.status == 400
            await front.check_reached()
            return
        (request,) = front.provider.requests
        assert json.loads(request.body) == {**json.loads(body), "model": "real"}


@bodies({
    "C33 NaN": b'{"model":"gpt","temperature":NaN}', "C33 Infinity": b'{"model":"gpt","temperature":Infinity}',
    "C33 minus Infinity": b'{"model":"gpt","temperature":-Infinity}',
    "C33 hexadecimal": b'{"model":"gpt","seed":0x10}', "C33 a zero before": b'{"model":"gpt","seed":010}',
    "C33 a plus": b'{"model":"gpt","seed":+1}', "C33 no digit behind the point": b'{"model":"gpt","temperature":1.}',
    "C32 a comma behind": b'{"model":"gpt",}', "C32 a comment": b'{"model":"gpt"/*,"model":"x"*/}',
    "C32 two bodies": b'{"model":"gpt"}{"model":"unknown"}', "C32 words behind": b'{"model":"gpt"} x',
    "C32 single quotes": b"{'model':'gpt'}", "C35 a byte order mark": b'\xef\xbb\xbf{"model":"gpt"}',
    "C35 UTF-16": '{"model":"gpt"}'.encode("utf-16"), "C35 UTF-16, no mark": '{"model":"gpt"}'.encode("utf-16-le"),
    "C35 UTF-32": '{"model":"gpt"}'.encode("utf-32-be"), "C35 a broken character in the model": b'{"model":"gp\xff"}',
    "C35 a surrogate in the model": b'{"model":"\\ud800"}', "C35 a raw NUL": b'{"model":"gpt\0"}',
    "C35 a raw line break": b'{"model":"gpt","user":"a\nb"}',
    "C35 a space of another script": b'\xc2\xa0{"model":"gpt"}', "C36 a list": b'{"model":["gpt"]}',
    "C36 a mapping": b'{"model":{"x":1}}', "C36 null": b'{"model":null}', "C36 a number": b'{"model":5}',
    "C36 true": b'{"model":true}', "C36 nothing": b'{"model":""}',
    "C36 a megabyte": b'{"model":"' + b"a" * 1_000_000 + b'"}', "C36 the whole body a list": b"[]",
    "C36 the whole body a number": b"5", "C36 the whole body a text": b'"gpt"', "C36 the whole body null": b"null",
    "C43 a path of 300 kB": b'{"model":"' + b"../" * 100_000 + b'"}',
})  # fmt: skip
async def test_malformed_body_is_refused(body: bytes) -> None:
    async with fronting(models=_PATTERN | RENAMED) as front:
        await check_refused(front, body)


@bodies({
    "C34 2^64": b'{"model":"gpt","seed":18446744073709551616}',
    "C34 as many choices as there are": b'{"model":"gpt","n":18446744073709551616}',
    "C34 300 digits": b'{"model":"gpt","seed":' + b"9" * 300 + b"}",
    "C34 a negative number of choices": b'{"model":"gpt","n":-1}',
    "C34 many digits behind the point": b'{"model":"gpt","temperature":0.1000000000000000055511151231257827}',
    "C35 a surrogate in a message": b'{"model":"gpt","messages":[{"content":"\\ud800"}]}',
    "C35 a surrogate as a key": b'{"model":"gpt","\\ud800":1}',
    "C36 a word for stream": b'{"model":"gpt","stream":"yes"}',
    "C36 a list for stream": b'{"model":"gpt","stream":[]}', "C36 a word for n": b'{"model":"gpt","n":"many"}',
    "C31 deep, but not too deep": b'{"model":"gpt","x":' + b"[" * 200 + b"]" * 200 + b"}",
    "white space": b' {"model" :\t"gpt"\r\n}\n',
})  # fmt: skip
async def test_unread_content_is_forwarded_byte_for_byte(body: bytes) -> None:
    """C33 to C36: the provider judges it. No value is converted to a number or a text on the way."""
    async with fronting() as front:
        await check_passed_on(front, body)


async def test_numbers_survive_the_renaming_of_the_model() -> None:
    """C34: orjson would make 18446744073709552000 of this seed."""
    async with fronting(models=RENAMED) as front:
        body = (
            b'{"seed":18446744073709551616,"model":"alias","t":0.1000000000000000055511151231257827,"x":'
            + b"9" * 300
            + b"}"
        )
        assert (await post(front, body)).status == 200
        await front.check_reached(body.replace(b'"alias"', b'"real"'))


@pytest.mark.parametrize(
    "model",
    [
        "../../admin", "/v1/files", "http://169.254.169.254/", "//evil.example", "a?b#c", "%2e%2e%2f", "gpt\n", " gpt",
        "GPT", "*", "gpt-*/../x", "a\r\nX-Evil: 1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_pattern", [False, True], ids=["C43 a name", "C43 a pattern"])
async def test_model_is_a_name_and_no_part_of_an_address(model: str, is_pattern: bool) -> None:
    name = f"gpt-{model}" if is_pattern else model
    async with fronting(models=_PATTERN) as front:
        reply = await post(front, json.dumps({"model": name}).encode())
        if reply.status == 200:
            assert is_pattern
            (request,) = front.provider.requests
            assert request.target == b"/v1/chat/completions"
            assert json.loads(request.body) == {"model": name}
            assert reply.headers["x-llm-guard-deployment"] == "one/gpt-*"
            return
        assert reply.status in (400, 404)
        await front.check_reached()


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_compressed_body_that_inflates_above_the_limit_is_refused_early(encoding: str) -> None:
    """C37, in the gateway's own error format: the body is 1000 times smaller than its content."""
    bomb = b'{"model":"gpt","x":"' + b"0" * (64 << 20) + b'"}'
    body = gzip.compress(bomb, 9) if encoding == "gzip" else zlib.compress(bomb, 9)
    async with fronting(server={"max_body": "1MiB"}) as front:
        await check_refused(front, body, (413,), **{"Content-Encoding": encoding})

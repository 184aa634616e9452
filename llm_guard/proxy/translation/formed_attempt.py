"""One attempt whose request has the form of a cloud: the client's request, or its translation."""

from __future__ import annotations

from functools import partial

from llm_guard.dialects import FormName
from llm_guard.dialects.forms import FORMS
from llm_guard.dialects.forms.request_form import FormError, FormRequest
from llm_guard.outcome import Failure
from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.call import Call, Opened, StreamDecoder
from llm_guard.proxy.http_client.connection_pool import UpstreamOrigin
from llm_guard.proxy.http_client.http1 import RequestHeaders
from llm_guard.proxy.identification import plain_bytes
from llm_guard.proxy.request_body.content_encoding import inflate
from llm_guard.proxy.request_body.fields import BadRequest
from llm_guard.proxy.streams.decoder import PlainStreamDecoder
from llm_guard.proxy.translation.attempt import TranslatedAttempt, in_thread_if_large, joined_blocks
from llm_guard.proxy.translation.framed_origin import FramedOrigin
from llm_guard.proxy.translation.interfaces import WrittenRequest
from llm_guard.routing.api_keys import ApiKey
from llm_guard.routing.route_table import Target

_MOST_BYTES = 64 << 20


class FormedAttempt:
    """Implements `proxy.translation.interfaces.AttemptTranslator`."""

    __slots__ = ("_call", "_form", "_translation", "dialect", "dropped", "is_translated", "path")

    def __init__(self, call: Call, form: FormName, translation: TranslatedAttempt | None) -> None:
        """`translation` is that into the upstream's dialect; None if the call has it."""
        self._call = call
        self._form = FORMS[form]
        self._translation = translation
        self.is_translated = translation is not None
        self.dialect = call.dialect if translation is None else translation.dialect
        self.path = call.path if translation is None else translation.path
        self.dropped = () if translation is None else translation.dropped

    async def request(self, target: Target, key: ApiKey | None, resumed: bytes | None) -> WrittenRequest:
        upstream, translation = target.deployment.upstream, self._translation
        encoding = ""
        if translation is not None:
            body = await translation.body(resumed)
            headers = header_rules.translated(self._call, upstream, key)
        else:
            if resumed is None:
                encoding, body = self._call.content_encoding, await self._whole_body()
            else:
                body = resumed
            headers = header_rules.to_upstream(self._call, upstream, key, is_body_ours=True)
        size = max(plain_bytes(self._call), len(body))
        written = await in_thread_if_large(partial(self._written, headers.pairs, body, encoding, target.model), size)
        return WrittenRequest(f"{upstream.base_path}{written.path}", RequestHeaders(written.headers), written.body)

    async def _whole_body(self) -> bytes:
        body = self._call.body
        return body if isinstance(body, bytes) else await joined_blocks(body)

    def _written(self, headers: list[tuple[str, str]], body: bytes, encoding: str, model: str | None) -> FormRequest:
        plain = inflate(body, encoding, _MOST_BYTES)
        try:
            return self._form.request(self.path, headers, plain, model)
        except FormError as error:
            raise BadRequest(400, "invalid_request", error.message, param=error.param or None) from None

    def over(self, origin: UpstreamOrigin) -> UpstreamOrigin:
        return FramedOrigin(origin) if self._form.has_frames else origin

    def decoder(self, view: PlainStreamDecoder) -> StreamDecoder:
        return view if self._translation is None else self._translation.decoder(view)

    def opened(self, opened: Opened) -> Opened | Failure:
        return opened if self._translation is None else self._translation.opened(opened)


def unserved_by_form(form: FormName | None, method: str, path: str) -> str | None:
    """Returns why requests of an endpoint cannot be sent in a form; None if they can be, or if there is no form."""
    if form is None or FORMS[form].serves(method, path):
        return None
    return f"takes requests in the form {form}, which has no {method} {path}, only POST {', '.join(FORMS[form].paths)}"

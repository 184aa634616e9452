"""Keeps the credentials of the clouds that the running config names, and has them added to requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from llm_guard.clock import Clock
from llm_guard.config import AwsSettings, CloudSettings
from llm_guard.proxy.http_client.connection_pool import ConnectionPool, UpstreamError
from llm_guard.proxy.http_client.interfaces import RequestAuthorizer
from llm_guard.routing.deployment import Upstream

if TYPE_CHECKING:
    from llm_guard.upstreams.credentials.source import CredentialSource


class UpstreamCredentials:
    """The credentials of all upstreams, over reloads. Nothing of a cloud is imported before an upstream has one."""

    def __init__(
        self, connections: ConnectionPool, clock: Clock, draw: Callable[[], float], *, is_logged: bool = True
    ) -> None:
        """`is_logged`: problems with credentials are written to the log."""
        self._is_logged = is_logged
        self._connections = connections
        self._clock = clock
        self._draw = draw
        self._sources: dict[CloudSettings, CredentialSource] = {}
        self._of_upstream: dict[str, CredentialSource] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def adopt(self, upstreams: Mapping[str, Upstream]) -> None:
        """Authorises the requests to these upstreams, and obtains their credentials, which others' are not any more.
        Requests of calls that began before still have the credentials that are valid then."""
        wanted = {_place_of(upstream.cloud) for upstream in upstreams.values() if upstream.cloud is not None}
        for settings in self._sources.keys() - wanted:
            ending = asyncio.get_running_loop().create_task(self._sources.pop(settings).stop())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
        self._of_upstream.clear()
        for upstream in upstreams.values():
            if upstream.link != upstream.connections:
                authorizer = None if upstream.cloud is None else self._authorizer(upstream, upstream.cloud)
                self._connections.authorize(upstream.link, upstream.connections, upstream.query, authorizer)

    def problems(self) -> dict[str, str | None]:
        """Returns why the last renewal of each upstream's credentials failed; None: it did not."""
        return {name: source.problem for name, source in self._of_upstream.items()}

    async def problem_of(self, upstream: str) -> str | None:
        """Waits for an upstream's credentials, some seconds at most. Returns why there are none."""
        source = self._of_upstream.get(upstream)
        if source is None or source.valid() is not None:
            return None
        try:
            await source.obtain(None)
        except UpstreamError as error:
            return source.problem or error.detail
        return None

    async def stop(self) -> None:
        for source in self._sources.values():
            await source.stop()
        if self._ending:
            await asyncio.wait(self._ending)

    def _authorizer(self, upstream: Upstream, cloud: CloudSettings) -> RequestAuthorizer:
        from llm_guard.upstreams.credentials.bearer import BearerRequests  # noqa: PLC0415  # loaded only with a cloud

        source = self._of_upstream[upstream.name] = self._source(upstream, _place_of(cloud))
        if not isinstance(cloud, AwsSettings):
            return BearerRequests(source)
        from llm_guard.upstreams.credentials.signing import SignedRequests  # noqa: PLC0415  # loaded only with a cloud
        from llm_guard.upstreams.credentials.sigv4 import SigningScope  # noqa: PLC0415  # loaded only with a cloud

        return SignedRequests(source, SigningScope(cloud.region or "", cloud.service or ""), self._clock)

    def _source(self, upstream: Upstream, settings: CloudSettings) -> CredentialSource:
        from llm_guard.upstreams.credentials.providers import fetcher_of  # noqa: PLC0415  # loaded only with a cloud
        from llm_guard.upstreams.credentials.source import CredentialSource  # noqa: PLC0415  # loaded only with a cloud

        source = self._sources.get(settings)
        if source is None:
            fetch, purpose = fetcher_of(settings), f"upstreams.{upstream.name}.auth"
            source = CredentialSource(
                purpose, upstream.auth, fetch, self._clock, self._draw, is_logged=self._is_logged
            )  # fmt: skip
            self._sources[settings] = source
            source.start()
        return source


def _place_of(settings: CloudSettings) -> CloudSettings:
    """Returns what credentials depend on: those of AWS are valid for every service."""
    return settings.model_copy(update={"service": None}) if isinstance(settings, AwsSettings) else settings

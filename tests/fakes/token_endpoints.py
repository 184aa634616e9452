"""Stand-ins for the endpoints at which clouds issue credentials: containers of AWS, Google's OAuth, Microsoft Entra."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.fakes.provider import request_size

AWS_PATH = "/aws"
SECRET_KEY = "wJalrXUtnFEMI/CANARY/bPxRfiCYEXAMPLEKEY0"


class TokenEndpoint:
    """Issues numbered tokens: `async with TokenEndpoint() as endpoint:`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.issued = 0
        self.requests: list[bytes] = []
        self.lifetime_s = 3600.0
        self.is_dead = False
        self.hold: asyncio.Event | None = None
        """Answers wait for it."""
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        scheme = "http" if self._tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @staticmethod
    def token(number: int) -> str:
        """Returns the token that is issued as the `number`th, from 1."""
        return f"ya29.CANARY-cloud-token-{number}-{'x' * 40}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            received = b""
            while data := await reader.read(65536):
                received += data
                while (size := request_size(received)) is not None:
                    request, received = received[:size], received[size:]
                    writer.write(await self._answer(request))
                    await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    async def _answer(self, request: bytes) -> bytes:
        path = request.split(b" ", 2)[1].decode()
        if "openid-configuration" in path:
            tenant = f"{self.url}/{path.split('/')[1]}"
            places = {"authorization_endpoint": f"{tenant}/authorize", "token_endpoint": f"{tenant}/token"}
            return _json({**places, "issuer": f"{tenant}/v2.0"})
        self.requests.append(request)
        if self.hold is not None:
            await self.hold.wait()
        if self.is_dead:
            quoted = request.rpartition(b"\r\n\r\n")[2].decode()  # as careless servers do
            return _json({"error": "invalid_grant", "error_description": f"refused {quoted}"}, 400)
        self.issued += 1
        token = self.token(self.issued)
        if path == AWS_PATH:
            ends_at = datetime.now(UTC) + timedelta(seconds=self.lifetime_s)
            return _json({
                "AccessKeyId": f"AKIA{self.issued:016}", "SecretAccessKey": SECRET_KEY, "Token": token,
                "Expiration": ends_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            })  # fmt: skip
        return _json({"access_token": token, "expires_in": int(self.lifetime_s), "token_type": "Bearer"})


def service_account(path: Path, token_uri: str) -> str:
    """Writes the key of a service account of Google Cloud, and returns the file's name."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    account = {
        "type": "service_account", "project_id": "p", "private_key_id": "1", "private_key": pem,
        "client_email": "gateway@p.iam.gserviceaccount.com", "client_id": "1", "token_uri": token_uri,
    }  # fmt: skip
    path.write_text(json.dumps(account))
    return str(path)


def _json(content: Mapping[str, Any], status: int = 200) -> bytes:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body

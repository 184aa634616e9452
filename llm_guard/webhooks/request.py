"""One request to a webhook, with its headers."""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_guard.config import WebhookTarget
from llm_guard.version import __version__
from llm_guard.webhooks.signature import SIGNATURE_HEADER, signature


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """A request that is ready to be sent."""

    target: WebhookTarget
    url: str = field(repr=False)  # Slack's is a secret
    content: bytes = field(repr=False)
    """JSON."""
    delivery: str
    """The same in each attempt, so that a receiver can drop what it has received before."""
    at: float
    """Time of this attempt, in seconds since the epoch. It is part of the signature."""

    def headers(self) -> dict[str, str]:
        """Returns the headers, the config's included; with a signature if the config has a secret."""
        headers = {
            **self.target.headers,
            "content-type": "application/json",
            "user-agent": f"llm-guard/{__version__}",
            "x-llm-guard-delivery": self.delivery,
        }
        if self.target.secret is not None:
            headers[SIGNATURE_HEADER] = signature(self.target.secret, self.content, int(self.at))
        return headers

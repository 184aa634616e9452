"""Resumes a Responses stream after it has died.

Decides whether a response can be resumed, and builds the request for the rest. What the client was sent is in
`dialects.resume.responses_state`, the joining of two streams in `dialects.resume.responses_splice`.
"""

from __future__ import annotations

from llm_guard.dialects.resume.base import Body
from llm_guard.dialects.resume.requests import is_response_shaped, rest_of_response
from llm_guard.dialects.resume.responses_splice import ResponsesContinuation, ResponsesRestart
from llm_guard.dialects.resume.responses_state import Item, ResponsesState
from llm_guard.dialects.resume.text_join import anchor, given_back, instruction_text
from llm_guard.dialects.resume.transcript import Prefill, ResumeMode, Splice

_REPEATABLE = frozenset({"message", "reasoning", "function_call", "custom_tool_call"})
"""Excludes what the server executes itself (search, code, MCP), which must not happen twice."""


class ResponsesTranscript(ResponsesState):
    """One response, and how it can be resumed."""

    def resume_modes(self, request: Body, prefill: Prefill) -> tuple[ResumeMode, ...]:
        """Only an instruction: no server documents a prefill for this API."""
        del prefill
        self._fold()
        if not self._can_be_kept or not self.response or is_response_shaped(request):
            return ()
        begun = [item for item in self.items.values() if item.is_open]
        if len(begun) > 1 or any(item.kind != "message" for item in begun):
            return ()
        if any(item.kind not in ("message", "reasoning") or _has_refused(item) for item in self.items.values()):
            return ()
        return ("instruction",)

    def can_restart(self, request: Body) -> bool:
        self._fold()
        is_known = all(item.kind in _REPEATABLE for item in self.items.values())
        return self._can_be_kept and bool(self.response) and is_known and not request.get("background")

    def request(self, request: Body, resume_mode: ResumeMode, prefill: Prefill) -> Body:
        """Omits reasoning: it is refused without the ids of items, which the provider does not have."""
        del prefill
        self._fold()
        text = given_back(self.text)
        if resume_mode == "restart" or not text:
            return dict(request)
        return rest_of_response(request, text, instruction_text(anchor(self.text)), self.text_pieces)

    def splice(self, resume_mode: ResumeMode, marker: Body) -> Splice:
        self._fold()
        return (
            ResponsesRestart(self, marker)
            if resume_mode == "restart"
            else ResponsesContinuation(self, resume_mode, marker)
        )


def _has_refused(item: Item) -> bool:
    return any(part.get("type") == "refusal" for part in item.parts.values())

"""Resumes a chat or a legacy completion after its stream has died.

Decides whether a response can be resumed, and builds the request for the rest. What the client was sent is in
`dialects.resume.chat_state`, the joining of two streams in `dialects.resume.chat_splice`.
"""

from __future__ import annotations

from typing import Any

from llm_guard.dialects.resume.base import Body, count_of, mapping, text_in
from llm_guard.dialects.resume.chat_splice import ChatContinuation, ChatRestart
from llm_guard.dialects.resume.chat_state import ANSWERS, REASONING, ChatState, TextPath
from llm_guard.dialects.resume.text_join import LEAST_ECHO, anchor, given_back, instruction_text, seam
from llm_guard.dialects.resume.transcript import Prefill, ResumeMode, Splice

_CONTINUABLE: frozenset[TextPath] = frozenset({*ANSWERS, *((key,) for key in REASONING)})
# Fields that set the form of a response: OpenAI's, then those of vLLM, SGLang and llama.cpp.
_FORMS = (
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
    "json_schema", "regex", "ebnf", "grammar",
)  # fmt: skip
_LIMITS = ("max_tokens", "max_completion_tokens")
_FLAGS = ("prefix", "partial")
_OPEN_ENDED: Body = {"continue_final_message": True, "add_generation_prompt": False}
"""vLLM refuses one without the other."""


class ChatTranscript(ChatState):
    """One response, and how it can be resumed."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = ""
        """The beginning that the client itself gave the response: requests for the rest put it before the text."""

    @property
    def text(self) -> str:
        """The visible text of the first choice."""
        return "".join(self._pieces)

    def resume_modes(self, request: Body, prefill: Prefill) -> tuple[ResumeMode, ...]:
        """No prefill after reasoning: a server would take the rest for more of it, or refuses the two together
        (llama.cpp, "Assistant response prefill is incompatible with enable_thinking")."""
        self._fold()
        if not self._can_be_kept or list(self.choices) != [0] or _is_shaped(request):
            return ()
        sent = self.choices[0].texts
        if not _CONTINUABLE.issuperset(sent):
            return ()
        if _is_legacy(request):
            return ("prefill",) if _is_plain_completion(request) else ()
        text = given_back(self.text)
        if prefill == "none" or not text or len(sent) > 1 or self.has_details:
            return ("instruction",)
        if prefill == "prefix" and len(text) < LEAST_ECHO:
            return ("instruction",)  # it may be repeated or not, and the two cannot be distinguished
        return ("prefill", "instruction")

    def can_restart(self, request: Body) -> bool:
        self._fold()
        return self._can_be_kept and bool(self.choices) and not self.has_details and not _wants_audio(request)

    def request(self, request: Body, resume_mode: ResumeMode, prefill: Prefill) -> Body:
        """Without any text yet, repeats the original request: reasoning starts over, as none of it is part of the
        answer."""
        self._fold()
        text = given_back(self.text)
        if resume_mode == "restart" or not text:
            return dict(request)
        self._begun = self._client_began(request)
        if _is_legacy(request):
            rest = {**request, "prompt": text_in(request, "prompt") + text}
        elif resume_mode == "prefill":
            rest = with_beginning(request, self._begun + text, prefill)
        else:
            rest = _with_order(request, self._begun + text, instruction_text(anchor(self.text)))
        for limit in _LIMITS:
            if tokens := count_of(request.get(limit)):
                rest[limit] = max(1, tokens - len(self._pieces))
        return rest

    def splice(self, resume_mode: ResumeMode, marker: Body) -> Splice:
        self._fold()
        if resume_mode == "restart":
            return ChatRestart(self, marker)
        if resume_mode == "prefill" or not given_back(self.text):
            joint = seam("prefill", self._begun + self.text)
        else:
            joint = seam("instruction", self.text)
        return ChatContinuation(self, marker, len(self._pieces), joint)

    @property
    def _pieces(self) -> list[str]:
        texts = self.choices[0].texts if 0 in self.choices else {}
        return [piece for path in ANSWERS for piece in texts.get(path, ())]

    def _client_began(self, request: Body) -> str:
        """The beginning that the request contains; "" if the text repeats it, as Mistral's do in a separate piece."""
        begun = _text_of(_last_of_assistant(request).get("content"))
        return "" if self._pieces[0].rstrip() == begun.rstrip() else begun


def _is_legacy(request: Body) -> bool:
    return "messages" not in request


def _is_plain_completion(request: Body) -> bool:
    """True if the text continues where the prompt ends, and only one text is requested."""
    is_one = request.get("best_of") in (None, 1)
    return isinstance(request.get("prompt"), str) and is_one and not request.get("suffix") and not request.get("echo")


def _is_shaped(request: Body) -> bool:
    """True if the request wants something that only a complete response is: several choices, audio, a form, a tool
    call."""
    if request.get("n") not in (None, 1) or _wants_audio(request) or any(request.get(key) for key in _FORMS):
        return True
    if mapping(request.get("response_format")).get("type", "text") != "text":
        return True
    return _is_forced(request.get("tool_choice")) or isinstance(request.get("function_call"), dict)


def _is_forced(choice: object) -> bool:
    if isinstance(choice, dict):
        return mapping(choice.get("allowed_tools")).get("mode") != "auto"
    return choice in ("required", "any")  # `any` is Mistral's


def _wants_audio(request: Body) -> bool:
    modalities = request.get("modalities")
    return isinstance(modalities, list) and "audio" in modalities


def with_beginning(request: Body, text: str, prefill: Prefill) -> Body:
    """Returns the request with the beginning of its answer, in the form that the deployment accepts."""
    flags: Body = {prefill: True} if prefill in _FLAGS else {}
    rest = {**request, "messages": _with_answer(request, text, flags)}
    return {**rest, **_OPEN_ENDED} if prefill == "continue_final_message" else rest


def _with_order(request: Body, text: str, order: str) -> Body:
    """The request with the response so far as a past message, and the instruction as the user's reply."""
    rest = {key: value for key, value in request.items() if key not in _OPEN_ENDED}
    return {**rest, "messages": [*_with_answer(request, text, {}), {"role": "user", "content": order}]}


def _with_answer(request: Body, text: str, flags: Body) -> list[Any]:
    """The messages with the response so far as the last one; extends a beginning that the client gave."""
    messages = request["messages"] if isinstance(request["messages"], list) else []
    last = _last_of_assistant(request)
    kept = {key: value for key, value in last.items() if key not in _FLAGS}
    answer = {"role": "assistant", **kept, "content": text, **flags}
    return [*(messages[:-1] if last else messages), answer]


def _last_of_assistant(request: Body) -> Body:
    """The assistant's message at the end of the request; {} if it ends with another one."""
    messages = request.get("messages")
    last = mapping(messages[-1]) if isinstance(messages, list) and messages else {}
    return last if last.get("role") == "assistant" else {}


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(text_in(mapping(part), "text") for part in parts)

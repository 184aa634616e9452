"""Random requests of chats, of the Responses API and of Messages, valid by the API descriptions, with conversations,
tools, media and settings."""

from __future__ import annotations

from random import Random
from typing import Any

_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_URL = "data:image/png;base64,iVBORw0KGgo="
_PDF = "data:application/pdf;base64,JVBERi0="
_WORDS = ["hi", "", "Grüße ✓", " spaced ", "two\nlines", "x" * 90]


def _some(random: Random, options: dict[str, list[Any]]) -> dict[str, Any]:
    """Returns some of the fields, each with one of its values."""
    return {name: random.choice(values) for name, values in options.items() if random.random() < 0.35}


def random_chat(random: Random) -> dict[str, Any]:
    """Returns a chat request without its model."""
    messages: list[dict[str, Any]] = []
    if random.random() < 0.5:
        messages.append({"role": random.choice(["system", "developer"]), "content": random.choice(_WORDS)})
    for turn in range(random.randrange(1, 5)):
        messages.append({"role": "user", "content": _chat_content(random)})
        if random.random() < 0.5:
            ids = [f"call_{turn}_{index}" for index in range(random.randrange(1, 3))]
            arguments = random.choice(['{"city": "Oslo"}', "", "{"])
            function = {"name": "weather", "arguments": arguments}
            calls = [{"id": one, "type": "function", "function": function} for one in ids]
            messages.append({"role": "assistant", "content": random.choice([None, "so"]), "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": one, "content": random.choice(_WORDS)} for one in ids]
        else:
            messages.append({"role": "assistant", "content": random.choice(_WORDS)})
    messages.append({"role": "user", "content": "and now?"})
    strict = {"name": "w", "schema": _SCHEMA, "strict": random.random() < 0.5}
    name = random.choice(["weather", "a.b", "x" * 70])
    tool = {"type": "function", "function": {"name": name, "parameters": _SCHEMA}}
    fields = _some(random, {
        "temperature": [0, 1, 1.7], "top_p": [0.3, 1], "max_tokens": [5, 9000], "max_completion_tokens": [5],
        "stop": ["END", ["\n", "END"]], "seed": [1], "n": [1, 2], "logprobs": [True], "stream": [True],
        "user": ["u"], "reasoning_effort": ["none", "minimal", "low", "high", "xhigh"],
        "parallel_tool_calls": [True, False], "response_format": [
            {"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": strict},
        ],
    })  # fmt: skip
    if random.random() < 0.6:
        fields["tools"] = [tool]
        fields |= _some(random, {"tool_choice": [
            "auto", "none", "required", {"type": "function", "function": {"name": name}},
        ]})  # fmt: skip
    if fields.get("stream"):
        fields |= _some(random, {"stream_options": [{"include_usage": True}, {"include_usage": False}]})
    return {"messages": messages, **fields}


def _chat_content(random: Random) -> Any:
    if random.random() < 0.5:
        return random.choice(_WORDS)
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": random.choice(_WORDS)},
        {"type": "image_url", "image_url": {"url": random.choice([_URL, "https://example.org/a.png"])}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": _PDF}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    ]
    return random.sample(parts, random.randrange(1, 4))


def random_messages(random: Random) -> dict[str, Any]:
    """Returns a Messages request without its model and its limit."""
    messages: list[dict[str, Any]] = []
    for turn in range(random.randrange(1, 5)):
        messages.append({"role": "user", "content": _blocks(random)})
        if random.random() < 0.5:
            ids = [f"toolu_{turn}_{index}" for index in range(random.randrange(1, 3))]
            thought = [{"type": "thinking", "thinking": "hm", "signature": "c2ln"}] if random.random() < 0.3 else []
            uses = [{"type": "tool_use", "id": one, "name": "weather", "input": {"city": "Oslo"}} for one in ids]
            messages.append({"role": "assistant", "content": [*thought, {"type": "text", "text": "so"}, *uses]})
            results = [
                {"type": "tool_result", "tool_use_id": one, "content": random.choice(["rain", _blocks(random)]),
                 "is_error": random.random() < 0.3}
                for one in ids
            ]  # fmt: skip
            messages.append({"role": "user", "content": results})
        messages.append({"role": "assistant", "content": "I see"})
    messages.append({"role": "user", "content": "and now?"})
    fields = _some(random, {
        "system": ["be kind", [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}]],
        "temperature": [0, 0.7, 1], "top_p": [0.3], "top_k": [5], "stop_sequences": [["END"], list("abcde")],
        "stream": [True], "metadata": [{"user_id": "u"}], "service_tier": ["auto"],
        "thinking": [{"type": "enabled", "budget_tokens": 2000}, {"type": "disabled"}, {"type": "adaptive"}],
        "output_config": [{"effort": "max"}, {"format": {"type": "json_schema", "schema": _SCHEMA}}],
    })  # fmt: skip
    if random.random() < 0.6:
        name = random.choice(["weather", "a" * 100])
        fields["tools"] = [{"name": name, "description": "Forecast", "input_schema": _SCHEMA}]
        if random.random() < 0.2:
            fields["tools"].append({"type": "web_search_20250305", "name": "web_search"})
        fields |= _some(random, {"tool_choice": [
            {"type": "auto", "disable_parallel_tool_use": True}, {"type": "any"}, {"type": "none"},
            {"type": "tool", "name": name},
        ]})  # fmt: skip
    return {"messages": messages, **fields}


def _blocks(random: Random) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": random.choice(["hi", "Grüße ✓"])},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}, "title": "t"},
        {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "found"}]},
    ]
    return random.sample(parts, random.randrange(1, 4))


def random_responses(random: Random) -> dict[str, Any]:
    """Returns a Responses request without its model."""
    items: list[dict[str, Any]] = []
    for turn in range(random.randrange(1, 5)):
        items.append({"type": "message", "role": "user", "content": _responses_content(random)})
        if random.random() < 0.5:
            items.append({"type": "reasoning", "id": f"rs_{turn}", "summary": [], "encrypted_content": "gAAA"})
        if random.random() < 0.5:
            ids = [f"call_{turn}_{index}" for index in range(random.randrange(1, 3))]
            arguments = random.choice(['{"city": "Oslo"}', "", "{"])
            call = {"type": "function_call", "name": "weather", "arguments": arguments}
            items += [{**call, "call_id": one} for one in ids]
            for one in ids:
                output = random.choice([random.choice(_WORDS), _responses_content(random)])
                items.append({"type": "function_call_output", "call_id": one, "output": output})
        else:
            text = {"type": "output_text", "text": random.choice(_WORDS), "annotations": []}
            message = {"type": "message", "id": f"msg_{turn}", "role": "assistant", "status": "completed"}
            items.append({**message, "content": [text]})
    items.append({"type": "message", "role": "user", "content": "and now?"})
    name = random.choice(["weather", "x" * 70])
    tools = [
        {"type": "function", "name": name, "parameters": _SCHEMA, "strict": random.random() < 0.5},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "web_search"},
    ]  # fmt: skip
    schema = {"type": "json_schema", "name": "w", "schema": _SCHEMA, "strict": True}
    fields = _some(random, {
        "temperature": [0, 1, 1.7], "top_p": [0.3, 1], "max_output_tokens": [5, 9000], "instructions": ["Be brief."],
        "store": [True, False], "stream": [True], "metadata": [{"a": "b"}],
        "include": [["reasoning.encrypted_content"]],
        "reasoning": [{"effort": effort, "summary": "auto"} for effort in ("none", "minimal", "low", "high", "xhigh")],
        "parallel_tool_calls": [True, False], "text": [{"verbosity": "low"}, {"format": schema}],
        "truncation": ["auto", "disabled"], "previous_response_id": ["resp_1"],
    })  # fmt: skip
    if random.random() < 0.6:
        fields["tools"] = random.sample(tools, random.randrange(1, 4))
        fields |= _some(random, {"tool_choice": ["auto", "none", "required"]})
    return {"input": random.choice([items, items, items, "hi"]), **fields}


def _responses_content(random: Random) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [
        {"type": "input_text", "text": random.choice(_WORDS)},
        {"type": "input_image", "image_url": random.choice([_URL, "https://a.test/b.png"]), "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": _PDF},
    ]
    return random.sample(parts, random.randrange(1, 4))

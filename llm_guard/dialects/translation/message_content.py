"""Content of messages in both dialects: texts, images and documents. URLs are never fetched."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any

from llm_guard.dialects.translation.canonical import JsonObject, MediaBlock, TextBlock, UnreadableRequestError
from llm_guard.dialects.translation.losses import Losses

IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""Both dialects accept these."""
PDF = "application/pdf"
_ALIASES = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "application/x-pdf": PDF}

_OBJECTS = frozenset({dict})

MessageContent = TextBlock | MediaBlock


def objects_in(value: object, param: str) -> list[JsonObject]:
    """Returns a list of objects. Raises UnreadableRequestError for anything else."""
    if isinstance(value, list) and _OBJECTS.issuperset(map(type, value)):
        return value
    raise UnreadableRequestError(param, f"`{param}` must be a list of objects")


def text_of(value: object, param: str) -> str:
    """Returns a text. Raises UnreadableRequestError for anything else."""
    if isinstance(value, str):
        return value
    raise UnreadableRequestError(param, f"`{param}` must be a string")


def number_or_none(value: object, param: str) -> float | None:
    """Returns a number; None for null. Raises UnreadableRequestError for anything else."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise UnreadableRequestError(param, f"`{param}` must be a number")


def note_unknown(fields: JsonObject, known: frozenset[str], losses: Losses, names: dict[str, str], other: str) -> None:
    """Records members that the reader of an object does not know: under the name in `names`, else as `other`."""
    if known.issuperset(fields):
        return
    for name in fields.keys() - known:
        if fields[name] is not None:
            losses.hint(names.get(name, other))


def joined(texts: Iterable[str], between: str) -> str:
    return between.join(text for text in texts if text)


# chat


def media_of_url(url: str, losses: Losses, place: str) -> MediaBlock | None:
    """Returns the image of an `image_url`, or the PDF that some clients send in one; None if it cannot be expressed."""
    if not url.startswith("data:"):
        return MediaBlock("image", url=url)
    media_type, data = _data_url(url)
    if media_type == PDF:
        return MediaBlock("document", media_type, data)
    if media_type in IMAGE_TYPES:
        return MediaBlock("image", media_type, data)
    losses.promise("image_format", place)
    return None


def document_of_file(file: JsonObject, losses: Losses, place: str) -> MediaBlock | None:
    """Returns the document of a chat's `file` part; None if it cannot be expressed."""
    if file.get("file_id"):
        losses.promise("file_id", place)
        return None
    data, title = file.get("file_data"), file.get("filename")
    title = title if isinstance(title, str) else ""
    if not isinstance(data, str):
        raise UnreadableRequestError(place, f"`{place}` needs file_data or file_id")
    media_type, data = _data_url(data) if data.startswith("data:") else (_type_by_name(title), data)
    if media_type == PDF:
        return MediaBlock("document", PDF, data, title=title)
    if media_type.startswith("text/") and (text := _decoded(data)) is not None:
        return MediaBlock("document", "text/plain", text=text, title=title)
    losses.promise("file_format", place)
    return None


def chat_part(block: MessageContent) -> JsonObject:
    """Returns the content part of a chat for a block."""
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    if block.kind == "image":
        url = block.url or f"data:{block.media_type};base64,{block.data}"
        return {"type": "image_url", "image_url": {"url": url}}
    if block.text:
        return {"type": "text", "text": f"{block.title}\n\n{block.text}" if block.title else block.text}
    name = block.title or "document.pdf"
    return {"type": "file", "file": {"filename": name, "file_data": f"data:{block.media_type};base64,{block.data}"}}


# Messages


def media_of_source(kind: Any, block: JsonObject, losses: Losses, place: str) -> MediaBlock | None:
    """Returns the image or document of a Messages block with a source other than `content`; None if it cannot be
    expressed in a chat."""
    source = block.get("source")
    if not isinstance(source, dict):
        raise UnreadableRequestError(f"{place}.source", f"`{place}.source` must be an object")
    title = block.get("title")
    title = title if isinstance(title, str) else ""
    match source.get("type"):
        case "base64":
            media_type = normal_type(text_of(source.get("media_type"), f"{place}.source.media_type"))
            return MediaBlock(kind, media_type, text_of(source.get("data"), f"{place}.source.data"), title=title)
        case "text":
            text = text_of(source.get("data"), f"{place}.source.data")
            return MediaBlock(kind, "text/plain", text=text, title=title)
        case "url" if kind == "image":
            return MediaBlock(kind, url=text_of(source.get("url"), f"{place}.source.url"))
        case "url":
            losses.promise("document_url", place)
        case "file":
            losses.promise("file_id", place)
        case _:
            raise UnreadableRequestError(f"{place}.source.type", f"`{place}.source.type` is not known")
    return None


def messages_block(block: MessageContent) -> JsonObject:
    """Returns the Messages block for an image, a document or a text."""
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    if block.text:
        source = {"type": "text", "media_type": "text/plain", "data": block.text}
    elif block.url:
        source = {"type": "url", "url": block.url}
    else:
        source = {"type": "base64", "media_type": block.media_type, "data": block.data}
    fields: JsonObject = {"type": block.kind, "source": source}
    return {**fields, "title": block.title} if block.title and block.kind == "document" else fields


def normal_type(media_type: str) -> str:
    """Returns a media type without parameters, under the name that providers accept: there is no image/jpg."""
    plain = media_type.partition(";")[0].strip().lower()
    return _ALIASES.get(plain, plain)


def _data_url(url: str) -> tuple[str, str]:
    """Returns media type and base64 data of a `data:` URL."""
    head, _, data = url.partition(",")
    if head.endswith(";base64"):
        return normal_type(head[len("data:") :]), data
    return "", data


def _type_by_name(name: str) -> str:
    if name.lower().endswith(".pdf"):
        return PDF
    return "text/plain" if name.lower().endswith((".txt", ".md", ".csv")) else ""


def _decoded(data: str) -> str | None:
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError):
        return None

"""Builds the API description: a list of the endpoints, and OpenAPI 3.1.

It is generated from the endpoints themselves, and so cannot differ from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.inspect import DataclassType, DictType, ListType, Metadata, StructType, UnionType

from llm_guard.admin.http.endpoint import JSON, AdminRequest, AdminResponse, Change, Endpoint, OperatorHeaders, answer
from llm_guard.admin.http.schema_docs import field_texts, type_text
from llm_guard.version import __version__
from llm_guard.worker_thread import WorkerThread

_REFS = "#/components/schemas/{name}"
_MODULE = re.compile(r"(?<=_)llm_guard\.(?:[a-z_]+\.)+")
_ERRORS = {
    400: "The path or the body cannot be read.",
    401: "The token is missing, wrong, or no longer valid. The response to a wrong one is delayed by a second.",
    403: "The host or the origin of the request is not allowed, or the token has the role viewer, which only reads.",
    404: "The name is unknown.",
    409: "The current state does not allow it.",
    413: "The body is too large.",
    415: "The content type must be application/json.",
    422: "A value is out of range, unknown or missing.",
    500: "Internal error; the log has the reason.",
    503: "Temporarily unavailable.",
}
_OF_EVERY_ONE = (400, 401, 403, 422, 500, 503)
_OF_A_BODY = (404, 409, 413, 415)


class EndpointSummary(Struct, frozen=True):
    method: str
    path: str
    summary: str


class EndpointList(Struct, frozen=True):
    """Response of `GET /admin`."""

    pages: list[EndpointSummary]


class ErrorDetail(Struct, frozen=True):
    code: str
    message: str


class Error(Struct, frozen=True):
    """Body of an error response."""

    error: ErrorDetail


def with_description(pages: Iterable[Endpoint]) -> list[Endpoint]:
    """Adds the two endpoints that describe all of them."""
    thread = WorkerThread("openapi")

    async def give_list(_asked: AdminRequest) -> AdminResponse:
        return answer(
            EndpointList([EndpointSummary(endpoint.method, endpoint.path, endpoint.summary) for endpoint in every])
        )

    async def give_description(_asked: AdminRequest) -> AdminResponse:
        return answer(await thread.run(described, every))  # reads source files

    every = [
        *pages,
        Endpoint("GET", "/admin", "Lists all endpoints.", give_list, gives=EndpointList),
        Endpoint(
            "GET",
            "/admin/openapi.json",
            "Returns this description (OpenAPI 3.1).",
            give_description,
            gives=dict[str, Any],
        ),
    ]
    return every


def described(pages: Iterable[Endpoint]) -> dict[str, Any]:
    """Returns the OpenAPI document (spec.openapis.org/oas/v3.1.0). Omits the dashboard, which is no API."""
    pages = [page for page in pages if page.path != "/" and not page.path.startswith("/dashboard")]
    kinds = dict.fromkeys(
        (Error, *(kind for page in pages for kind in (page.takes, *_gives(page)) if kind is not None))
    )
    found, components = _plainly_named(msgspec.json.schema_components(kinds, ref_template=_REFS))
    schemas = dict(zip(kinds, found, strict=True))
    structs = _structs(kinds)
    for name, schema in components.items():
        _fill_in(schema, structs[name.partition("_")[0]])  # the name of a generic type continues with its arguments
    paths: dict[str, dict[str, Any]] = {}
    for page in pages:
        paths.setdefault(page.path, {})[page.method.lower()] = _operation(page, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "llm-guard admin API", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "ops.token, one of ops.tokens, or the generated one. Browsers have a cookie.",
                }
            },
        },
    }


def _plainly_named(tree: Any) -> Any:
    """Strips module paths from the names of generic types, so that moving a class changes no generated client."""
    if isinstance(tree, dict):
        return {_plain(key): _plain(value) if key == "$ref" else _plainly_named(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_plainly_named(item) for item in tree]
    return tree


def _plain(name: str) -> str:
    return _MODULE.sub("", name)


def _gives(page: Endpoint) -> tuple[Any, ...]:
    """Returns the response types; several for an event stream, as msgspec can read a union only by its tags."""
    return get_args(page.gives) if page.live is not None and get_args(page.gives) else (page.gives,)


def _operation(page: Endpoint, schemas: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": "_".join(re.findall("[a-z]+", f"{page.method.lower()} {page.path}")),
        "summary": page.summary,
        "tags": [page.path.split("/")[2] if page.path.count("/") > 1 else "health"],
        "responses": _responses(page, schemas),
    }
    if parameters := [*_path_parameters(page), *_parameters(page.query, "query"), *_header_parameters(page)]:
        operation["parameters"] = parameters
    if page.takes is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schemas[page.takes]}}}
    if not page.is_open:
        operation["security"] = [{"token": []}]
    return operation


def _responses(page: Endpoint, schemas: dict[Any, Any]) -> dict[str, Any]:
    given = [{"type": "string"} if kind is None else schemas[kind] for kind in _gives(page)]
    schema = given[0] if len(given) == 1 else {"anyOf": given}
    media = page.media if page.live is None else "text/event-stream"
    good = {"description": page.summary, "content": {media: {"schema": schema}}}
    refused = set() if page.is_open else set(_OF_EVERY_ONE)
    refused |= set(_OF_A_BODY) if page.takes is not None else set()
    refused |= {404} if "{" in page.path or page.may_miss else set()
    error = {JSON: {"schema": schemas[Error]}}
    errors = {str(status): {"description": _ERRORS[status], "content": error} for status in sorted(refused)}
    for status, meaning in page.other_statuses.items():
        errors[str(status)] = {"description": meaning, "content": good["content"]}
    return {"200": good, **errors}


def _path_parameters(page: Endpoint) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)\}", page.path):
        # One segment, literal or percent-encoded: so it must not be `.` or `..`.
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]+$"},
        }


def _header_parameters(page: Endpoint) -> Iterator[dict[str, Any]]:
    yield from _parameters(page.heeds, "header")
    if page.takes is not None and issubclass(page.takes, Change):
        yield from _parameters(OperatorHeaders, "header")


def _parameters(kind: type[Struct] | None, place: str) -> Iterator[dict[str, Any]]:
    if kind is None:
        return
    _, components = msgspec.json.schema_components((kind,), ref_template=_REFS)
    schema = components[kind.__name__]
    _fill_in(schema, kind)
    for name, its_schema in schema["properties"].items():
        yield {"name": name, "in": place, "required": name in schema["required"], "schema": _of_a_request(its_schema)}


def _of_a_request(schema: dict[str, Any]) -> dict[str, Any]:
    """Drops the null alternative: an absent parameter is null, and no client sends one."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    return {**kinds[0], "description": schema.get("description", "")} if len(kinds) == 1 else schema


def _fill_in(schema: dict[str, Any], kind: type) -> None:
    """Adds the fields' descriptions, and the constraints between fields."""
    said, names = field_texts(kind), getattr(kind, "__struct_encode_fields__", ())
    written = dict(zip(names, getattr(kind, "__struct_fields__", ()), strict=True))
    for name, its_schema in schema.get("properties", {}).items():
        texts = (said.get(written.get(name, name), ""), type_text(its_schema))
        if text := " ".join(part for part in texts if part):
            its_schema["description"] = text
    schema.update(getattr(kind, "between_fields", {}))


def _structs(kinds: Iterable[Any]) -> dict[str, type]:
    """Returns all structs within these types, by name."""
    found: dict[str, type] = {}
    left: list[Any] = [*msgspec.inspect.multi_type_info(kinds)]
    while left:
        match left.pop():
            case StructType(cls=cls, fields=fields) | DataclassType(cls=cls, fields=fields):
                plain = get_origin(cls) or cls  # the generic type itself, without its arguments
                if plain.__name__ not in found or plain is not cls:
                    left += [field.type for field in fields]
                found[plain.__name__] = plain
            case ListType(item_type=inner) | DictType(value_type=inner) | Metadata(type=inner):
                left.append(inner)
            case UnionType(types=types):
                left += types
            case _:  # a type without parts
                pass
    return found

"""Builds the JSON Schema of a config file, for editors: what pydantic derives from the models, adapted to what the file
may contain.

Draft 7, because that is what editors support best. The schema also refuses two values of which `llm-guard check` only
warns: a base URL with an endpoint, and a short token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from llm_guard.config.fields import key_of
from llm_guard.config.models import Config, Rules

Describe = Callable[[type], Mapping[str, str]]
"""Returns descriptions of a class's fields by name, and that of the class itself as the field ""."""

_DRAFT = "http://json-schema.org/draft-07/schema#"
_REF = "#/definitions/"
_VARIABLE = {"$ref": f"{_REF}Variable"}
_DEFINITIONS = {
    "Variable": {
        "type": "string",
        "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(?::-[^{}]*)?\}",
        "description": "A text with a variable of the environment: ${NAME}, or ${NAME:-default}.",
    },
}
_TEXT = r"^(?:[^$]|\$\$|\$\{[A-Za-z_][A-Za-z0-9_]*(?::-[^{}]*)?\}|\$(?![A-Za-z_{$]))*$"
"""Text in which each dollar sign is doubled, or begins a variable."""
_WORDS_FOR_BOOLEANS = {"enum": ["true", "false", "yes", "no", "on", "off"]}
_REQUIRED = ["upstreams", "models"]


def config_schema(describe: Describe) -> dict[str, Any]:
    """Returns the schema as plain data."""
    made = _Generator(describe).generate(Config.__pydantic_core_schema__)
    definitions: dict[str, Any] = made.pop("$defs")
    numbers = set(_below_rules(made, definitions, is_rule=False))
    for name, definition in definitions.items():
        definitions[name] = _written(definition, takes_numbers=name in numbers)
    schema = _written(made, takes_numbers=False)
    described = {"$schema": _DRAFT, "title": "llm_guard config", **schema, "required": _REQUIRED}
    return {**described, "definitions": dict(sorted({**definitions, **_DEFINITIONS}.items()))}


class _Generator(GenerateJsonSchema):
    """Leaves out defaults and titles, and adds the descriptions of fields. Defaults would be numbers where the file has
    durations and sizes."""

    def __init__(self, describe: Describe) -> None:
        super().__init__(by_alias=True, ref_template=_REF + "{model}")
        self._describe = describe

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return self._described(schema["cls"], super().model_schema(schema))

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return self._described(schema["cls"], super().dataclass_schema(schema))

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002  # the signature of pydantic
        return False

    def _described(self, kind: type, made: JsonSchemaValue) -> JsonSchemaValue:
        texts = self._describe(kind)
        del made["title"]
        made.pop("description", None)
        if text := texts.get(""):
            made["description"] = text
        for name, text in texts.items():
            if (key := key_of(name)) in made.get("properties", {}):
                made["properties"][key] = {**made["properties"][key], "description": text}
        return made


def _below_rules(node: Any, definitions: Mapping[str, Any], *, is_rule: bool) -> Iterator[str]:
    """Yields the definitions that are used under timeout, retry and other rules, where a variable may hold a number."""
    if isinstance(node, list):
        for member in node:
            yield from _below_rules(member, definitions, is_rule=is_rule)
    elif isinstance(node, dict):
        if (name := str(node.get("$ref", "")).removeprefix(_REF)) and is_rule:
            yield name
        if name:
            yield from _below_rules(definitions[name], definitions, is_rule=is_rule)
        for key, member in node.items():
            if key == "properties":
                for field, schema in member.items():
                    yield from _below_rules(schema, definitions, is_rule=is_rule or field in Rules.model_fields)
            else:
                yield from _below_rules(member, definitions, is_rule=is_rule)


def _written(node: dict[str, Any], *, takes_numbers: bool) -> dict[str, Any]:
    """Returns the schema of what the file may contain: a value, or a text with a variable for it."""
    node = dict(node)
    for key, within in node.items():
        if key == "properties":
            node[key] = {
                name: _written(schema, takes_numbers=takes_numbers or name in Rules.model_fields)
                for name, schema in within.items()
            }
        elif key in ("items", "additionalProperties") and isinstance(within, dict):
            node[key] = _written(within, takes_numbers=takes_numbers)
        elif key == "anyOf":
            node[key] = _flat(_written(member, takes_numbers=takes_numbers) for member in within)
    if "$ref" in node and len(node) > 1:  # draft 7 ignores everything beside $ref
        node["allOf"] = [{"$ref": node.pop("$ref")}]
    return _or_variable(node, takes_numbers=takes_numbers)


def _or_variable(node: dict[str, Any], *, takes_numbers: bool) -> dict[str, Any]:
    kind, choices = node.get("type"), node.get("enum") or [node.get("const")]
    description = {key: node.pop(key) for key in ("description",) if key in node}
    if kind == "string" and not node.keys() & {"pattern", "enum", "const"}:
        return {**node, "pattern": _TEXT, **description}
    if kind == "boolean":
        return {"anyOf": [node, _WORDS_FOR_BOOLEANS, _VARIABLE], **description}
    is_text = kind == "string" or any(isinstance(choice, str) for choice in choices)
    if is_text or (takes_numbers and kind in ("integer", "number")):
        return {"anyOf": [node, _VARIABLE], **description}
    return {**node, **description}


def _flat(members: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the members without repetitions, and with those of a member that is only a list of alternatives."""
    found: list[dict[str, Any]] = []
    for member in members:
        for alternative in member["anyOf"] if list(member) == ["anyOf"] else [member]:
            if alternative not in found:
                found.append(alternative)
    return found

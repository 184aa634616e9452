"""Selects what is compiled, and what of it can be C: the modules, which classes become C structs, and which functions C
functions.

Declarations are written in `declare`, C types are in `c_types`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "llm_guard"
# Not `resilience.capacity.rate_limit_headers`: gateways exchange its classes, and msgspec needs their annotations,
# which compiled ones lack. Not `log.writer`: `tests.sweep` replaces a class of it. Not
# `resilience.capacity.fair_queue`: fleets extend its dataclasses, and Python does not set fields of a C type.
HOT = (
    "clock", "outcome",
    "dialects.anthropic", "dialects.event_inspection", "dialects.sse", "dialects.openai",
    "dialects.response_schemas", "dialects.resume.base",
    "dialects.sse_framing",
    "proxy.attempts.admission", "proxy.attempts.attempt_loop", "proxy.attempts.candidate_selection",
    "proxy.attempts.first_response", "proxy.attempts.upstream_attempt",
    "proxy.call", "proxy.headers", "proxy.caller_identity",
    "proxy.handler",
    "proxy.http_client.connection", "proxy.http_client.connection_pool",
    "proxy.http_client.http1",
    "proxy.http_server.connection", "proxy.http_server.request",
    "proxy.http_server.response_writer",
    "proxy.identification",
    "proxy.request_body.model_field", "proxy.request_body.fields", "proxy.request_body.reader",
    "proxy.response.content_decoding", "proxy.response.delivery", "proxy.response.validation",
    "proxy.response.keepalive",
    "proxy.response.unary",
    "proxy.streams.decoder",
    "proxy.telemetry.access_log", "proxy.telemetry.recorder",
    "proxy.wakeup",
    "resilience.capacity.gate",
    "resilience.capacity.header_rate", "resilience.capacity.known_quota", "resilience.capacity.learned_rate",
    "resilience.capacity.pacing", "resilience.capacity.quota_probes",
    "resilience.capacity.rate_growth",
    "resilience.capacity.throttle_statistics", "resilience.capacity.wait_queue",
    "resilience.circuit_breaker.breaker", "resilience.circuit_breaker.callers", "resilience.circuit_breaker.cooldown",
    "resilience.circuit_breaker.history",
    "resilience.circuit_breaker.open_duration", "resilience.circuit_breaker.opening_rules",
    "resilience.circuit_breaker.settings",
    "resilience.retry.limits", "resilience.routing.candidates",
    "resilience.retry.hedging",
    "resilience.routing.client_hints",
    "resilience.streams.settings",
    "resilience.throttling.adaptive_throttle", "resilience.throttling.gcra",
    "routing.deployment", "routing.deployment_registry", "routing.lease", "routing.route_table",
)  # fmt: skip
"""Modules that every call or every chunk passes through, and their data. Compiling others gains nothing."""

INTERFACES = {
    "asyncio.Protocol": frozenset(
        {"connection_made", "connection_lost", "data_received", "eof_received", "pause_writing", "resume_writing"}
    )
}
"""Base classes that a C type can omit: event loops only need the methods."""

Name = tuple[str, str]
"""A module, and a name defined in it."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    name: str
    path: Path
    """Relative to the root."""
    text: str
    tree: ast.Module
    names: Mapping[str, Name]
    """Names in it that refer to something compiled."""
    exports: frozenset[str]
    """`__all__`: names that others may import from it although they are defined elsewhere."""


@dataclass(frozen=True, slots=True)
class Program:
    modules: Mapping[str, Module]
    types: Mapping[Name, ast.ClassDef]
    """Classes with instances that become C structs."""
    functions: frozenset[Name]
    """Module-level functions that C can call."""
    methods: frozenset[tuple[Name, str]]
    """Methods of `types` that C can call."""

    def base(self, name: Name) -> Name | None:
        """The one class that a type inherits from; None if there is none."""
        bases = self.types[name].bases
        return self.modules[name[0]].names.get(ast.unparse(bases[0])) if bases else None


def read_program(root: Path, hot: tuple[str, ...] = HOT) -> Program:
    """Parses the modules. Raises FileNotFoundError for a missing module, and ValueError for one that cannot be
    compiled."""
    names = [f"{PACKAGE}.{each}" for each in hot]
    modules = {name: _module(root, name, frozenset(names)) for name in names}
    classes = {
        (module.name, node.name): node
        for module in modules.values()
        for node in module.tree.body
        if isinstance(node, ast.ClassDef)
    }
    types = {name: node for name, node in classes.items() if _is_type(name, classes, modules)}
    functions = frozenset(
        (module.name, node.name)
        for module in modules.values()
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef) and _is_c_function(node)
    )
    bare = Program(modules, types, functions, frozenset())
    return Program(modules, types, functions, frozenset(_c_methods(bare)))


def dataclass_of(node: ast.ClassDef) -> ast.expr | None:
    """Its `@dataclass` decorator, if any."""
    return next((each for each in node.decorator_list if ast.unparse(each).startswith("dataclass")), None)


def arguments(function: Function) -> list[tuple[ast.arg, ast.expr | None]]:
    """Arguments with their defaults in C's order: C has no keyword-only arguments."""
    args = function.args
    defaults: list[ast.expr | None] = [None] * (len(args.args) - len(args.defaults))
    defaults += [*args.defaults, *args.kw_defaults]
    return list(zip([*args.args, *args.kwonlyargs], defaults, strict=True))


def _module(root: Path, name: str, hot: frozenset[str]) -> Module:
    path = Path(*name.split(".")).with_suffix(".py")
    text = (root / path).read_text()
    tree = ast.parse(text)
    names: dict[str, Name] = {}
    exports: frozenset[str] = frozenset()
    has_future = False
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module in hot:
            names |= {each.asname or each.name: (node.module, each.name) for each in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names[node.name] = (name, node.name)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            exports = frozenset(ast.literal_eval(node.value))
        has_future |= isinstance(node, ast.ImportFrom) and node.module == "__future__"
    if not has_future:
        raise ValueError(f"{path} has no `from __future__ import annotations`")
    return Module(name, path, text, tree, names, exports)


def _is_type(name: Name, classes: Mapping[Name, ast.ClassDef], modules: Mapping[str, Module]) -> bool:
    """True if a class can be a C struct. Excludes classes that pydantic fills, and their subclasses."""
    node = classes[name]
    if node.name.endswith("Settings") or node.keywords or len(node.bases) > 1:
        return False
    if len(node.decorator_list) != (dataclass_of(node) is not None):
        return False
    if node.bases and (needed := INTERFACES.get(ast.unparse(node.bases[0]))) is not None:
        if missing := needed - {each.name for each in node.body if isinstance(each, Function)}:
            raise ValueError(f"{node.name} lacks {', '.join(sorted(missing))}, which its base class would have")
        return True
    bases = [modules[name[0]].names.get(ast.unparse(base)) for base in node.bases]
    return all(base is not None and base in classes and _is_type(base, classes, modules) for base in bases)


def _c_methods(program: Program) -> Iterator[tuple[Name, str]]:
    """Yields the methods that C can call. C finds a method by its place in a table: if one class of a family overrides
    it with a Python method, C would call the wrong one, so then it is a Python method in all of them."""
    found: defaultdict[tuple[Name, str], list[Name]] = defaultdict(list)
    barred = set()
    for name, node in program.types.items():
        family = name
        while (base := program.base(family)) is not None:
            family = base
        for each in node.body:
            if isinstance(each, Function):
                found[family, each.name].append(name)
                if not _is_c_function(each) or not each.args.args:
                    barred.add((family, each.name))
    for (family, method), owners in found.items():
        if (family, method) not in barred:
            yield from ((owner, method) for owner in owners)


def _is_c_function(function: Function) -> bool:
    """True for a function that can be C: no coroutine, generator or closure, no decorator, no `*` or `**` arguments."""
    args = function.args
    if isinstance(function, ast.AsyncFunctionDef) or function.decorator_list or function.name.startswith("__"):
        return False
    if args.vararg or args.kwarg or args.posonlyargs:
        return False
    has_default = [default is not None for _, default in arguments(function)]
    if has_default != sorted(has_default):
        return False
    bodies = [*function.body, *filter(None, [*args.defaults, *args.kw_defaults])]
    return not any(isinstance(node, _NOT_IN_C) for body in bodies for node in ast.walk(body))


_NOT_IN_C = (
    ast.Lambda, ast.GeneratorExp, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Yield, ast.YieldFrom,
    ast.Nonlocal,
)  # fmt: skip

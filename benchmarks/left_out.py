"""Leave-one-provider-out: how the classifier reads a provider that its tables were not written for.

For each group of providers, removes the rows of the vocabulary that only its own errors can have taught, withholds its
name, and classifies its errors with the rest. Both steps are mechanical:

- A row belongs to a group if, among all labelled errors, it matches only the group's, or none while its table names the
  group. An error that a gateway quotes does not count, because it is another provider's.
- A self-hosted engine is at a local address ("local"), any other provider at an unknown one ("").

The stricter of the two figures also removes single words from the senses (`resilience.classification.topic_match`):
words that only the group's errors use, although many of them are plain English and were not learned from these errors.

Structure cannot be left out: which fields of a body are read, what a status means, which stop reasons are proper ends.
Connection errors are excluded: their words come from this gateway's own HTTP client.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from llm_guard.cli.classify_report import answers, evidence_of
from llm_guard.resilience.classification.classify import Evidence, classify
from llm_guard.resilience.classification.error_body import Layer
from llm_guard.resilience.classification.rules import ClassificationRule, RuleBook
from llm_guard.resilience.classification.topic_match import TopicPattern, Wording, wordings
from llm_guard.resilience.classification.vocabulary import RULES
from llm_guard.resilience.classification.vocabulary.engines import SELF_HOSTED

Record = dict[str, Any]

GROUPS: dict[str, tuple[str, ...]] = {
    "amazon": ("bedrock", "sagemaker", "aws_lambda", "cloudfront", "alb", "apigw"),
    "cloudflare": ("workers_ai",),
    "envoy": ("envoy_ai_gateway", "inference_gateway"),
    "google": ("gemini", "vertex", "gemini_code_assist", "cloud_run", "apigee"),
    "kubernetes": ("knative",),
    "llama.cpp and what embeds it": ("llama.cpp", "ollama", "lmstudio", "localai", "llama_swap"),
    "microsoft": ("azure_openai", "azure_front_door", "azure_container_apps", "azure_ml", "github_copilot"),
    "vllm": ("vllm_production_stack",),
}
"""Providers of one vendor, which share their words; any other provider is its own group."""

NAMES = {
    "amazon": ("Amazon",),
    "anthropic": ("Anthropic",),
    "cerebras": ("Cerebras",),
    "cloudflare": ("Cloudflare",),
    "cohere": ("Cohere",),
    "dashscope": ("DashScope",),
    "databricks": ("Databricks",),
    "deepinfra": ("DeepInfra",),
    "deepseek": ("DeepSeek",),
    "envoy": ("Envoy",),
    "fireworks": ("Fireworks",),
    "google": ("Google", "google.rpc", "Gemini", "Vertex"),
    "groq": ("Groq",),
    "huggingface": ("Hugging Face",),
    "kong": ("Kong",),
    "kubernetes": ("Kubernetes",),
    "litellm_proxy": ("LiteLLM",),
    "llama.cpp and what embeds it": ("llama.cpp", "Ollama", "LM Studio"),
    "microsoft": ("Azure",),
    "minimax": ("MiniMax",),
    "mistral": ("Mistral",),
    "modal": ("Modal",),
    "moonshot": ("Moonshot",),
    "nginx": ("nginx",),
    "nvidia_nim": ("NVIDIA NIM",),
    "openai": ("OpenAI, Error codes",),
    "opencode_zen": ("OpenCode Zen",),
    "openrouter": ("OpenRouter",),
    "perplexity": ("Perplexity",),
    "portkey_gateway": ("Portkey",),
    "replicate": ("Replicate",),
    "sambanova": ("SambaNova",),
    "sglang": ("SGLang",),
    "siliconflow": ("SiliconFlow",),
    "snowflake": ("Snowflake",),
    "tgi": ("TGI",),
    "together": ("Together",),
    "vercel": ("Vercel",),
    "vllm": ("vLLM",),
    "volcengine": ("Volcengine",),
    "xai": ("xAI",),
    "zhipu": ("Zhipu",),
}
"""Names of the groups in the tables' sources (`cited`)."""

QUOTING = frozenset({
    "cline", "litellm_proxy", "new_api", "omniroute", "opencode_zen", "openrouter", "other_gateway", "pollinations",
    "portkey_gateway", "sub2api", "truefoundry",
})  # fmt: skip
"""Gateways that quote other providers: their errors are not a second source for a row."""

_GROUP_OF = {member: group for group, members in GROUPS.items() for member in members}
_SERVERS = ("cloudflare", "nginx", "envoy", "awselb", "vercel")
_UNNAMED = "edge"


class _Listening(RuleBook):
    """Records every rule that matches its input, and the words of senses that made it match."""

    def __init__(self, rules: Sequence[ClassificationRule]) -> None:
        super().__init__(rules)
        self.held: set[ClassificationRule] = set()
        self.used: set[tuple[ClassificationRule, str]] = set()

    def find(self, layers: Sequence[tuple[Layer, str]], status: int | None, family: str) -> ClassificationRule | None:
        held = set(self.all_holding(layers, status, family))
        self.held |= held
        spoken = [wording for layer, words in layers for wording in wordings(words, layer.labels)]
        for rule in held:
            if rule.sense is not None:
                self.used.update((rule, word) for word in _words_used(rule.sense, spoken))
        return super().find(layers, status, family)


def _words_used(sense: TopicPattern, spoken: Iterable[Wording]) -> Iterator[str]:
    for wording in spoken:
        if sense.holds(wording):
            for group in sense.groups:
                yield from group & wording.words


def group_of(record: Record) -> str:
    """The group that worded an error; intermediaries are identified by the name in the id or in `server`."""
    provider: str = record["provider"]
    if provider == _UNNAMED:
        server = (record.get("headers") or {}).get("server", "").lower()
        first = record["id"].partition("-")[0]
        provider = next((name for name in _SERVERS if name in server), first)
        provider = "alb" if provider == "awselb" else provider
    return _GROUP_OF.get(provider, provider)


def measurable(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record["transport"] != "network"]


class Taught:
    """Groups with errors that each row of the vocabulary, and each word of a sense, matches."""

    def __init__(self, records: Iterable[Record], wall: float) -> None:
        self._rows: dict[ClassificationRule, set[str]] = defaultdict(set)
        self._words: dict[tuple[ClassificationRule, str], set[str]] = defaultdict(set)
        listening = _Listening(tuple(RULES))
        for record in measurable(records):
            listening.held.clear()
            listening.used.clear()
            classify(evidence_of(record), wall, book=listening)
            for rule in listening.held:
                self._rows[rule].add(group_of(record))
            for used in listening.used:
                self._words[used].add(group_of(record))

    def without(self, group: str, *, words_too: bool = False) -> RuleBook:
        """The vocabulary without the rows that only this group's errors have taught."""
        rules = [rule for rule in RULES if not self._is_from(self._rows.get(rule, set()), group, rule.source)]
        return RuleBook(self._narrowed(rules, group) if words_too else rules)

    def _is_from(self, groups: set[str], group: str, source: str = "") -> bool:
        if group not in groups and (groups or not _is_named(group, source)):
            return False
        return not groups - QUOTING - {group}

    def _narrowed(self, rules: Iterable[ClassificationRule], group: str) -> list[ClassificationRule]:
        narrowed = []
        for rule in rules:
            if rule.sense is not None:
                kept = tuple(
                    frozenset(word for word in words if not self._is_only(rule, word, group))
                    for words in rule.sense.groups
                )
                rule = replace(rule, sense=replace(rule.sense, groups=kept))
            narrowed.append(rule)
        return narrowed

    def _is_only(self, rule: ClassificationRule, word: str, group: str) -> bool:
        return self._is_from(self._words.get((rule, word), set()), group)


def read_unknown(
    records: Iterable[Record], taught: Taught, wall: float, *, words_too: bool = False
) -> Iterator[tuple[Record, dict[str, Any]]]:
    """Yields each error with the result for an unknown provider."""
    books: dict[str, RuleBook] = {}
    for record in measurable(records):
        group = group_of(record)
        if group not in books:
            books[group] = taught.without(group, words_too=words_too)
        yield record, answers(classify(_unnamed(evidence_of(record)), wall, book=books[group]))


def _is_named(group: str, source: str) -> bool:
    return any(name in source for name in NAMES.get(group, ()))


def _unnamed(evidence: Evidence) -> Evidence:
    return replace(evidence, family="local" if evidence.family in SELF_HOSTED else "")

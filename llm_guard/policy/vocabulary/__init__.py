"""What providers' words mean: one table per family, each row with its source. Data, no decisions.

codes      machine-readable words that many share
common     sentences that many share
senses     what sentences are about, in words of plain English, where none of the others holds
server_senses  the same, of servers
openai     OpenAI and Azure OpenAI
anthropic
google     Gemini and Vertex AI
amazon     Bedrock, API Gateway, load balancers
hosts      Groq, Mistral, Cohere, Cerebras, Together, Fireworks, xAI, Perplexity, DeepSeek, NIM and other hosted models
china      DashScope, Moonshot, Zhipu, MiniMax, Volcengine, SiliconFlow
engines    vLLM, SGLang, TGI, llama.cpp, Ollama, LM Studio
gateways   OpenRouter, LiteLLM, Portkey, Kong, API Management, Databricks, Snowflake
edges      Cloudflare, nginx, Envoy, Kubernetes and other things in between
transport  errors of connections, as HTTP clients word them
finishes   reasons for which a model stops that are not an end
statuses   what an HTTP status means alone
families   whose words an upstream speaks
"""

from __future__ import annotations

from llm_guard.policy.error_rules import RuleBook
from llm_guard.policy.vocabulary import (
    amazon,
    anthropic,
    china,
    codes,
    common,
    edges,
    engines,
    gateways,
    google,
    hosts,
    openai,
    senses,
    server_senses,
)

RULES = RuleBook((
    *openai.RULES, *anthropic.RULES, *google.RULES, *amazon.RULES, *hosts.RULES, *china.RULES, *engines.RULES,
    *gateways.RULES, *edges.RULES, *codes.RULES, *common.RULES, *senses.RULES, *server_senses.RULES,
))  # fmt: skip

"""The brown-out frontier: which calls succeed and what they cost, compared with having no gateway.

Everything runs on the virtual clock of `benchmarks.virtual`, with the gateway's shipped defaults.

providers  how a provider fails: at random, by overload, by content, for a while, or in turn
rows       the promises, each a provider, a load and the bounds that must hold
chance     openings of the breaker by chance alone, and limits that are learned
peers      the same providers without a gateway, with an SDK's retries, and behind Envoy's defaults
report     the page and its picture
"""

"""Builds the generated parts of the documentation: the configuration reference and the list of metrics.

configuration  every key of the config, from the settings classes and the texts below their fields
metrics        every metric, from a gateway that runs without traffic
hooks          puts both into the pages, when MkDocs builds them

A page has a line such as `<!-- generated: metrics -->` where a part belongs. Nothing that is generated is stored, so it
cannot differ from the code.
"""

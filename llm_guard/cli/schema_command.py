"""`llm-guard schema`: prints the JSON Schema of the config, for editors and CI."""

from __future__ import annotations

import json

import click

from llm_guard.admin.http.schema_docs import yaml_texts
from llm_guard.config import config_schema


@click.command()
def schema() -> None:
    """Print the JSON Schema of the config file.

    \b
    Editors read it from the file's first line:
      # yaml-language-server: $schema=llm_guard.schema.json
    """
    click.echo(json.dumps(config_schema(yaml_texts), indent=1, ensure_ascii=False))

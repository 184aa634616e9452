"""`python -m llm_guard`."""

from llm_guard.cli.main import main

main()

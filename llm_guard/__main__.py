"""`python -m llm_guard`."""

from llm_guard.cli import main

main()

"""The command line. The only package that prints.

main                the command line; starts the gateway
command_group       the commands by name, imported when they are used
program_name        how this program was called
init_command        `llm-guard init`: writes a first config
config_template     the text of a first config
check_command       `llm-guard check`: validates a config, and warns of what is rarely intended
classify_report     `llm-guard classify`: explains provider errors
explain_command     `llm-guard explain`: shows what happened to a call
login_command       `llm-guard login`: prints a login link for the dashboard
config_option       the option for the config file, and its loading
admin_access        finds the address and the token of a config's gateway, for these commands
schema_command      `llm-guard schema`: prints the JSON Schema of the config
completion_command  `llm-guard completion`: prints or installs the completion for a shell
translation_notes   what translated calls lose, for `llm-guard check`
restart_summary     how an engine is restarted, for `llm-guard check`
mock_command        `llm-guard mock`: runs a mock provider
demo_command        `llm-guard demo`: shows what the gateway achieves
demo                its scenes: gateway and mock together
"""

"""Maps each of the attacks C01 to C99 to its tests, or to the part of the gateway that would have to exist first.

One group per test file. A test checks that every attack is in exactly one group, that the named tests exist and name
the attack, and that no attack is excused by the absence of something that exists.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

import llm_guard.admin
from llm_guard.admin.http.endpoint import Change


@dataclass(frozen=True, slots=True)
class Absent:
    """An attack without a test, because its target does not exist."""

    why: str
    found: Callable[[], Sequence[str]]
    """Finds places in the code that have the missing target; if there are any, the attack needs a test."""


def addresses_in_pages(change: type[msgspec.Struct] = Change) -> list[str]:
    """Fields of admin request bodies that could hold the address of another host."""
    for module in pkgutil.walk_packages(llm_guard.admin.__path__, "llm_guard.admin."):
        importlib.import_module(module.name)
    found, left = [], [change]
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        names = (field.encode_name for field in msgspec.structs.fields(kind))
        found += [f"{kind.__name__}.{name}" for name in names if re.search(r"ur[il]|host|addr|port$|endpoint", name)]
    return found


Table = Mapping[str, tuple[str, ...] | Absent]
"""Tests of each attack, as `file::function` relative to the root."""

_HERE = "tests/security/"
_BODIES = _HERE + "test_bodies.py::"
_CALLERS = _HERE + "test_callers.py::"
_FLOODS = _HERE + "test_floods.py::"
_BOMBS = _HERE + "test_bombs.py::"
_CROWDS = _HERE + "test_crowds.py::"
_FRAMING = _HERE + "test_framing.py::"
_HEADERS = _HERE + "test_headers.py::"
_OPERATOR = _HERE + "test_operator.py::"
_PARSING = _HERE + "test_parsing.py::"
_ISOLATION = _HERE + "test_isolation.py::"
_SCOPES = _HERE + "test_scopes.py::"
_SECRETS = _HERE + "test_secrets.py::"
_SMUGGLING = _HERE + "test_smuggling.py::"
_SWEEP = _HERE + "test_sweep.py::"
_TARGETS = _HERE + "test_targets.py::"
_UPSTREAMS = _HERE + "test_upstreams.py::"
_ALONE = "tests/integration/test_callers.py::"
_CACHE = "tests/integration/test_cache_answers.py::"
_FLEET = "tests/integration/test_fleet.py::"
_FLEET_OPERATORS = "tests/integration/test_fleet_operators.py::"
_KILLS = "tests/integration/test_stored_calls_kills.py::"
_FULL_DISK = "tests/integration/test_stored_calls_full_disk.py::"
_LETTERS = "tests/integration/test_dead_letters.py::"
_CLIENT_LIMITS = "tests/integration/test_client_limits.py::"
_CONFIG = _HERE + "test_config.py::"
_LABELS = _HERE + "test_labels.py::"
_STREAMS = _HERE + "test_streams.py::"

SMUGGLING: Table = {
    "C01": (
        _SMUGGLING + "test_request_that_can_be_framed_in_two_ways_is_refused",
        _SMUGGLING + "test_form_of_the_attacks_is_that_of_a_good_call",
    ),
    "C02": (_SMUGGLING + "test_request_that_can_be_framed_in_two_ways_is_refused",),
    "C03": (_SMUGGLING + "test_request_that_can_be_framed_in_two_ways_is_refused",),
    "C04": (_SMUGGLING + "test_transfer_coding_besides_chunked_is_refused",),
    "C05": (_SMUGGLING + "test_chunks_below_http_1_1_are_refused",),
    "C06": (_SMUGGLING + "test_request_that_can_be_framed_in_two_ways_is_refused",),
    "C07": (_SMUGGLING + "test_request_that_can_be_framed_in_two_ways_is_refused",),
    "C08": (
        _SMUGGLING + "test_request_that_can_be_framed_in_two_ways_is_refused",
        _SMUGGLING + "test_well_formed_chunk_extension_is_not_forwarded",
    ),
    "C09": (_SMUGGLING + "test_request_that_can_be_framed_in_two_ways_is_refused",),
    "C10": (
        _SMUGGLING + "test_trailer_is_no_header",
        _SMUGGLING + "test_trailer_is_no_header_of_the_next_request_either",
        _SMUGGLING + "test_trailer_is_bounded_like_a_head",
    ),
    "C11": (
        _SMUGGLING + "test_unknown_expectation_is_refused_and_the_connection_closed",
        _SMUGGLING + "test_call_refused_before_its_body_is_answered_once_and_its_body_is_never_a_request",
        _SMUGGLING + "test_call_refused_before_100_continue_ends_the_connection",
        _SMUGGLING + "test_client_that_expects_100_continue_gets_it_once",
        _SMUGGLING + "test_answer_before_the_end_of_a_large_body_arrives",
    ),
    "C12": (
        _FRAMING + "test_provider_gets_what_a_strict_reader_reads",
        _SMUGGLING + "test_body_reaches_the_provider_byte_for_byte_however_it_was_cut",
        _SMUGGLING + "test_unusual_pair_of_method_and_body_is_framed_once",
    ),
    "C13": (
        _SMUGGLING + "test_gateway_is_as_strict_where_aiohttp_parses_in_python",
        _SMUGGLING + "test_gateway_does_not_start_without_its_parser",
    ),
}
PARSING: Table = {
    "C14": (
        _PARSING + "test_head_that_is_no_head_is_refused",
        _PARSING + "test_tolerated_syntax_reaches_the_provider_as_one_well_formed_request",
    ),
    "C15": (
        _HEADERS + "test_underscored_name_reaches_no_provider",
        _PARSING + "test_header_with_an_underscore_is_dropped",
        _PARSING + "test_key_in_a_header_with_an_underscore_opens_nothing",
    ),
    "C16": (_PARSING + "test_host_must_be_sent_exactly_once",),
    "C17": (
        _PARSING + "test_host_that_holds_more_than_a_host_is_refused",
        _PARSING + "test_host_that_is_a_host_is_served",
    ),
    "C18": (
        _PARSING + "test_tolerated_syntax_reaches_the_provider_as_one_well_formed_request",
        _PARSING + "test_version_other_than_the_two_is_refused",
        _PARSING + "test_other_protocol_is_refused",
    ),
    "C19": (
        _HEADERS + "test_upgrade_header_reaches_no_provider",
        _PARSING + "test_upgrade_to_another_protocol_is_answered_in_this_one",
    ),
    "C20": (
        _PARSING + "test_head_above_its_limit_is_refused_before_its_end",
        _PARSING + "test_head_that_drips_above_its_limit_is_refused",
        _PARSING + "test_head_within_its_bounds_is_served",
    ),
    "C21": (
        _PARSING + "test_ten_thousand_requests_at_once_are_answered_in_order",
        _PARSING + "test_requests_after_an_unanswered_one_are_not_executed",
        _PARSING + "test_requests_whose_responses_are_not_read_are_not_made",
        _PARSING + "test_nothing_is_read_after_the_last_request_of_a_connection",
    ),
    "C22": (_PARSING + "test_ten_megabytes_in_chunks_of_one_byte_delay_no_other_call",),
    "C37": (
        _BODIES + "test_compressed_body_that_inflates_above_the_limit_is_refused_early",
        _PARSING + "test_json_by_another_name_is_read_as_json_and_sent_on_as_it_was",
        _PARSING + "test_body_whose_model_is_ambiguous_goes_to_no_provider",
    ),
}
FLOODS: Table = {
    "C23": (
        _FLOODS + "test_slow_heads_are_cut_and_delay_no_other_call",
        _FLOODS + "test_head_that_drips_on_a_used_connection_is_cut",
        _FLOODS + "test_used_connection_that_is_silent_is_closed_without_a_response",
        _CROWDS + "test_thousands_of_idle_connections_do_not_stop_a_call",
    ),
    "C24": (
        _FLOODS + "test_body_that_stops_coming_is_not_waited_for",
        _FLOODS + "test_body_that_drips_is_not_waited_for",
        _FLOODS + "test_large_body_that_arrives_steadily_is_waited_for",
    ),
    "C25": (_FLOODS + "test_answers_of_clients_that_do_not_read_are_not_piled_up",),
    "C26": (_BOMBS + "test_body_that_grows_above_the_limit_is_refused_early",),
    "C27": (_BOMBS + "test_corrupt_body_is_the_clients_fault",),
    "C28": (
        _BOMBS + "test_response_that_would_inflate_is_passed_on_unchanged",
        _BOMBS + "test_error_that_would_inflate_is_passed_on_unchanged",
    ),
    "C29": (
        _CROWDS + "test_thousands_of_idle_connections_do_not_stop_a_call",
        _CROWDS + "test_connection_above_the_limit_replaces_the_longest_idle_one",
        _CROWDS + "test_connection_above_the_limit_is_refused_when_all_are_in_use",
        _CROWDS + "test_gateway_with_few_descriptors_outlives_a_flood_of_connections",
        _CROWDS + "test_gateway_that_is_allowed_more_connections_than_descriptors_resets_no_call",
    ),
    "C30": (_CROWDS + "test_calls_to_a_hanging_provider_are_refused_above_the_queue_limit",),
}
TARGETS: Table = {
    "C38": (
        _TARGETS + "test_target_that_is_no_plain_path_is_refused",
        _TARGETS + "test_path_outside_the_api_leads_nowhere",
        _TARGETS + "test_odd_but_plain_path_reaches_the_provider_as_it_was_written",
        _TARGETS + "test_path_that_only_some_servers_misread_is_refused_or_left_as_it_was",
        _TARGETS + "test_method_of_the_api_reaches_the_provider",
    ),
    "C39": (
        _TARGETS + "test_target_that_is_no_plain_path_is_refused",
        _TARGETS + "test_path_outside_the_api_leads_nowhere",
        _TARGETS + "test_odd_but_plain_path_reaches_the_provider_as_it_was_written",
        _TARGETS + "test_path_that_only_some_servers_misread_is_refused_or_left_as_it_was",
        _TARGETS + "test_upstream_is_the_configured_one_for_any_requested_host",
        _TARGETS + "test_other_method_is_refused",
    ),
}
BODIES: Table = {
    "C31": (
        _BODIES + "test_depth_bomb_is_refused_without_being_climbed",
        _BODIES + "test_unread_content_is_forwarded_byte_for_byte",
    ),
    "C32": (
        _BODIES + "test_model_routed_by_is_the_one_that_the_provider_reads",
        _BODIES + "test_renamed_body_names_the_new_model_to_parsers_that_take_the_last_duplicate",
        _BODIES + "test_malformed_body_is_refused",
    ),
    "C33": (
        _BODIES + "test_malformed_body_is_refused",
        _BODIES + "test_unread_content_is_forwarded_byte_for_byte",
    ),
    "C34": (
        _BODIES + "test_unread_content_is_forwarded_byte_for_byte",
        _BODIES + "test_numbers_survive_the_renaming_of_the_model",
    ),
    "C35": (
        _BODIES + "test_malformed_body_is_refused",
        _BODIES + "test_unread_content_is_forwarded_byte_for_byte",
    ),
    "C36": (
        _BODIES + "test_malformed_body_is_refused",
        _BODIES + "test_unread_content_is_forwarded_byte_for_byte",
    ),
}
UPSTREAMS: Table = {
    "C40": (_UPSTREAMS + "test_no_input_of_a_client_sends_its_call_or_our_key_elsewhere",),
    "C41": (
        _UPSTREAMS + "test_redirect_of_a_call_is_a_failure_and_harms_no_other_call",
        _UPSTREAMS + "test_call_that_was_redirected_may_be_answered_by_its_fallback",
        _UPSTREAMS + "test_redirect_of_a_file_is_the_clients_to_follow",
    ),
    "C43": (
        _BODIES + "test_malformed_body_is_refused",
        _BODIES + "test_model_is_a_name_and_no_part_of_an_address",
    ),
    "C48": (
        _UPSTREAMS + "test_answer_that_is_not_http_is_the_providers_failure",
        _UPSTREAMS + "test_folded_line_of_a_response_is_one_line_or_an_error",
        _UPSTREAMS + "test_answer_that_is_not_http_is_retried",
    ),
    "C49": (
        _UPSTREAMS + "test_answer_that_is_not_http_is_the_providers_failure",
        _UPSTREAMS + "test_answer_that_is_not_http_is_retried",
        _UPSTREAMS + "test_odd_status_is_passed_on_as_it_is_or_refused_as_a_whole",
        _UPSTREAMS + "test_answer_without_content_is_passed_on_without_content",
    ),
    "C50": (
        _UPSTREAMS + "test_data_after_a_response_reaches_no_client",
        _UPSTREAMS + "test_answer_to_head_has_no_body_that_could_be_the_next_one",
    ),
    "C51": (_UPSTREAMS + "test_cookie_of_one_callers_answer_reaches_no_other_callers_request",),
    "C82": (
        _UPSTREAMS + "test_no_error_body_keeps_the_classifier_busy",
        _UPSTREAMS + "test_operator_pattern_is_words_and_never_a_regular_expression",
        _UPSTREAMS + "test_no_header_keeps_the_classifier_busy",
    ),
    "C89": (
        _UPSTREAMS + "test_provider_without_a_valid_certificate_gets_no_call",
        _UPSTREAMS + "test_config_has_no_option_to_skip_certificate_checks",
    ),
}
HEADERS: Table = {
    "C44": (
        _HEADERS + "test_line_breaks_of_a_body_become_no_header",
        _HEADERS + "test_control_character_in_a_header_is_refused",
    ),
    "C45": (
        _HEADERS + "test_named_headers_stay_and_added_ones_are_forwarded",
        _HEADERS + "test_proxy_and_connection_headers_of_a_client_are_not_passed_on",
        _HEADERS + "test_headers_of_a_providers_connection_reach_no_client",
    ),
    "C46": (
        _HEADERS + "test_proxy_and_connection_headers_of_a_client_are_not_passed_on",
        _HEADERS + "test_priority_is_read_by_the_gateway_and_not_forwarded",
    ),
    "C47": (
        _HEADERS + "test_content_encoding_of_a_response_is_true",
        _HEADERS + "test_content_encoding_of_a_request_is_true",
    ),
    "C91": (
        _CALLERS + "test_refusal_does_not_reveal_other_clients_to_a_stranger",
        _HEADERS + "test_answer_of_the_gateways_own_names_no_software",
        _HEADERS + "test_operators_paths_on_a_port_of_their_own_are_not_on_the_clients_one",
    ),
    "C92": (
        _HEADERS + "test_gateway_adds_no_header_to_a_request",
        _HEADERS + "test_user_agent_passes_and_accept_encoding_as_far_as_it_can_be_decoded",
    ),
}
STREAMS: Table = {
    "C52": (
        _STREAMS + "test_stream_reaches_the_client_byte_for_byte_however_it_was_cut",
        _STREAMS + "test_error_in_an_early_stream_is_one_event_for_any_content",
        _STREAMS + "test_error_of_a_cut_stream_does_not_join_the_cut_event",
    ),
    "C53": (
        _STREAMS + "test_line_without_end_costs_no_memory_and_harms_no_other_call",
        _STREAMS + "test_watch_holds_no_more_than_one_event",
        _STREAMS + "test_giant_event_before_the_first_token_is_bounded_in_time",
        _STREAMS + "test_stream_of_nothing_but_comments_ends_at_the_total_limit",
    ),
}
SECRETS: Table = {
    "C54": (_SECRETS + "test_malformed_request_is_answered_without_quoting_it",),
    "C55": (
        _SECRETS + "test_no_secret_is_in_anything_that_a_process_writes_or_counts",
        _SECRETS + "test_config_with_keys_shows_none_of_them",
        _SECRETS + "test_identity_of_a_caller_is_stored_as_a_digest",
        _SWEEP + "test_key_is_found_in_every_kind_of_output",
        _SWEEP + "test_key_in_an_admin_response_is_found",
        _SWEEP + "test_key_in_an_event_is_found",
        _SWEEP + "test_keys_of_configs_and_of_calls_are_known",
    ),
    "C56": (_SECRETS + "test_no_secret_is_in_anything_that_a_process_writes_or_counts",),
    "C57": (_SECRETS + "test_exception_is_hidden_from_the_client_except_for_its_id",),
    "C58": (_LABELS + "test_texts_of_callers_and_providers_forge_no_log_line",),
}
LABELS: Table = {
    "C59": (
        _LABELS + "test_no_text_of_a_caller_is_a_label",
        _LABELS + "test_hundred_thousand_names_leave_a_bounded_number",
        _LABELS + "test_accounts_of_strangers_are_forgotten_in_time",
    ),
}
CALLERS: Table = {
    "C60": (
        _CALLERS + "test_doubtful_client_is_denied",
        _CALLERS + "test_keys_are_held_against_each_other_as_digests_of_the_whole",
    ),
    "C61": (
        _CALLERS + "test_doubtful_client_is_denied",
        _CALLERS + "test_key_with_control_characters_is_no_request",
        _CALLERS + "test_keys_are_held_against_each_other_as_digests_of_the_whole",
    ),
    "C62": (
        _CALLERS + "test_doubtful_client_is_denied",
        _CALLERS + "test_keys_are_held_against_each_other_as_digests_of_the_whole",
    ),
    "C63": (
        _CALLERS + "test_right_key_is_right_in_every_form",
        _CALLERS + "test_doubtful_client_is_denied",
        _CALLERS + "test_same_right_key_twice_is_one_key",
        _CALLERS + "test_one_right_key_with_a_key_in_another_form_is_enough",
        _CALLERS + "test_lost_state_authorizes_no_client",
        _CALLERS + "test_stranger_is_refused_before_the_body_is_read",
    ),
    "C83": (_CALLERS + "test_request_that_always_fails_costs_a_fifth_more_than_once",),
    "C85": (
        _CALLERS + "test_disconnected_clients_leave_nothing_running",
        _CALLERS + "test_clients_that_disconnect_before_a_response_leave_nothing_running",
    ),
}
CONFIG: Table = {
    "C72": (
        _CONFIG + "test_tag_makes_no_object_and_runs_nothing",
        _CONFIG + "test_config_that_would_run_something_ends_the_process_with_a_reason",
    ),
    "C73": (
        _CONFIG + "test_few_lines_cannot_expand_into_an_endless_config",
        _CONFIG + "test_key_that_is_there_twice_is_not_decided_by_its_order",
        _CONFIG + "test_value_is_read_as_written_and_has_the_type_of_its_key",
        _CONFIG + "test_reload_that_fails_shows_no_key_and_changes_nothing",
    ),
    "C74": (
        _CONFIG + "test_value_of_a_variable_is_text_and_read_once",
        _CONFIG + "test_variable_that_is_not_there_is_an_error_and_not_nothing",
        _CONFIG + "test_variables_that_name_each_other_end_at_once",
        _CONFIG + "test_error_shows_no_value_of_a_variable",
        _CONFIG + "test_reload_that_fails_shows_no_key_and_changes_nothing",
        _SECRETS + "test_config_with_keys_shows_none_of_them",
    ),
    "C90": (
        _CONFIG + "test_every_package_is_pinned_to_its_hash",
        _CONFIG + "test_nothing_is_installed_without_hashes",
        _CONFIG + "test_package_brings_no_file_that_runs_when_python_starts",
    ),
}
OPERATOR: Table = {
    "C64": (
        _OPERATOR + "test_few_pages_are_open_and_none_that_changes_anything",
        _OPERATOR + "test_every_page_requires_the_operator_token",
        _OPERATOR + "test_token_in_the_target_is_none",
        _OPERATOR + "test_token_of_yesterday_opens_nothing",
        _OPERATOR + "test_operators_token_is_no_clients_key",
        _OPERATOR + "test_no_other_spelling_leads_to_a_page",
        _OPERATOR + "test_no_other_method_leads_to_a_page",
        _OPERATOR + "test_without_a_configured_token_only_the_generated_one_is_accepted",
    ),
    "C65": (
        _OPERATOR + "test_page_of_another_site_may_not_send_requests_even_with_browser_headers",
        _OPERATOR + "test_form_of_a_page_changes_nothing",
        _OPERATOR + "test_reading_changes_nothing",
    ),
    "C66": (
        _OPERATOR + "test_every_answer_forbids_frames_guessing_and_other_origins",
        _OPERATOR + "test_no_origin_is_allowed_by_cors",
        _OPERATOR + "test_page_of_another_site_may_not_send_requests_even_with_browser_headers",
    ),
    "C67": (
        _OPERATOR + "test_foreign_host_name_leads_to_no_page",
        _OPERATOR + "test_request_without_a_host_leads_to_no_page",
        _OPERATOR + "test_configured_host_names_are_accepted",
    ),
    "C68": (
        _OPERATOR + "test_socket_is_not_upgraded_before_authentication",
        _OPERATOR + "test_socket_that_is_abused_is_closed_with_a_reason",
        _OPERATOR + "test_page_of_another_site_may_not_send_requests_even_with_browser_headers",
    ),
}
ENGINES: Table = {
    "C70": (
        "tests/integration/test_engines_command.py::test_argv_is_passed_to_the_program_unchanged",
        "tests/integration/test_engines.py::test_name_from_outside_reaches_no_command",
    ),
    "C71": (
        "tests/property/test_engine_state.py::test_engine_holds_on_every_walk",
        "tests/unit/upstreams/engines/test_registry.py::test_engine_that_another_gateway_has_restarted_is_only_waited_for",
    ),
}
SCOPES: Table = {
    "C93": (
        _SCOPES + "test_key_without_more_calls_models_and_nothing_else",
        _SCOPES + "test_key_for_files_alone_calls_no_model",
        _SCOPES + "test_refusal_is_an_error_of_either_dialect_and_is_counted",
    ),
    "C94": (
        _SCOPES + "test_no_other_spelling_of_a_path_reaches_more",
        _SCOPES + "test_no_header_makes_another_method_of_an_allowed_one",
        _SCOPES + "test_no_query_makes_another_method_of_an_allowed_one",
    ),
    "C95": (
        _SCOPES + "test_model_is_judged_by_the_requested_name",
        _SCOPES + "test_body_names_one_allowed_model_or_is_refused",
        _SCOPES + "test_realtime_session_requires_an_allowed_model",
        _SCOPES + "test_model_at_the_end_of_a_slow_form_decides_before_any_of_it_is_sent_on",
        _SCOPES + "test_model_is_looked_up_by_a_key_that_may_use_it",
        _ISOLATION + "test_list_of_models_shows_the_models_of_the_key",
    ),
    "C96": (
        _ISOLATION + "test_object_exists_for_the_key_that_made_it_and_for_no_other",
        _ISOLATION + "test_client_chosen_values_grant_nothing",
        _ISOLATION + "test_id_in_a_body_is_found_in_every_disguise",
        _ISOLATION + "test_form_and_text_with_an_id_are_refused",
        _ISOLATION + "test_form_is_read_to_its_end_before_any_of_it_is_sent_on",
        _ISOLATION + "test_item_of_a_stream_that_is_still_coming_is_its_caller_s",
        _ISOLATION + "test_path_of_unknown_kind_is_closed_to_every_key",
        _ISOLATION + "test_objects_are_still_their_makers_after_a_restart_and_at_another_gateway",
        _ISOLATION + "test_store_that_cannot_be_used_holds_up_no_call_and_opens_nothing",
        _ISOLATION + "test_objects_of_two_upstreams_with_one_id_are_two",
        _ISOLATION + "test_official_sdks_see_their_own_objects_and_plain_errors",
        _ISOLATION + "test_large_body_without_ids_is_sent_on_and_one_with_ids_is_refused",
    ),
    "C97": (
        _ISOLATION + "test_list_shows_own_objects_on_any_page",
        _ISOLATION + "test_list_of_the_other_dialect_is_filtered_as_well",
        _ISOLATION + "test_list_that_cannot_be_filtered_is_not_shown",
    ),
}
TENANTS: Table = {
    "C84": (
        _CLIENT_LIMITS + "test_refusal_states_remaining_quota_and_retry_after_in_the_dialect",
        _CLIENT_LIMITS + "test_client_that_disconnects_is_charged_its_estimate_and_releases_its_slot",
        _CLIENT_LIMITS + "test_client_that_leaves_a_stream_is_charged_what_it_received",
        _CLIENT_LIMITS + "test_stream_without_usage_is_charged_by_its_events",
        _CLIENT_LIMITS + "test_deferred_calls_use_the_quota_of_their_key_and_wait_for_it",
        _CLIENT_LIMITS + "test_answer_that_is_refreshed_for_a_client_is_charged_to_its_key",
        _CLIENT_LIMITS + "test_sum_of_the_day_survives_a_restart",
    ),
    "C98": (
        "tests/unit/proxy/attempts/test_isolated_callers.py::test_poisoner_does_not_take_the_service_from_a_victim",
        "tests/unit/proxy/attempts/test_isolated_callers.py::test_poisoner_does_not_take_the_retries_of_a_victim",
        "tests/unit/proxy/attempts/test_isolated_callers.py::test_crowd_of_poisoners_does_not_take_the_service_from_a_victim",
        "tests/unit/resilience/capacity/test_fair_shares.py::test_victim_competes_with_a_heavy_caller_whose_calls_take_longer",
        "tests/unit/proxy/test_caller_identity.py::test_key_that_the_provider_never_sees_is_no_caller",
        "tests/integration/test_fleet_callers.py::test_poisoner_takes_no_call_from_a_victim_at_other_gateways",
        "tests/unit/resilience/capacity/test_pace_keeper.py::test_client_takes_turns_with_another_one_however_many_gateways_it_calls",
        _ALONE + "test_caller_whose_calls_alone_fail_is_refused_alone",
        _ALONE + "test_failures_of_one_caller_neither_degrade_its_route_nor_raise_an_alert",
        "tests/integration/test_fair_shares.py::test_heavy_caller_leaves_another_its_share_of_the_capacity",
        "tests/integration/test_fair_shares.py::test_heavy_caller_that_fills_the_queue_does_not_starve_another",
    ),
    "C99": (
        "tests/integration/test_server_tls.py::test_client_without_a_certificate_is_refused_where_one_is_required",
        "tests/integration/test_server_tls.py::test_plain_client_and_slow_handshakes_hurt_no_others",
        "tests/integration/test_upstream_tls.py::test_certificate_of_a_stranger_or_for_another_host_is_refused",
    ),
}
LASTING: Table = {
    "C69": ("tests/browser/test_dashboard.py::test_text_of_callers_and_providers_is_shown_as_text",),
    "C75": (
        _CACHE + "test_callers_never_get_each_others_answers",
        _CACHE + "test_callers_are_distinguished_by_their_client_keys",
    ),
    "C76": (
        _CACHE + "test_failure_is_not_stored",
        _CACHE + "test_incomplete_or_unsuccessful_response_is_not_stored",
        _CACHE + "test_cached_response_has_no_headers_of_the_original_exchange",
    ),
    "C77": (
        "tests/property/test_cache_key.py::test_two_questions_have_one_key_only_if_they_are_one",
        _CACHE + "test_same_request_on_another_path_or_route_is_another",
    ),
    "C78": (_CACHE + "test_callers_do_not_share_requests_in_flight_either",),
    "C86": (_LETTERS + "test_choice_must_be_plain", _LETTERS + "test_unknown_dead_letter_is_not_found"),
    "C87": (
        _KILLS + "test_acknowledged_call_is_never_lost_or_repeated_after_its_answer",
        _FULL_DISK + "test_calls_continue_while_the_disk_is_full_and_losses_are_counted",
    ),
    "C88": (
        _LETTERS + "test_dead_letters_wait_for_their_turn",
        _LETTERS + "test_two_operators_who_requeue_at_once_get_each_dead_letter_once",
    ),
}
NOT_YET: Table = {
    "C42": Absent("no page takes a URL: upstreams, engines and webhooks are the config's alone", addresses_in_pages),
}
FLEET: Table = {
    "C79": (
        "tests/unit/fleet/test_content.py::test_content_with_an_impossible_value_is_not_read",
        "tests/unit/fleet/test_content.py::test_what_is_no_content_is_not_read",
        _FLEET + "test_what_cannot_be_read_is_counted_and_changes_nothing",
        _FLEET + "test_dates_in_the_future_are_nonsense",
        _FLEET_OPERATORS + "test_override_that_cannot_be_read_is_counted_and_changes_nothing",
        "tests/unit/admin/persistence/test_shared_overrides.py::test_nonsense_is_not_applied",
    ),
    "C80": (
        _FLEET + "test_frozen_store_delays_no_call_and_is_used_again_at_once",
        _FLEET + "test_slow_store_is_given_up_as_a_whole",
        _FLEET + "test_gateway_that_is_alone_probes_without_the_store",
    ),
    "C81": (
        _FLEET + "test_fleets_with_other_names_do_not_meet",
        _FLEET + "test_names_of_models_are_no_part_of_a_key",
    ),
}

GROUPS: tuple[Table, ...] = (
    SMUGGLING,
    PARSING,
    FLOODS,
    TARGETS,
    BODIES,
    UPSTREAMS,
    HEADERS,
    STREAMS,
    SECRETS,
    LABELS,
    CALLERS,
    CONFIG,
    OPERATOR,
    ENGINES,
    SCOPES,
    TENANTS,
    LASTING,
    NOT_YET,
    FLEET,
)

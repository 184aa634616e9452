"""Every endpoint of both dialects' API descriptions (2026): a path and its methods on each line."""

from __future__ import annotations

from itertools import groupby

OPENAI = """
/v1/assistants GET POST
/v1/assistants/{assistant_id} GET POST DELETE
/v1/audio/speech POST
/v1/audio/transcriptions POST
/v1/audio/translations POST
/v1/audio/voice_consents GET POST
/v1/audio/voice_consents/{consent_id} GET POST DELETE
/v1/audio/voices POST
/v1/batches GET POST
/v1/batches/{batch_id} GET
/v1/batches/{batch_id}/cancel POST
/v1/chat/completions GET POST
/v1/chat/completions/{completion_id} GET POST DELETE
/v1/chat/completions/{completion_id}/messages GET
/v1/chatkit/sessions POST
/v1/chatkit/sessions/{session_id}/cancel POST
/v1/chatkit/threads GET
/v1/chatkit/threads/{thread_id} GET DELETE
/v1/chatkit/threads/{thread_id}/items GET
/v1/completions POST
/v1/containers GET POST
/v1/containers/{container_id} GET DELETE
/v1/containers/{container_id}/files GET POST
/v1/containers/{container_id}/files/{file_id} GET DELETE
/v1/containers/{container_id}/files/{file_id}/content GET
/v1/content_provenance_checks POST
/v1/conversations POST
/v1/conversations/{conversation_id} GET POST DELETE
/v1/conversations/{conversation_id}/items GET POST
/v1/conversations/{conversation_id}/items/{item_id} GET DELETE
/v1/embeddings POST
/v1/evals GET POST
/v1/evals/{eval_id} GET POST DELETE
/v1/evals/{eval_id}/runs GET POST
/v1/evals/{eval_id}/runs/{run_id} GET POST DELETE
/v1/evals/{eval_id}/runs/{run_id}/output_items GET
/v1/evals/{eval_id}/runs/{run_id}/output_items/{output_item_id} GET
/v1/files GET POST
/v1/files/{file_id} GET DELETE
/v1/files/{file_id}/content GET
/v1/fine_tuning/alpha/graders/run POST
/v1/fine_tuning/alpha/graders/validate POST
/v1/fine_tuning/checkpoints/{fine_tuned_model_checkpoint}/permissions GET POST
/v1/fine_tuning/checkpoints/{fine_tuned_model_checkpoint}/permissions/{permission_id} DELETE
/v1/fine_tuning/jobs GET POST
/v1/fine_tuning/jobs/{fine_tuning_job_id} GET
/v1/fine_tuning/jobs/{fine_tuning_job_id}/cancel POST
/v1/fine_tuning/jobs/{fine_tuning_job_id}/checkpoints GET
/v1/fine_tuning/jobs/{fine_tuning_job_id}/events GET
/v1/fine_tuning/jobs/{fine_tuning_job_id}/pause POST
/v1/fine_tuning/jobs/{fine_tuning_job_id}/resume POST
/v1/images/edits POST
/v1/images/generations POST
/v1/images/variations POST
/v1/models GET
/v1/models/{model} GET DELETE
/v1/moderations POST
/v1/organization/admin_api_keys GET POST
/v1/organization/admin_api_keys/{key_id} GET DELETE
/v1/organization/audit_logs GET
/v1/organization/certificates GET POST
/v1/organization/certificates/activate POST
/v1/organization/certificates/deactivate POST
/v1/organization/certificates/{certificate_id} GET POST DELETE
/v1/organization/costs GET
/v1/organization/data_retention GET POST
/v1/organization/groups GET POST
/v1/organization/groups/{group_id} GET POST DELETE
/v1/organization/groups/{group_id}/roles GET POST
/v1/organization/groups/{group_id}/roles/{role_id} GET DELETE
/v1/organization/groups/{group_id}/users GET POST
/v1/organization/groups/{group_id}/users/{user_id} GET DELETE
/v1/organization/invites GET POST
/v1/organization/invites/{invite_id} GET DELETE
/v1/organization/projects GET POST
/v1/organization/projects/{project_id} GET POST
/v1/organization/projects/{project_id}/api_keys GET
/v1/organization/projects/{project_id}/api_keys/{api_key_id} GET DELETE
/v1/organization/projects/{project_id}/archive POST
/v1/organization/projects/{project_id}/certificates GET
/v1/organization/projects/{project_id}/certificates/activate POST
/v1/organization/projects/{project_id}/certificates/deactivate POST
/v1/organization/projects/{project_id}/data_retention GET POST
/v1/organization/projects/{project_id}/groups GET POST
/v1/organization/projects/{project_id}/groups/{group_id} GET DELETE
/v1/organization/projects/{project_id}/hosted_tool_permissions GET POST
/v1/organization/projects/{project_id}/model_permissions GET POST DELETE
/v1/organization/projects/{project_id}/rate_limits GET
/v1/organization/projects/{project_id}/rate_limits/{rate_limit_id} POST
/v1/organization/projects/{project_id}/service_accounts GET POST
/v1/organization/projects/{project_id}/service_accounts/{service_account_id} GET POST DELETE
/v1/organization/projects/{project_id}/service_accounts/{service_account_id}/api_keys POST
/v1/organization/projects/{project_id}/spend_alerts GET POST
/v1/organization/projects/{project_id}/spend_alerts/{alert_id} GET POST DELETE
/v1/organization/projects/{project_id}/spend_limit GET POST DELETE
/v1/organization/projects/{project_id}/users GET POST
/v1/organization/projects/{project_id}/users/{user_id} GET POST DELETE
/v1/organization/roles GET POST
/v1/organization/roles/{role_id} GET POST DELETE
/v1/organization/spend_alerts GET POST
/v1/organization/spend_alerts/{alert_id} GET POST DELETE
/v1/organization/spend_limit GET POST DELETE
/v1/organization/usage/audio_speeches GET
/v1/organization/usage/audio_transcriptions GET
/v1/organization/usage/code_interpreter_sessions GET
/v1/organization/usage/completions GET
/v1/organization/usage/embeddings GET
/v1/organization/usage/file_search_calls GET
/v1/organization/usage/images GET
/v1/organization/usage/moderations GET
/v1/organization/usage/vector_stores GET
/v1/organization/usage/web_search_calls GET
/v1/organization/users GET
/v1/organization/users/{user_id} GET POST DELETE
/v1/organization/users/{user_id}/roles GET POST
/v1/organization/users/{user_id}/roles/{role_id} GET DELETE
/v1/projects/{project_id}/groups/{group_id}/roles GET POST
/v1/projects/{project_id}/groups/{group_id}/roles/{role_id} GET DELETE
/v1/projects/{project_id}/roles GET POST
/v1/projects/{project_id}/roles/{role_id} GET POST DELETE
/v1/projects/{project_id}/users/{user_id}/roles GET POST
/v1/projects/{project_id}/users/{user_id}/roles/{role_id} GET DELETE
/v1/realtime/calls POST
/v1/realtime/calls/{call_id}/accept POST
/v1/realtime/calls/{call_id}/hangup POST
/v1/realtime/calls/{call_id}/refer POST
/v1/realtime/calls/{call_id}/reject POST
/v1/realtime/client_secrets POST
/v1/realtime/sessions POST
/v1/realtime/transcription_sessions POST
/v1/realtime/translations/client_secrets POST
/v1/responses POST
/v1/responses/compact POST
/v1/responses/input_tokens POST
/v1/responses/{response_id} GET DELETE
/v1/responses/{response_id}/cancel POST
/v1/responses/{response_id}/input_items GET
/v1/skills GET POST
/v1/skills/{skill_id} GET POST DELETE
/v1/skills/{skill_id}/content GET
/v1/skills/{skill_id}/versions GET POST
/v1/skills/{skill_id}/versions/{version} GET DELETE
/v1/skills/{skill_id}/versions/{version}/content GET
/v1/threads POST
/v1/threads/runs POST
/v1/threads/{thread_id} GET POST DELETE
/v1/threads/{thread_id}/messages GET POST
/v1/threads/{thread_id}/messages/{message_id} GET POST DELETE
/v1/threads/{thread_id}/runs GET POST
/v1/threads/{thread_id}/runs/{run_id} GET POST
/v1/threads/{thread_id}/runs/{run_id}/cancel POST
/v1/threads/{thread_id}/runs/{run_id}/steps GET
/v1/threads/{thread_id}/runs/{run_id}/steps/{step_id} GET
/v1/threads/{thread_id}/runs/{run_id}/submit_tool_outputs POST
/v1/uploads POST
/v1/uploads/{upload_id}/cancel POST
/v1/uploads/{upload_id}/complete POST
/v1/uploads/{upload_id}/parts POST
/v1/vector_stores GET POST
/v1/vector_stores/{vector_store_id} GET POST DELETE
/v1/vector_stores/{vector_store_id}/file_batches POST
/v1/vector_stores/{vector_store_id}/file_batches/{batch_id} GET
/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}/cancel POST
/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}/files GET
/v1/vector_stores/{vector_store_id}/files GET POST
/v1/vector_stores/{vector_store_id}/files/{file_id} GET POST DELETE
/v1/vector_stores/{vector_store_id}/files/{file_id}/content GET
/v1/vector_stores/{vector_store_id}/search POST
/v1/videos GET POST
/v1/videos/characters POST
/v1/videos/characters/{character_id} GET
/v1/videos/edits POST
/v1/videos/extensions POST
/v1/videos/{video_id} GET DELETE
/v1/videos/{video_id}/content GET
/v1/videos/{video_id}/remix POST
"""

ANTHROPIC = """
/v1/agents GET POST
/v1/agents/{agent_id} GET POST
/v1/agents/{agent_id}/archive POST
/v1/agents/{agent_id}/versions GET
/v1/complete POST
/v1/environments GET POST
/v1/environments/{environment_id} GET POST DELETE
/v1/environments/{environment_id}/archive POST
/v1/files GET POST
/v1/files/{file_id} GET DELETE
/v1/files/{file_id}/content GET
/v1/memory_stores GET POST
/v1/memory_stores/{memory_store_id} GET POST DELETE
/v1/memory_stores/{memory_store_id}/archive POST
/v1/memory_stores/{memory_store_id}/memories GET POST
/v1/memory_stores/{memory_store_id}/memories/{memory_id} GET POST DELETE
/v1/memory_stores/{memory_store_id}/memory_versions GET
/v1/memory_stores/{memory_store_id}/memory_versions/{memory_version_id} GET
/v1/memory_stores/{memory_store_id}/memory_versions/{memory_version_id}/redact POST
/v1/messages POST
/v1/messages/batches GET POST
/v1/messages/batches/{message_batch_id} GET DELETE
/v1/messages/batches/{message_batch_id}/cancel POST
/v1/messages/batches/{message_batch_id}/results GET
/v1/messages/count_tokens POST
/v1/models GET
/v1/models/{model_id} GET
/v1/sessions GET POST
/v1/sessions/{session_id} GET POST DELETE
/v1/sessions/{session_id}/archive POST
/v1/sessions/{session_id}/events GET POST
/v1/sessions/{session_id}/events/stream GET
/v1/sessions/{session_id}/resources GET POST
/v1/sessions/{session_id}/resources/{resource_id} GET POST DELETE
/v1/sessions/{session_id}/threads GET
/v1/sessions/{session_id}/threads/{thread_id} GET
/v1/sessions/{session_id}/threads/{thread_id}/archive POST
/v1/sessions/{session_id}/threads/{thread_id}/events GET
/v1/sessions/{session_id}/threads/{thread_id}/stream GET
/v1/skills GET POST
/v1/skills/{skill_id} GET DELETE
/v1/skills/{skill_id}/versions GET POST
/v1/skills/{skill_id}/versions/{version} GET DELETE
/v1/user_profiles GET POST
/v1/user_profiles/{user_profile_id} GET POST
/v1/user_profiles/{user_profile_id}/enrollment_url POST
/v1/vaults GET POST
/v1/vaults/{vault_id} GET POST DELETE
/v1/vaults/{vault_id}/archive POST
/v1/vaults/{vault_id}/credentials GET POST
/v1/vaults/{vault_id}/credentials/{credential_id} GET POST DELETE
/v1/vaults/{vault_id}/credentials/{credential_id}/archive POST
/v1/vaults/{vault_id}/credentials/{credential_id}/mcp_oauth_validate POST
"""


def by_resource(listing: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Groups a listing as (resource, [(method, path)]); the resource is the path segment after `/v1/`."""
    lines = [line.split() for line in listing.split("\n") if line]
    groups = groupby(lines, key=lambda words: words[0].split("/")[2])
    return [(name, [(method, path) for path, *methods in group for method in methods]) for name, group in groups]

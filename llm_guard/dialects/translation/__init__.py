"""Translates requests, responses and errors between the dialects, through a canonical form.

Imported only when a call needs it.

canonical               the canonical form: what is requested, and the interface through which a response is read
losses, loss_table, responses_loss_table  what one dialect cannot express of the other: its class, and all fields
identifiers             ids and names within the other dialect's limits
tool_schemas            JSON schemas as the other dialect accepts them
output_limits           the largest output that a model accepts, from its errors
reasoning               effort and thinking budgets, by model
message_content         images, documents and texts in messages
chat_request_reader, chat_request_writer            chat requests
messages_request_reader, messages_request_writer    Messages requests
chat_response_reader, chat_response_writer          chat responses, whole and streamed
messages_response_reader, messages_response_writer  Messages responses, whole and streamed
responses_request_reader, responses_tools, responses_items  Responses requests: nothing is translated into them
responses_response_writer, responses_output  responses of the Responses API, whole and streamed
whole_response          collects a response that is not streamed
stream_translation      one stream, event by event
error_bodies            errors
token_estimate          an estimate for calls of count_tokens
endpoints               which endpoints correspond, and the functions that the gateway calls
wire_json               JSON, with the odd values that providers send
"""

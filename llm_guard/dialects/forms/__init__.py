"""The forms in which clouds take requests of a dialect. Imported only if a config uses one.

request_form   what a form is, and the parts that several have
vertex         Claude on Google's Vertex AI
bedrock        InvokeModel of Amazon Bedrock
event_stream   the frames in which Amazon sends streams
"""

from __future__ import annotations

from collections.abc import Mapping

from llm_guard.dialects import FormName
from llm_guard.dialects.forms.bedrock import BEDROCK_INVOKE
from llm_guard.dialects.forms.request_form import RequestForm
from llm_guard.dialects.forms.vertex import VERTEX

FORMS: Mapping[FormName, RequestForm] = {"vertex": VERTEX, "bedrock-invoke": BEDROCK_INVOKE}

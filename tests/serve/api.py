"""A served fake model that answers with a given text, in any chat template."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from enginewright.executor.sampling import TokenParams

from .conftest import Served, serve_app
from .fake_client import FakeClient
from .tiny_tokenizer import make_tokenizer

# Templates of other styles; what they render is beside the point of these tests.
_LOOP = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.reasoning_content or '' }}"
    "{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
)
_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
TEMPLATES = {
    "hermes": _TOOLS + "{# <tool_call> #}" + _LOOP + "{% endif %}",
    "llama": _TOOLS + "{# <|python_tag|> #}" + _LOOP + "{% endif %}",
    "mistral": _TOOLS + "{# [TOOL_CALLS] #}" + _LOOP + "{% endif %}",
    "pythonic": _TOOLS + "{# [func_name1(params_name1=...)] #}" + _LOOP + "{% endif %}",
    "xml": _TOOLS + "{# <tool_call> <function= #}" + _LOOP + "{% endif %}",
    "think": _TOOLS + "{# <tool_call> </think> #}" + _LOOP + "{% endif %}",
    "opened": "{# </think> #}" + _LOOP + "<think>\n{% endif %}",
    "channel": "{# <|channel|>analysis #}" + _LOOP + "{% endif %}",
}


@contextmanager
def serve_text(folder: Path, text: str, style: str | None = None) -> Iterator[Served]:
    """Serve a model that answers everything with `text`."""
    options: dict[str, Any] = {} if style is None else {"template": TEMPLATES[style]}
    tokenizer = make_tokenizer(folder / "tokenizer", **options)
    ids = tokenizer.encode(text, add_special_tokens=False)

    def reply(_: list[int], params: TokenParams) -> list[int]:
        return [*ids, tokenizer.eos_token_ids[0]]

    client = FakeClient(reply)
    try:
        with serve_app(client, tokenizer) as served:
            yield served
    finally:
        client.shutdown()


def named_events(body: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream whose events have names; the name is the type."""
    events = []
    for event in body.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events

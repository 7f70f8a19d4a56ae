"""Answers that programs can read: python docs/examples/json_answer.py ENGINE."""

import json
import sys

from enginewright import LLM, Guided, SamplingParams

CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "country": {"type": "string", "maxLength": 20},
        "large": {"type": "boolean"},
    },
    "required": ["name", "country", "large"],
    "additionalProperties": False,
}
ASKED = [
    ("Describe Paris as JSON.", Guided.json(CITY)),
    ("In which year did the second world war end?", Guided.regex("19[0-9]{2}")),
    ("Is the sky blue?", Guided.choice(["yes", "no"])),
    ("What is 3 + 4? Answer with an equation.", Guided.grammar('start: /[0-9]/ "=" /[0-9]+/')),
]

with LLM(sys.argv[1]) as llm:
    for question, form in ASKED:
        params = SamplingParams(max_tokens=96, temperature=0, guided=form)
        text = llm.chat([{"role": "user", "content": question}], params).outputs[0].text
        print(f"{form.kind:12} {json.loads(text) if form.kind == 'json_schema' else text}")

"""A served engine through OpenAI's own client: python docs/examples/openai_client.py URL."""

import sys

import openai

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
model = client.models.list().data[0].id

reply = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Name three colours."}],
    max_tokens=32,
    temperature=0,
)
print(reply.choices[0].message.content)
print(f"{reply.usage.prompt_tokens} + {reply.usage.completion_tokens} tokens")

with client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Count to five."}],
    max_tokens=32,
    temperature=0,
    stream=True,
) as stream:
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            print(chunk.choices[0].delta.content, end="", flush=True)
print()

try:
    client.completions.create(model=model, prompt="Hi", temperature=-1)
except openai.BadRequestError as error:
    print(f"refused: {error.body['message']} ({error.body['param']})")

"""Chat templates render what Hugging Face's render, and cannot get out of their sandbox."""

from pathlib import Path
from typing import Any

import pytest

from enginewright.runtime.errors import RequestError
from enginewright.serve.chat_template import ChatTemplate

from .tiny_tokenizer import TEMPLATE, make_tokenizer

MESSAGES = [{"role": "user", "content": "Hi"}]


def render(source: str, **variables: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(MESSAGES, **variables)


def test_conversation() -> None:
    expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert render(TEMPLATE) == expected


def test_what_templates_expect_to_find() -> None:
    assert render("{{ bos_token }}{{ eos_token }}") == "<s></s>"
    assert render("{{ ['é', '<'] | tojson }}") == '["é", "<"]'
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert (
        render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "01"
    )
    assert render("  {% if thinking %}\nyes\n  {% endif %}\n", thinking=True) == "yes\n"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}{{ messages.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ (messages | first).update({'role': 'x'}) }}",
        "{{ messages.append(1) }}",
        "{{ messages.clear() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
        "{{ lipsum.__globals__['os'] }}",
        "{% for i in range(10000000) %}{{ i }}{% endfor %}",
    ],
)
def test_escapes_are_refused(source: str) -> None:
    messages = [dict(message) for message in MESSAGES]
    with pytest.raises(RequestError) as caught:
        ChatTemplate(source, None, None).render(messages)
    assert caught.value.param == "messages"
    assert messages == MESSAGES


def test_the_templates_own_refusal_is_told() -> None:
    with pytest.raises(RequestError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RequestError, match="cannot render"):
        render("{{ 1 / 0 }}")


def test_a_template_that_does_not_compile_is_told() -> None:
    with pytest.raises(RequestError, match="does not compile"):
        render("{% for %}")


def test_a_model_without_a_template_is_told(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no chat template"):
        ChatTemplate.of(make_tokenizer(tmp_path, template=None))

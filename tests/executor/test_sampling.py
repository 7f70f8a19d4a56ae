from typing import Any

import pytest

from enginewright.executor.sampling import SamplingParams
from enginewright.runtime.errors import RequestError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", "many"),
        ("min_tokens", -1),
        ("min_tokens", 33),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -2),
        ("top_p", 1.5),
        ("min_p", -0.5),
        ("n", 0),
        ("n", 129),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -3),
        ("repetition_penalty", 0),
        ("logprobs", 21),
        ("logit_bias", {5: 101.0}),
        ("logit_bias", {"x": 1.0}),
        ("stop", ["a", ""]),
        ("stop_token_ids", ["a"]),
    ],
)
def test_a_bad_value_is_named(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value}).validate()
    assert caught.value.param == field


def test_defaults_are_valid_and_resolve_to_sampling_at_temperature_one() -> None:
    params = SamplingParams()
    params.validate()
    resolved = params.resolve([7])
    assert (resolved.temperature, resolved.top_p, resolved.top_k) == (1.0, 1.0, 0)
    assert resolved.eos_token_ids == (7,)
    assert resolved.num_logprobs == -1
    assert params.resolve().seed != params.resolve().seed


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, top_p=0.5),
        SamplingParams(top_k=1),
        SamplingParams(top_p=0.0, min_p=0.2),
    ],
)
def test_every_way_to_say_greedy_is_one(params: SamplingParams) -> None:
    resolved = params.resolve()
    assert (resolved.temperature, resolved.top_k, resolved.top_p, resolved.min_p) == (0, 0, 1, 0)


def test_choices_have_their_own_seeds() -> None:
    params = SamplingParams(seed=(1 << 64) - 1, top_k=-1, ignore_eos=True)
    assert [params.resolve([1], index).seed for index in range(2)] == [(1 << 64) - 1, 0]
    assert params.resolve([1]).eos_token_ids == ()
    assert params.resolve([1]).top_k == 0
    assert SamplingParams(seed=-3).resolve().seed == (1 << 64) - 3


def test_stop_strings() -> None:
    assert SamplingParams(stop="a").stop_strings == ["a"]
    assert SamplingParams(stop=["a", "b"]).stop_strings == ["a", "b"]
    assert SamplingParams().stop_strings == []

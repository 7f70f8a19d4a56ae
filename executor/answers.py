"""What a step's tokens mean for a request: its next output, and whether it ends."""

from __future__ import annotations

from .messages import FinishReason, TokenLogprob, TokenOutput
from .plan import StepOutput
from .request import Request
from .speculative import accepted


def take_tokens(
    request: Request, output: StepOutput, first: int, now: float, drafts: list[int] | None = None
) -> TokenOutput:
    """Append sampled tokens to a request and return the news; it has a finish reason at the end.

    `first` is the place of the next token in the output. Those of the request's drafts follow it:
    each counts as long as the draft before it is the token that was sampled.
    """
    params, tokens = request.params, request.tokens
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] | None = [] if params.num_logprobs >= 0 else None
    count = 1
    if drafts:
        count = accepted(drafts, output.tokens[first : first + len(drafts) + 1])
    finish: FinishReason | None = None
    stop_reason = None
    for place in range(first, first + count):
        token = output.tokens[place]
        if token < 0:  # the token after the drafts is impossible: the next step will say so
            break
        tokens.append(token)
        token_ids.append(token)
        if logprobs is not None:
            logprobs.append(token_logprob(output, place, params.num_logprobs))
        if token in request.stop_ids:
            finish = "stop"
            if token not in params.eos_token_ids:
                stop_reason = token
        elif len(tokens) - request.prompt_tokens >= request.max_new_tokens:
            finish = "length"
        if finish is not None:
            break
    request.last_token = now
    if len(tokens) - request.prompt_tokens > len(token_ids):
        return TokenOutput(request.request_id, token_ids, logprobs, finish, stop_reason)
    request.first_token = now
    return TokenOutput(
        request.request_id,
        token_ids,
        logprobs,
        finish,
        stop_reason,
        None,
        request.cached_tokens,
        request.started - request.arrived,
        now - request.started,
        None if params.prompt_logprobs is None else request.prompt_logprobs,
    )


def take_prompt_logprobs(request: Request, output: StepOutput, row: int, count: int) -> None:
    """Append the log-probabilities of a request's next `count` prompt tokens."""
    wanted = request.params.prompt_logprobs or 0
    first = output.prompt_firsts[row]
    for place in range(first, first + count):
        request.prompt_logprobs.append(token_logprob(output, place, wanted))


def token_logprob(output: StepOutput, index: int, count: int) -> TokenLogprob:
    """Return the log-probability of the token at `index`, and of the `count` likeliest there."""
    assert output.logprobs is not None
    if count == 0:  # a step in which nobody asked for others has no room for them
        return TokenLogprob(output.tokens[index], output.logprobs[index], [])
    assert output.top_ids is not None
    assert output.top_logprobs is not None
    top = list(zip(output.top_ids[index][:count], output.top_logprobs[index][:count], strict=True))
    return TokenLogprob(output.tokens[index], output.logprobs[index], top)

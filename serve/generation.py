"""One request's life on the client's side: choices, stop strings, detokenizing, aborting."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import msgspec

from ..executor.messages import TokenLogprob, TokenOutput, to_exception
from ..executor.sampling import SamplingParams
from ..runtime.errors import EnginewrightError
from .beam_search import BeamSearch
from .client import Client
from .detokenizer import Detokenizer, StopStrings
from .tokenizer import Tokenizer


@dataclass(slots=True)
class Delta:
    """What one executor output added to a choice."""

    index: int  # of the choice
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None  # stop, length, cancelled or error
    stop_reason: int | str | None = None
    error: EnginewrightError | None = None
    cached_tokens: int = 0  # prompt tokens served from the KV cache; with the first token
    queue_seconds: float | None = None  # with the first token
    prompt_logprobs: list[TokenLogprob] | None = None  # with the first token, where asked for
    embedding: bytes | None = None  # f32, little-endian: the whole answer of an engine that embeds


class Choice:
    """One answer in the making: turns the executor's tokens into text."""

    def __init__(
        self,
        index: int,
        request_id: str,
        prompt_token_ids: Sequence[int],
        tokenizer: Tokenizer,
        params: SamplingParams,
    ) -> None:
        self.index = index
        self.request_id = request_id
        self.finished = False
        self._min_tokens = params.min_tokens
        self._include_stop = params.include_stop_str_in_output
        self._num_tokens = 0
        self._stops = StopStrings(params.stop_strings, params.include_stop_str_in_output)
        self._detokenizer = (
            Detokenizer(tokenizer, prompt_token_ids, params.skip_special_tokens)
            if params.detokenize
            else None
        )

    def feed(self, output: TokenOutput) -> Delta | None:
        """Take one executor output; None when the choice has already ended here."""
        if self.finished:
            return None
        delta = Delta(
            self.index,
            "",
            list(output.token_ids),
            list(output.logprobs or ()),
            cached_tokens=output.cached_tokens,
            queue_seconds=output.queue_seconds,
            prompt_logprobs=output.prompt_logprobs,
            embedding=output.embedding,
        )
        last = len(output.token_ids) - 1
        for position, token_id in enumerate(output.token_ids):
            self._num_tokens += 1
            # The token that ended the answer (end of text, a stop token) is not part of its text.
            ends = output.finish_reason == "stop" and position == last and not self._include_stop
            if ends or self._detokenizer is None:
                continue
            if self._add_text(delta, self._detokenizer.push(token_id)):
                del delta.token_ids[position + 1 :], delta.logprobs[position + 1 :]
                return delta
        if output.finish_reason is not None:
            self._finish(delta, output)
        return delta

    def cancel(self) -> Delta:
        """End the choice here and now."""
        self.finished = True
        return Delta(self.index, "", [], finish_reason="cancelled")

    def _add_text(self, delta: Delta, text: str) -> bool:
        if self._num_tokens <= self._min_tokens:
            delta.text += text
            return False
        text, stop = self._stops.push(text)
        delta.text += text
        if stop is not None:
            delta.finish_reason, delta.stop_reason = "stop", stop
            self.finished = True
        return stop is not None

    def _finish(self, delta: Delta, output: TokenOutput) -> None:
        self.finished = True
        delta.finish_reason = output.finish_reason
        delta.stop_reason = output.stop_reason
        if output.error is not None:
            delta.error = to_exception(output.error)
        elif self._detokenizer is not None:
            self._add_text(delta, self._detokenizer.flush())
            delta.text += self._stops.flush()


class Generation:
    """`n` choices of each prompt, or `best_of`, as requests of the executor.

    Choices are numbered prompt by prompt; choice i of a prompt draws with seed + i.
    """

    def __init__(
        self,
        client: Client,
        tokenizer: Tokenizer,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        request_id: str | None = None,
        pooling: Literal["last", "mean"] | None = None,
    ) -> None:
        """With `pooling` the answers are vectors of the prompts, and no text."""
        self._pooling: Literal["last", "mean"] | None = pooling
        self.request_id = request_id or uuid.uuid4().hex
        self.prompts = [list(prompt) for prompt in prompts]
        self._client = client
        self._params = params
        # Beams are one search a prompt; other answers are a request each, of which some are kept.
        self.made = params.n if params.use_beam_search else params.best_of or params.n
        self._searches: list[BeamSearch] = []
        self._eos_token_ids = tokenizer.eos_token_ids
        self._bad_words = [
            ids for word in params.bad_words or () for ids in tokenizer.spellings(word)
        ]
        self.choices = [
            Choice(
                index,
                f"{self.request_id}-{index}",
                self.prompts[index // self.made],
                tokenizer,
                params,
            )
            for index in range(len(self.prompts) * self.made)
        ]

    @property
    def kept(self) -> int:
        """Answers of a prompt that are given in the end."""
        return self._params.n

    @property
    def shows_logprobs(self) -> bool:
        """Whether the caller asked for log-probabilities."""
        return self._params.logprobs is not None

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.finished for choice in self.choices)

    def submit(self, sink: Callable[[Choice, TokenOutput], None]) -> None:
        """Hand all choices to the executor; `sink` gets their outputs, on the client's thread."""
        try:
            if self._params.use_beam_search:
                self._search(sink)
                return
            asked = self._params
            if self.made > asked.n and asked.logprobs is None:
                asked = msgspec.structs.replace(asked, logprobs=0)  # to know the likeliest
            for choice in self.choices:
                number, index = divmod(choice.index, self.made)
                params = asked.resolve(self._eos_token_ids, index, self._bad_words)
                if self._pooling is not None:
                    params = msgspec.structs.replace(params, pooling=self._pooling)
                self._client.submit(
                    choice.request_id, self.prompts[number], params, partial(sink, choice)
                )
        except BaseException:
            self.abort()
            raise

    def receive(self, choice: Choice, output: TokenOutput) -> Delta | None:
        """Feed an output to its choice; a choice that ends before the executor knows is aborted.

        Never raises: the thread it runs on belongs to all requests.
        """
        try:
            delta = choice.feed(output)
        except Exception as error:
            delta = choice.cancel()
            delta.finish_reason = "error"
            delta.error = EnginewrightError(f"the answer could not be turned into text: {error!r}")
        if delta is not None and choice.finished and output.finish_reason is None:
            self._client.abort(choice.request_id)
        return delta

    def abort(self) -> list[Delta]:
        """End every choice that has not ended; return their last deltas."""
        for search in self._searches:
            search.abort()
        ended: list[Delta] = []
        for choice in self.choices:
            if not choice.finished:
                ended.append(choice.cancel())
                self._client.abort(choice.request_id)
        return ended

    def _search(self, sink: Callable[[Choice, TokenOutput], None]) -> None:
        """Start a beam search for each prompt; its answers come whole, at the end."""
        n = self._params.n
        for number, prompt in enumerate(self.prompts):
            choices = self.choices[number * n : (number + 1) * n]

            def done(outputs: list[TokenOutput], choices: list[Choice] = choices) -> None:
                for choice, output in zip(choices, outputs, strict=True):
                    sink(choice, output)

            name = f"{self.request_id}-{number}"
            search = BeamSearch(self._client, name, prompt, self._params, self._eos_token_ids, done)
            self._searches.append(search)
            search.start()


def with_defaults(params: SamplingParams, defaults: Mapping[str, float | int]) -> SamplingParams:
    """Fill the fields that are None from the model's generation_config, and check the result.

    Raises RequestError.
    """
    unset = {name: value for name, value in defaults.items() if getattr(params, name) is None}
    params = msgspec.structs.replace(params, **unset)
    params.validate()
    return params

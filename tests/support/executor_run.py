"""An executor over a real session, driven in this process: prompts in, tokens and logprobs out."""

from __future__ import annotations

from enginewright.executor.config import ExecutorConfig
from enginewright.executor.disk_tier import DiskTier
from enginewright.executor.loop import PyExecutor
from enginewright.executor.messages import StepOutputs, Submit, TokenOutput
from enginewright.executor.sampling import TokenParams
from enginewright.executor.speculative import Drafter
from enginewright.runtime.session import Session
from tests.executor.harness import ListChannel

Answer = tuple[tuple[int, ...], tuple[float, ...]]


class Run:
    """One executor in this process, over a session that it shares with its owner."""

    def __init__(
        self,
        session: Session,
        config: ExecutorConfig,
        drafter: Drafter | None = None,
        disk: DiskTier | None = None,
    ) -> None:
        self.session = session
        self.channel = ListChannel()
        self.executor = PyExecutor(session, self.channel, config, drafter=drafter, disk=disk)
        self.count = 0

    def answers(self, prompts: list[list[int]], tokens: int, first: int = 0) -> list[Answer]:
        """Serve prompts together; what each is sampled with depends on its number, from `first`."""
        names: list[str] = []
        for index, prompt in enumerate(prompts, first):
            names.append(f"r{self.count}")
            self.count += 1
            params = TokenParams(
                max_tokens=tokens,
                temperature=0.9 if index % 2 else 0.0,
                repetition_penalty=1.2 if index % 3 == 2 else 1.0,
                seed=index,
                num_logprobs=1,
                cache_salt="s" if index == 5 else None,
            )
            self.channel.commands.append(Submit(names[-1], prompt, params, 0.0))
        self.executor.fetch()
        while not self.executor.scheduler.idle:
            self.executor.step()
            self.executor.scheduler.check()
        outputs: dict[str, list[TokenOutput]] = {}
        for reply in self.channel.replies:
            assert isinstance(reply, StepOutputs)
            for output in reply.outputs:
                outputs.setdefault(output.request_id, []).append(output)
        self.channel.replies.clear()
        return [_answer(outputs[name]) for name in names]


def _answer(outputs: list[TokenOutput]) -> Answer:
    assert outputs[-1].finish_reason == "length", outputs[-1].error
    tokens = tuple(token for output in outputs for token in output.token_ids)
    values = tuple(one.logprob for output in outputs for one in output.logprobs or ())
    return tokens, values

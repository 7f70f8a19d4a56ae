"""Records of steps and requests: TensorRT-LLM's fields, and what adds up."""

from __future__ import annotations

from typing import Any

from enginewright.executor.messages import GetStats, StatsReply
from enginewright.executor.sampling import TokenParams
from tests.executor.harness import Harness, make_limits


def records(harness: Harness) -> dict[str, Any]:
    harness.channel.commands.append(GetStats(detail=True))
    harness.executor.fetch()
    reply = harness.channel.replies.pop()
    assert isinstance(reply, StatsReply)
    return reply.stats


def test_every_step_has_a_record_and_every_request_its_times() -> None:
    harness = Harness(make_limits(max_batch_size=2, max_num_tokens=8))
    for name, prompt in (("a", [1] * 12), ("b", [2] * 3), ("c", [1] * 12)):
        harness.submit(name, prompt, TokenParams(max_tokens=3))
    harness.step()
    before = records(harness)
    (one,) = before["iterations"]
    assert (one["iter"], one["numNewActiveRequests"], one["numQueuedRequests"]) == (0, 1, 2)
    assert one["inflightBatchingStats"]["numCtxTokens"] == 8
    assert one["kvCacheStats"]["usedTokens"] == 8
    stages = {each["id"]: (each["stage"], each["waitsFor"]) for each in before["requests"]}
    assert stages["a"] == ("running", None)
    assert stages["b"] == ("waiting", "tokens")
    harness.run()
    after = records(harness)
    assert after["requests"] == []
    assert sum(each["numCompletedRequests"] for each in after["iterations"]) == 3
    assert [each["iter"] for each in after["iterations"]] == list(
        range(1, 1 + len(after["iterations"]))
    )
    last = after["iterations"][-1]
    assert last["kvCacheStats"]["usedNumBlocks"] == 0
    assert last["kvCacheStats"]["reusedBlocks"] == 2
    ended = {each["id"]: each for each in after["ended_requests"]}
    for each in ended.values():
        assert (each["stage"], each["numGeneratedTokens"]) == ("finished", 3)
        assert each["arrival"] <= each["firstScheduled"] <= each["firstToken"] <= each["lastToken"]
    assert ended["c"]["cachedTokens"] == 11
    assert records(harness)["iterations"] == []


def test_waste_and_fragmentation_count_the_empty_places_in_last_blocks() -> None:
    harness = Harness(make_limits(block_tokens=32, num_blocks=8, max_num_tokens=64))
    harness.submit("a", [1] * 33, TokenParams(max_tokens=3))
    harness.step()
    (one,) = records(harness)["iterations"]
    cache = one["kvCacheStats"]
    assert (cache["usedNumBlocks"], cache["usedTokens"], cache["tailWasteTokens"]) == (2, 33, 31)
    assert cache["fragmentation"] == 31 / 64
    assert harness.executor.scheduler.report.gauges()["tail_waste_tokens"] == 31

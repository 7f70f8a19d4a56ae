"""Real processes: start, answers, errors, death and orderly ends."""

import gc
import os
import queue
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginewright.executor.client import ExecutorClient
from enginewright.executor.config import ExecutorConfig
from enginewright.executor.messages import TokenOutput
from enginewright.executor.sampling import TokenParams
from enginewright.runtime.errors import (
    EnginewrightError,
    ExecutorDiedError,
    IncompatibleMachineError,
    InputError,
    RequestError,
)
from enginewright.runtime.session import SessionLimits
from tests.support.fake_session import expected_tokens

ROOT = Path(__file__).resolve().parents[2]
LIMITS = SessionLimits(4, 16, 4096, 400, 32, 101)
LONG = TokenParams(max_tokens=4000)


@pytest.fixture(autouse=True)
def private_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = Path(tempfile.mkdtemp(prefix="t"))  # short: socket paths are at most 107 bytes
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield
    assert list(folder.iterdir()) == [], "a socket folder is left"
    folder.rmdir()


def command(mode: str) -> list[str]:
    return [sys.executable, "-m", "tests.executor.fake_executor", mode]


def start(mode: str = "fast", config: ExecutorConfig | None = None) -> ExecutorClient:
    return ExecutorClient.start("some/engine", config, command(mode))


class Sink:
    """Collects what a request is told."""

    def __init__(self, patience: float = 30.0) -> None:
        self.queue: queue.Queue[TokenOutput] = queue.Queue()
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.patience = patience  # seconds to wait for the next news

    def __call__(self, output: TokenOutput) -> None:
        self.queue.put(output)

    def next(self) -> TokenOutput:
        output = self.queue.get(timeout=self.patience)
        self.tokens += output.token_ids
        self.logprobs += [one.logprob for one in output.logprobs or ()]
        return output

    def end(self) -> TokenOutput:
        while True:
            output = self.next()
            if output.finish_reason is not None:
                assert self.queue.empty()
                return output


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def wait_until_gone(pid: int) -> None:
    for _ in range(1000):
        if is_gone(pid):
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} is still there")


def test_answers_come_from_the_process_and_shutdown_leaves_nothing() -> None:
    with start(config=ExecutorConfig(max_num_tokens=8, max_queue=9)) as client:
        assert client.info.max_num_tokens == 8
        assert client.info.engine == {"name": "engine"}
        sinks = [Sink() for _ in range(6)]
        for number, sink in enumerate(sinks):
            client.submit(str(number), [number] * 20, TokenParams(max_tokens=10), sink)
        for number, sink in enumerate(sinks):
            assert sink.end().finish_reason == "length"
            assert (sink.tokens, "length") == expected_tokens(
                [number] * 20, TokenParams(max_tokens=10), LIMITS
            )
        stats = client.stats()
        assert (stats["submitted"], stats["used_blocks"]) == (6, 0)
        pid = client.pid
    assert is_gone(pid)
    assert not client.alive
    client.shutdown()
    with pytest.raises(ExecutorDiedError):
        client.submit("x", [1], LONG, Sink())
    with pytest.raises(ExecutorDiedError):
        client.stats()


def test_an_idle_executor_uses_no_processor() -> None:
    with start() as client:
        client.stats()
        time.sleep(0.5)  # what it does once when it has started is not idling
        path = Path(f"/proc/{client.pid}/stat")
        if not path.exists():
            pytest.skip("needs /proc")
        before = path.read_text().split()[13:15]
        time.sleep(0.5)
        after = path.read_text().split()[13:15]
        assert sum(map(int, after)) - sum(map(int, before)) <= 1  # ticks of 10 ms


def test_abort_and_refusals() -> None:
    with start("slow") as client:
        sink, refused = Sink(), Sink()
        client.submit("a", [1], LONG, sink)
        with pytest.raises(RequestError, match="'a' is in use"):
            client.submit("a", [1], LONG, sink)
        client.submit("b", [101], LONG, refused)
        error = refused.end().error
        assert error is not None
        assert (error.param, error.http_status) == ("prompt", 400)
        sink.next()
        client.abort("a")
        client.abort("unknown")
        assert sink.end().finish_reason == "cancelled"
        client.abort("a")
        assert client.stats()["used_blocks"] == 0
        client.submit("a", [1], TokenParams(max_tokens=1), sink)
        assert sink.end().finish_reason == "length"


@pytest.mark.parametrize("prompt", [[1.5], ["a"], [1 << 70], [None], 5])
def test_a_prompt_of_the_wrong_type_is_refused_before_it_is_sent(prompt: list[int]) -> None:
    with start() as client:
        with pytest.raises(RequestError):
            client.submit("a", prompt, LONG, Sink())
        sink = Sink()
        client.submit("a", [1], TokenParams(max_tokens=1), sink)
        assert sink.end().finish_reason == "length"


def test_a_sink_that_raises_harms_only_itself(capsys: pytest.CaptureFixture[str]) -> None:
    def raises(output: TokenOutput) -> None:
        raise ValueError("a bad sink")

    with start() as client:
        sink = Sink()
        client.submit("bad", [1], TokenParams(max_tokens=2), raises)
        client.submit("good", [1], TokenParams(max_tokens=2), sink)
        assert sink.end().finish_reason == "length"
    assert "a bad sink" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [
        ("refuse", IncompatibleMachineError, "this machine lacks avx512_vnni"),
        ("bug", EnginewrightError, "KeyError: 'oops'"),
        ("die", ExecutorDiedError, "ended"),
    ],
)
def test_an_engine_that_cannot_be_opened_raises_its_error(
    mode: str, error: type[EnginewrightError], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        start(mode)
    assert type(caught.value) is error


def test_an_engine_folder_that_is_not_there() -> None:
    with pytest.raises(EnginewrightError, match="no/such/engine"):
        ExecutorClient.start("no/such/engine")


def test_a_killed_executor_ends_every_request_within_a_second() -> None:
    client = start("slow")
    sinks = [Sink() for _ in range(8)]
    for number, sink in enumerate(sinks):
        client.submit(str(number), [number], LONG, sink)
    sinks[0].next()
    os.kill(client.pid, signal.SIGKILL)
    killed = time.monotonic()
    for sink in sinks:
        error = sink.end().error
        assert error is not None
        assert (error.code, error.http_status) == ("executor_died", 503)
        assert "signal 9" in error.message
    assert time.monotonic() - killed < 1  # a promise, not a measurement
    assert not client.alive
    with pytest.raises(ExecutorDiedError):
        client.stats()
    client.shutdown()


@pytest.mark.parametrize("way", ["shutdown", "SIGTERM"])
def test_an_orderly_end_cancels_what_runs(way: str) -> None:
    client = start("slow")
    sinks = [Sink() for _ in range(6)]
    for number, sink in enumerate(sinks):
        client.submit(str(number), [number], LONG, sink)
    sinks[0].next()
    if way == "SIGTERM":
        os.kill(client.pid, signal.SIGTERM)
        wait_until_gone(client.pid)
    client.shutdown()
    assert [sink.end().finish_reason for sink in sinks] == ["cancelled"] * 6
    assert is_gone(client.pid)


def test_sigterm_ends_an_idle_executor_and_sigint_does_not() -> None:
    client = start()
    os.kill(client.pid, signal.SIGINT)
    assert client.stats()["running"] == 0
    os.kill(client.pid, signal.SIGTERM)
    wait_until_gone(client.pid)
    client.shutdown()


def test_no_executor_outlives_its_client() -> None:
    code = (
        "import os, sys\n"
        "from enginewright.executor.client import ExecutorClient\n"
        "client = ExecutorClient.start('e', None, sys.argv[1:])\n"
        "print(client.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, *command("fast")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tempfile.gettempdir())},
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    wait_until_gone(pid)
    for folder in Path(tempfile.gettempdir()).iterdir():  # nobody is left who could remove it
        for socket in folder.iterdir():
            socket.unlink()
        folder.rmdir()


def test_a_client_that_is_forgotten_leaves_nothing_at_exit() -> None:
    code = (
        "import sys\n"
        "from enginewright.executor.client import ExecutorClient\n"
        "client = ExecutorClient.start('e', None, sys.argv[1:])\n"
        "print(client.pid, flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command("fast")],
        capture_output=True,
        env={**os.environ, "TMPDIR": str(tempfile.gettempdir())},
        timeout=60,
        check=True,
    )
    assert done.stderr == b""
    wait_until_gone(int(done.stdout))


def test_a_forgotten_client_ends_its_process_and_its_requests() -> None:
    client, sink = start("slow"), Sink()
    pid = client.pid
    client.submit("a", [1], LONG, sink)
    del client
    gc.collect()
    error = sink.end().error
    assert error is not None
    assert error.code == "executor_died"
    wait_until_gone(pid)
    for _ in range(1000):  # the folder goes last
        if not list(Path(tempfile.gettempdir()).iterdir()):
            break
        time.sleep(0.01)


def test_config_values_are_checked() -> None:
    with pytest.raises(InputError, match="threads is 0"):
        ExecutorConfig(threads=0)

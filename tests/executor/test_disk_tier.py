"""The disk tier: found again after a restart, bounded, and never a wrong token from a bad file."""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from enginewright.executor.disk_store import DiskStore
from enginewright.executor.sampling import TokenParams
from enginewright.runtime.errors import InputError
from tests.executor.harness import Harness, make_limits
from tests.support.fake_session import expected_tokens

SHARED = list(range(40, 60))  # five blocks of 4


def open_harness(folder: Path, **options: object) -> Harness:
    return Harness(make_limits(block_tokens=4), disk=folder, **options)  # type: ignore[arg-type]


def serve(harness: Harness, prompt: list[int], **params: object) -> int:
    """Run a request to its end, compare its answer, and return its cached tokens."""
    given = TokenParams(**{"max_tokens": 4, **params})  # type: ignore[arg-type]
    name = f"r{len(harness.outputs)}"
    harness.submit(name, prompt, given)
    harness.run()
    assert harness.tokens(name) == expected_tokens(prompt, given, harness.limits)[0]
    return harness.outputs[name][0].cached_tokens


def close(harness: Harness) -> None:
    assert harness.disk is not None
    harness.disk.close()


def gauges(harness: Harness) -> dict[str, object]:
    return {k: v for k, v in harness.stats().items() if k.startswith("disk_")}


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def keep(folder: Path) -> list[Path]:
    """Serve once and close; return the files, one for each full block."""
    harness = open_harness(folder)
    assert serve(harness, [*SHARED, 1]) == 0
    close(harness)
    found = files(folder)
    assert len(found) == 6  # 21 tokens of prompt and 3 of the answer are computed
    return found


def test_blocks_are_found_after_a_restart(tmp_path: Path) -> None:
    keep(tmp_path)
    harness = open_harness(tmp_path)
    assert serve(harness, [*SHARED, 1]) == 20
    assert serve(harness, [*SHARED, 1]) == 20  # from memory now
    assert serve(harness, [*SHARED[:8], 9, 9]) == 8
    found = gauges(harness)
    assert (found["disk_loaded_blocks"], found["disk_cached_tokens"]) == (5, 20)
    assert found["disk_damaged_files"] == 0
    close(harness)


def test_what_memory_evicts_comes_back_from_the_disk(tmp_path: Path) -> None:
    limits = make_limits(block_tokens=4, num_blocks=8, max_num_tokens=64)
    harness = Harness(limits, disk=tmp_path)
    for number in range(6):
        assert serve(harness, [number] * 12) == 0
    assert serve(harness, [0] * 12) == 8
    close(harness)


def test_salts_do_not_share_and_prompt_logprobs_compute_all(tmp_path: Path) -> None:
    harness = open_harness(tmp_path)
    serve(harness, [*SHARED, 1], cache_salt="x")
    close(harness)
    harness = open_harness(tmp_path)
    assert serve(harness, [*SHARED, 1]) == 0
    assert serve(harness, [*SHARED, 1], cache_salt="") == 0
    assert serve(harness, [*SHARED, 1], cache_salt="x", prompt_logprobs=0, num_logprobs=0) == 0
    close(harness)
    harness = open_harness(tmp_path)
    assert serve(harness, [*SHARED, 1], cache_salt="x") == 20
    close(harness)


@pytest.mark.parametrize("place", ["header", "key", "length", "checksum", "first", "last"])
def test_a_flipped_bit_is_a_miss_and_never_a_wrong_token(tmp_path: Path, place: str) -> None:
    at = {"header": 3, "key": 45, "length": 75, "checksum": 90, "first": 112, "last": -1}[place]
    for path in keep(tmp_path):
        data = bytearray(path.read_bytes())
        data[at] ^= 1 << random.randrange(8)
        path.write_bytes(data)
    harness = open_harness(tmp_path)
    assert serve(harness, [*SHARED, 1]) == 0
    assert gauges(harness)["disk_damaged_files"] == 1  # those behind it are not asked for
    close(harness)
    assert serve(open_harness(tmp_path), [*SHARED[:4], 1]) == 4  # it was written anew


@pytest.mark.parametrize("size", [0, 5, 100, 113, 1000])
def test_a_file_of_another_length_is_a_miss(tmp_path: Path, size: int) -> None:
    for path in keep(tmp_path):
        path.write_bytes((path.read_bytes() * 10)[:size])
    harness = open_harness(tmp_path)
    assert serve(harness, [*SHARED, 1]) == 0
    close(harness)


def test_a_block_under_anothers_name_is_a_miss(tmp_path: Path) -> None:
    first, *others = keep(tmp_path)
    for path in others:
        path.write_bytes(first.read_bytes())
    harness = open_harness(tmp_path)
    assert serve(harness, [*SHARED, 1]) <= 4
    close(harness)


def test_another_engines_folder_is_never_read(tmp_path: Path) -> None:
    keep(tmp_path)
    (mine,) = tmp_path.iterdir()
    harness = open_harness(tmp_path, identity=b"other")
    assert serve(harness, [*SHARED, 1]) == 0
    close(harness)
    other = next(path for path in tmp_path.iterdir() if path != mine)
    for path in files(other):
        path.unlink()
    for path in files(mine):  # as if somebody had copied them there
        target = other / path.relative_to(mine)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())
    harness = open_harness(tmp_path, identity=b"other")
    assert gauges(harness)["disk_blocks"] == 6
    assert serve(harness, [*SHARED, 1]) == 0
    assert gauges(harness)["disk_damaged_files"] == 1
    close(harness)


def test_files_that_vanish_and_folders_in_their_place_are_misses(tmp_path: Path) -> None:
    found = keep(tmp_path)
    harness = open_harness(tmp_path)
    for path in found[:3]:
        path.unlink()
    for path in found[3:]:
        path.unlink()
        path.mkdir()
    assert serve(harness, [*SHARED, 1]) == 0
    close(harness)


def test_the_size_is_bounded_and_the_oldest_leave(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    store = DiskStore(folder, b"e", 1000, 5 * 1112)
    keys = [bytes([number]) * 32 for number in range(12)]
    for key in keys[:5]:
        store.save(key, key * 31 + key[:8])
    wait_for(lambda: store.num_blocks == 5)
    assert store.load(keys[0]) is not None
    store.use([keys[0]])
    for key in keys[5:8]:
        store.save(key, key * 31 + key[:8])
    wait_for(lambda: keys[7] in store._files)
    assert [key in store for key in keys[:8]] == [True, False, False, False, True, True, True, True]
    assert sum(path.stat().st_size for path in files(folder)) == 5 * 1112 == store.num_bytes
    store.use([keys[4]])
    store.close()
    store = DiskStore(folder, b"e", 1000, 2 * 1112)  # a smaller bound: the oldest leave at once
    assert [key in store for key in (keys[4], keys[7], keys[0])] == [True, True, False]
    store.close()
    other = DiskStore(folder, b"f", 1000, 2 * 1112)  # another engine's files leave first
    other.save(keys[9], bytes(1000))
    wait_for(lambda: other.num_blocks == 1)
    other.close()
    assert len(files(folder)) == 2
    with pytest.raises(InputError, match="one block of this engine takes 1112"):
        DiskStore(folder, b"e", 1000, 1111)


def wait_for(condition: object) -> None:
    assert callable(condition)
    ends = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.002)


def test_a_full_disk_costs_no_answer_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full, write = [True], os.write

    def refuse(descriptor: int, data: bytes) -> int:
        if full and threading.current_thread().name == "kv disk":
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", refuse)
    monkeypatch.setattr("enginewright.executor.disk_store._PAUSE_SECONDS", 0.05)
    harness = open_harness(tmp_path)
    assert serve(harness, [*SHARED, 1]) == 0
    wait_for(lambda: gauges(harness)["disk_write_errors"] == 1)
    assert "No space left on device" in capsys.readouterr().err
    assert files(tmp_path) == []
    assert serve(harness, [*SHARED, 1]) == 20
    full.clear()
    time.sleep(0.06)
    serve(harness, [7] * 9)
    close(harness)
    assert len(files(tmp_path)) == 3


def test_a_slow_disk_never_holds_up_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, rename = threading.Event(), Path.rename

    def wait(self: Path, target: Path) -> Path:
        goes_on.wait(30)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", wait)
    monkeypatch.setattr("enginewright.executor.disk_store._MAX_PENDING", 3 * 64)
    harness = open_harness(tmp_path)
    assert serve(harness, [*SHARED, 1]) == 0
    found = gauges(harness)
    assert (found["disk_saved_blocks"], found["disk_dropped_blocks"]) == (0, 3)
    goes_on.set()
    close(harness)
    assert len(files(tmp_path)) == 3


def test_half_written_files_are_removed_and_strange_ones_left_alone(tmp_path: Path) -> None:
    keep(tmp_path)
    (folder,) = tmp_path.iterdir()
    (folder / ".123").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    harness = open_harness(tmp_path)
    assert not (folder / ".123").exists()
    assert (tmp_path / "notes.txt").exists()
    close(harness)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--kv-cache-disk .*file cannot be written"):
        DiskStore(tmp_path / "file", b"e", 10, 1 << 20)


@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization"])
@pytest.mark.parametrize("overlap", [False, True])
def test_random_traffic_over_a_small_disk_gives_the_same_tokens(
    tmp_path: Path, policy: str, overlap: bool
) -> None:
    shuffle = random.Random(5)
    for _ in range(3):  # three lives over one folder
        limits = make_limits(num_blocks=12, block_tokens=4, max_batch_size=4, max_num_tokens=12)
        harness = Harness(
            limits, disk=tmp_path, disk_bytes=40 * 176, capacity_policy=policy, overlap=overlap
        )
        sent: dict[str, tuple[list[int], TokenParams]] = {}
        for number in range(60):
            start = [shuffle.randrange(6)] * (4 * shuffle.randrange(6))
            prompt = [*start, *(shuffle.randrange(101) for _ in range(1 + shuffle.randrange(5)))]
            params = TokenParams(max_tokens=1 + shuffle.randrange(12))
            sent[str(number)] = (prompt, params)
            harness.submit(str(number), prompt, params)
            for _ in range(shuffle.randrange(5)):
                harness.step()
            if number % 10 == 9 and (found := files(tmp_path)):
                path = shuffle.choice(found)
                with suppress(FileNotFoundError):  # it has just made room
                    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
        harness.run()
        for name, (prompt, params) in sent.items():
            assert harness.tokens(name) == expected_tokens(prompt, params, limits)[0]
        assert gauges(harness)["disk_loaded_blocks"] != 0
        close(harness)


@pytest.mark.parametrize("seed", range(8))
def test_requests_that_start_together_in_a_pool_too_small_keep_out_of_each_others_way(
    tmp_path: Path, seed: int
) -> None:
    """What one of them copies from may be evicted, and filled from the disk, for the next."""
    shuffle = random.Random(seed)
    limits = make_limits(num_blocks=8, block_tokens=4, max_batch_size=6, max_num_tokens=24)
    for _ in range(2):
        harness = Harness(limits, disk=tmp_path)
        sent: dict[str, tuple[list[int], TokenParams]] = {}
        for number in range(60):
            start = [shuffle.randrange(3)] * shuffle.randrange(12)
            prompt = [*start, *(shuffle.randrange(101) for _ in range(1 + shuffle.randrange(3)))]
            params = TokenParams(max_tokens=1 + shuffle.randrange(3))
            sent[str(number)] = (prompt, params)
            harness.submit(str(number), prompt, params)
            if number % 4 == 3:
                for _ in range(shuffle.randrange(4)):
                    harness.step()
        harness.run()
        for name, (prompt, params) in sent.items():
            assert harness.tokens(name) == expected_tokens(prompt, params, limits)[0]
        close(harness)

"""Limits of control groups, from trees of files as both versions and containers show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginewright.runtime.control_groups import cpu_quota, memory_limits


def tree(root: Path, groups: str, **files: str) -> Path:
    """Write /proc/self/cgroup, and files whose paths below /sys/fs/cgroup have __ for a slash."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("max 100000", None),
        ("150000 100000", 1.5),
        ("rubbish", None),
        ("", None),
        ("100000", None),
        ("100000 0", None),
    ],
)
def test_version_2_in_a_container(text: str, quota: float | None, tmp_path: Path) -> None:
    tree(tmp_path, "0::/\n", cpu_DOT_max=text, memory_DOT_max="4096", memory_DOT_current="96")
    assert cpu_quota(tmp_path) == quota
    assert memory_limits(tmp_path) == [(4096, 96)]


def test_version_2_the_tightest_group_around_the_process_counts(tmp_path: Path) -> None:
    tree(
        tmp_path,
        "0::/user/session\n",
        user__session__cpu_DOT_max="800000 100000",
        user__cpu_DOT_max="300000 100000",
        other__cpu_DOT_max="100000 100000",
        user__session__memory_DOT_max="max",
        user__session__memory_DOT_current="5",
        user__memory_DOT_max="1000",
        user__memory_DOT_current="10",
    )
    assert cpu_quota(tmp_path) == 3
    assert memory_limits(tmp_path) == [(1000, 10)]


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize("path", ["/", "/docker/seen/only/outside"])
def test_version_1(mount: str, path: str, tmp_path: Path) -> None:
    tree(
        tmp_path,
        f"4:cpu,cpuacct:{path}\n5:memory:{path}\n1:name=systemd:/\n0::/\n",
        **{
            f"{mount}__cpu_DOT_cfs_quota_us": "250000",
            f"{mount}__cpu_DOT_cfs_period_us": "100000",
            "memory__memory_DOT_limit_in_bytes": "8192",
            "memory__memory_DOT_usage_in_bytes": "192",
        },
    )
    assert cpu_quota(tmp_path) == 2.5
    assert memory_limits(tmp_path) == [(8192, 192)]


def test_version_1_without_a_limit(tmp_path: Path) -> None:
    tree(
        tmp_path,
        "1:cpu:/\n",
        cpu__cpu_DOT_cfs_quota_us="-1",
        cpu__cpu_DOT_cfs_period_us="100000",
    )
    assert cpu_quota(tmp_path) is None
    assert memory_limits(tmp_path) == []


def test_both_versions_at_once(tmp_path: Path) -> None:
    tree(
        tmp_path,
        "4:cpu:/a\n0::/b\n",
        cpu__a__cpu_DOT_cfs_quota_us="400000",
        cpu__a__cpu_DOT_cfs_period_us="100000",
        unified__b__cpu_DOT_max="300000 100000",
    )
    assert cpu_quota(tmp_path) == 3


def test_a_group_outside_what_is_visible(tmp_path: Path) -> None:
    tree(tmp_path, "0::/../../other\n", cpu_DOT_max="200000 100000")
    assert cpu_quota(tmp_path) == 2


def test_without_control_groups_nothing_is_limited(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    assert memory_limits(tmp_path) == []
    cpu_quota()  # this machine's own files can be read
    assert all(limit > 0 for limit, _ in memory_limits())

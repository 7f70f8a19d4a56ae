"""Control groups (versions 1 and 2): what they leave of processors and memory to this process."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/")


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Return how many processors' time the process may take, or None where nothing limits it.

    The least of its own group and of all groups around it counts.
    """
    quotas: list[float] = []
    for folder in _groups("cpu", root):
        quota, period = _numbers(folder / "cpu.max", 2) or (
            *(_numbers(folder / "cpu.cfs_quota_us", 1) or (-1,)),
            *(_numbers(folder / "cpu.cfs_period_us", 1) or (0,)),
        )
        if quota > 0 and period > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def memory_limits(root: Path = _ROOT) -> list[tuple[int, int]]:
    """Return limit and use in bytes of every group around the process that limits memory."""
    found: list[tuple[int, int]] = []
    for folder in _groups("memory", root):
        for names in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = (_numbers(folder / name, 1) for name in names)
            if limit and used:
                found.append((limit[0], used[0]))
    return found


def _groups(controller: str, root: Path) -> list[Path]:
    """Return the folders of the process's groups for a controller, from its own one outwards.

    Inside a container the path of a group may not be visible; its outermost folder is then its own.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = ["0::/"]
    mounts = root / "sys/fs/cgroup"
    found: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2, alone or beside version 1
            bases = [mounts, mounts / "unified"]
        elif controller in controllers.split(","):
            bases = [mounts / controllers, mounts / controller]
        else:
            continue
        for base in bases:
            group = base.joinpath(*(part for part in path.split("/") if part not in ("", "..")))
            found += [f for f in (group, *group.parents) if f.is_relative_to(base) and f.is_dir()]
    return list(dict.fromkeys(found))


def _numbers(path: Path, count: int) -> tuple[int, ...] | None:
    """Read the whole numbers of a file; None where they are not there, or say `max`."""
    try:
        found = tuple(int(word) for word in path.read_text().split())
    except (OSError, ValueError):
        return None
    return found if len(found) == count else None

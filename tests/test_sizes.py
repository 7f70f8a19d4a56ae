"""Files stay small: the hard limits, and the totals for people who read the output."""

from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("builder", "converters", "executor", "plugins", "runtime", "serve", "src", "tests")
HARD_LIMITS = {".py": 400, ".h": 600, ".c": 600}
SOFT_LIMIT = 250


def test_no_file_is_longer_than_its_limit() -> None:
    lines: dict[str, dict[Path, int]] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in HARD_LIMITS and path.is_file():
                count = len(path.read_text().splitlines())
                lines.setdefault(folder, {})[path.relative_to(ROOT)] = count
    every = {path: count for files in lines.values() for path, count in files.items()}
    for folder, files in lines.items():
        counts = [count for count in files.values() if count] or [0]
        print(
            f"{folder:<12} {len(files):>4} files {sum(counts):>6} lines, "
            f"median {median(counts):.0f}"
        )
    long = sorted((count, path) for path, count in every.items() if count > SOFT_LIMIT)
    for count, path in reversed(long):
        print(f"over the soft limit of {SOFT_LIMIT}: {path} {count}")
    assert {p: n for p, n in every.items() if n > HARD_LIMITS[p.suffix]} == {}

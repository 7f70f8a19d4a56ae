"""Logs: one line an event on stderr, as text for people or as JSON for machines."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import orjson

FACTS = "facts"  # the attribute of a record that holds its structured values


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the record's facts."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        values: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        values |= getattr(record, FACTS, {})
        if record.exc_info:
            values["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(values, default=str).decode()


class TextFormatter(logging.Formatter):
    """Time, level, message, and the record's facts as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, with its traceback below."""
        facts = getattr(record, FACTS, {})
        words = [f"{name}={_quoted(value)}" for name, value in facts.items()]
        line = f"{_time_of(record)} {record.levelname:<7} {record.getMessage()}"
        line = " ".join([line, *words])
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def set_up_logging(format: str, level: str) -> None:
    """Send the logs of this package and of the HTTP server to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    for name in ("enginewright", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
    # What uvicorn says at info (its start and end) is said by us.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))


def _time_of(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _quoted(value: Any) -> str:
    text = str(value)
    return orjson.dumps(text).decode() if not text or any(c in text for c in ' "=\n') else text

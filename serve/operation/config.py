"""What an HTTP server is started with, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...runtime.errors import InputError

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Options of one HTTP server; raises InputError for values that contradict each other."""

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None  # None: the engine's own name
    api_key: tuple[str, ...] = ()
    api_key_file: Path | None = None
    cors_origin: tuple[str, ...] = ()  # none: browsers of other origins are kept out
    cors_credentials: bool = False
    max_body_size: int = 8 << 20  # bytes of a request's body
    strict: bool = False  # refuse fields that are not known, instead of a warning header
    keep_alive: float = 15.0  # seconds of silence after which a stream gets a comment; 0: never
    max_context: int | None = None  # tokens of prompt and answer; None: what the engine takes
    drain_timeout: float = 30.0  # seconds that requests in flight have after the first signal
    hang_timeout: float = 60.0  # seconds without an answer after which an executor counts as hung
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    dashboard: bool = True
    log_format: Literal["text", "json"] = "text"
    log_level: str = "info"
    otlp_traces_endpoint: str | None = None  # None: no traces

    def __post_init__(self) -> None:
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise InputError("--ssl-keyfile needs --ssl-certfile; give both")
        for name in ("ssl_certfile", "ssl_keyfile"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise InputError(f"--{name.replace('_', '-')} names {path}, which is not a file")
        if self.cors_credentials and "*" in self.cors_origin:
            raise InputError(
                "--cors-credentials with --cors-origin '*' would let every site act for its "
                "visitors; name the origins"
            )
        if any(not key.strip() for key in self.api_key):
            raise InputError("--api-key is empty; give a key or leave the option out")

    @property
    def scheme(self) -> str:
        """The scheme of the server's address."""
        return "http" if self.ssl_certfile is None else "https"

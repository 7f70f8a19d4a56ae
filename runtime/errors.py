"""Every error a user can meet, as one tree; each class knows its exit code and its HTTP status.

EnginewrightError                  1   500
├── InputError                     2   400   the user's own input: a flag, a file, a request
│   ├── CheckpointError            3   400   a checkpoint that cannot be converted
│   │   └── UnsupportedModelError  3   400   an architecture, op or format that is not built yet
│   ├── BuildError                 4   500   a build that cannot finish
│   ├── RequestError               2   400   one request that cannot run; names the field in `param`
│   │   ├── ContextLengthError     2   400   prompt and answer do not fit the engine's limits
│   │   ├── ModelNotFoundError     2   404
│   │   └── NotFoundError          2   404   something else that a request names and is not here
├── EngineError                    5   500   an engine folder that cannot be used
│   ├── EngineDamagedError         5   500   bytes missing or changed since the build
│   ├── EngineVersionError         6   500   written by a newer or unknown schema
│   └── IncompatibleMachineError   7   500   this machine lacks what the engine needs
├── OutOfMemoryError               8   503   a budget that cannot be met, with the numbers
├── OverloadedError                9   429   the queue is full; try again later
├── ExecutorDiedError              10  503   the executor process has ended
├── StepFailedError                11  500   a step of the model failed; only its requests are hurt
├── ServerStoppingError            12  503   the server ends before the request could
├── DeadlineExceededError          13  504   the request's own deadline has passed
├── QueueTimeoutError              14  408   a request waited longer than it wanted to
└── ForkedProcessError             15  500   an engine used in a fork of the process that opened it

A message says what was found, what was expected and what to do, in one sentence.
"""

from __future__ import annotations


class EnginewrightError(Exception):
    """Base of every error that is not a bug of ours."""

    exit_code: int = 1
    http_status: int = 500
    code: str = "internal_error"


class InputError(EnginewrightError):
    """The user's input cannot be used: a flag, a path, a field."""

    exit_code = 2
    http_status = 400
    code = "invalid_input"


class CheckpointError(InputError):
    """A checkpoint is damaged, contradicts itself, or misses a tensor."""

    exit_code = 3
    code = "invalid_checkpoint"


class UnsupportedModelError(CheckpointError):
    """The checkpoint is sound, but its architecture or format is not supported."""

    code = "unsupported_model"


class BuildError(InputError):
    """A build cannot finish: the compiler failed, or the self-check refused the result."""

    exit_code = 4
    http_status = 500
    code = "build_failed"


class RequestError(InputError):
    """One request cannot run; `param` names the offending field, if there is one."""

    code = "invalid_request"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(RequestError):
    """Prompt and answer together exceed what the engine was built for."""

    code = "context_length_exceeded"


class ModelNotFoundError(RequestError):
    """The request names a model that is not served here."""

    http_status = 404
    code = "model_not_found"


class NotFoundError(RequestError):
    """The request names something that is not here: a response, a running request."""

    http_status = 404
    code = "not_found"


class EngineError(EnginewrightError):
    """An engine folder cannot be used."""

    exit_code = 5
    code = "invalid_engine"


class EngineDamagedError(EngineError):
    """A file of the engine is missing, truncated or changed since it was built."""

    code = "engine_damaged"


class EngineVersionError(EngineError):
    """The engine's schema is not one that this version reads."""

    exit_code = 6
    code = "engine_version"


class IncompatibleMachineError(EngineError):
    """This machine lacks a feature that the engine was compiled for."""

    exit_code = 7
    code = "incompatible_machine"


class OutOfMemoryError(EnginewrightError):
    """A memory budget cannot be met; the message carries the numbers."""

    exit_code = 8
    http_status = 503
    code = "out_of_memory"


class OverloadedError(EnginewrightError):
    """The queue is full."""

    exit_code = 9
    http_status = 429
    code = "overloaded"


class ExecutorDiedError(EnginewrightError):
    """The executor process ended while requests were in flight, or never came up."""

    exit_code = 10
    http_status = 503
    code = "executor_died"


class StepFailedError(EnginewrightError):
    """The device failed a step; only the requests in that step are hurt."""

    exit_code = 11
    code = "step_failed"


class ServerStoppingError(EnginewrightError):
    """The server was told to end and does not wait for the request any longer."""

    exit_code = 12
    http_status = 503
    code = "server_stopping"


class DeadlineExceededError(EnginewrightError):
    """The deadline that came with the request has passed before its answer was complete."""

    exit_code = 13
    http_status = 504
    code = "deadline_exceeded"


class QueueTimeoutError(EnginewrightError):
    """A request waited for its start longer than its `queue_timeout`."""

    exit_code = 14
    http_status = 408
    code = "queue_timeout"


class ForkedProcessError(EnginewrightError):
    """The engine was opened before this process was forked; it is the parent's."""

    exit_code = 15
    code = "forked_process"

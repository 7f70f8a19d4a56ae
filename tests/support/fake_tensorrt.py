"""As much of TensorRT's Python module as a served engine needs: a plan is an exported graph.

The names are TensorRT's. Runs are queued on the stream of tests.support.fake_cuda, and go through
the checks of profiles and shapes that the stand-in of builder.targets.tensorrt makes.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec

from enginewright.builder.targets.tensorrt.host_device import (
    GraphContext,
    onnxruntime_evaluate,
    reference_evaluate,
)
from enginewright.runtime.errors import StepFailedError
from enginewright.runtime.manifest import ProfileFacts

from .fake_cuda import GPU

__version__ = "11.4.0.106"


class FakePlan(msgspec.Struct, frozen=True):
    """What the file of a plan holds here."""

    model: str  # path of the graph
    profiles: tuple[ProfileFacts, ...]
    slowly: bool  # custom ops, or bf16: what onnxruntime cannot run
    stripped: bool = False  # its weights have to be put in first


class ILogger:
    class Severity(IntEnum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2
        INFO = 3

    def log(self, severity: Severity, msg: str) -> None:
        raise NotImplementedError


class Logger(ILogger):
    WARNING = ILogger.Severity.WARNING

    def log(self, severity: ILogger.Severity, msg: str) -> None:
        print(msg)


class Runtime:
    def __init__(self, logger: ILogger) -> None:
        self._logger = logger
        self.engine_host_code_allowed = False

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
        try:
            return ICudaEngine(msgspec.json.decode(serialized_engine, type=FakePlan), self._logger)
        except msgspec.DecodeError as error:
            self._logger.log(ILogger.Severity.ERROR, f"the plan is none: {error}")
            return None


class ICudaEngine:
    def __init__(self, plan: FakePlan, logger: ILogger) -> None:
        self.plan = plan
        self._logger = logger

    def create_execution_context(self) -> IExecutionContext | None:
        if self.plan.stripped:
            self._logger.log(ILogger.Severity.ERROR, "the engine has no weights")
            return None
        return IExecutionContext(self.plan, self._logger)


class Refitter:
    def __init__(self, engine: ICudaEngine, logger: ILogger) -> None:
        self._engine = engine
        self.model: str | None = None

    def refit_cuda_engine(self) -> bool:
        if self.model is None:
            return False
        plan = msgspec.structs.replace(self._engine.plan, model=self.model, stripped=False)
        self._engine.plan = plan
        return True


class OnnxParserRefitter:
    def __init__(self, refitter: Refitter, logger: ILogger) -> None:
        self._refitter = refitter
        self._logger = logger

    def refit_from_file(self, model: str) -> bool:
        if not Path(model).exists():
            self._logger.log(ILogger.Severity.ERROR, f"there is no file {model}")
            return False
        self._refitter.model = model
        return True


class IExecutionContext:
    def __init__(self, plan: FakePlan, logger: ILogger) -> None:
        model = Path(plan.model)
        evaluate = reference_evaluate(model) if plan.slowly else onnxruntime_evaluate(model)
        device: Any = GPU
        self._graph = GraphContext(model, plan.profiles, device, evaluate)
        self._count = len(plan.profiles)
        self._logger = logger

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        if not 0 <= profile_index < self._count:
            return self._refuse(f"there is no profile {profile_index}")
        return self._try(lambda: self._graph.use_profile(profile_index))

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        return self._try(lambda: self._graph.set_shape(name, shape))

    def set_tensor_address(self, name: str, memory: int) -> bool:
        return self._try(lambda: self._graph.bind(name, memory))

    def execute_async_v3(self, stream_handle: int) -> bool:
        return self._try(self._graph.execute)

    def _try(self, call: Callable[[], None]) -> bool:
        try:
            call()
        except StepFailedError as error:
            return self._refuse(str(error))
        return True

    def _refuse(self, reason: str) -> bool:
        self._logger.log(ILogger.Severity.ERROR, reason)
        return False

"""A serialized plan, read by TensorRT or TensorRT-RTX and ready to run on a stream."""

from __future__ import annotations

import importlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from .errors import EngineError, IncompatibleMachineError, StepFailedError
from .manifest import TensorRTFacts

MODULES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
NO_DRIVER = "cudaError 35"  # ends the companion line of every error where there is no driver


class TensorRTPlan:
    """An execution context of a plan (runtime.device.PlanContext)."""

    def __init__(self, plan: Path, model: Path, facts: TensorRTFacts, stream: int) -> None:
        """Read `plan`; the weights of a stripped one come from `model`, an ONNX file.

        A GPU must have answered before. Raises IncompatibleMachineError or EngineError with the
        library's own words.
        """
        name = MODULES[facts.library]
        try:
            module: Any = importlib.import_module(name)
        except (ImportError, OSError) as error:
            raise IncompatibleMachineError(
                f"the engine needs the Python package {name} {facts.version}, which cannot be "
                f"imported ({error}); pip install 'enginewright[{facts.library}]'"
            ) from error
        self._stream = stream
        self._logger = logger_of(module)
        self._logger.clear()
        self._runtime: Any = module.Runtime(self._logger)
        if facts.version_compatible:
            self._runtime.engine_host_code_allowed = True
        self._engine: Any = self._runtime.deserialize_cuda_engine(plan.read_bytes())
        if self._engine is None:
            raise EngineError(
                f"{name} cannot read {plan}: {self._logger.take_error()}; build the engine again "
                f"with {name} {module.__version__}"
            )
        if facts.stripped:
            self._refit(module, model)
        self._context: Any = self._engine.create_execution_context()
        if self._context is None:
            raise EngineError(f"{name} cannot run {plan}: {self._logger.take_error()}")
        self._profile = -1  # none was chosen yet
        self._lasting: dict[str, tuple[int, ...]] = {}

    def _refit(self, module: Any, model: Path) -> None:
        refitter = module.Refitter(self._engine, self._logger)
        parser = module.OnnxParserRefitter(refitter, self._logger)
        if not parser.refit_from_file(str(model)) or not refitter.refit_cuda_engine():
            raise EngineError(
                f"the weights of {model} cannot be put into the plan: {self._logger.take_error()}"
            )

    def use_profile(self, index: int) -> None:
        """Choose an optimization profile; it starts with the shapes that hold for all."""
        if index != self._profile:
            if not self._context.set_optimization_profile_async(index, self._stream):
                raise StepFailedError(f"profile {index}: {self._logger.take_error()}")
            self._profile = index
            for name, shape in self._lasting.items():
                self.set_shape(name, shape)

    def set_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Set an input's shape; before the first profile is chosen, for all of them."""
        if self._profile < 0:
            self._lasting[name] = shape
        elif not self._context.set_input_shape(name, shape):
            raise StepFailedError(f"{name} {list(shape)}: {self._logger.take_error()}")

    def bind(self, name: str, address: int) -> None:
        """Set an address."""
        if not self._context.set_tensor_address(name, address):
            raise StepFailedError(f"the address of {name}: {self._logger.take_error()}")

    def execute(self) -> None:
        """Queue the plan."""
        if not self._context.execute_async_v3(self._stream):
            raise StepFailedError(f"TensorRT failed a step: {self._logger.take_error()}")

    def close(self) -> None:
        """Let go of context, engine and runtime, in this order."""
        self._context = self._engine = self._runtime = None


@lru_cache(maxsize=2)
def logger_of(module: Any) -> Any:
    """Return a logger of a TensorRT module that keeps errors, in the order they came.

    Only the first logger of a process is used by the library, so there is one a module; clear its
    lists before use.
    """
    error_level = int(module.ILogger.Severity.ERROR)
    warning_level = int(module.ILogger.Severity.WARNING)

    class Logger(module.ILogger):
        def __init__(self) -> None:
            module.ILogger.__init__(self)
            self.errors: list[str] = []
            self.warnings: list[str] = []

        def log(self, severity: Any, msg: str) -> None:
            if int(severity) <= error_level:
                self.errors.append(msg)
            elif int(severity) == warning_level:
                self.warnings.append(msg)

        def real_errors(self) -> list[str]:
            """Return the errors without the line that each of them brings where no driver is."""
            kept = (
                " ".join(line for line in text.splitlines() if NO_DRIVER not in line).strip()
                for text in self.errors
            )
            return [text for text in kept if text]

        def take_error(self) -> str:
            """Return the first error, and forget all: the next failure has a reason of its own."""
            error = (self.real_errors() or self.errors or ["it gave no reason"])[0]
            self.errors.clear()
            return error

        def clear(self) -> None:
            self.errors.clear()
            self.warnings.clear()

    return Logger()

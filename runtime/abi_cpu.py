"""The C ABI of a compiled CPU engine (plugins/cpu/engine.h) as ctypes sees it."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_double, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

ABI_VERSION = 4


class Options(Structure):
    """`ew_options`."""

    _fields_ = (
        ("threads", c_int32),
        ("max_num_tokens", c_int32),
        ("max_batch_size", c_int32),
        ("caller_works", c_int32),
        ("tile_rows", c_int32),
        ("column_rows", c_int32),
        ("redundant_rows", c_int32),
        ("products", c_void_p),
    )


class BatchStruct(Structure):
    """`ew_batch`; pointers are addresses of numpy arrays."""

    _fields_ = (
        ("tokens", c_int32),
        ("seqs", c_int32),
        ("rows", c_int32),
        ("max_blocks", c_int32),
        ("token_ids", c_void_p),
        ("seq_starts", c_void_p),
        ("past_tokens", c_void_p),
        ("block_tables", c_void_p),
        ("logit_rows", c_void_p),
    )


class SamplingStruct(Structure):
    """`ew_sampling`."""

    _fields_ = (
        *(
            (name, c_void_p)
            for name in (
                "temperature",
                "top_p",
                "min_p",
                "repetition_penalty",
                "presence_penalty",
                "frequency_penalty",
                "top_k",
                "positions",
                "num_logprobs",
                "history_starts",
                "history",
                "prompt_lengths",
                "bias_starts",
                "bias_ids",
                "bias_values",
                "seeds",
                "masks",
            )
        ),
        ("mask_words", c_int32),
        ("top_logprobs", c_int32),
    )


class ResultStruct(Structure):
    """`ew_result`."""

    _fields_ = (
        ("tokens", c_void_p),
        ("logprobs", c_void_p),
        ("top_ids", c_void_p),
        ("top_logprobs", c_void_p),
        ("logits", c_void_p),
        ("seconds", c_double),
    )


def load_library(path: Path) -> Any:
    """Load an engine's shared object and declare its functions. Raises OSError as dlopen does."""
    library = ctypes.CDLL(str(path))
    library.ew_abi_version.restype = c_int32
    library.ew_block_bytes.restype = c_int64
    library.ew_working_bytes.argtypes = [POINTER(Options)]
    library.ew_working_bytes.restype = c_int64
    library.ew_open.argtypes = [POINTER(Options), c_void_p, c_void_p, c_char_p]
    library.ew_open.restype = c_void_p
    library.ew_launch.argtypes = [c_void_p, POINTER(BatchStruct)]
    library.ew_launch.restype = c_int32
    library.ew_sample.argtypes = [c_void_p, POINTER(SamplingStruct), POINTER(ResultStruct)]
    library.ew_sample.restype = c_int32
    library.ew_sample_logits.argtypes = [
        c_void_p,
        POINTER(SamplingStruct),
        c_int32,
        c_void_p,
        POINTER(ResultStruct),
    ]
    library.ew_sample_logits.restype = c_int32
    library.ew_wait.argtypes = [c_void_p]
    library.ew_wait.restype = c_int32
    library.ew_use_weights.argtypes = [c_void_p, c_int32, c_void_p]
    library.ew_use_weights.restype = c_int32
    library.ew_keep_thread.argtypes = [c_void_p, c_int32, POINTER(c_int32), c_int32]
    library.ew_keep_thread.restype = c_int32
    library.ew_profile_slots.restype = c_int32
    library.ew_profile_name.argtypes = [c_int32]
    library.ew_profile_name.restype = c_char_p
    library.ew_profile.argtypes = [c_void_p, c_int32]
    library.ew_profile.restype = None
    library.ew_profile_read.argtypes = [c_void_p, c_void_p, c_void_p]
    library.ew_profile_read.restype = None
    library.ew_close.argtypes = [c_void_p]
    library.ew_close.restype = None
    return library

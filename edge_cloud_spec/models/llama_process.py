"""The process that runs llama.cpp, so that a failed assertion in C does not end the robot's.

``llama.LlamaProcess`` starts it. A request is the name of a method of ``LlamaModel`` and its
arguments; the reply is the method's result, or a ``Failure``.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEQUENCES = 128  # the prefix and the nodes that can coexist, and so the most logits of a pass
ERROR = 4  # GGML_LOG_LEVEL_ERROR
UBATCH_TOKENS = 512  # tokens that pass through the layers together
NEAR_ALL = 1 << 20  # effectively no limit, as pictures arrive at their final size

INSTALL = "pip install 'llama-cpp-python>=0.3.36,<0.4', which builds it"

# An edit of the KV cache: from a position on, a sequence gets another's rows; or loses its own, if
# both numbers are equal.
Edit = tuple[int, int, int]


@dataclass(frozen=True)
class Failure:
    """Why a request failed, and what the user can do."""

    text: str
    remedy: str = "fetch the file again, or free memory"


@dataclass(frozen=True)
class Loaded:
    """The contents of a GGUF file: the text of each token, and the width of an embedding."""

    tokens: list[str]
    hidden: int


class LlamaModel:
    """A model, its vision part and a context; each public method can be requested."""

    def __init__(self) -> None:
        import llama_cpp
        from llama_cpp import mtmd_cpp

        self._llama, self._mtmd = llama_cpp, mtmd_cpp
        self.errors: list[str] = []  # error messages of the current request

        @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
        def log(level: int, text: bytes, _: object) -> None:
            message = " ".join(text.decode(errors="replace").split())
            if level == ERROR and message.strip("."):  # dots are llama.cpp's progress bar
                self.errors.append(message)

        self._log = log  # kept alive as long as C may call it
        llama_cpp.llama_log_set(log, ctypes.c_void_p())
        mtmd_cpp.mtmd_log_set(log, ctypes.c_void_p())
        mtmd_cpp.mtmd_helper_log_set(log, ctypes.c_void_p())
        llama_cpp.llama_backend_init()
        self._context: Any = None

    def _checked(self, result: Any) -> Any:
        if not result:
            raise RuntimeError(next(iter(self.errors), "it does not say why"))
        return result

    def load(self, path: str, vision: str, gpu_layers: int, threads: int) -> Loaded:
        """Load the files; an empty ``vision``: there is none. gpu_layers: how many layers go to the
        GPU; -1: all."""
        llama, mtmd, self._threads = self._llama, self._mtmd, threads
        options = llama.llama_model_default_params()
        options.n_gpu_layers = gpu_layers
        self._model = self._checked(llama.llama_model_load_from_file(os.fsencode(path), options))
        if vision:
            looks = mtmd.mtmd_context_params_default()
            looks.use_gpu, looks.warmup, looks.print_timings = gpu_layers != 0, False, False
            looks.image_min_tokens, looks.image_max_tokens = 1, NEAR_ALL
            looks.n_threads = threads
            self._vision = self._checked(
                mtmd.mtmd_init_from_file(os.fsencode(vision), self._model, looks)
            )
        vocabulary = llama.llama_model_get_vocab(self._model)
        self._rows = llama.llama_vocab_n_tokens(vocabulary)
        texts = (llama.llama_vocab_get_text(vocabulary, token) for token in range(self._rows))
        # Width of a picture's embedding, which includes those for the first layers (deepstack).
        self._width = llama.llama_model_n_embd_inp(self._model)
        tokens = [text.decode(errors="replace") for text in texts]
        return Loaded(tokens, llama.llama_model_n_embd(self._model))

    def begin(self, rows: int) -> None:
        """Make an empty context for ``rows`` tokens."""
        llama = self._llama
        if self._context is not None:
            llama.llama_free(self._context)
        options = llama.llama_context_default_params()
        options.n_ctx = options.n_batch = rows
        options.n_ubatch, options.n_outputs_max = min(rows, UBATCH_TOKENS), SEQUENCES
        options.n_seq_max, options.kv_unified = SEQUENCES, True
        options.n_threads = options.n_threads_batch = self._threads
        self._context = llama.llama_init_from_model(self._model, options)
        self._checked(self._context)

    def encode(self, picture: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The image embeddings float32 [m, width] of a picture uint8 [height, width, 3]."""
        mtmd, (high, wide, _) = self._mtmd, picture.shape
        pixels = np.ascontiguousarray(picture).ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        marker = mtmd.mtmd_default_marker()
        text = mtmd.mtmd_input_text(marker, len(marker), False, True)
        bitmap, chunks = mtmd.mtmd_bitmap_init(wide, high, pixels), mtmd.mtmd_input_chunks_init()
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        try:
            split = mtmd.mtmd_tokenize(self._vision, chunks, ctypes.byref(text), bitmaps, 1)
            self._checked(split == 0)
            for index in range(mtmd.mtmd_input_chunks_size(chunks)):
                chunk = mtmd.mtmd_input_chunks_get(chunks, index)
                if mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_IMAGE:
                    self._checked(mtmd.mtmd_encode_chunk(self._vision, chunk) == 0)
                    count = mtmd.mtmd_input_chunk_get_n_tokens(chunk)
                    rows = self._checked(mtmd.mtmd_get_output_embd(self._vision))
                    return np.ctypeslib.as_array(rows, shape=(count, self._width)).copy()
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
            mtmd.mtmd_bitmap_free(bitmap)
        raise RuntimeError("it has made no rows of the picture")

    def decode(
        self,
        edits: Sequence[Edit],
        rows: NDArray[Any],
        positions: NDArray[np.int64],
        sequences: Sequence[Sequence[int]],
        wanted: int,
    ) -> NDArray[np.float32]:
        """Apply the edits to the cache, run a pass, and return logits [wanted, V] of its last
        tokens.

        rows: token ids [n] or embeddings [n, width]. positions: [n] of tokens, [4, n] of
        embeddings. sequences: those that each token or embedding belongs to.
        """
        llama, memory = self._llama, self._llama.llama_get_memory(self._context)
        for sequence, source, start in edits:
            if source == sequence:
                llama.llama_memory_seq_rm(memory, sequence, start, -1)
            else:
                llama.llama_memory_seq_cp(memory, source, sequence, start, -1)
        batch, kept = llama.llama_batch(), []

        def pointer(values: object, kind: Any) -> Any:
            kept.append(np.ascontiguousarray(values, kind))
            return kept[-1].ctypes.data_as(ctypes.POINTER(kind))

        if rows.ndim == 1:
            batch.token = pointer(rows, ctypes.c_int32)
        else:
            batch.embd = pointer(rows, ctypes.c_float)
        batch.n_tokens = len(rows)
        batch.pos = pointer(positions, ctypes.c_int32)
        asked = [row >= len(rows) - wanted for row in range(len(rows))]
        batch.logits = pointer(asked, ctypes.c_int8)
        batch.n_seq_id = pointer([len(each) for each in sequences], ctypes.c_int32)
        of_rows: Any = [pointer(each, ctypes.c_int32) for each in sequences]
        batch.seq_id = (ctypes.POINTER(ctypes.c_int32) * len(of_rows))(*of_rows)
        self._checked(llama.llama_decode(self._context, batch) == 0)
        shape = wanted, self._rows
        if not wanted:
            return np.zeros(shape, np.float32)
        return np.ctypeslib.as_array(llama.llama_get_logits(self._context), shape=shape).copy()


def main(descriptor: int) -> None:
    """Run the process of llama.cpp: answer requests on this socket until the peer closes it."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("500")  # if memory runs out, the kernel kills this process first
    model: LlamaModel | None = None
    with Connection(descriptor) as robot, suppress(EOFError, OSError):
        while True:
            request = robot.recv()
            try:
                model = model or LlamaModel()
                model.errors.clear()
                reply = getattr(model, request[0])(*request[1:])
            except ImportError:
                reply = Failure("there is no llama-cpp-python", INSTALL)
            except Exception as error:  # reported to the robot, whatever it is
                reply = Failure(" ".join(str(error).split())[:300] or type(error).__name__)
            robot.send(reply)

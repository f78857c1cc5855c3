"""A drafter in llama.cpp (the extra ``llama``): GGUF files of any quantization, trees and rollback.

The model runs in a process of its own (``llama_process``). Its KV cache holds one session at a
time: sequence 0 is the prefix, and each node after it is the end of another sequence.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decoding.digest import common_prefix
from ..decoding.token_tree import TokenTree
from ..errors import UserError, refuse
from ..lru_cache import LruCache
from ..share import path_of
from .checkpoint import CheckpointFiles, checkpoint_files, read_json, weights_digest
from .drafter import OnLayer
from .families import FAMILIES
from .image import (
    cosines_of,
    diverse_tokens,
    picture_of,
    picture_positions,
    picture_spans,
    positions_of,
)
from .llama_process import SEQUENCES, Edit, Failure, Loaded
from .processor import Processor
from .prompt import Prompt, PromptImage
from .tokenizer import tokens_of

LOAD_S = 600.0  # for gigabytes from a card
PASS_S = 120.0  # more than any pass of use takes, of a vision part on a CPU too
REPLY_POLL_S = 0.002  # how often messages are handled during a pass
END_S = 10.0  # until it is gone
RESTARTS, RESTART_S = 3, 600.0  # so often in so long is it worth another start
PART_ROWS = 256  # of a prompt in one request, which is computed to its end, wanted or not
KEPT_PICTURES = 16  # whose rows are kept
ANSWER_ROWS = 2048  # rows for an answer and the nodes after it


class LlamaProcess:
    """The process of one model, restarted if it ends; belongs to one thread."""

    def __init__(self, path: Path, vision: Path | None, gpu_layers: int, threads: int) -> None:
        """vision: None if the model reads no pictures. gpu_layers: layers on the GPU; -1: all."""
        files = str(path), str(vision or "")
        self.path, self._load = path, ("load", *files, gpu_layers, threads)
        self._child: subprocess.Popen[bytes] | None = None
        self._ended: deque[float] = deque(maxlen=RESTARTS)  # when it ended, s
        self._why = ""  # the reason of its last end
        self.lives = 0  # number of starts; the KV cache does not survive one

    def start(self, on_layer: OnLayer | None = None) -> Loaded:
        """Start the process if it does not run; returns what it loaded. Raises UserError."""
        now = time.monotonic()
        if self._child is None:
            if len(self._ended) == RESTARTS and now - self._ended[0] < RESTART_S:
                raise UserError(f"{self._why}; it did so {RESTARTS} times in a short while")
            try:
                self._spawn()
            except OSError as error:
                why = f"the process of the draft model {self.path} cannot be started ({error})"
                raise UserError(f"{why}: free memory") from None
            self._loaded = None
            self._send(self._load)
        if self._loaded is None:
            self._loaded = self._reply(LOAD_S, on_layer)
        loaded: Loaded = self._loaded
        return loaded

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        # Bounds a transfer that stops within a message.
        for bound in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, bound, struct.pack("ll", int(PASS_S), 0))
        with theirs:
            code = f"from {__package__}.llama_process import main; main({theirs.fileno()})"
            self._child = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ | {"GGML_NO_BACKTRACE": "1"},
                # Ctrl-C in a terminal goes to the robot's process, which ends this one.
                start_new_session=True,
            )
        self._connection, self._owed = Connection(ours.detach()), False
        self._end = weakref.finalize(self, _end, self._child, self._connection)

    def ask(self, *request: object, on_layer: OnLayer | None = None) -> Any:
        """Send a request to the started process and return its reply.

        on_layer is called while waiting; if it raises, the reply is dropped. UserError: the process
        has ended, hangs, or refused.
        """
        self.drain(on_layer)
        self._send(request)
        return self._reply(PASS_S, on_layer)

    def drain(self, on_layer: OnLayer | None) -> None:
        """Wait for the reply to an abandoned request, if there is one, and drop it."""
        if self._owed:
            self._reply(PASS_S, on_layer)

    def _send(self, request: Sequence[object]) -> None:
        with self._watched():
            self._asked = time.monotonic()
            self._connection.send(request)
            self._owed = True

    def _reply(self, timeout: float, on_layer: OnLayer | None) -> Any:
        # Counted from the request, even if earlier replies were dropped.
        deadline = self._asked + timeout
        while self._owed:
            with self._watched():
                if self._connection.poll(REPLY_POLL_S if on_layer else 1.0):
                    reply, self._owed = self._connection.recv(), False
                elif time.monotonic() > deadline:
                    raise TimeoutError
            if self._owed and on_layer is not None:
                on_layer(0, None)
        if not isinstance(reply, Failure):
            return reply
        if self._loaded is None:
            why = f"llama.cpp cannot load {self.path} or its mmproj ({reply.text})"
            raise self._lost(f"{why}: {reply.remedy}")
        raise UserError(f"llama.cpp has failed with {self.path}: {reply.text}")

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """A context that converts the process's end to a UserError."""
        process = f"the process of the draft model {self.path}"
        try:
            yield
        except (TimeoutError, BlockingIOError):
            raise self._lost(f"{process} does not answer: it is started again") from None
        except (EOFError, OSError):
            assert self._child is not None
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(END_S)
            status = self._child.returncode
            how = f"ended with status {status}: the log may say why"
            if status == -signal.SIGKILL:
                how = "was killed, maybe for want of memory: free some, or take a smaller file"
            raise self._lost(f"{process} {how}") from None

    def _lost(self, why: str) -> UserError:
        """Clean up after the process; returns the error to raise."""
        self._child = None
        self._end()
        self.lives += 1
        self._ended.append(time.monotonic())
        self._why = why
        return UserError(why)


def _end(child: subprocess.Popen[bytes], connection: Connection) -> None:
    connection.close()
    child.kill()
    with suppress(subprocess.TimeoutExpired):  # stuck in a driver; it is reaped at the next start
        child.wait(END_S)


Row = tuple[Any, int]  # content (a token, or which picture) and rotary position of a KV row


class LlamaMemory:
    """The content of llama.cpp's KV cache: one session's prefix, and a sequence for each of its
    nodes."""

    def __init__(self, process: LlamaProcess) -> None:
        self.process = process
        self.rows: list[Row] = []
        # The prefix list of the session whose content is loaded.
        self._whole: list[Row] | None = None
        self._life, self._capacity = -1, 0  # the process's start number, and its cache's capacity
        self._edits: list[Edit] = []  # to be applied before the next pass
        self.free: list[int] = []  # unused sequence numbers

    def is_of(self, rows: list[Row]) -> bool:
        """Whether the cache still holds the session that owns this list."""
        return self._whole is rows and self._life == self.process.lives

    def hold(self, rows: list[Row], on_layer: OnLayer | None) -> None:
        """Load this prefix into the cache, reusing what it shares with the current one."""
        if self._life != self.process.lives or self._capacity < len(rows) + ANSWER_ROWS // 2:
            self._life, self._capacity, self.rows = -1, len(rows) + ANSWER_ROWS, []
            self.process.ask("begin", self._capacity, on_layer=on_layer)
            self._life, self._edits = self.process.lives, []
            self.free = list(range(1, SEQUENCES))
        self.release(set(range(1, SEQUENCES)).difference(self.free))
        same = common_prefix(self.rows, rows)
        if same < len(self.rows):
            self.cut(self.rows[same][1])
        self._whole = rows

    def cut(self, position: int) -> None:
        """Drop the prefix from this position on; all tokens of a picture share one position."""
        self._edits.append((0, 0, position))
        while self.rows and self.rows[-1][1] >= position:
            self.rows.pop()

    def copy(self, sequence: int, source: int, position: int = 0) -> None:
        """Add the source sequence's tokens from this position on to another sequence."""
        self._edits.append((sequence, source, position))

    def release(self, sequences: Iterable[int]) -> None:
        """Drop these nodes' sequences; 0 stands for a node without one."""
        for sequence in filter(None, sequences):
            self._edits.append((sequence, sequence, 0))
            self.free.append(sequence)

    def decode(
        self,
        values: NDArray[Any],
        positions: NDArray[Any],
        sequences: Sequence[Sequence[int]],
        wanted: int,
        on_layer: OnLayer | None,
    ) -> NDArray[np.float32]:
        """Logits [wanted, V] of the last ``wanted`` tokens; see ``LlamaModel.decode``."""
        if len(self.rows) + SEQUENCES + len(sequences) > self._capacity:
            raise UserError(f"an answer has no room beyond {ANSWER_ROWS} tokens: decode fewer")
        try:
            self.process.drain(on_layer)  # first, as an exception here must change nothing
            edits, self._edits = self._edits, []
            arguments = edits, values, positions, sequences, wanted
            logits: NDArray[np.float32] = self.process.ask("decode", *arguments, on_layer=on_layer)
        except BaseException as error:
            self.cut(int(positions.flat[0]))
            if isinstance(error, UserError):
                self._life = -1  # the content of the cache is unknown
            raise
        return logits


class LlamaSession:
    """The ``DraftPrefill`` of a prompt, and then its ``DraftSession``.

    llama.cpp's KV cache is shared: another session, or a restart of the process, may overwrite it.
    The next pass then computes the missing tokens again.
    """

    def __init__(self, drafter: LlamaDrafter, prompt: Prompt) -> None:
        self._drafter, self._memory, self._prompt = drafter, drafter.memory, prompt
        self._vocabulary, ids = drafter.vocabulary, prompt.input_ids
        self._spans = picture_spans(ids, drafter.image_id)
        names: list[Any] = ids.tolist()
        for (start, end), image in zip(self._spans, prompt.images, strict=True):
            names[start:end] = [(image.digest, image.grid, end - start)] * (end - start)
        merge, grids = drafter.preprocessing.spec.merge_size, [each.grid for each in prompt.images]
        positions, _ = positions_of(ids, grids, drafter.image_id, merge)
        self._rows: list[Row] = list(zip(names, positions[0].tolist(), strict=True))
        self.prompt_rows = len(self._rows)
        self.nodes, self._logits = TokenTree(), list[NDArray[np.float32]]()  # [V] after each node
        self._sequences: list[int] = []  # of each node; 0: not in the cache
        self._row: NDArray[np.float32] | None = None  # [V] after the prefix

    @property
    def session(self) -> LlamaSession:
        """Returns itself once the prompt is read; ValueError before."""
        if self._row is None and len(self._rows) == self.prompt_rows:
            raise ValueError("the prompt is not read yet")
        return self

    def step(self, rows: int, on_layer: OnLayer | None = None) -> bool:
        """Compute at most ``rows`` prompt tokens, or the vision part; True once the prompt is
        read."""
        if not self._fill(rows, on_layer):
            return False
        self.logits_after(-1, on_layer)  # they are unknown if the cache already held all rows
        return True

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prefix after the prompt."""
        return tuple(token for token, _ in self._rows[self.prompt_rows :])

    @property
    def pending_rows(self) -> int:
        """Tokens of the prefix that the next pass computes before its nodes."""
        held = len(self._memory.rows) if self._memory.is_of(self._rows) else 0
        return max(len(self._rows) - held, int(self._row is None))

    def truncate(self, length: int) -> None:
        """Roll the prefix back to ``length`` tokens after the prompt."""
        self._keep_nodes(TokenTree(), ())
        end = self.prompt_rows + length
        if end < len(self._rows):
            if self._memory.is_of(self._rows):
                self._memory.cut(self._rows[end][1])
            self._row = None
        del self._rows[end:]

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens to the prefix, which the next pass computes."""
        self._keep_nodes(TokenTree(), ())
        self._rows += [(int(token), self._next + i) for i, token in enumerate(tokens)]
        self._row = None if tokens else self._row

    def commit(self, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        """Append the nodes of ``path`` to the prefix; see ``DraftSession``."""
        tokens, kept = self.nodes.commit(path, keep)
        start = self._next
        self._rows += [(token, start + i) for i, token in enumerate(tokens)]
        if path:
            self._row = self._logits[path[-1]]
        memory = self._memory
        if path and memory.is_of(self._rows) and self._sequences[path[-1]]:
            memory.copy(0, self._sequences[path[-1]], start)
            memory.rows += self._rows[-len(path) :]
        self._keep_nodes(kept, keep)

    def _keep_nodes(self, nodes: TokenTree, keep: Sequence[int]) -> None:
        if self._memory.is_of(self._rows):
            others = set(range(len(self.nodes))).difference(keep)
            self._memory.release(self._sequences[node] for node in others)
        self.nodes, self._logits = nodes, [self._logits[node] for node in keep]
        self._sequences = [self._sequences[node] for node in keep]

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], on_layer: OnLayer | None = None
    ) -> NDArray[np.float32]:
        """Add n nodes; returns the logits [n, V] after them; see ``DraftSession``."""
        nodes, memory, before = self.nodes.extend(tokens, parents), self._memory, len(self.nodes)
        if len(tokens) >= SEQUENCES:
            raise UserError(
                f"llama.cpp computes {SEQUENCES - 1} nodes in a pass, not {len(tokens)}: take a "
                "preset of smaller drafts"
            )
        while not self._fill(self.prompt_rows, on_layer):
            pass
        if len(tokens) > len(memory.free):
            memory.release(self._sequences)
            self._sequences = [0] * before
        asks_prefix = self._row is None
        if asks_prefix and len(memory.rows) == len(self._rows):
            memory.cut(self._rows[-1][1])
        tail, start = self._rows[len(memory.rows) :], self._next
        if not (tail or tokens):
            return np.zeros((0, self._vocabulary), np.float32)
        sequences = [memory.free.pop() for _ in tokens]
        # Which sequences each computed token belongs to.
        of_tail, of_nodes = [0], dict[int, list[int]]()
        for new, sequence in enumerate(sequences, before):
            node = new
            while node >= 0 and (node >= before or not self._sequences[node]):
                of_nodes.setdefault(node, []).append(sequence)
                node = nodes.parent(node)
            memory.copy(sequence, self._sequences[node] if node >= 0 else 0)
            of_tail += [sequence] if node < 0 else []
        due = sorted(of_nodes)  # in order, so that each node is after its parent
        rows = [*tail, *((nodes.tokens[node], start + nodes.depths[node] - 1) for node in due)]
        of_rows = [of_tail for _ in tail] + [of_nodes[node] for node in due]
        values, positions = (np.asarray(each) for each in zip(*rows, strict=True))
        try:
            wanted = len(tokens) + asks_prefix  # recomputed tokens come before the new ones
            logits = memory.decode(values, positions, of_rows, wanted, on_layer)
        except BaseException:
            memory.release(sequences)
            raise
        memory.rows += tail
        found = list(logits[:, : self._vocabulary])
        if asks_prefix:
            self._row = found.pop(0)
        self.nodes, self._logits = nodes, self._logits + found
        self._sequences += sequences
        return np.reshape(found, (len(tokens), self._vocabulary))

    def close(self) -> None:
        """The decode is over: the process keeps its rows for a prompt that begins alike."""

    def logits_after(self, node: int, on_layer: OnLayer | None = None) -> NDArray[np.float32]:
        """Logits [V] after a node, or after the prefix (-1); may take a pass."""
        if node >= 0:
            return self._logits[node]
        if self.pending_rows:
            self.grow((), (), on_layer)
        assert self._row is not None
        return self._row

    @property
    def _next(self) -> int:
        """The rotary position after the prefix."""
        return self._rows[-1][1] + 1

    def _fill(self, rows: int, on_layer: OnLayer | None) -> bool:
        """Compute at most ``rows`` more prompt tokens; True: the memory holds the whole prompt."""
        drafter, memory = self._drafter, self._memory
        if not memory.is_of(self._rows):
            memory.process.start(on_layer)
            self._sequences = [0] * len(self.nodes)
            memory.hold(self._rows, on_layer)
        start = len(memory.rows)
        if start < self.prompt_rows:
            edges = (*(edge for span in self._spans for edge in span), self.prompt_rows)
            part = next(edge for edge in edges if edge > start)
            end = min(part, start + min(rows, PART_ROWS))
            values: NDArray[Any] = self._prompt.input_ids[start:end]
            positions = np.asarray([position for _, position in self._rows[start:end]])
            picture = next((at for at, span in enumerate(self._spans) if span[1] == part), None)
            if picture is not None:
                first, last = self._spans[picture]
                image, at = self._prompt.images[picture], self._rows[first][1]
                encode = partial(drafter.encode, image, last - first, on_layer)
                seen = drafter.pictures.get_or_make(self._rows[start][0], encode)
                values, positions = (each[start - first : end - first] for each in seen)
                positions = np.pad(at + positions.T, ((0, 1), (0, 0)))
            is_last = int(end == len(self._rows))
            zeros = [[0]] * (end - start)
            logits = memory.decode(values, positions, zeros, is_last, on_layer)
            memory.rows += self._rows[start:end]
            if is_last:
                self._row = logits[0, : self._vocabulary]
        return len(memory.rows) >= self.prompt_rows


class LlamaDrafter(Processor):
    """A ``Drafter`` from the GGUF files of text and, if it reads pictures, vision; it and its
    sessions belong to one thread."""

    chains_only = False

    def __init__(
        self, files: CheckpointFiles, identity: str, process: LlamaProcess, hidden: int
    ) -> None:
        super().__init__(files, identity)
        self.image_id, self._hidden = files.image_id, hidden
        self.memory = LlamaMemory(process)
        self.pictures: LruCache[Hashable, tuple[NDArray[np.float32], NDArray[np.int64]]] = LruCache(
            KEPT_PICTURES
        )

    def prefill(self, prompt: Prompt) -> LlamaSession:
        """Begin to read a prompt, for a session after it."""
        return LlamaSession(self, prompt)

    def encode(
        self, image: PromptImage, kept: int, on_layer: OnLayer | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The picture's embeddings [kept, width], and their positions [kept, 3] relative to the
        first.

        The picture is passed at its final size, so that llama.cpp does not resize it.
        """
        spec, grid = self.preprocessing.spec, image.grid
        pixels = picture_of(
            image.pixels(), grid, spec, self.preprocessing.mean, self.preprocessing.std
        )
        rows = self.memory.process.ask("encode", pixels, on_layer=on_layer)
        positions = picture_positions(grid, spec.merge_size)
        if len(rows) != positions.shape[1]:
            raise UserError(
                f"the vision part beside {self.memory.process.path} makes {len(rows)} rows of a "
                f"picture that has {positions.shape[1]}: take the mmproj file of this model"
            )
        features = rows[:, : self._hidden]
        places = diverse_tokens(len(rows), kept, lambda: cosines_of(features))
        return rows[places], positions[:, places].T


def vision_file(path: Path) -> Path:
    """The vision file of X.gguf: mmproj-X.gguf, or the only mmproj*.gguf beside it. Raises
    UserError."""
    own = path.with_name(f"mmproj-{path.name}")
    found = [each for each in path.parent.glob("mmproj*.gguf") if each.is_file()]
    if own not in found and len(found) != 1:
        raise UserError(
            f"{own.name} is missing beside {path}: put the model's vision part there, by this "
            "name, or as the only mmproj*.gguf"
        )
    return own if own in found else found[0]


def load_llama(
    name: str, *, device: str = "cpu", quantize: str = "none", threads: int = 0
) -> LlamaDrafter:
    """Load a GGUF file, and its ``vision_file`` unless the model reads no pictures.

    Their directory must also hold the checkpoint's files besides the weights. device: cpu, or a
    device that llama.cpp was built for. Raises UserError.
    """
    path = path_of(name)
    refuse(
        (not path.is_file(), f"{name} is not a file: give the path of a GGUF file"),
        (
            quantize != "none",
            f"quantize is {quantize!r}, and a GGUF file has its bits already: give the file of the "
            "bits that you want, and none",
        ),
    )
    directory = path.parent
    family = FAMILIES.get(str(read_json(directory, "config.json").get("model_type")))
    if family is not None and family.recurrent:
        raise UserError(
            f"{path} is of a family with recurrent layers, which are not rolled back in llama.cpp "
            "yet: draft with the directory of its safetensors"
        )
    files = checkpoint_files(directory)
    vision = vision_file(path) if files.reads_pictures else None
    threads = threads or len(os.sched_getaffinity(0))
    process = LlamaProcess(path, vision, 0 if device == "cpu" else -1, threads)
    loaded = process.start()
    names = [*loaded.tokens, *[None] * len(tokens_of(files.tokenizer))]
    for token, text in enumerate(tokens_of(files.tokenizer)):
        if text not in (None, names[token]):
            raise UserError(
                f"token {token} is {text!r} for the tokenizer in {directory} and {names[token]!r} "
                f"in {path.name}: copy the tokenizer of the checkpoint that it was made of"
            )
    files = replace(files, rows=len(loaded.tokens))
    weights = weights_digest(directory, [path, vision] if vision else [path])
    return LlamaDrafter(files, f"gguf:{weights}", process, loaded.hidden)

"""A checkpoint's processor: makes prompts with its tokenizer, chat template and image sizes."""

from __future__ import annotations

import io
import math
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from PIL import Image

from ..decoding.digest import common_prefix
from ..errors import UserError, refuse
from ..lru_cache import LruCache
from ..request import MOST_PICTURES, SYSTEM, USER, Message, Picture, Request
from .checkpoint import CheckpointFiles
from .image import Grid, PictureLimits, decode_image, grid_of, patches, picture_spans, positions_of
from .prompt import Prompt, PromptImage, PromptSpec, check_request, prompt_digest, render
from .token_grammar import GrammarCompiler, TokenGrammar
from .tokenizer import tokenizer_digest, tokens_of

TOO_LONG = "the prompt takes"  # as a refusal begins, for which the endpoint looks


@dataclass(frozen=True, eq=False)
class Patches:
    """A preprocessed picture: pixel values and grid for this model, and the target's grid."""

    pixels: np.ndarray
    grid: Grid
    target_grid: Grid


class Processor:
    """Makes prompts and grammars in a checkpoint's tokens; independent of what computes logits."""

    def __init__(self, files: CheckpointFiles, identity: str) -> None:
        """identity: names the weights and their dtype."""
        self.tokenizer, self.preprocessing = files.tokenizer, files.preprocessing
        self.chat_template, self.end_ids = files.chat_template, files.end_ids
        self._merge, self._rows = self.preprocessing.spec.merge_size, files.rows
        self.image_id, self.picture_ids = files.image_id, files.picture_ids
        self._logits, self._positions = files.logits, files.positions
        self._image_token = (
            None if self.image_id < 0 else self.tokenizer.convert_ids_to_tokens(self.image_id)
        )
        self.vocabulary: int = min(self._rows, len(tokens_of(self.tokenizer)))
        self.tokenizer_digest: bytes = tokenizer_digest(self.tokenizer)
        self.identity = self._weights = identity
        self.limit_picture(PictureLimits())
        self._grammars = GrammarCompiler(self.tokenizer)
        self._common: LruCache[PromptSpec, list[int]] = LruCache(2)
        # Its cache of words would tell one robot by its speed what another was told.
        words = getattr(self.tokenizer.backend_tokenizer, "model", None)
        getattr(words, "_resize_cache", lambda _: None)(0)

    @property
    def reads_pictures(self) -> bool:
        """Whether a prompt may have pictures."""
        return self.image_id >= 0

    def crop(self, vocabulary: int) -> None:
        """Use only the first ``vocabulary`` tokens in sessions opened from now on.

        ValueError: the model has fewer.
        """
        if not 1 < vocabulary <= self._rows:
            raise ValueError(f"cannot crop the vocabulary of {self.identity} to {vocabulary}")
        self.vocabulary = vocabulary

    def limit_picture(self, limits: PictureLimits) -> None:
        """Apply limits to the pictures of later prompts; prompt digests do not change.

        The drafts change, so the identity includes the limits. UserError: too few pixels.
        """
        limits.resized(self.preprocessing.spec)
        self._limits = limits
        self.identity = self._weights + limits.suffix
        self._pictures: LruCache[Hashable, Patches] = LruCache(2)
        self._grids: LruCache[Hashable, tuple[Grid, Grid]] = LruCache(1024)  # of valid pictures

    def spec(
        self, max_tokens: int, system_text: str | None = None, pictures: int = MOST_PICTURES
    ) -> PromptSpec:
        """The specification that makes prompts for this model as the target; sent to the robot.

        UserError: the checkpoint has no chat template.
        """
        if not self.chat_template:
            raise UserError(
                f"{self.identity} has no chat template: add chat_template.jinja to its directory, "
                "or take an instruction-tuned checkpoint"
            )
        return PromptSpec(
            chat_template=self.chat_template,
            image=self.preprocessing.spec,
            end_ids=self.end_ids,
            max_tokens=max_tokens,
            target=self.identity,
            vocabulary=self.vocabulary,
            logits=self._logits,
            system_text=system_text,
            pictures=0 if self._image_token is None else pictures,
        )

    def prompt(self, request: Request, spec: PromptSpec) -> Prompt:
        """The prompt of `spec`, with this model's tokenizer and image statistics.

        UserError: damaged picture, unusable text, a patch size that the model cannot read; or more
        than fits before an answer of this model, if it is the target.
        """
        check_request(request, spec)
        if request.pictures:
            self._check_family(spec)
        shown = [self._placed(request, at, spec) for at in range(len(request.pictures))]
        target_grids = [target_grid for _, target_grid in shown]
        ids = render(self.tokenizer, request, spec, target_grids, self._image_token)
        spans, last = picture_spans(ids, self.image_id), ids.max()
        refuse(
            (
                last >= self._rows,
                f"{self.identity} has no embedding for token {last} of its own tokenizer: its "
                "directory mixes files of two models",
            ),
            (
                len(spans) != len(shown),
                "the chat template has nothing between two pictures: use another one",
            ),
        )
        kept = [self._limits.kept(math.prod(i.grid) // self._merge**2) for i, _ in shown]
        dropped = [
            row
            for count, (start, end) in zip(kept, spans, strict=True)
            for row in range(start + count, end)
        ]
        if spec.target == self.identity:
            self._check_length(ids, target_grids)
        common = self._common.get_or_make(spec, lambda: self._begins(spec))
        first = spans[0][0] if spans else len(ids)
        return Prompt(
            np.delete(ids, dropped),
            tuple(image for image, _ in shown),
            prompt_digest(ids, [(target_grid, image.digest) for image, target_grid in shown]),
            request.owner,
            request.continues,
            common_prefix(common, ids[:first].tolist()),
        )

    def _check_length(self, ids: np.ndarray, grids: Sequence[Grid]) -> None:
        """Raise UserError for a prompt after which the model has no position for an answer."""
        delta = positions_of(ids, grids, self.image_id, self._merge)[1]
        taken = len(ids) + delta
        if 0 < self._positions <= taken:
            raise UserError(
                f"{TOO_LONG} {taken} positions, and {self.identity} was made for "
                f"{self._positions}, with an answer: send less text, fewer messages or a shorter "
                "history"
            )

    def decode_one(self, request: Request, spec: PromptSpec) -> bool:
        """Decode the first picture whose size is unknown; True: there are more.

        UserError: it is damaged.
        """
        if request.pictures:
            self._check_family(spec)
        unknown = [
            at
            for at, each in enumerate(request.pictures)
            if _key(request.owner, each, spec) not in self._grids
        ]
        for at in unknown[:1]:
            self._placed(request, at, spec)
        return len(unknown) > 1

    def _check_family(self, spec: PromptSpec) -> None:
        """Raise UserError if this model cannot see the pictures that the target sees."""
        if self._image_token is None:
            raise UserError(f"{self.identity} reads text alone: leave out the pictures")
        ours = self.preprocessing.spec
        for name in ("patch_size", "merge_size", "temporal_patch_size"):
            if getattr(ours, name) != getattr(spec.image, name):
                raise UserError(
                    f"{self.identity} has {name} {getattr(ours, name)} and the target "
                    f"{spec.target} has {getattr(spec.image, name)}: choose models of one family"
                )

    def _begins(self, spec: PromptSpec) -> list[int]:
        """The ids that a prompt of this specification begins with, whatever a robot says."""
        own = spec.imposed
        token, grid = self._image_token, (1, spec.image.merge_size, spec.image.merge_size)
        parts, grids = ([Picture(b"")], [grid]) if token is not None and spec.pictures else ([], [])
        begins: list[int] | None = None
        other = own if spec.system_text is not None else (Message(SYSTEM, ("7",)),)
        for system, text in ((own, "A"), (own, "7"), (other, "7")):
            request = Request((*system, Message(USER, (*parts, text))))
            with suppress(UserError):  # of a template that takes no system text
                ids = render(self.tokenizer, request, spec, grids, token).tolist()
                begins = ids if begins is None else begins[: common_prefix(begins, ids)]
        return begins or []

    def grammar(self, text: str, spec: PromptSpec, owner: str = "") -> TokenGrammar:
        """Compile a grammar for this model's tokens; an answer ends with the first end token.

        owner: whose it is, as in ``Request``. UserError: the grammar is invalid, or llguidance is
        not installed.
        """
        return self._grammars.grammar(text, spec.end_ids[0], spec.vocabulary, owner)

    def _placed(self, request: Request, at: int, spec: PromptSpec) -> tuple[PromptImage, Grid]:
        """A request's picture preprocessed for this model, and its grid for the target."""
        owner, shown = request.owner, request.pictures[at]
        picture = partial(self._picture, owner, shown, spec)
        try:
            grid, target_grid = self._grids.get_or_make(
                _key(owner, shown, spec), lambda: (picture().grid, picture().target_grid)
            )
        except UserError as error:
            if (several := len(request.pictures)) > 1:
                raise UserError(f"picture {at + 1} of {several}: {error}") from None
            raise
        return PromptImage(shown.shown, grid, lambda: picture().pixels), target_grid

    def _picture(self, owner: str, shown: Picture, spec: PromptSpec) -> Patches:
        def made() -> Patches:
            image = decode_image(shown.data, spec.image.max_frame_pixels)
            if shown.size != (0, 0):
                image = image.resize(shown.size, Image.Resampling.BICUBIC)
            ours = self.preprocessing
            pixels, grid = patches(image, self._limits.resized(spec.image), ours.mean, ours.std)
            return Patches(pixels, grid, grid_of(image.height, image.width, spec.image))

        return self._pictures.get_or_make(_key(owner, shown, spec), made)


SHOWN_PICTURE_PX = (96, 64)  # pixels, of the picture of a first request


def first_request(spec: PromptSpec, text: str = "find the door") -> Request:
    """A request to try a model with; its picture, if the model reads them, is a colour gradient."""
    picture, file = Image.linear_gradient("L").resize(SHOWN_PICTURE_PX), io.BytesIO()
    Image.merge("RGB", (picture, picture.rotate(180), picture)).save(file, "JPEG")
    shown = [Picture.of(file.getvalue())] if spec.pictures else []
    return spec.request(*shown, text)


def _key(owner: str, shown: Picture, spec: PromptSpec) -> Hashable:
    """Names a picture as it is preprocessed; what is cached of it is for its owner alone."""
    return owner, shown.shown, spec.image

"""Presets: published systems as configurations of one decoder."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields, replace

from ..errors import UserError, refuse
from .draft import MAX_DRAFTED
from .policy import SamplingPolicy
from .propose import ProposalConfig
from .shape import BestFirst, Expansion, Shape, chain
from .split import MAX_RESIDUAL_TOKENS, RESIDUALS, Split


@dataclass(frozen=True)
class Speculation:
    """Which predictions of a verdict a preset drafts for.

    ``all_accepted``: that the draft's most likely path is accepted whole. ``open``: and that the
    verdict is open, so that the next draft begins right there (PicoSpec); otherwise with the most
    likely next token as the bonus (SpecEdge). ``runners_up``: that the draft model's second choice
    replaces the first rejected token. ``exits``: predictions of early exits (FSD).

    ``push``: send a pre-draft as soon as it is finished, so that the cloud continues at once when
    its prediction comes true. ``ahead``: how many drafts beyond the one being verified; 0 is stop
    and wait. ``cut``: after how many levels a draft is sent unfinished, if the cloud would have to
    wait (PicoSpec's latency-aware truncation, 3.2); 0: never. ``width``: the most nodes in one pass
    of the draft model. Predictions with a confidence below ``least`` are ignored.
    """

    all_accepted: bool = False
    open: bool = False
    runners_up: bool = False
    exits: bool = False
    push: bool = False
    ahead: int = 0
    cut: int = 0
    width: int = 1
    least: float = 0.02

    @property
    def predicts(self) -> bool:
        """Whether it predicts verdicts at all."""
        return self.all_accepted or self.runners_up or self.exits


STOP_AND_WAIT = Speculation()


Refusal = tuple[bool, str]  # whether a preset is refused, and why

PAYLOADS = ("ids", "probabilities", "dense", "sparse")


@dataclass(frozen=True)
class Preset:
    """A configuration of the decoding, read from ``config/presets/NAME.yaml``.

    ``drafter`` is where the draft model runs: edge, cloud or none; ``lookup``: there is none, the
    cloud drafts from earlier answers. The field ``lookup`` adds such branches to another drafter's
    drafts. The draft's shape is one of ``draft_length`` (a chain), ``expansion`` (<k1..kL>) and
    ``best_first`` (nodes, depth, width).

    Under ``rejection``: ``payload`` is what a draft carries besides its ids (greedy and coupled
    need nothing): Q(x) of each token (``probabilities``), ``dense`` distributions Q, ``sparse``
    ones cut to ``draft_top_k`` or ``draft_top_p``, or nothing (``ids``: the most likely tokens, not
    drawn). Siblings are drawn with or without ``replacement``. ``resample``: by cloud or robot,
    with what the cloud sends for it (see ``Split``).

    ``verified``: the target verifies every emitted token. ``exact``: the emitted tokens have the
    target's distribution. Raises UserError for inconsistent choices.
    """

    name: str
    summary: str
    drafter: str
    draft_length: int = 0
    expansion: tuple[int, ...] = ()
    best_first: BestFirst | None = None
    payload: str = "dense"
    draft_top_k: int = 0
    draft_top_p: float = 1.0
    replacement: bool = True
    resample: str = "cloud"
    residual: str = "sparse"
    residual_top_k: int = 32
    residual_tail: int = 16
    speculation: Speculation = STOP_AND_WAIT
    pacing: str = "fixed"
    lookup: bool = False
    verified: bool = True
    exact: bool = True

    def __post_init__(self) -> None:
        self._check_types()
        rules = (self._choices, self._predictions, self._shapes, self._drawing)
        refuse(*(row for rule in rules for row in rule()), error=self._refusal)

    def _check_types(self) -> None:
        if type(self.summary) is not str:
            raise self._refusal(f"summary must be text, not {self.summary!r}")
        sizes = [*self.expansion, *(astuple(self.best_first) if self.best_first else ())]
        values = [(each.name, each.type, getattr(self, each.name)) for each in fields(self)]
        values += [("a size of a tree", "int", size) for size in sizes]
        values += [
            (f"speculation.{each.name}", each.type, getattr(self.speculation, each.name))
            for each in fields(self.speculation)
        ]
        for name, kind, value in values:
            refuse(
                (
                    kind == "int" and (type(value) is not int or value < 0),
                    f"{name} must be a whole number of 0 or more, not {value!r}",
                ),
                (
                    kind == "bool" and type(value) is not bool,
                    f"{name} must be true or false, not {value!r}",
                ),
                (
                    kind == "float" and (type(value) not in (int, float) or not 0 <= value <= 1),
                    f"{name} must be a number from 0 to 1, not {value!r}",
                ),
                error=self._refusal,
            )

    def _choices(self) -> tuple[Refusal, ...]:
        fields_and_choices = {
            "drafter": ("edge", "cloud", "lookup", "none"),
            "payload": PAYLOADS,
            "resample": ("cloud", "robot"),
            "residual": RESIDUALS,
            "pacing": ("fixed", "verify_bound", "auto"),
        }
        known = tuple(
            (
                getattr(self, name) not in choices,
                f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)}",
            )
            for name, choices in fields_and_choices.items()
        )
        waits = self.drafts_on_robot and self.verified
        return (
            *known,
            (self.exact and not self.verified, "what is not verified cannot be exact"),
            (
                self.drafter != "edge" and not self.verified,
                "without a verifier only the robot decodes; give drafter edge",
            ),
            (
                self.drafter == "lookup" and not self.lookup,
                "drafter lookup goes with lookup: true",
            ),
            (
                self.lookup and not self.verified,
                "only a verifier looks up earlier answers; give lookup: false",
            ),
            (
                self.pacing != "fixed" and not waits,
                "only drafts that wait for verdicts are paced; give pacing fixed",
            ),
            (
                self.pacing == "auto" and self.payload != "ids",
                "auto chooses among best-first trees, too, which are not drawn from Q; "
                "give payload ids, or another pacing",
            ),
        )

    def _predictions(self) -> tuple[Refusal, ...]:
        made = self.speculation
        return (
            (
                made.predicts and not (self.drafts_on_robot and self.verified),
                "only a robot that waits for verdicts can guess at them",
            ),
            (
                made.predicts != (made.ahead > 0),
                "give speculation.ahead of at least 1, and something to guess",
            ),
            (
                made.push and self.resample == "robot" and not made.open,
                "after a split rejection only the robot knows the next prefix; push open drafts",
            ),
            (made.open and not made.all_accepted, "open verdicts go with all_accepted"),
            (
                not 1 <= made.width <= 64 or made.ahead > 64 or made.cut > 64,
                "speculation.width is 1 to 64, ahead and cut are at most 64",
            ),
        )

    def _shapes(self) -> tuple[Refusal, ...]:
        given = (self.draft_length > 0) + bool(self.expansion) + (self.best_first is not None)
        drafts, is_chain = self.drafter in ("edge", "cloud"), self.draft_length > 0
        tree = (1,) if self.best_first is None else astuple(self.best_first)
        return (
            (
                not drafts and given > 0,
                "without a drafter there is no draft to give a shape",
            ),
            (drafts and given != 1, "give one of draft_length, expansion and best_first"),
            (self.draft_length > 64, "draft_length must be 1 to 64"),
            (
                any(size < 1 for size in self.expansion)
                or (not is_chain and self.shape.max_nodes > MAX_DRAFTED),
                f"a tree has 1 to {MAX_DRAFTED} nodes, and children at each level",
            ),
            (min(tree) < 1, "best_first needs nodes, depth and width of at least 1"),
            (
                self.drafter == "cloud" and not is_chain,
                "the cloud's own drafter drafts chains; give draft_length",
            ),
            (
                not self.verified and not is_chain,
                "what nobody verifies is a chain; give draft_length",
            ),
        )

    def _drawing(self) -> tuple[Refusal, ...]:
        is_split = self.resample == "robot"
        always = (
            (not self.draft_top_p, "draft_top_p must be above 0; 1 keeps all"),
            (
                is_split and not self.drafts_on_robot,
                "the robot cannot resample without a drafter of its own",
            ),
        )
        if not self.drafts_on_robot:
            return always
        return (
            *always,
            (
                self.payload == "probabilities" and not self.draft_length,
                "multi-candidate rejection needs the rows of Q; give payload dense or sparse",
            ),
            (
                self.payload != "ids" and self.best_first is not None,
                "a best-first tree is not drawn from Q; give payload ids",
            ),
            (
                (self.payload == "probabilities") != is_split,
                "payload probabilities and resample robot go together",
            ),
            (
                self.payload == "sparse" and not self.draft_top_k and self.draft_top_p == 1,
                "payload sparse needs draft_top_k or draft_top_p",
            ),
            (
                is_split and self.residual == "top_k" and self.exact,
                "residual top_k loses the tail of P; give exact: false",
            ),
            (
                is_split and self.residual != "dense" and self.residual_top_k < 1,
                "residual_top_k must be at least 1",
            ),
            (
                max(self.residual_top_k, self.residual_tail) > MAX_RESIDUAL_TOKENS,
                f"residual_top_k and residual_tail are at most {MAX_RESIDUAL_TOKENS}",
            ),
        )

    @property
    def drafts_on_robot(self) -> bool:
        """Whether the robot runs the draft model."""
        return self.drafter == "edge"

    @property
    def shape(self) -> Shape:
        """The draft's shape."""
        if self.best_first is not None:
            return self.best_first
        return Expansion(self.expansion) if self.expansion else chain(self.draft_length)

    def in_chains(self) -> Preset:
        """This preset for a drafter that can propose chains only.

        Raises UserError if the preset drafts trees.
        """
        if self.shape.is_chain or not self.drafts_on_robot:
            return self
        if self.pacing != "auto" or self.best_first is None:
            raise self._refusal(
                "it drafts trees, and this drafter knows only one next token; "
                "choose auto or a preset with draft_length, such as dsd, fsd or picospec"
            )
        depth = self.best_first.depth
        return replace(self, best_first=BestFirst(depth, depth, 1))

    def payload_of(self, rule: str) -> str:
        """What a draft carries besides its token ids under this acceptance rule."""
        return self.payload if rule == "rejection" and self.drafts_on_robot else "ids"

    def split_of(self, rule: str) -> Split | None:
        """What the cloud sends for the robot to resample from; None if the cloud resamples."""
        if self.payload_of(rule) != "probabilities":
            return None
        return Split(self.residual, self.residual_top_k, self.residual_tail)

    def proposal(self, rule: str, policy: SamplingPolicy) -> ProposalConfig:
        """How the drafter proposes tokens under this rule and policy."""
        return ProposalConfig(
            rule,
            policy,
            drawn=self.payload != "ids",
            top_k=self.draft_top_k,
            top_p=self.draft_top_p,
            replacement=self.replacement,
        )

    def _refusal(self, why: str) -> UserError:
        return UserError(f"preset {self.name}: {why}")

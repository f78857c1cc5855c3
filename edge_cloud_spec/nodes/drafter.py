"""The drafter node: camera and instruction in, drafts out, verified tokens to the navigator.

``python -m edge_cloud_spec.nodes.drafter --ros-args ...``; the decoding is ``edge.DecodeRunner``.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from dataclasses import dataclass, field
from itertools import count
from queue import SimpleQueue

from builtin_interfaces.msg import Time as Stamp
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Bool, String

from edge_cloud_spec.msg import (
    DecodeRequest,
    DecodeStats,
    Draft,
    Prediction,
    Verdict,
    VerifiedTokens,
)

from ..bounds import bounded, check_bounds, chosen, described
from ..decoding.noise import decision_seed
from ..decoding.policy import SamplingPolicy
from ..edge.events import Abort, Emit
from ..edge.runner import DecodeRunner, DecodeSettings, Outcome
from ..edge.transport import Inbox, OnReceive
from ..errors import UserError
from ..instruction import check_instruction, is_stop
from ..models import EMBEDDED
from ..models.instruction_pattern import instruction_pattern
from ..models.load import load
from ..models.prompt import ORDERS, Request
from ..models.text import TextStream, TokenTexts
from ..nav.answer import NotAnAction, read_answer
from ..nav.status import Status
from ..presets import load_preset
from ..share import rules_text
from ..wire.messages import ClientMessage, DraftMessage
from .bridge_messages import from_verdict, to_draft, to_request
from .decision_gate import CameraFrame, DecisionGate, DecisionTask
from .dedicated_subscriptions import DedicatedSubscriptions
from .frame import encode_frame
from .navigator import LAST
from .parameters import Parameters
from .run import spin


@dataclass(frozen=True)
class ModelSettings:
    """The draft model on this robot."""

    path: str = described("", "directory or hub name; empty: the embedded drafter", fixed=True)
    quantize: str = chosen("none", ("none", "int8", "int4", "dynamic-int8"), "weights", fixed=True)
    device: str = described("cpu", "cpu or cuda", fixed=True)
    dtype: str = chosen("float32", ("float32", "float16", "bfloat16"), "arithmetic", fixed=True)
    threads: int = bounded(1, 1, 64, "torch threads", fixed=True)


@dataclass(frozen=True)
class DrafterSettings:
    """How decisions are decoded. Each decision takes the values of the moment it starts."""

    preset: str = described("dsd", "name of a preset, or the path of its YAML file")
    rule: str = chosen("greedy", ("greedy", "coupled", "rejection"), "acceptance rule")
    temperature: float = bounded(0.8, 0.01, 10.0, "of coupled and rejection; greedy has none")
    top_k: int = bounded(0, 0, 100_000, "tokens sampled from; 0: all")
    top_p: float = bounded(1.0, 0.01, 1.0, "probability mass sampled from")
    seed: int = bounded(0, 0, 2**31, "of the sampling; each decision's own comes of it")
    first_decision: int = bounded(0, 0, 2**31, "number of the first decision after this is set")
    order: str = chosen(ORDERS[0], ORDERS, "what an answer says first")
    max_tokens: int = bounded(64, 1, 1024, "longest answer")
    patience: float = bounded(10.0, 0.2, 120.0, "give a decision up after this long a silence, s")
    retry: float = bounded(1.0, 0.1, 60.0, "pause after a decision that failed, s")
    model: ModelSettings = field(default_factory=ModelSettings)

    def __post_init__(self) -> None:
        check_bounds(self)
        try:
            load_preset(self.preset)
        except UserError as error:
            raise ValueError(f"preset: {error}") from None

    def decode_settings(self, number: int) -> DecodeSettings:
        """What the decode of the decision of this number is asked for."""
        temperature = 0.0 if self.rule == "greedy" else self.temperature
        seed = decision_seed(self.seed, number)
        policy = SamplingPolicy(temperature, self.top_k, self.top_p, seed)
        return DecodeSettings(
            load_preset(self.preset), self.rule, policy, self.max_tokens, self.patience
        )


class TopicTransport:
    """A decode's way to the cloud over the bridge's topics."""

    def __init__(self, node: DrafterNode, request_id: str, stamp: Stamp, preset: str) -> None:
        self._node, self._request_id, self._stamp = node, request_id, stamp
        self._preset = preset
        self._sequence = 0
        self._last = time.perf_counter()

    def send(self, message: ClientMessage) -> int:
        out: Draft | DecodeRequest
        if isinstance(message, DraftMessage):
            words = self._node.words.of(message.draft.tokens)
            out = to_draft(message, words, time.perf_counter() - self._last)
            publisher = self._node.drafts
        else:
            out = to_request(message, self._preset)
            publisher = self._node.requests
        out.header.stamp = self._stamp
        out.request_id = self._request_id
        out.sequence = self._sequence
        self._sequence += 1
        publisher.publish(out)
        return len(out.payload)

    def drafting(self) -> None:
        """A verdict came: the next draft begins now."""
        self._last = time.perf_counter()

    def close(self) -> None:
        self._node.unlisten(self._request_id)


class DrafterNode(Node):
    """Callbacks only note what came; decisions are decoded in a thread of their own."""

    def __init__(self) -> None:
        super().__init__("drafter")
        self._settings = Parameters(self, DrafterSettings(), self._on_parameters)
        self._numbers = count(self._settings.value.first_decision)
        model = self._settings.value.model
        path = model.path or str(EMBEDDED / "drafter")
        self._understood = instruction_pattern(path)
        self._model = load(
            path,
            device=model.device,
            dtype=model.dtype,
            quantize=model.quantize,
            threads=model.threads,
        )
        self.tokenizer = self._model.tokenizer
        self.words = TokenTexts(self.tokenizer)
        local = self._model.spec(rules_text(), self._settings.value.max_tokens)
        self._runner = DecodeRunner(self._model, local)
        self._mission = DecisionGate()
        self._inlets: dict[str, OnReceive] = {}
        self._inbox: Inbox | None = None
        self._problem = ""
        self.requests = self.create_publisher(DecodeRequest, "decode_request", 100)
        self.drafts = self.create_publisher(Draft, "draft", 100)
        self._verified = self.create_publisher(VerifiedTokens, "verified_tokens", 100)
        self._stats = self.create_publisher(DecodeStats, "decode_stats", 10)
        self._instruction_status = self.create_publisher(String, "instruction_status", LAST)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        sensor = qos_profile_sensor_data
        self.create_subscription(
            CompressedImage,
            "camera/image_raw/compressed",
            self._on_compressed,
            sensor,
        )
        self.create_subscription(Image, "camera/image_raw", self._on_image, sensor)
        self.create_subscription(String, "nav_status", self._on_status, LAST)
        self.create_timer(1.0, self._diagnose)
        self._intake = DedicatedSubscriptions(self)
        self._intake.subscribe(Verdict, "verdict", self._on_verdict, 100)
        self._intake.subscribe(Prediction, "prediction", self._on_prediction, 100)
        self._intake.subscribe(String, "instruction", self._on_instruction, 10)
        self._intake.subscribe(Bool, "e_stop", self._on_e_stop, 10)
        self._intake.start()
        self._say("idle")
        self._thread = threading.Thread(target=self._decide_forever, name="model", daemon=True)
        self._thread.start()
        self.get_logger().info(f"drafting with {self._model.identity}")

    def close(self) -> None:
        """Give the decision under way up and end the threads."""
        self._mission.end()
        self._abort("the drafter ends")
        self._thread.join(timeout=2.0)
        self._intake.close()

    def unlisten(self, request_id: str) -> None:
        """This request wants nothing from the cloud any more."""
        self._inlets.pop(request_id, None)

    # What comes in

    def _on_parameters(self, names: frozenset[str]) -> None:
        if "first_decision" in names:
            self._numbers = count(self._settings.value.first_decision)

    def _on_compressed(self, message: CompressedImage) -> None:
        self._mission.see(CameraFrame(message.data.tobytes(), message.header.stamp))

    def _on_image(self, message: Image) -> None:
        if not self._mission.following:
            return  # encoding costs; nobody would look
        try:
            self._mission.see(CameraFrame(encode_frame(message), message.header.stamp))
        except UserError as error:
            self._complain(str(error))

    def _on_verdict(self, message: Verdict) -> None:
        on_receive = self._inlets.get(message.request_id)
        if on_receive is not None:
            on_receive(from_verdict(message))

    def _on_prediction(self, message: Prediction) -> None:
        on_receive = self._inlets.get(message.request_id)
        if on_receive is not None:
            on_receive(message.payload.tobytes())

    def _on_instruction(self, message: String) -> None:
        self._abort("another instruction came")
        if is_stop(message.data):
            self._mission.drop()
            self._say("idle", "told to stop")
            return
        try:
            instruction = check_instruction(message.data, self._understood)
        except UserError as error:
            self._mission.drop()
            self._complain(str(error))
            self._say("failed", str(error))
            return
        self._mission.follow(instruction)
        self._say("following", instruction)

    def _on_e_stop(self, message: Bool) -> None:
        if message.data and self._mission.drop():
            self._abort("e_stop")
            self._say("idle", "e_stop; publish the instruction again to go on")

    def _on_status(self, message: String) -> None:
        try:
            if self._mission.hear(Status.parse(message.data)):
                self._abort("the robot was stopped or released")
        except ValueError as error:
            self._complain(f"nav_status: {error}")

    # Deciding, in the model thread

    def _decide_forever(self) -> None:
        while (task := self._mission.next()) is not None:
            try:
                self._decide(task)
            except UserError as error:
                self._complain(str(error))
                self._mission.pause(self._settings.value.retry)
            except Exception as error:  # a decision may fail; the node goes on
                self._complain(f"a decision failed: {error!r}")
                self._mission.pause(self._settings.value.retry)

    def _decide(self, task: DecisionTask) -> None:
        instruction, frame = task.instruction, task.frame
        settings = self._settings.value
        decode = settings.decode_settings(next(self._numbers))
        request_id = secrets.token_hex(8)
        words = VerifiedWords(self, request_id, task)
        transports: list[TopicTransport] = []

        def connect(on_receive: OnReceive) -> TopicTransport:
            self._await_bridge(settings.patience)
            self._inlets[request_id] = on_receive
            transports.append(TopicTransport(self, request_id, frame.stamp, settings.preset))
            return transports[0]

        def on_emit(emit: Emit) -> None:
            words.emit(emit)
            for transport in transports:
                transport.drafting()

        self._inbox = SimpleQueue()
        self._mission.deciding(request_id)
        request = Request(instruction, frame.jpeg, settings.order)
        nonce = int(request_id, 16)
        outcome = self._runner.run(request, decode, nonce, connect, on_emit, self._inbox)
        self._inbox = None
        self._mission.decided()
        words.finish(outcome.reason)
        self._publish_stats(request_id, settings, decode.policy.seed, outcome, frame)
        self._after(instruction, outcome, words.answer)

    def _await_bridge(self, patience: float) -> None:
        """Topics lose what is published before the other side was discovered; raises UserError."""
        end = time.monotonic() + patience
        while not (
            self.requests.get_subscription_count()
            and self.drafts.get_subscription_count()
            and self.count_publishers("verdict")
        ):
            if time.monotonic() > end:
                raise UserError("no cloud bridge is on the topics; start the node cloud_bridge")
            time.sleep(0.02)

    def _after(self, instruction: str, outcome: Outcome, answer: str) -> None:
        if outcome.reason == "aborted":
            return
        if not outcome.completed:
            self._complain(f"no decision on {instruction!r}: {outcome.text or outcome.reason}")
            self._mission.pause(self._settings.value.retry)
            return
        try:
            action = read_answer(answer).action
        except NotAnAction:
            action = None
        if action is None:
            self._mission.pause(self._settings.value.retry)
        elif action.verb == "stop" and self._mission.drop(instruction):
            self._say("done", instruction)

    # What goes out

    def publish_words(self, message: VerifiedTokens) -> None:
        """Settled words to whoever acts on them."""
        self._verified.publish(message)

    def _publish_stats(
        self,
        request_id: str,
        settings: DrafterSettings,
        seed: int,
        outcome: Outcome,
        frame: CameraFrame,
    ) -> None:
        stats, rounds = outcome.stats, outcome.stats.rounds
        stats = DecodeStats(
            request_id=request_id,
            preset=settings.preset,
            rule=settings.rule,
            seed=seed,
            tokens=len(outcome.tokens),
            rounds=len(rounds),
            drafted=stats.drafted,
            accepted=stats.accepted,
            stale=stats.stale,
            up_bytes=stats.up_bytes,
            down_bytes=stats.down_bytes,
            tokens_per_second=len(outcome.tokens) / outcome.seconds,
            draft_ms=1e3 * sum(r.sent - r.start for r in rounds),
            verify_ms=1e3 * sum(r.verify_s for r in rounds),
            link_ms=1e3 * sum(r.link_s for r in rounds),
            total_ms=1e3 * outcome.seconds,
            overhead_ms=[1e3 * r.overhead_s for r in rounds],
            finish_reason=outcome.reason,
        )
        stats.header.stamp = frame.stamp
        self._stats.publish(stats)

    def _abort(self, reason: str) -> None:
        inbox = self._inbox
        if inbox is not None:
            inbox.put(Abort(reason))

    def _say(self, state: str, detail: str = "") -> None:
        self._instruction_status.publish(String(data=f"{state} {detail}".strip()))

    def _complain(self, problem: str) -> None:
        self._problem = problem
        self.get_logger().error(problem)

    def _diagnose(self) -> None:
        following = self._mission.following
        report = DiagnosticStatus(name=self.get_name(), message=following or "no instruction")
        report.values = [KeyValue(key="last problem", value=self._problem)]
        array = DiagnosticArray(status=[report])
        array.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(array)


class VerifiedWords:
    """The settled words of one request, as messages."""

    def __init__(self, node: DrafterNode, request_id: str, task: DecisionTask) -> None:
        self._node, self._request_id, self._task = node, request_id, task
        self._stream = TextStream(node.tokenizer)
        self._count = 0
        self._verified = True

    @property
    def answer(self) -> str:
        """All words so far."""
        return self._stream.text

    def emit(self, emit: Emit) -> None:
        self._verified = emit.verified
        self._publish(emit.tokens, self._stream.add(emit.tokens))

    def finish(self, reason: str) -> None:
        """Say that nothing follows."""
        self._publish((), "", reason)

    def _publish(self, tokens: tuple[int, ...], text: str, finish_reason: str = "") -> None:
        message = VerifiedTokens(
            request_id=self._request_id,
            instruction=self._task.instruction,
            stops=self._task.stops,
            position=self._count,
            tokens=tokens,
            text=text,
            answer=self.answer,
            verified=self._verified,
            finished=bool(finish_reason),
            finish_reason=finish_reason,
        )
        message.header.stamp = self._task.frame.stamp
        self._count += len(tokens)
        self._node.publish_words(message)


def main() -> int:
    """Run the node until a signal."""
    return spin(DrafterNode)


if __name__ == "__main__":
    sys.exit(main())

"""Decode one picture by edge-cloud speculative decoding, without ROS and without a robot.

    python examples/decode_picture.py PICTURE.jpg "find the silver bottle"
    python examples/decode_picture.py PICTURE.jpg "find the silver bottle" --cloud HOST:PORT

The draft model runs here. Without ``--cloud`` the verifier runs in this process too, behind a real
gRPC server, so that one command shows the whole path.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
from pathlib import Path

from edge_cloud_spec.errors import imports
from edge_cloud_spec.share import check_lab, rules_text

with imports():
    check_lab()  # the verifier within this process is of its harness
    from edge_cloud_spec.cloud.model_thread.worker import Worker
    from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
    from edge_cloud_spec.edge.events import Emit
    from edge_cloud_spec.edge.runner import DecodeRunner, DecodeSettings
    from edge_cloud_spec.lab.harness.server import InProcessServer
    from edge_cloud_spec.models import EMBEDDED
    from edge_cloud_spec.models.load import load
    from edge_cloud_spec.models.prompt import Request
    from edge_cloud_spec.models.tokenizer import TextStream
    from edge_cloud_spec.presets import load_preset

MAX_TOKENS = 128  # of an answer


def start_verifier() -> InProcessServer:
    """The cloud's side: a worker thread owns the target model, a gRPC server feeds it."""
    target = load(EMBEDDED / "target", threads=1)
    # The cloud decides how a picture and an instruction become a prompt, and tells the robot so.
    return InProcessServer(Worker(target, target.spec(rules_text(), MAX_TOKENS)))


def main() -> int:
    parser = argparse.ArgumentParser(description="Decode one picture.")
    parser.add_argument("picture", type=Path, help="a JPEG file")
    parser.add_argument("instruction", help="such as 'find the silver bottle'")
    parser.add_argument(
        "--cloud", default="", help="HOST:PORT of a verifier (edge-cloud-spec serve)"
    )
    parser.add_argument("--preset", default="dsd", help="a preset's name, or the path of its YAML")
    args = parser.parse_args()

    with contextlib.ExitStack() as stack:
        address = args.cloud or stack.enter_context(start_verifier()).address
        client = stack.enter_context(contextlib.closing(VerifierClient(ClientSettings(address))))

        # The robot's side: the runner drives the decoder's state machine with the draft model.
        draft_model = load(EMBEDDED / "drafter", threads=1)
        runner = DecodeRunner(draft_model, draft_model.spec(rules_text(), MAX_TOKENS))
        words = TextStream(draft_model.tokenizer)

        def show(emit: Emit) -> None:
            """Called as soon as a verdict settles tokens: nothing that is printed is taken back."""
            print(words.add(emit.tokens), end="", flush=True)

        outcome = runner.run(
            Request(args.instruction, args.picture.read_bytes()),
            DecodeSettings(load_preset(args.preset)),  # greedy unless a rule and a policy are given
            secrets.randbits(64),  # the nonce: no two decodes share their prefix digests
            client.connect,
            show,
        )
    rounds = len(outcome.stats.rounds)
    print(f"\n{len(outcome.tokens)} tokens in {rounds} rounds, {outcome.seconds:.2f} s")
    return 0 if outcome.completed else 1


if __name__ == "__main__":
    raise SystemExit(main())

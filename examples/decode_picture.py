"""Decode one picture by edge-cloud speculative decoding, without ROS and without a robot.

    python examples/decode_picture.py PICTURE.jpg "find the silver bottle"
    python examples/decode_picture.py PICTURE.jpg "find the silver bottle" --cloud HOST:PORT

The draft model runs here. Without ``--cloud`` the verifier runs in this process too, behind a real
gRPC server, so that one command shows the whole path.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from edge_cloud_spec import PictureDecoder, UserError
from edge_cloud_spec.errors import imports
from edge_cloud_spec.share import check_lab

with imports():
    check_lab()  # the verifier within this process is of its harness
    from edge_cloud_spec.cloud.model_thread.worker import Worker
    from edge_cloud_spec.models import EMBEDDED
    from edge_cloud_spec.models.load import load
    from edge_cloud_spec_lab.harness.server import InProcessServer

MAX_TOKENS = 128  # of an answer


def start_verifier() -> InProcessServer:
    """The cloud's side: a worker thread owns the target model, a gRPC server feeds it."""
    target = load(EMBEDDED / "target", threads=1)
    # The cloud decides how messages become a prompt, and tells the robot so.
    return InProcessServer(Worker(target, target.spec(MAX_TOKENS)))


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
        decoder = stack.enter_context(PictureDecoder(address, preset=args.preset))
        try:
            for words in decoder.stream(args.picture.read_bytes(), args.instruction):
                print(words, end="", flush=True)  # settled: nothing that is printed is taken back
        except UserError as error:
            sys.exit(f"error: {error}")
    assert decoder.answer is not None, "the stream came to its end"
    outcome = decoder.answer.outcome
    rounds = len(outcome.stats.rounds)
    print(f"\n{len(outcome.tokens)} tokens in {rounds} rounds, {outcome.seconds:.2f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""What was promised, held against decodes of the same pictures through the emulated link."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ....decoding.policy import GREEDY
from ....decoding.preset import Preset
from ....edge.client import ClientSettings, VerifierClient
from ....edge.runner import DecodeRunner, DecodeSettings
from ....errors import UserError
from ....models.image import PictureLimits
from ....models.prompt import Request
from ....models.vlm import Vlm
from ....share import rules_text
from ...harness.emulated_link import LinkProfile
from ...harness.proxy import Proxy
from ...harness.verifier_process import VerifierProcess


@dataclass
class Decodes:
    """Of all pictures: seconds of each whole decode, and the tokens after its first draft began."""

    whole: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0  # that these took

    @property
    def rate(self) -> float:
        """Tokens per second, from the first draft on."""
        return self.tokens / self.seconds if self.seconds else 0.0


def decode_all(
    args: argparse.Namespace,
    drafter: Vlm,
    requests: Sequence[Request],
    preset: Preset,
    limits: Sequence[PictureLimits],
) -> list[Decodes]:
    """Decode every picture with a drafter that looks as closely as each of ``limits``, in turn.

    Raises UserError.
    """
    serve = ["--target", args.target, "--threads", str(args.threads), "--device", args.device]
    serve += ["--dtype", args.dtype, "--max-tokens", str(args.max_tokens)]
    if preset.drafter == "cloud":
        serve += ["--drafter", args.drafter]
    found = [Decodes() for _ in limits]
    with VerifierProcess(serve) as cloud:
        proxy = Proxy(cloud.address, LinkProfile(args.rtt / 2, rate_mbit=args.up_mbps))
        client = VerifierClient(ClientSettings(proxy.address))
        runner = DecodeRunner(drafter, drafter.spec(rules_text(), args.max_tokens))
        settings = DecodeSettings(preset, "greedy", GREEDY, args.max_tokens, patience=120.0)
        try:
            for number, request in enumerate([requests[0], *requests]):
                for place, (limit, into) in enumerate(zip(limits, found, strict=True)):
                    drafter.limit_picture(limit)
                    # bytes after a picture's end: it is the same one, and nobody has its rows yet
                    told = replace(request, jpeg=request.jpeg + bytes(2 + 2 * place + (not number)))
                    outcome = runner.run(told, settings, secrets.randbits(64), client.connect)
                    if not outcome.completed:
                        raise UserError(f"the decode failed: {outcome.text or outcome.reason}")
                    rounds = outcome.stats.rounds
                    if number and rounds:  # the first warms up
                        into.whole.append(outcome.seconds)
                        into.tokens += len(outcome.tokens)
                        into.seconds += rounds[-1].settled - rounds[0].start
        finally:
            client.close()
            proxy.close()
    return found

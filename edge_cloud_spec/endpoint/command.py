"""``edge-cloud-spec endpoint``: an OpenAI-compatible API on the robot, by split decoding."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass

from ..cloud.serving.logs import set_up_logging
from ..edge.decode_options import DecodeKeywords, DecodeOptions
from ..edge.link.route import ClientSettings
from ..errors import check_installed, refuse
from ..models.load_drafter import DraftModelSettings
from ..options import Bounded, add_options, bounded, chosen, described, from_options, like
from ..wire.channel import is_loopback
from ..wire.secret_files import Reloaded, read_token, read_tokens
from .decodes import WHEN_LOST, Decodes


@dataclass(frozen=True)
class EndpointSettings(Bounded):
    """Where the API is, who may use it, and how its requests are decoded. Raises UserError."""

    address: str = described("127.0.0.1:8000", "HOST:PORT of the API")
    served_model_name: str = described(
        "edge-cloud-spec", "the model's name in requests; several with commas"
    )
    api_key_file: str = described("", "file with the keys that clients may show, one a line")
    ssl_certfile: str = described("", "PEM file; https (with --ssl-keyfile)")
    ssl_keyfile: str = described("", "PEM file of the certificate's key")
    queue: int = bounded(16, 0, 1024, "requests that wait for the drafter; others get a 429")
    request_timeout: float = bounded(300.0, 1.0, 86_400.0, "s for an answer, to its end")
    when_lost: str = chosen(
        "refuse",
        WHEN_LOST,
        "out of the verifier's reach; upstream: pass through; local: the robot's model alone",
    )
    upstream: str = described(
        "", "URL of an OpenAI-compatible API that gets what split decoding does not answer"
    )
    upstream_token_file: str = described(
        "", "file with the token for --upstream; without it clients show their own"
    )
    preset: str = like(DecodeOptions(), "preset")
    reply_timeout: float = like(DecodeOptions(), "reply_timeout")

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(
            (
                not re.fullmatch(r"(?!unix:)[^/\s]+:\d{1,5}", self.address),
                f"--address must be HOST:PORT, not {self.address!r:.80}",
            ),
            (
                bool(self.ssl_certfile) != bool(self.ssl_keyfile),
                "https needs both --ssl-certfile and --ssl-keyfile",
            ),
            (
                not self.upstream and (self.upstream_token_file or self.when_lost == "upstream"),
                "a server to pass requests through to is missing: give --upstream URL",
            ),
            (not self.models, "give the model a name (--served-model-name)"),
            (
                not is_loopback(self.address) and not (self.ssl_certfile and self.api_key_file),
                f"{self.address} can be reached from other machines: give --ssl-certfile, "
                "--ssl-keyfile and --api-key-file, or serve on 127.0.0.1",
            ),
        )

    @property
    def models(self) -> tuple[str, ...]:
        """The names that requests may ask for."""
        return tuple(filter(None, map(str.strip, self.served_model_name.split(","))))


def add_endpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``endpoint``."""
    add_options(parser, EndpointSettings())
    add_options(parser, ClientSettings())
    add_options(parser, DraftModelSettings())


def run_endpoint(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM. Raises UserError."""
    settings = from_options(EndpointSettings(), args)
    check_installed("uvicorn", "the endpoint")
    from ..edge.picture_decoder import Decoder
    from .listener import listen, serve, tls_context
    from .server import ChatApp
    from .upstream import Upstream

    set_up_logging("text")
    # What may be wrong is read before the model is loaded, which takes long.
    path = settings.api_key_file
    keys = Reloaded(lambda: read_tokens(path) if path else (), path)
    token_path = settings.upstream_token_file
    token = Reloaded(lambda: read_token(token_path) if token_path else "", token_path)
    upstream = Upstream(settings.upstream, lambda: token.current) if settings.upstream else None
    tls = tls_context(settings.ssl_certfile, settings.ssl_keyfile)
    cloud, drafter = from_options(ClientSettings(), args), from_options(DraftModelSettings(), args)
    options: DecodeKeywords = {
        "preset": settings.preset,
        "reply_timeout": settings.reply_timeout,
    }
    with (
        listen(settings.address) as listening,
        Decoder(cloud, drafter, **options) as decoder,
    ):
        app = ChatApp(
            Decodes(decoder, settings.queue, settings.when_lost),
            settings.models,
            lambda: keys.current,
            settings.request_timeout,
            upstream,
        )
        where = f"{settings.address.rpartition(':')[0]}:{listening.getsockname()[1]}"
        print(f"serving on http{'s' * bool(tls)}://{where}/v1", flush=True)
        serve(app, listening, tls)
    return 0

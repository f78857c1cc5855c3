"""Vision-language navigation with edge-cloud speculative decoding."""

import logging
from pathlib import Path
from pkgutil import extend_path

# edge_cloud_spec.msg is generated when the package is built and lives in the installed copy; this
# lets a checkout (pytest from the repository's root) see it too. A whole installation takes nothing
# from another one: two versions would mix.
if not Path(__file__).with_name("msg").is_dir():
    __path__ = extend_path(__path__, __name__)
__version__ = "0.2.0"

# What torchao, which transformers imports in any case, says where its own kernels are not for this
# machine or torch (none of them is used here), and torch of how torchao registers its enums.
_NO_NEWS = ("Failed to load ", "Skipping import of cpp extensions ", "%s is an Enum subclass ")


def _is_news(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_NO_NEWS)


for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).addFilter(_is_news)

"""Vision-language navigation with edge-cloud speculative decoding."""

from pkgutil import extend_path

# edge_cloud_spec.msg is generated when the package is built and lives in the installed copy; this
# lets a checkout (pytest from the repository's root) see it too.
__path__ = extend_path(__path__, __name__)
__version__ = "0.1.0"

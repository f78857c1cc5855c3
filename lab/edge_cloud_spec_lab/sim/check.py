"""What ``edge-cloud-spec doctor`` says of the simulator."""

from __future__ import annotations

from edge_cloud_spec.health import Health, Level


def check_simulator() -> Health:
    """Check for MuJoCo and its rendering backend."""
    try:
        from .engine import no_gl_because
    except ImportError as error:
        advice = "pip install -r requirements/sim.txt; a real robot does not need it"
        return Health(Level.WARN, f"MuJoCo cannot be imported ({error})", advice, check="simulator")
    if no_gl_because:
        advice = "the camera is ray cast, which is slower and needs nothing"
        return Health(Level.OK, f"no EGL: {no_gl_because}", advice, check="simulator")
    return Health(Level.OK, "MuJoCo renders by EGL", check="simulator")

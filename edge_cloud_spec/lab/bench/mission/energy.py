"""What a mission takes of energy, by powers that are assumed: no paper of ours measured them."""

from __future__ import annotations

# W, all assumed, of what FSD used: a Go2, a Jetson AGX Orin and an A100.
STANDING_W = 60.0  # motors that hold the body, and the robot's own computer
WALKING_W = 140.0  # a charge of 432 Wh lasts three to four hours
JETSON_IDLE_W = 12.0
JETSON_BUSY_W = 40.0  # while the draft model computes
GPU_W = 300.0  # while the target computes; others have the GPU between


def joules(seconds: float, moving_s: float, draft_busy_s: float, target_busy_s: float) -> float:
    """Of a mission of so many seconds, and how long of it the base moved and the models ran."""
    body = STANDING_W * seconds + (WALKING_W - STANDING_W) * moving_s
    computer = JETSON_IDLE_W * seconds + (JETSON_BUSY_W - JETSON_IDLE_W) * draft_busy_s
    return body + computer + GPU_W * target_busy_s

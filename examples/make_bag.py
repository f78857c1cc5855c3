"""Write a small bag, as a robot's own `ros2 bag record` would: pictures, an instruction, odometry.

    python examples/make_bag.py my_bag --instruction "find the red chair"
    edge-cloud-spec replay my_bag                # what the models say to each second's picture
    edge-cloud-spec replay my_bag --say "find the silver bottle"

The pictures are the simulator's, of a robot that turns on its spot; there are no decisions in it.
With `--lag 0.3` it turns left and right, and its pictures are older than their stamps by so much.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

from edge_cloud_spec.errors import imports

with imports():
    from rosbags.rosbag2 import StoragePlugin, Writer

    from edge_cloud_spec.observe.bag_writer import VERSION, types
    from edge_cloud_spec_lab.sim.camera import Camera, encode_jpeg
    from edge_cloud_spec_lab.sim.room import make_room
    from edge_cloud_spec_lab.sim.scene import Scene
    from edge_cloud_spec_lab.sim.world import World

START = 1_790_000_000_000_000_000  # ns; the bag's first moment
CYCLE = 0.1  # s between two odometry messages; every second one has a picture
TURN = 0.4  # rad/s
RAW = {"rgb8": (0, 1, 2), "bgr8": (2, 1, 0), "mono8": (0,)}  # encodings, and their channels


def main() -> int:
    parser = argparse.ArgumentParser(description="Write a bag of a simulated robot's camera.")
    parser.add_argument("bag", type=Path, help="folder to write; it must not be there yet")
    parser.add_argument("--seed", type=int, default=0, help="which room")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--instruction", help="default: the room's own; '' leaves it out")
    parser.add_argument("--storage", choices=("mcap", "sqlite3"), default="mcap")
    parser.add_argument("--namespace", default="", help="of the topics, such as robot1")
    parser.add_argument("--raw", choices=RAW, help="sensor_msgs/Image, not CompressedImage")
    parser.add_argument(
        "--lag", type=float, help="the camera's, s: of a robot that turns both ways"
    )
    parser.add_argument("--camera", default="", help="the camera's topic, if it has another name")
    write_bag(**vars(parser.parse_args()))
    return 0


def write_bag(
    bag: Path,
    seed: int = 0,
    seconds: float = 4.0,
    instruction: str | None = None,
    storage: str = "mcap",
    namespace: str = "",
    raw: str | None = None,
    camera: str = "",
    lag: float | None = None,
) -> None:
    room, store = make_room(seed), types()
    world = World(Scene(room))
    eye = Camera(world.scene, "rays", 256)
    prefix = f"/{namespace.strip('/')}" if namespace else ""
    names = {
        "camera": camera or f"{prefix}/camera/image_raw" + ("" if raw else "/compressed"),
        "instruction": f"{prefix}/instruction",
        "odom": f"{prefix}/odom",
    }
    kinds = {
        "camera": "sensor_msgs/msg/" + ("Image" if raw else "CompressedImage"),
        "instruction": "std_msgs/msg/String",
        "odom": "nav_msgs/msg/Odometry",
    }
    text = room.instruction if instruction is None else instruction
    plugin = StoragePlugin[storage.upper()]
    with Writer(bag, version=VERSION, storage_plugin=plugin) as writer:
        known = {
            name: writer.add_connection(names[name], kind, typestore=store)
            for name, kind in kinds.items()
            if name != "instruction" or text
        }

        def write(name: str, at: float, message: Any) -> None:
            cdr = store.serialize_cdr(message, kinds[name])
            writer.write(known[name], START + round(at * 1e9), cdr)

        if text:
            write("instruction", 0.0, store.types[kinds["instruction"]](text))
        seen: list[np.ndarray | None] = []
        for step in range(round(seconds / CYCLE)):
            at = (step + 1) * CYCLE
            write("odom", at, _odometry(store, world, at))
            seen.append(eye.render(world.eye) if step % 2 == 0 or lag is not None else None)
            picture = seen[max(0, step - round((lag or 0.0) / CYCLE))]
            if picture is not None:
                write("camera", at, _picture(store, picture, at, raw))
            swing = 1.0 if lag is None else math.sin(at) + math.sin(2.3 * at)
            world.command(0.0, 0.0, TURN * swing)
            world.step(CYCLE)
    eye.close()


def _header(store: Any, at: float, frame: str) -> Any:
    stamp = START + round(at * 1e9)
    time = store.types["builtin_interfaces/msg/Time"](stamp // 10**9, stamp % 10**9)
    return store.types["std_msgs/msg/Header"](time, frame)


def _picture(store: Any, pixels: np.ndarray, at: float, raw: str | None) -> Any:
    header = _header(store, at, "camera")
    if raw is None:
        data = np.frombuffer(encode_jpeg(pixels, 90), np.uint8)
        return store.types["sensor_msgs/msg/CompressedImage"](header, "jpeg", data)
    channels = pixels[..., list(RAW[raw])].copy()
    height, width, depth = channels.shape
    image = store.types["sensor_msgs/msg/Image"]
    return image(header, height, width, raw, 0, width * depth, channels.reshape(-1))


def _odometry(store: Any, world: World, at: float) -> Any:
    kinds, state = store.types, world.odometry
    vector, none = kinds["geometry_msgs/msg/Vector3"], np.zeros(36)
    turn = (0.0, 0.0, math.sin(state.yaw / 2), math.cos(state.yaw / 2))
    pose = kinds["geometry_msgs/msg/Pose"](
        kinds["geometry_msgs/msg/Point"](state.x, state.y, 0.0),
        kinds["geometry_msgs/msg/Quaternion"](*turn),
    )
    twist = kinds["geometry_msgs/msg/Twist"](
        vector(state.vx, state.vy, 0.0), vector(0.0, 0.0, state.wz)
    )
    return kinds["nav_msgs/msg/Odometry"](
        _header(store, at, "odom"),
        "base_link",
        kinds["geometry_msgs/msg/PoseWithCovariance"](pose, none),
        kinds["geometry_msgs/msg/TwistWithCovariance"](twist, none),
    )


if __name__ == "__main__":
    raise SystemExit(main())

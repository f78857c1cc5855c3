"""A room as a MuJoCo model: one geometry for physics, both renderers and segmentation."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np

from .engine import mujoco
from .go2_sim import go2_sim
from .room import Room
from .thing import Part, Rgb, Thing

BODY_HALF = (0.32, 0.15, 0.18)
"""Half sides of the robot's body in metres, legs included."""

MASS = 15.0
INERTIA = 0.6
PHYSICS_STEP_S = 0.005
"""Mass (kg), yaw inertia (kg m^2) and physics step (s) of the base."""

MAX_SIZE = 512
"""Pixels a side of the largest picture."""

ROBOT_GROUP = 5
ROBOT_GROUPS = (2, 3, ROBOT_GROUP)
"""MuJoCo's groups of what is the robot: its own camera and its scan do not see them. Two and three
are the seen and the solid parts of the legged one."""

WALL_HEIGHT = 2.7
_GAIN = MASS / 0.02
_YAW_GAIN = INERTIA / 0.02


class Scene:
    """A compiled room; ``thing_of_geom[i]`` is the index into ``room.things`` of geom i, or -1.

    ``people``: how many walk in it, as bodies far below the floor until they are placed. ``model``:
    another model of the room, with its own robot.
    """

    def __init__(self, room: Room, people: int = 0, model: Any = None) -> None:
        self.room, self.people = room, people
        self.model = model or room_spec(room, people).compile()
        names = [self.model.geom(i).name for i in range(self.model.ngeom)]
        self.thing_of_geom = np.array(
            [int(n[1:].split("/")[0]) if n.startswith("t") else -1 for n in names],
            np.int32,
        )


def room_spec(room: Room, people: int = 0) -> Any:
    """The room as MuJoCo's specification, which can be changed and compiled."""
    spec = mujoco.MjSpec.from_string(mjcf(room))
    if people:
        go2_sim("people").add_people(spec, people)
    return spec


def mjcf(room: Room) -> str:
    """The room and the robot's base (x, y, yaw joints, velocity actuators) as MJCF."""
    light = room.light
    fill = (light.fill,) * 3
    x, y, z = light.at
    geoms = [_wall(room)]
    geoms += [_thing(f"t{i}", t) for i, t in enumerate(room.things)]
    geoms += [_thing(f"f{i}", t) for i, t in enumerate(room.furniture)]
    geoms += [_thing(f"d{i}", t) for i, t in enumerate(room.decoration)]
    geoms += [_thing(f"w{i}", w.shape, "true") for i, w in enumerate(room.walkers)]
    start = room.start
    return f"""
<mujoco model="room">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{PHYSICS_STEP_S}" gravity="0 0 0" integrator="implicitfast"/>
  <statistic center="0 0 1" extent="6"/>
  <visual>
    <global fovy="60" offwidth="{MAX_SIZE}" offheight="{MAX_SIZE}"/>
    <quality shadowsize="1024" offsamples="0"/>
    <map znear="0.004" zfar="4" shadowscale="1"/>
    <headlight ambient="{_v(light.ambient)}" diffuse="{_v(fill)}" specular="0 0 0"/>
  </visual>
  <asset>
    <texture name="sky" type="skybox" builtin="flat" rgb1="{_v(room.sky)}" rgb2="{_v(room.sky)}"
             width="16" height="96"/>
    <material name="matt" specular="0" shininess="0"/>
    <material name="metal" specular="0.6" shininess="0.3"/>
  </asset>
  <default>
    <geom contype="1" conaffinity="2" condim="1" material="matt"/>
    <default class="seen"><geom contype="0" conaffinity="0"/></default>
  </default>
  <worldbody>
    <light name="lamp" type="spot" pos="{x:.4f} {y:.4f} {z:.4f}" dir="0 0 -1" cutoff="62"
           exponent="0" attenuation="1 0 0" diffuse="{_v(light.lamp)}" ambient="0 0 0"
           specular="0.4 0.4 0.4"/>
    {"".join(geoms)}
    <body name="base" pos="{start.x:.6f} {start.y:.6f} 0">
      <joint name="x" type="slide" axis="1 0 0"/>
      <joint name="y" type="slide" axis="0 1 0"/>
      <joint name="yaw" type="hinge" axis="0 0 1"/>
      <inertial pos="0 0 0.3" mass="{MASS}" diaginertia="{INERTIA} {INERTIA} {INERTIA}"/>
      <geom name="robot" type="box" size="{_v(BODY_HALF)}" pos="0 0 {BODY_HALF[2] + 0.03}"
            group="{ROBOT_GROUP}" contype="2" conaffinity="1"/>
    </body>
  </worldbody>
  <actuator>
    <velocity joint="x" kv="{_GAIN}" forcerange="-200 200"/>
    <velocity joint="y" kv="{_GAIN}" forcerange="-200 200"/>
    <velocity joint="yaw" kv="{_YAW_GAIN}" forcerange="-30 30"/>
  </actuator>
</mujoco>"""


def _wall(room: Room) -> str:
    w, d, thick, h = room.size[0] / 2, room.size[1] / 2, 0.05, WALL_HEIGHT / 2
    colour = f'rgba="{_v(room.wall)} 1"'
    sides = (
        (w + thick, 0.0, thick, d + 2 * thick),
        (-w - thick, 0.0, thick, d + 2 * thick),
        (0.0, d + thick, w, thick),
        (0.0, -d - thick, w, thick),
    )
    walls = "".join(
        f'<geom name="wall{i}" type="box" pos="{_v((x, y, h))}" size="{_v((a, b, h))}" {colour}/>'
        for i, (x, y, a, b) in enumerate(sides)
    )
    floor = (
        f'<geom name="floor" class="seen" type="plane" size="{_v((w + 0.1, d + 0.1, 0.5))}" '
        f'rgba="{_v(room.floor)} 1"/>'
    )
    return floor + walls


def _thing(prefix: str, thing: Thing, moved: str = "false") -> str:
    parts = "".join(_part(f"{prefix}/{i}", part) for i, part in enumerate(thing.parts))
    name = quoteattr(f"{prefix} {thing.name}")
    place = f'pos="{thing.x:.5f} {thing.y:.5f} 0" euler="0 0 {thing.yaw:.5f}"'
    return f'<body name={name} {place} mocap="{moved}">{parts}</body>'


def _part(name: str, part: Part) -> str:
    return (
        f'<geom name="{name}" type="{part.shape}" size="{_v(part.size)}" pos="{_v(part.at)}" '
        f'rgba="{_v(part.rgb)} 1"'
        + (' material="metal"' if part.metal else "")
        + ("" if part.solid else ' class="seen"')
        + "/>"
    )


def _v(values: tuple[float, ...] | Rgb) -> str:
    return " ".join(f"{v:.5g}" for v in values)

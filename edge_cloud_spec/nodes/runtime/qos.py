"""The QoS profiles of the graph's topics, one for both ends of each, and its timers' clock."""

from __future__ import annotations

from rclpy.clock import Clock, ClockType
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data

# Camera and odometry: best effort, since the next message replaces a lost one.
SENSOR_DATA = qos_profile_sensor_data
# States: a late subscriber still receives the newest message.
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
# The same for who must receive each one, also where two follow each other at once.
EACH_STATE = QoSProfile(depth=50, durability=DurabilityPolicy.TRANSIENT_LOCAL)
# Commands and reports that are sent now and then; as ROS's own default.
RELIABLE = QoSProfile(depth=10)
# The messages of a decode, of which many follow each other within milliseconds.
DECODE = QoSProfile(depth=100)
# A stop is received from every kind of publisher: each profile matches some that another does not.
EVERY_PUBLISHER = (RELIABLE, LATCHED, SENSOR_DATA)
# The same for instructions, except for latched ones from before: those are to move nothing.
EVERY_SENDER = (RELIABLE, SENSOR_DATA)
# A timer goes on evenly when the computer's clock is set.
STEADY = Clock(clock_type=ClockType.STEADY_TIME)

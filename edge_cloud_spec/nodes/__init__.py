"""Thin ROS 2 nodes: parameters, topics, QoS and threads. All rclpy code is here; no algorithm
is."""

import signal
import sys

if sys.argv[0] == "-m" and any(__name__ in argument for argument in sys.orig_argv):
    # A node's program imports for seconds, and C code that is imported may lose an exception.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

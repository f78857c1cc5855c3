"""An OpenAI-compatible API on the robot: HTTP, the API's forms, and a queue before one drafter.

Decoding is in ``edge``; nothing here moves the robot.
"""

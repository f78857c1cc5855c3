"""Drafts without a model, for robot and cloud: what verified answers said before.

Nothing crosses credentials.
"""

"""One robot's decode in the cloud: a state machine from drafts and scored rows to verdicts."""

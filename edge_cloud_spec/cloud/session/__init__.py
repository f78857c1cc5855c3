"""One robot's decode in the cloud: a state machine from drafts and logits to verdicts."""

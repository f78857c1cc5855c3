"""The thread that owns the models: its queue, its scheduler and its sessions."""

"""The scheduler in virtual time: its overhead, and how well it uses a device."""

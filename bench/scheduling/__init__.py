"""The scheduler in virtual time: its own cost, and how much of a device's time it turns into answers."""

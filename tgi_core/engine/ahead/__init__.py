"""Running one step ahead: steps are given to the device before the one before them is read, and decode steps are replayed whole."""

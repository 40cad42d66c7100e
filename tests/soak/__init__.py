"""Long runs that look for what short ones cannot find: `make soak`."""

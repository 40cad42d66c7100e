"""Long runs that look for what shows only after hours: `make soak`, or in short form in every test run."""

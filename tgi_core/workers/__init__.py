"""Worker processes: work on what strangers send runs in processes that are bounded, can be ended, and are started again."""

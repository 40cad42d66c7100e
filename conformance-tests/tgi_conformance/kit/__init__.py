"""The vendor kit: `template` is a backend that works, under a name that stands for the vendor's."""

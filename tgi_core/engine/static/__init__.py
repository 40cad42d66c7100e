"""The static engine: for devices that compile one program per shape. A step of the contract runs as one or more warmed programs."""

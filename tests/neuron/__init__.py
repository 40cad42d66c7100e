"""backends/neuron, over strict stand-ins of what it calls; its device is elsewhere."""

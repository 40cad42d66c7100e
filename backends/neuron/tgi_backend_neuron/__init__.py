"""AWS Inferentia2 and Trainium backends: `neuron` over optimum-neuron, and `neuron-native` over TorchNeuron."""

__version__ = "0.1.0"

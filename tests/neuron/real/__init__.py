"""The backend `neuron` over optimum-neuron 0.4.5 itself: `make test-neuron`, in a venv of its own."""

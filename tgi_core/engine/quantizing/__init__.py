"""`tgi quantize`: makes quantized checkpoints.

`quantizer.py` and `gptq.py` choose the codes of one matrix, `awq.py` scales a layer's inputs before that, `layerwise.py` runs a model layer by layer to see the inputs of its matrices,
`writing.py` writes the result in a format that transformers, vLLM and this server load, `perplexity.py` measures what was lost.
"""

"""`tgi quantize`: makes quantized checkpoints.

`gptq.py` and `rounding.py` choose the codes of one matrix, `layerwise.py` runs a model layer by layer to see the inputs of its matrices,
`writing.py` writes the result in a format that transformers, vLLM and this server load, `perplexity.py` measures what was lost.
"""

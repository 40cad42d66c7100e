"""What serving costs, apart from any model: CPU time per token of the whole server, over HTTP."""

"""Shards on the nodes of a Ray cluster: where their ranks are placed, and what becomes of them when a node is lost.

`opener` needs no Ray: it talks to a `Cluster` (`base`), of which `cluster` is Ray's and tests have their own. On each node runs a
`ShardHost`.
"""

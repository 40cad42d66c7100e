"""The wire between router and shard: the .proto files, their stubs, and the codec between messages and `tgi_core.wire.types`.

Nothing outside this package, the gRPC clients and the gRPC server knows of protobuf.
"""

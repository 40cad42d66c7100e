"""Client of shards that implement generate.v3 without the extensions of tgi-core: TGI's shards."""

"""Programs of fixed shapes: their compilers, and where they are kept between starts. Independent of models."""

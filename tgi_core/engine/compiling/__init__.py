"""Programs of fixed shapes: what compiles them, and where they are kept between starts. It knows no model."""

"""How settings are described, read and judged. The settings themselves are the fields of `tgi_core.config.Settings`."""

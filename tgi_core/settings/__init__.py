"""Description, parsing and validation of settings. The settings themselves are the fields of `tgi_core.config.Settings`."""

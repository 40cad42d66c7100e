"""Shared code of accelerator packages: finding a device without torch, a kit over torch's own device module, vendors' attention
libraries. Names no device."""

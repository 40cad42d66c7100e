"""What device packages for accelerators share: finding a device without torch, a kit over torch's own device module, attention
libraries of vendors. Names no device."""

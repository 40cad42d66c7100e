"""Tests of the Gaudi backend over a stand-in of habana_frameworks."""

"""Placement of requests on many replicas, in virtual time."""

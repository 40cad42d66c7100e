from tgi_conformance import conformance_tests

test_conformance = conformance_tests("mydevice", level="L2")

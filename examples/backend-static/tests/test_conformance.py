from tgi_conformance import conformance_tests

test_conformance = conformance_tests("static", level="L2")

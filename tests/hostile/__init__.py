"""What attackers sent to servers of this kind, class by class of the published advisories, against the whole instance on real sockets.

    test_media            requests forged by the server, media fetched or unpacked          (classes 1, 2, 3)
    test_leaks            inner matters in errors                                           (4)
    test_templates        chat templates from requests, templates without end               (5)
    test_grammars         grammars that break or stall their engine                         (6)
    test_counters         numbers and lists without bound                                   (7)
    test_model_output     answers that attack their readers                                 (8)
    test_source           code that would run what it is given                              (8, 11, 12)
    test_access           ways around the api key; the whole matrix is tests/router/test_auth (9)
    test_paths            names that are paths                                              (14)
    test_http_layer       what HTTP itself allows                                           (15)

After each case `instance.check_unharmed` asserts that the server is healthy, answers a plain request, and has all of its blocks.
"""

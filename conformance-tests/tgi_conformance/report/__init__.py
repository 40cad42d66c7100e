"""Reports: the document itself, what it grants, and how it is presented."""

"""TGI's native verbs, for routers without steps and grants: rows, text, and verbs that block until their steps have completed."""

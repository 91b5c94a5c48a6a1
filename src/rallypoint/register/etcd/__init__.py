"""Registers in etcd 3.4 or later, through the JSON gateway of its members.

The client is part of Rallypoint and small: no maintained library is light enough to be imported by
every agent. It blocks, as the calls of registers do: each coordinator has a thread for them, and
the process that a guard starts has no event loop. Imported only with this backend.
"""

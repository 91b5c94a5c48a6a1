"""Registers in etcd 3.4 or later, by the JSON gateway that each of its members has.

The client is our own and small: there is no kept library that is light enough to be imported by
every agent. It is blocking, as the calls of registers are: each coordinator has a thread for them,
and the process that a guard starts has no event loop. Imported with this backend alone.
"""

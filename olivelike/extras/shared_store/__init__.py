"""A store that several machines share, behind the local one: objects and action records behind a URL.

Its bytes are not trusted: what is fetched enters the local store only if it has the digest that it is called by.
Requests have time limits; whatever fails raises `UnreachableError`, and the local store is as before.
"""

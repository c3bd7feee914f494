"""The dashboard: pages for people, made on the server, kept up to date by nudges.

A page asks and does by the very functions that the API has (app/api), so it can do nothing that the API
cannot, and asks for the same scopes. Every page is an ordinary GET; while it is open, a stream says only that
something changed, and the page fetches itself again. Without script all of it works but for being live.
"""

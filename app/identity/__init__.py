"""Who calls: API keys, what they may do, and how much of it.

A key is recognised here; what a route asks for stands at the route (app/api/routes.py), and the edge
(app/api/edge.py) asks before anything is done for a request.
"""

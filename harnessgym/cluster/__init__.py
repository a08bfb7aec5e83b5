"""The processes of a run on several machines, which Ray has: the same processes, under the same
supervisor.
"""

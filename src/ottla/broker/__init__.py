"""The server: listeners, connections, dispatch and one handler file per request family."""

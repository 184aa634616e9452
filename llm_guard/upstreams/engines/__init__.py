"""Engines of our own: started, stopped and restarted.

registry         all engines of the config, over reloads
supervisor       one engine: its state, orders and restarts
driver           how an engine is started and stopped: the interface
process_driver   as a child process; launcher: ends it with the gateway
docker_driver    as a container of Docker or Podman
systemd_driver   as a unit of systemd
output           the last lines that an engine wrote
"""

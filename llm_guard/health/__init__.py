"""What watches upstreams and brings them back. Nothing here is on a call's way.

signs     how an upstream was found, for whoever wants to know
subjects  what is looked at
looks     one look: what is asked
prober    one look after the other, and what comes of them

engines         all engines of the config, over reloads
supervisor      one of them: what it is told, and what is done when it is down
schedule        how it is brought back, in words
strategy        how an engine is started and stopped: the protocol
command_engine  as a child process; its environment, its leash to us, the tail of what it prints
docker_engine   as a container of Docker or Podman
systemd_engine  as a unit of systemd
"""

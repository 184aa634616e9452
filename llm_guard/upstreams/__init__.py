"""Health probes of upstreams, and supervision of local inference engines. Both run beside the calls, never inside one.

signs     the result of probing an upstream, as other modules see it
subjects  the upstreams and deployments to probe
looks     one probe: its request and how much of the response is read
prober    runs the probes repeatedly and publishes their results

engines         all engines of the config, across reloads
supervisor      one engine: operator commands, events, and restarts when it is down
schedule        text that describes an engine's restarts
strategy        the protocol for starting and stopping an engine
command_engine  as a child process; environment, launcher (leash) and last output (tail)
docker_engine   as a container of Docker or Podman
systemd_engine  as a unit of systemd
"""

"""Which deployments a call may go to, and the state that is kept of each.

route_table          compiles the config: model name -> route -> deployments
deployment           deployments, with the state kept of each, and the upstreams that they belong to
deployment_registry  deployments and budgets, kept over reloads
authorization        the header with an upstream's key, and the names of its connections
api_keys             the keys of an upstream that has several; key_files: keys in files
lease                the lease that an attempt holds
"""

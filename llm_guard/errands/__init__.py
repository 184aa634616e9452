"""Calls that no client waits for: answered later, or asked again because an operator says so.

errands      the whole: its parts, and their life
keeper       keeps calls, as the way of a call sees it
window       where a client looks what has become of a call that it was promised
runner       begins what is due, a few at a time
asking       one round: from the kept call to its answer, or to what follows
terms        deadlines that a wall clock which is set does not move
upkeep       leases, recovery, retention
told         webhooks
shelf        the way to the store; form, credentials: what is kept of a call, and what only in memory
"""

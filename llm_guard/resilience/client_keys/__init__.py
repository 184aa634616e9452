"""Client keys: their limits, their scope, and the provider's objects that each has created
(object_owners; provider_objects: where requests and responses name them)."""

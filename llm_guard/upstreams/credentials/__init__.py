"""Credentials of clouds: obtained and renewed in the background, and added to requests.

registry    the credentials that a config needs, over reloads
source      one set of credentials, renewed before it expires; renewal_schedule: when
providers   obtains them with the clouds' own libraries
sigv4       signatures of AWS; signing: requests with one; bearer: requests with a token
"""

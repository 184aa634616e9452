"""Translation between dialects on a corpus of hard cases, beside two libraries that translate, and its cost.

cases/        the corpus: what is asked, what the provider answers, and what must be true of the result
corpus        reads it
stand_in      a provider of both dialects that enforces their rules
rules         rules that the types of a request do not express
replies       what a client makes of a response
checks        compares the result with what must be true
ways          the gateway and the libraries, each before the stand-in
library_calls runs in a library's environment, without this package
measure       plays the corpus
cost          CPU of a translated call
report        the page
"""

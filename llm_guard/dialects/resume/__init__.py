"""How a stream continues where another one has died.

transcript               what has been sent, and how the next stream is joined to it
text_join                where one text continues another
instructed_join          where a text continues that an instruction requested: overlap says what proves it, preamble and
                         wrapping what a model puts before and around it
base                     what each of a call's streams has cost, and how its events are joined
chat, messages, responses    the transcript in each format, with chat_state, chat_splice, responses_state and
                         responses_splice; requests: asks for the rest
"""

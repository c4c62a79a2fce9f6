"""Ways to prove who one is, as machines: what each message must answer. They draw no random numbers themselves."""

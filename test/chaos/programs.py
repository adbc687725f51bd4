"""Badly behaved programs, as command lines. Each carries its token, whatever else it throws away.

A token is a row of digits, and so can be the fraction of a duration that nobody else sleeps for.
"""


def shell(script):
    return ["sh", "-c", script]


def asleep(token):
    return f"sleep 86400.{token}"


def obedient(token):
    return ["sleep", f"86400.{token}"]


def family(token):
    """In its group, in a session of its own, and a daemon with an empty environment."""
    sleep = asleep(token)
    return shell(f"{sleep} & setsid {sleep} & (env -i setsid {sleep} &) ; {sleep}")


def siblings(token):
    """A family that keeps its environment."""
    sleep = asleep(token)
    return shell(f"{sleep} & setsid {sleep} & (setsid {sleep} &) ; {sleep}")


def stubborn(token):
    sleep = asleep(token)
    return shell(f"trap '' TERM; {sleep} & setsid {sleep} & (env -i setsid {sleep} &) ; exec {sleep}")


def stopped(token):
    sleep = asleep(token)
    return shell(f"setsid {sleep} & kill -STOP $$; {sleep}")


def scrubbed(token):
    return ["env", "-i", "sleep", f"86400.{token}"]


def elsewhere(token):
    sleep = asleep(token)
    return shell(f"cd /; (setsid {sleep} &) ; exec {sleep}")


def bomb(token):
    """Thirty-one of them, a session each, and none that obeys."""
    script = f'trap "" TERM; grow() {{ [ $1 -eq 0 ] || {{ grow $(($1 - 1)) & grow $(($1 - 1)) & }}; exec setsid {asleep(token)}; }}; grow 4'
    return shell(script)


def spring(token):
    """Forks on and on, from a daemon: a dozen at a time, and always others."""
    source = f"while :; do setsid sleep 0.3{token} & sleep 0.03{token}; done"
    return shell(f"(env -i PATH=$PATH setsid sh -c '{source}' &) ; {asleep(token)}")


def flood(token):
    return ["yes", token]


def early_exit(token):
    return shell(f"setsid {asleep(token)} & sleep 0.05{token}; exit 3")


def leaves_a_daemon(token):
    return shell(f"(env -i setsid {asleep(token)} &) ; exec sleep 0.2{token}")


def missing(_token):
    return ["/there/is/no/such/program"]


ALL = [obedient, family, siblings, stubborn, stopped, scrubbed, elsewhere, bomb, spring, flood, early_exit, leaves_a_daemon, missing]
# Those that keep the marks of the library: what is documented to be found without its directory.
MARKED = [obedient, siblings, elsewhere]

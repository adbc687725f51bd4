"""What is done in each place, and what may not come of it. Every row returns its complaints."""

import os
import subprocess
import time

from podman import RELEASE, Broken, eventually, inner_pid, proc


# Of 400 processes that a full container has, so many are left when it gets room.
ROOM = 200


def gone(processes, patience=20.0):
    """Waits for the end of these very processes. Who is left."""
    deadline = time.monotonic() + patience
    while True:
        left = [one for one in processes if proc.alive(one.identity)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


class Complaints(list):
    """What is wrong with a row. `waited` is how many processes were there until a next start ended them: a row
    without any has not shown that it does."""

    waited = 0

    def waiting(self, *containers):
        """To be asked after BEAM and guardian were killed. The kernel ends what the guardian itself has started."""
        for container in containers:
            self.left("both killed, the guardian's own children", gone(container.leaders, 5))
            self.waited += len([one for one in container.struck if proc.alive(one.identity)])

    def left(self, when, processes):
        if processes:
            self.append(f"{when}: {len(processes)} left, e.g. {proc.describe(processes[0])}")

    def hit(self, when, processes):
        dead = [one for one in processes if not proc.alive(one.identity)]
        if dead:
            self.append(f"{when}: wrong kill of {len(dead)}, e.g. pid {dead[0].pid} {dead[0].name}")

    def stopped(self, container):
        processes = container.workers()
        status, seconds = container.stop()
        if status != 0:
            self.append(f"podman stop: exit status {status} after {seconds:.1f} s")
        self.left("podman stop", gone(processes))


def add_bystanders(container, root="0"):
    """In the container, one of them without an environment, and one outside of it."""
    number = container.bystander
    before = len(container.bystanders())
    container.execute("sleep", f"{number}.1", user=root)
    container.execute("env", "-i", "sleep", f"{number}.2", user=root)
    # In the background of a shell that ends, so that nobody has to reap it.
    subprocess.run(["sh", "-c", f"setsid sleep {number}.3 &"], check=True, stdin=subprocess.DEVNULL)
    return eventually(lambda: len(container.bystanders()) >= before + 3 and container.bystanders(), "the bystanders")


def crashes(container, complaints, restart, bystanders=(), outlived=True):
    """The BEAM dies, then the BEAM and its guardian at one instant; nothing may be left, nobody else hit.

    `outlived` says whether something in the container lives on. If not, the kernel ends everything in it.
    """
    processes = container.workers()
    container.kill(container.beam())
    complaints.left("BEAM killed", gone(processes))
    complaints.hit("BEAM killed", bystanders)
    restart()

    processes = container.workers()
    container.kill(container.beam(), container.guardian())
    if outlived:
        complaints.waiting(container)
    restart()
    complaints.left("both killed, next start", gone(processes))
    complaints.hit("both killed, next start", bystanders)


def supervised(stage, options=(), full=False, **more):
    """The release below a first process that outlives it; `full` is without room for another process."""
    complaints = Complaints()
    container = stage.container("a", options=options, **more).run()
    container.await_ready()
    bystanders = add_bystanders(container)

    def fill():
        if full:
            fill_up(container)
            bystanders[:] = container.bystanders()

    def restart():
        # The next start needs room for a while; the deaths before it were without.
        if full:
            proc.end([one.identity for one in bystanders[ROOM:]])
            del bystanders[ROOM:]
        container.tell("HUP")
        container.await_ready()
        fill()

    fill()
    crashes(container, complaints, restart, bystanders)
    complaints.stopped(container)
    return complaints


def fill_up(container):
    word = "there is no room for another"
    before = container.printed().count(word)
    container.tell("USR1")
    eventually(lambda: container.printed().count(word) > before, "a full container")


def alone(stage, options=(), **more):
    """The release's death is the container's."""
    complaints = Complaints()
    container = stage.container("a", options=options, command=RELEASE, **more).run()
    container.await_ready()

    def restart():
        eventually(container.ended, "the end of the container")
        container.podman.call("start", container.name)
        container.await_ready()

    crashes(container, complaints, restart, outlived=False)
    complaints.stopped(container)
    return complaints


def slow_stop(stage):
    """Six that use their two seconds, below a plain supervisor. One after the other they would be killed with the
    container, which an operator gives ten."""
    complaints = Complaints()
    workers = {"SHOP_WORKERS": ",".join(f"stubborn{number}" for number in range(6)), "SHOP_GRACE": "2000"}
    options = ["--volume", f"{stage.volume('data')}:/data"]
    container = stage.container("a", options=options, command=RELEASE, environment=workers).run()
    eventually(lambda: len(container.workers()) == 12, "six workers")
    complaints.stopped(container)
    return complaints


def recycled(stage):
    """A container killed hard; in the next one on its volume somebody else has every pid that was written down."""
    complaints = Complaints()
    volume = ["--volume", f"{stage.volume('data')}:/data"]
    first = stage.container("first", options=volume, command=RELEASE).run()
    first.await_ready()
    recorded = {inner_pid(one) for one in first.workers()}
    processes = first.workers()
    first.kill(first.beam())
    complaints.left("container killed", gone(processes))
    eventually(first.ended, "the end of the container")

    crowd = 'i=0; while [ $i -lt 300 ]; do sleep BYSTANDER.$i & i=$((i + 1)); done; exec "$@"'
    second = stage.container("second", options=volume, command=["sh", "-c", crowd, "sh", *RELEASE]).run()
    eventually(lambda: len(second.bystanders()) == 300, "the bystanders")
    bystanders = second.bystanders()
    second.await_ready()
    if not recorded <= {inner_pid(one) for one in bystanders}:
        raise Broken("the bystanders do not have the pids that were written down")
    complaints.hit("next container", bystanders)
    complaints.stopped(second)
    return complaints


def one_volume(stage):
    """A dies with its guardian, B starts again on the same volume meanwhile, then A does."""
    complaints = Complaints()
    volume = ["--volume", f"{stage.volume('data')}:/data"]
    a = stage.container("a", options=volume).run()
    b = stage.container("b", options=volume).run()
    a.await_ready()
    b.await_ready()
    bystanders = add_bystanders(a)
    of_a, of_b = a.workers(), b.workers()

    a.kill(a.beam(), a.guardian())
    b.kill(b.beam(), b.guardian())
    complaints.waiting(a, b)
    b.tell("HUP")
    b.await_ready()
    complaints.left("B's both killed, its next start", gone(of_b))
    of_b = b.workers()
    a.tell("HUP")
    a.await_ready()
    complaints.left("A's both killed, starts of B and A", gone(of_a))
    complaints.hit("A's next start, B's workers", of_b)
    complaints.hit("A's next start", bystanders)
    complaints.stopped(a)
    complaints.hit("A's stop, B's workers", of_b)
    complaints.stopped(b)
    return complaints


def one_namespace(stage):
    """A pod: the same image and path, each its own volume. B starts while A's guardian gives a worker its time."""
    complaints = Complaints()
    saves = {"SHOP_WORKERS": "plain,stubborn,daemons,saves", "SHOP_SAVES": "/data"}
    store = stage.volume("a")
    a = stage.container("a", options=["--volume", f"{store}:/data"], environment=saves).run()
    a.await_ready("1234567")
    bystanders = add_bystanders(a)
    of_a = a.workers()
    b = stage.container("b", options=["--volume", f"{stage.volume('b')}:/data", "--pid", f"container:{a.name}"])

    a.kill(a.beam())
    b.run()
    b.await_ready()
    # Order: only now may it finish, so B's whole start was in its time.
    open(f"{store}/go", "w").close()
    complaints.left("A's BEAM killed", gone(of_a))
    if not os.path.exists(f"{store}/saved"):
        complaints.append("B's start: wrong kill of A's worker, which was saving in its time")
    of_b = b.workers()
    a.tell("HUP")
    a.await_ready("1234567")
    complaints.hit("A's next start, B's workers", of_b)

    of_a = a.workers()
    b.kill(b.beam(), b.guardian())
    complaints.waiting(b)
    b.tell("HUP")
    b.await_ready()
    complaints.left("B's both killed, its next start", gone(of_b))
    complaints.hit("B's next start, A's workers", of_a)
    complaints.hit("B's next start", bystanders)
    complaints.stopped(b)
    complaints.hit("B's stop, A's workers", of_a)
    complaints.stopped(a)
    return complaints


def upgrade(stage):
    """The next version over the last one, whose BEAM and guardian were killed, with the default data directory."""
    complaints = Complaints()
    container = stage.container("a", data=None).run()
    container.await_ready()
    processes = container.workers()
    container.kill(container.beam(), container.guardian())
    complaints.waiting(container)
    container.podman.call("exec", container.name, "cp", "-a", "/app-next/.", "/app/")
    container.tell("HUP")
    container.await_ready()
    complaints.left("both killed, the next version's start", gone(processes, 10))
    complaints.stopped(container)
    return complaints

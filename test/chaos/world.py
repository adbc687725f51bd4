"""A round: its directories, its BEAMs, its bystanders and its random choices."""

import os
import random
import shutil
import signal
import subprocess
import time

import judge
import proc
import programs

PATIENCE = 30.0


class Broken(Exception):
    """What was to be done could not be done: neither an orphan nor a wrong kill, and wrong all the same."""


def term(value):
    """As an Erlang term. A bare string is an atom, bytes are a string."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return '<<"' + value.decode().replace("\\", "\\\\").replace('"', '\\"') + '">>'
    if isinstance(value, dict):
        return "[" + ",".join(f"{{{key},{term(one)}}}" for key, one in value.items()) + "]"
    if isinstance(value, list):
        return "[" + ",".join(map(term, value)) + "]"
    if isinstance(value, tuple):
        return "{" + ",".join(map(term, value)) + "}"
    return str(value)


def arguments(command):
    return [part.encode() for part in command]


def eventually(condition, what, patience=PATIENCE):
    deadline = time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Broken(f"waited {patience:.0f} s for {what}")
        time.sleep(0.01)


class Machine:
    """Where things are, for all rounds. The driver is what the Elixir files of a directory say."""

    def __init__(self, build, scratch, paths=None, flags=(), sources=os.path.dirname(os.path.abspath(__file__)), driver="Chaos.Driver"):
        self.build = os.path.abspath(build)
        self.scratch = scratch
        self.flags = list(flags)
        self.driver = driver
        self.paths = paths or self.compile(sources)

    def compile(self, sources):
        driver = os.path.join(self.scratch, "driver")
        os.mkdir(driver)
        files = sorted(os.path.join(sources, name) for name in os.listdir(sources) if name.endswith(".ex"))
        code = "[to | files] = System.argv(); {:ok, _, _} = Kernel.ParallelCompiler.compile_to_path(files, to); IO.puts(Path.dirname(:code.lib_dir(:elixir)))"
        snakepit = os.path.join(self.build, "lib", "snakepit", "ebin")
        said = subprocess.run(
            ["elixir", "-pa", snakepit, "-e", code, driver, *files],
            check=True, stdout=subprocess.PIPE, text=True,
        ).stdout
        libraries = said.split("\n")[-2]
        return [snakepit, driver] + [os.path.join(libraries, name, "ebin") for name in ("elixir", "logger")]

    def erl(self, plan):
        return ["erl", *self.flags, "-noshell", "-pa", *self.paths, "-s", f"Elixir.{self.driver}", "main", "-extra", plan]


class Beam:
    """A BEAM with the driver in it, and everything that it causes to exist, as the judge sees it."""

    def __init__(self, round_, name, data, pools=(), starts=(), config=None, stable=False, worker=None, held=False):
        self.round = round_
        self.name = name
        self.token = round_.new_token()
        self.directory = os.path.join(round_.directory, name)
        self.output = os.path.join(round_.directory, f"{name}.log")
        self.data = data
        os.mkdir(self.directory)
        self.judge = judge.Judge(self.token, self.directory, round_.bystander_token)
        self.members = sum(size * self.sleepers(program) for program, size in pools) if stable else None
        plan = self.plan(pools, starts, config or {}, worker, held)
        line = round_.machine.erl(plan)
        # In its group and below its pid, and not of its making.
        line = ["sh", "-c", f'(cd / && exec sleep 86400.{round_.bystander_token}) & exec "$@"', "sh", *line]
        env = dict(os.environ, ERL_CRASH_DUMP_SECONDS="0", **{judge.VARIABLE: self.token})
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                line, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                cwd=self.directory, env=env, start_new_session=True,
            )
        self.shell = proc.look_up(self.process.pid).identity
        round_.beams.append(self)

    @staticmethod
    def sleepers(program):
        return {programs.obedient: 1, programs.family: 4, programs.siblings: 4, programs.stubborn: 4}[program]

    def plan(self, pools, starts, config, worker, held):
        config = {
            "data_dir": self.data.encode(), "watchdog": {"grace_period_ms": self.round.grace},
            "graceful_shutdown_timeout_ms": self.round.grace, "cleanup_on_stop_timeout_ms": self.round.grace, **config,
        }
        here = self.directory.encode()
        described = [
            (f"{program.__name__}-{index}".encode(), size,
             {"cmd": arguments(program(self.token)), "cd": here, "stop_timeout": self.round.grace})
            for index, (program, size) in enumerate(pools)
        ]
        plan = {
            "config": config, "pools": described,
            "starts": [arguments(program(self.token)) for program in starts],
            "ports": [(b"sleep", [f"86400.{self.round.bystander_token}".encode()])],
            "held": held,
        }
        if worker:
            plan["worker"] = {"cmd": arguments(worker(self.token)), "cd": here, "stop_timeout": self.round.grace}
        path = os.path.join(self.round.directory, f"{self.name}.plan")
        with open(path, "w") as file:
            for key, value in plan.items():
                file.write(f"{{{key},{term(value)}}}.\n")
        return path

    def said(self, word):
        with open(self.output, "rb") as file:
            return word.encode() + b"\n" in file.read()

    def lives(self):
        return self.process.poll() is None

    def await_word(self, word, patience=PATIENCE):
        def heard():
            if self.said(word):
                return True
            if not self.lives():
                raise Broken(f"BEAM {self.name} ended with {self.process.returncode} and never said {word!r}")
            return False

        eventually(heard, f"BEAM {self.name} to say {word!r}", patience)

    def await_started(self):
        """Until the plan has been carried out, as far as the judge can see too."""
        self.await_word("started")
        if self.members is not None:
            mark = f"86400.{self.token}".encode()

            def complete():
                found = self.judge.look()
                return [pid for pid, _ in found if proc.command(pid).startswith(b"sleep\0" + mark)]

            eventually(lambda: len(complete()) == self.members, f"{self.members} sleepers of {self.name}")

    def tell(self, line):
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Broken(f"BEAM {self.name} is gone and cannot be told {line!r}") from None

    def answers(self, prefix):
        """What it has said in lines that begin so, without that."""
        with open(self.output, errors="replace") as file:
            return [line[len(prefix) :].strip() for line in file if line.startswith(prefix) and line.endswith("\n")]

    def check(self):
        """Whether the library still works there."""
        word = f"alive{self.round.new_token()}"
        self.tell(f"check {word}")
        self.await_word(word)

    def identity(self):
        """Of the BEAM itself: the shell and `erl` became it."""
        return self.shell

    def helper(self, name):
        """The helper of this name that serves this BEAM; None if there is none (yet)."""
        table = proc.table()
        for one in table.values():
            if one.name == name and (
                one.parent == self.shell[0] or getattr(table.get(one.parent), "parent", None) == self.shell[0]
            ):
                return one.identity
        return None

    def guardian(self):
        return self.helper("snakepit_guardi")

    def child_setup(self):
        return self.helper("erl_child_setup")

    def signal(self, number):
        return proc.send(self.shell, number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait()

    def kill_with_guardian(self):
        """Both at one instant: stopped first, or one could clean up after the other."""
        self.signal(signal.SIGSTOP)
        guardian = self.guardian()
        if guardian:
            proc.send(guardian, signal.SIGSTOP)
            eventually(lambda: (one := proc.alive(guardian)) is None or one.state == "T", "the guardian to stop")
            proc.send(guardian, signal.SIGKILL)
        self.kill()
        if guardian:
            eventually(lambda: not proc.alive(guardian), "the guardian to end")
        return guardian

    def workers(self):
        """What runs for it, but for the BEAM and its helpers."""
        helpers = ("beam.smp", "erl_child_setup", "snakepit_guardi", "inet_gethost")
        return [one for one in self.judge.look().values() if one.name not in helpers and one.identity != self.shell]

    def is_beam(self, process):
        """Whether it is the BEAM or a helper of OTP, which may live when the library has stopped."""
        return process.identity == self.shell or process.name in ("erl_child_setup", "inet_gethost")


class Round:
    def __init__(self, machine, seed, number, case):
        self.machine = machine
        self.number = number
        self.case = case
        self.random = random.Random(f"{seed}:{number}:{case}")
        self.bystander_token = self.new_token()
        self.grace = self.random.choice([0, 100, 300])
        self.directory = os.path.join(machine.scratch, f"round-{number}")
        self.data = os.path.join(self.directory, "data")
        self.beams = []
        self.children = []
        self.orphans = []
        self.wrong_kills = []
        self.story = []
        self.at_end = []
        os.mkdir(self.directory)
        # The bystanders' judge finds them by their token, as that of a BEAM finds its own.
        self.watch = judge.Judge(self.bystander_token, "/nowhere", "no bystander of bystanders")
        judge.adopt(self.random.random() < 0.5)
        for program in self.random.sample([programs.obedient, programs.family, programs.siblings], 2):
            self.start_bystander(program(self.bystander_token))

    # Told apart from other rounds, and other runs, by chance and by pid: not part of the seed.
    _serial = 0

    def new_token(self):
        Round._serial += 1
        return f"{os.getpid():07d}{int(time.time()) % 10_000_000:07d}{Round._serial:05d}"

    def note(self, text):
        self.story.append(text)

    def start_bystander(self, command, env=None):
        env = dict(os.environ, **(env or {}))
        child = subprocess.Popen(command, cwd="/", env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        self.children.append(child)
        return child

    def pools(self, choice=programs.ALL, count=4):
        picked = self.random.sample(choice, min(count, len(choice)))
        pools = [(program, 1 if program in (programs.bomb, programs.flood, programs.spring) else self.random.randint(1, 3)) for program in picked]
        self.note("pools " + ", ".join(f"{size} {program.__name__}" for program, size in pools))
        return pools

    def launch(self, name="a", **options):
        return Beam(self, name, options.pop("data", self.data), **options)

    def launch_random(self, name="a", choice=programs.ALL):
        starts = [programs.obedient, programs.family][: self.random.choice([0, 1, 2])]
        self.note(f"{len(starts)} endless starts")
        return self.launch(name, pools=self.pools(choice), starts=starts)

    def moment(self, beam, word=None):
        """A random one: while it boots, while it starts its workers, or when all is there."""
        word = word or self.random.choice(["", "running", "started", "started"])
        delay = self.random.random() * (0.8 if word == "" else 0.25)
        self.note(f"{delay * 1000:.0f} ms after {word or 'launch'}")
        if word:
            beam.await_word(word)
        time.sleep(delay)
        beam.judge.look()
        self.start_impostors(beam)
        self.mark_bystanders()

    def start_impostors(self, beam):
        """Bystanders that name the run of a BEAM: as a user of another instance, and as an argument."""
        runs = os.listdir(self.data) if os.path.isdir(self.data) else []
        for run in [run for run in runs if len(run) == 7]:
            env = {"SNAKEPIT_RUN_ID": run, "SNAKEPIT_INSTANCE": "another", "SNAKEPIT_WORKER_ID": "family-1-1"}
            self.start_bystander(programs.obedient(self.bystander_token), env)
            line = programs.shell(f"{programs.asleep(self.bystander_token)}; :") + ["sh", "--run-id", run]
            child = self.start_bystander(line)
            self.watch.spare(proc.look_up(child.pid), "bystander with --run-id of the run")

    def mark_bystanders(self):
        """All that are there now have to be there at the end."""
        for process in self.watch.look().values():
            # A shell on its way to becoming something else is none.
            if process.name in ("sleep",):
                self.watch.spare(process, f"bystander {proc.describe(process)}")

    def expect_gone(self, beam, patience=PATIENCE, but=lambda process: False):
        for process in beam.judge.await_gone(patience, but):
            self.orphans.append(f"of BEAM {beam.name}: {proc.describe(process)}")

    def spare(self, beam):
        """Everything of a stable BEAM has to live on."""
        for process in beam.judge.look().values():
            self.watch.spare(process, f"BEAM {beam.name}'s {proc.describe(process)}")

    def release(self, beam):
        """What was spared may end again."""
        for identity in beam.judge.seen:
            self.watch.bystanders.pop(identity, None)

    def next_beam(self, name="next", **options):
        """The next start on the same data directory; it has cleaned up when it says that it runs."""
        beam = self.launch(name, **options)
        beam.await_word("running")
        return beam

    def verdict(self):
        self.wrong_kills += self.watch.hit()

    def bury(self):
        """Reaps what was adopted, and leaves to others what they wait for."""
        judge.bury({child.pid for child in self.children} | {beam.process.pid for beam in self.beams})

    def clean_up(self):
        for beam in self.beams:
            beam.judge.end_all()
            try:
                beam.process.stdin.close()
            except BrokenPipeError:
                # What it was told last it did not live to hear.
                pass
        self.watch.bystanders.clear()
        self.watch.end_all()
        for child in self.children + [beam.process for beam in self.beams]:
            child.wait()
        judge.bury(set())

    def remove(self):
        for act in self.at_end:
            act()
        shutil.rmtree(self.directory, ignore_errors=True)

//! Programs as children of the test.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use snakepit_core::{Identity, Pid};

use super::{eventually, fixture, identify, judge, pidfd};

/// A child, killed and reaped when the test is over. While it is not reaped, its pid is its own.
///
/// Its input is a pipe from the test: programs that read it end with the test, come what may.
#[derive(Debug)]
pub struct Spawned {
    child: Child,
    /// Not left in `child`: waiting for that would close it, and with it end descendants.
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Spawned {
    /// With its arguments in `/proc`, and its environment if `command` sets any of it.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let spawned = Self { child, input, output };
        let sets_environment = command.get_envs().any(|(_, value)| value.is_some());
        // Order: `spawn` returns within the child's `execve`. For a moment the child still has this process's memory
        // (seen on Linux 6.1), and then the kernel has not yet laid out the new arguments and environment, and
        // `/proc` shows both as empty.
        eventually("its arguments and environment are there", || {
            // Of a main thread that has ended they are not to be seen, and are there.
            matches!(judge::state(spawned.raw()), None | Some('Z' | 'X'))
                || spawned.has_own_memory()
                    && spawned.shows("cmdline")
                    && (!sets_environment || spawned.shows("environ"))
        });
        spawned
    }

    /// Whether it executes another program than this one, or nobody may see which.
    fn has_own_memory(&self) -> bool {
        let program = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        program(&self.raw().to_string()).is_none_or(|its| Some(its) != program("self"))
    }

    /// Whether there is something in this file of `/proc`, or it may not be read.
    fn shows(&self, file: &str) -> bool {
        std::fs::read(format!("/proc/{}/{file}", self.raw()))
            .map_or(true, |bytes| !bytes.is_empty())
    }

    /// One that does nothing and ends when asked.
    pub fn polite() -> Self {
        Self::start(&mut Command::new("cat"))
    }

    /// The same in process group `group`; 0 for one of its own.
    pub fn in_group(group: i32) -> Self {
        Self::start(Command::new("cat").process_group(group))
    }

    /// One that does nothing and has to be killed.
    pub fn stubborn() -> Self {
        let mut stubborn = Self::start(&mut fixture("ignores_sigterm.py"));
        stubborn.line();
        stubborn
    }

    /// One that has ended and has not been reaped.
    pub fn zombie() -> Self {
        let zombie = Self::start(&mut Command::new("true"));
        eventually("it is a zombie", || judge::state(zombie.raw()) == Some('Z'));
        zombie
    }

    /// The next line that it prints.
    #[track_caller]
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "it ended without output");
        line.trim().to_owned()
    }

    /// Stops it with `SIGSTOP`.
    #[must_use]
    pub fn suspended(self) -> Self {
        pidfd::send(&pidfd::open(self.raw()).unwrap(), libc::SIGSTOP).unwrap();
        eventually("it is stopped", || judge::state(self.raw()) == Some('T'));
        self
    }

    /// Writes an empty line for it to read.
    pub fn write_line(&mut self) {
        self.input.write_all(b"\n").unwrap();
    }

    /// Kills and reaps it.
    pub fn end(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    pub fn raw(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    pub fn pid(&self) -> Pid {
        super::pid(self.raw())
    }

    pub fn identity(&self) -> Identity {
        identify(self.raw())
    }

    /// By the judge's word.
    pub fn lives(&self) -> bool {
        judge::runs(self.raw())
    }

    pub fn is_untouched(&self) -> bool {
        judge::look(self.raw()).is_some_and(|seen| seen.is_untouched())
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        self.end();
    }
}

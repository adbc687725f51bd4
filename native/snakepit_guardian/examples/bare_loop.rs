//! What the guardian is measured against: the least that starting and ending processes can cost.
//!
//! ```text
//! bare_loop fork  COUNT PROGRAM ARGUMENT   fork, setsid, exec
//! bare_loop spawn COUNT PROGRAM ARGUMENT   posix_spawn with POSIX_SPAWN_SETSID
//! bare_loop watch                          see below
//! ```
//!
//! The first two start that many processes one after the other, each once the one before has
//! executed its program; then they kill all and reap all. They print a line `started NS` for each,
//! and `killed NS` for how long the second part took.
//!
//! `watch` reads a line of pids from its input and prints `watching`. At the next line it sends SIGKILL
//! to the first, and prints `gone NS` when the last of the others has ended and has been reaped.

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::{CStr, CString, c_char};
    use std::io::{Error, ErrorKind, Result, Write, stdin};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::time::{Duration, Instant};

    pub fn main() -> Result<()> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        allow_descriptors()?;
        match arguments[..] {
            ["fork", count, program, argument] => start(count, program, argument, fork),
            ["spawn", count, program, argument] => start(count, program, argument, spawn),
            ["watch"] => watch(),
            _ => Err(Error::new(ErrorKind::InvalidInput, "see the top of bare_loop.rs")),
        }
    }

    /// `watch` has one for each process, and the usual limit is 1024.
    fn allow_descriptors() -> Result<()> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: one structure, a local.
        unsafe {
            check(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit))?;
            limit.rlim_cur = limit.rlim_max;
            check(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit))?;
        }
        Ok(())
    }

    type Way = fn(&CStr, &[*const c_char]) -> Result<libc::pid_t>;

    fn start(count: &str, program: &str, argument: &str, way: Way) -> Result<()> {
        let invalid = |_| ErrorKind::InvalidInput;
        let count: usize = count.parse().map_err(|_| ErrorKind::InvalidInput)?;
        let program = CString::new(program).map_err(invalid)?;
        let argument = CString::new(argument).map_err(invalid)?;
        let argv = [program.as_ptr(), argument.as_ptr(), std::ptr::null()];
        let mut pids = Vec::with_capacity(count);
        let mut times = Vec::with_capacity(count);
        let mut result = Ok(());
        for _ in 0..count {
            let begun = Instant::now();
            match way(&program, &argv) {
                Ok(pid) => pids.push(pid),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
            times.push(begun.elapsed());
        }
        let begun = Instant::now();
        end(&pids);
        let killed = begun.elapsed();
        result?;
        let mut output = std::io::stdout().lock();
        for time in times {
            writeln!(output, "started {}", time.as_nanos())?;
        }
        writeln!(output, "killed {}", killed.as_nanos())
    }

    /// The pipe's writing end closes with `execve`. If there is something to read, that is why not.
    fn fork(program: &CStr, argv: &[*const c_char]) -> Result<libc::pid_t> {
        let (reader, writer) = pipe()?;
        // SAFETY: this process has one thread; the child only makes system calls.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: `argv` ends with a null pointer; `errno` is this thread's own.
            unsafe {
                libc::setsid();
                libc::execv(program.as_ptr(), argv.as_ptr());
                let errno = *libc::__errno_location();
                libc::write(writer.as_raw_fd(), (&raw const errno).cast(), size_of_val(&errno));
                libc::_exit(127)
            }
        }
        check(pid)?;
        drop(writer);
        let mut errno = 0;
        // SAFETY: the buffer is a local of that size.
        let count = unsafe {
            libc::read(reader.as_raw_fd(), (&raw mut errno).cast(), size_of::<libc::c_int>())
        };
        if count == 0 { Ok(pid) } else { Err(Error::from_raw_os_error(errno)) }
    }

    fn pipe() -> Result<(OwnedFd, OwnedFd)> {
        let mut fds = [-1; 2];
        // SAFETY: two integers are written, and are owned by nobody else.
        unsafe {
            check(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC))?;
            Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
        }
    }

    /// Returns when the program is executed: until then the child has the parent's memory.
    fn spawn(program: &CStr, argv: &[*const c_char]) -> Result<libc::pid_t> {
        unsafe extern "C" {
            static environ: *const *mut c_char;
        }
        let mut pid = 0;
        // SAFETY: the attributes are initialised before they are used; both arrays end with a null
        // pointer, and `posix_spawn` does not write to what they point to.
        let errno = unsafe {
            let mut attributes: libc::posix_spawnattr_t = std::mem::zeroed();
            libc::posix_spawnattr_init(&raw mut attributes);
            let flags = libc::POSIX_SPAWN_SETSID;
            libc::posix_spawnattr_setflags(&raw mut attributes, flags);
            let errno = libc::posix_spawn(
                &raw mut pid,
                program.as_ptr(),
                std::ptr::null(),
                &raw const attributes,
                argv.as_ptr().cast(),
                environ,
            );
            libc::posix_spawnattr_destroy(&raw mut attributes);
            errno
        };
        if errno == 0 { Ok(pid) } else { Err(Error::from_raw_os_error(errno)) }
    }

    #[expect(clippy::disallowed_methods, reason = "its own children, which it has not reaped yet")]
    fn end(pids: &[libc::pid_t]) {
        for pid in pids {
            // SAFETY: integers only.
            unsafe { libc::kill(*pid, libc::SIGKILL) };
        }
        for pid in pids {
            // SAFETY: null asks for no status.
            unsafe { libc::waitpid(*pid, std::ptr::null_mut(), 0) };
        }
    }

    fn watch() -> Result<()> {
        let mut line = String::new();
        stdin().read_line(&mut line)?;
        let pids = line.split_whitespace().map(|pid| pid.parse().unwrap_or(-1));
        let pidfds = pids.map(open).collect::<Result<Vec<OwnedFd>>>()?;
        let Some((victim, others)) = pidfds.split_first() else {
            return Err(ErrorKind::InvalidInput.into());
        };
        println!("watching");
        stdin().read_line(&mut line)?;
        let begun = Instant::now();
        signal(victim, libc::SIGKILL)?;
        for pidfd in others {
            await_end(pidfd)?;
        }
        println!("gone {}", begun.elapsed().as_nanos());
        Ok(())
    }

    fn open(pid: libc::pid_t) -> Result<OwnedFd> {
        // SAFETY: integers only; the new descriptor is owned by nobody else.
        unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
            let fd = check(libc::c_int::try_from(fd).unwrap_or(-1))?;
            Ok(OwnedFd::from_raw_fd(fd))
        }
    }

    fn signal(pidfd: &OwnedFd, signal: libc::c_int) -> Result<()> {
        let info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: null means what `kill` would send.
        let result = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, info, 0)
        };
        if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits for the end without using the processor, and then, which takes moments, for the reaping:
    /// a zombie still takes signals.
    fn await_end(pidfd: &OwnedFd) -> Result<()> {
        let mut fds = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, a local.
        check(unsafe { libc::poll(&raw mut fds, 1, -1) })?;
        loop {
            match signal(pidfd, 0) {
                Ok(()) => std::thread::sleep(Duration::from_micros(100)),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn check(result: libc::c_int) -> Result<libc::c_int> {
        if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
    }
}

#[cfg(target_os = "linux")]
fn main() -> std::io::Result<()> {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("bare_loop: there is no guardian here yet to measure it against");
}

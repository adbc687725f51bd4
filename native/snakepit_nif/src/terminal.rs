//! Terminals: those of programs, of which the BEAM has the other side, and the one that the BEAM itself runs in.
//!
//! Both are read and written as pipes are, see `pipe`. All calls here answer at once.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl, open};
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::stat::Mode;
use nix::sys::termios::{
    LocalFlags, SetArg, SpecialCharacterIndices, Termios, cfmakeraw, tcgetattr, tcsetattr,
};
use nix::unistd::{getpgrp, tcgetpgrp};
use rustler::{Binary, Env, NifMap, ResourceArc, Term};
use snakepit_core::Error;
use snakepit_core::terminal::Settings;

use crate::Answer;
use crate::channel::Channel;
use crate::pipe::{Before, PipeTerm, new, new_restored};
use crate::terms::Bytes;

// SAFETY of their calls: the argument points to a `Winsize`.
nix::ioctl_write_ptr_bad!(set_window_size, nix::libc::TIOCSWINSZ, Winsize);
nix::ioctl_read_bad!(get_window_size, nix::libc::TIOCGWINSZ, Winsize);

/// What a terminal is set to. All but the size may be changed by its program at any time.
#[derive(NifMap)]
struct Modes {
    rows: u16,
    cols: u16,
    /// Whether what is typed is shown.
    echo: bool,
    /// Whether programs get whole lines, which can be edited until then.
    canonical: bool,
    /// What ends input, at the start of a line. 0 for nothing.
    eof: u8,
    /// What interrupts. 0 for nothing.
    intr: u8,
}

fn window((rows, columns): (u16, u16)) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// What a new terminal is set to: what the kernel sets it to, but for what the caller wants.
fn initial_modes(slave: BorrowedFd, echo: bool, raw: bool) -> Result<(), Errno> {
    let mut modes = tcgetattr(slave)?;
    // An erased character is more than a byte.
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    modes.input_flags.insert(nix::sys::termios::InputFlags::IUTF8);
    if raw {
        cfmakeraw(&mut modes);
    }
    modes.local_flags.set(LocalFlags::ECHO, echo && !raw);
    tcsetattr(slave, SetArg::TCSANOW, &modes)
}

/// `Snakepit.Native.terminal_pass/4`: `openpty(3)`. Passes the program's side to the guardian, by this token, and
/// returns the other one. Never waits.
#[rustler::nif]
fn terminal_pass<'a>(
    env: Env<'a>,
    channel: ResourceArc<Channel>,
    token: Binary,
    size: (u16, u16),
    (echo, raw): (bool, bool),
) -> Answer<Term<'a>> {
    let made = || -> Result<OwnedFd, Errno> {
        let OpenptyResult { master, slave } = openpty(Some(&window(size)), None)?;
        for fd in [&master, &slave] {
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        }
        initial_modes(slave.as_fd(), echo, raw)?;
        fcntl(&master, FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK))?;
        channel.pass(&token, &[slave.as_raw_fd()])?;
        Ok(master)
    };
    Ok(new(env, made().map_err(Error::os("openpty"))?))
}

/// `Snakepit.Native.terminal_resize/2`: `ioctl(TIOCSWINSZ)`. The kernel sends SIGWINCH to those in front of it.
#[rustler::nif]
fn terminal_resize(terminal: PipeTerm, size: (u16, u16)) -> Answer<()> {
    let size = window(size);
    terminal.with_fd(|fd| {
        // SAFETY: the descriptor is open, and the structure is a local.
        unsafe { set_window_size(fd.as_raw_fd(), &raw const size) }.map_err(Error::os("ioctl"))
    })?;
    Ok(())
}

/// `Snakepit.Native.terminal_modes/1`: `ioctl(TIOCGWINSZ)` and `tcgetattr(3)`.
#[rustler::nif]
fn terminal_modes(terminal: PipeTerm) -> Answer<Modes> {
    let mut size = window((0, 0));
    let modes = terminal.with_fd(|fd| {
        // SAFETY: the descriptor is open, and the structure is a local.
        unsafe { get_window_size(fd.as_raw_fd(), &raw mut size) }.map_err(Error::os("ioctl"))?;
        tcgetattr(fd).map_err(Error::os("tcgetattr"))
    })?;
    Ok(Modes {
        rows: size.ws_row,
        cols: size.ws_col,
        echo: modes.local_flags.contains(LocalFlags::ECHO),
        canonical: modes.local_flags.contains(LocalFlags::ICANON),
        eof: character(&modes, SpecialCharacterIndices::VEOF),
        intr: character(&modes, SpecialCharacterIndices::VINTR),
    })
}

fn character(modes: &Termios, index: SpecialCharacterIndices) -> u8 {
    let character = modes.control_chars[index as usize];
    if character == nix::libc::_POSIX_VDISABLE { 0 } else { character }
}

/// `Snakepit.Native.terminal_open/2`: opens the terminal that this BEAM itself runs in, such as `/dev/tty`, in raw
/// mode. When it is closed it is as it was before; if this BEAM is killed, the guardian sees to that.
///
/// A process that is not in front must not do this: the kernel would stop it (SIGTTOU).
#[rustler::nif]
fn terminal_open(env: Env<'_>, path: Bytes, guard: ResourceArc<Channel>) -> Answer<Term<'_>> {
    let opened = || -> Result<(OwnedFd, Termios), Errno> {
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let path = Path::new(OsStr::from_bytes(&path.0));
        // An open file of its own: nobody else's is made non-blocking.
        let fd = open(path, flags, Mode::empty())?;
        if tcgetpgrp(&fd)? != getpgrp() {
            return Err(Errno::EPERM);
        }
        let before = tcgetattr(&fd)?;
        // Order: the guardian has it before it is raw.
        guard.pass(&Settings::of(&before).encode(), &[fd.as_raw_fd()])?;
        let mut modes = before.clone();
        cfmakeraw(&mut modes);
        tcsetattr(&fd, SetArg::TCSANOW, &modes)?;
        Ok((fd, before))
    };
    let (fd, modes) = opened().map_err(Error::os("terminal"))?;
    Ok(new_restored(env, fd, Before { modes, guard }))
}

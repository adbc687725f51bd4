//! Pipes to and from programs, read and written without waiting.
//!
//! They never wait: where there is nothing to read, or no room to write, the caller asks for a message (`enif_select`)
//! and gets on with something else.
//!
//! Rustler knows no resources with a *stop* callback, which is where the runtime allows a descriptor to be closed
//! that it may be watching. So this resource is made by hand.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{SetArg, Termios, tcsetattr};
use nix::unistd::{getpgrp, tcgetpgrp, write};
use rustler::sys::{
    ERL_NIF_SELECT_READ, ERL_NIF_SELECT_STOP, ERL_NIF_SELECT_WRITE, ErlNifEnv, ErlNifEvent,
    ErlNifMonitor, ErlNifPid, ErlNifResourceFlags, ErlNifResourceType, ErlNifResourceTypeInit,
    ErlNifSelectFlags, enif_alloc_resource, enif_get_resource, enif_make_resource,
    enif_monitor_process, enif_open_resource_type_x, enif_release_resource, enif_select,
};
use rustler::types::atom;
use rustler::{Atom, Binary, Encoder, Env, NewBinary, ResourceArc, Term};
use snakepit_core::Error;
use snakepit_core::wire::TERMINAL_DONE;

use crate::Answer;
use crate::channel::Channel;

rustler::atoms! { again, eof }

/// What one call reads at the most.
const MAX_READ: usize = 65_536;
/// What one call writes at the most: a pipe holds no more.
const MAX_WRITE: usize = 65_536;

/// The longest that one call waits for an answer.
const MAX_AWAIT_US: u64 = 100;

static TYPE: OnceLock<usize> = OnceLock::new();

/// The BEAM's end of a pipe.
struct Pipe {
    state: Mutex<State>,
}

struct State {
    /// `None` once it is closed, or about to be.
    fd: Option<OwnedFd>,
    /// Whether the runtime has ever watched it, and has to be told before it is closed.
    watched: bool,
    /// What a terminal is set to again before it is closed.
    before: Option<Before>,
}

/// What a terminal was set to, and the connection to the guardian, which sets it to that if this BEAM is killed.
pub struct Before {
    pub modes: Termios,
    pub guard: ResourceArc<Channel>,
}

impl Drop for State {
    fn drop(&mut self) {
        self.restore();
    }
}

impl State {
    /// Not if it is there no more, nor if a shell has taken the front: it has set its own modes, and the kernel would
    /// stop this process.
    fn restore(&mut self) {
        if let (Some(fd), Some(before)) = (&self.fd, self.before.take()) {
            if tcgetpgrp(fd) == Ok(getpgrp()) {
                let _ = tcsetattr(fd, SetArg::TCSANOW, &before.modes);
            }
            let _ = before.guard.say(&[TERMINAL_DONE]);
        }
    }
}

impl Pipe {
    // Held for system calls that never wait.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the descriptor, by way of the runtime if that may be watching it.
    ///
    /// # Safety
    ///
    /// `this` is the resource that contains `self`, and `env` the environment of the callback or NIF.
    unsafe fn close(&self, env: *mut ErlNifEnv, this: *const c_void) {
        let mut state = self.lock();
        state.restore();
        let Some(fd) = state.fd.take() else { return };
        if !state.watched {
            return;
        }
        drop(state);
        // From here on the stop callback owns it. It may be called before this returns.
        let raw = fd.into_raw_fd();
        let nobody = std::ptr::null();
        let undefined = atom::undefined().as_c_arg();
        // SAFETY: the descriptor is open, and was selected with this resource.
        unsafe { enif_select(env, raw, ERL_NIF_SELECT_STOP, this, nobody, undefined) };
    }
}

/// Called with the descriptor that nobody watches any more.
unsafe extern "C" fn stop(
    _env: *mut ErlNifEnv,
    _this: *mut c_void,
    fd: ErlNifEvent,
    _direct: c_int,
) {
    // SAFETY: `Pipe::close` gave it away for this.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}

/// The owner has died.
unsafe extern "C" fn down(
    env: *mut ErlNifEnv,
    this: *mut c_void,
    _pid: *const ErlNifPid,
    _monitor: *const ErlNifMonitor,
) {
    // SAFETY: the runtime calls this with a resource of this type, which `new` has initialised.
    unsafe { (*this.cast::<Pipe>()).close(env, this) };
}

unsafe extern "C" fn destructor(_env: *mut ErlNifEnv, this: *mut c_void) {
    // SAFETY: the last that is done with it. One that is watched is not destroyed: the runtime holds it.
    unsafe { std::ptr::drop_in_place(this.cast::<Pipe>()) };
}

/// Makes the resource type known. Called once, when the library is loaded.
pub fn load(env: Env) -> bool {
    let init = ErlNifResourceTypeInit {
        dtor: destructor as *const _,
        stop: stop as *const _,
        down: down as *const _,
        members: 3,
        dyncall: std::ptr::null(),
    };
    let mut tried = ErlNifResourceFlags::ERL_NIF_RT_CREATE;
    let flags = ErlNifResourceFlags::ERL_NIF_RT_CREATE;
    // SAFETY: the name ends with a NUL, and the runtime copies what `init` says.
    let made = unsafe {
        enif_open_resource_type_x(
            env.as_c_arg(),
            c"pipe".as_ptr(),
            &raw const init,
            flags,
            &raw mut tried,
        )
    };
    !made.is_null() && TYPE.set(made as usize).is_ok()
}

fn resource_type() -> *const ErlNifResourceType {
    TYPE.get().map_or(std::ptr::null(), |address| *address as *const ErlNifResourceType)
}

/// A term for this end of a pipe, which is closed when the calling process dies.
pub fn new(env: Env<'_>, fd: OwnedFd) -> Term<'_> {
    with_state(env, State { fd: Some(fd), watched: false, before: None })
}

/// As `new`, for a terminal that is to be as it was `before` when it is closed.
pub fn new_restored(env: Env<'_>, fd: OwnedFd, before: Before) -> Term<'_> {
    with_state(env, State { fd: Some(fd), watched: false, before: Some(before) })
}

fn with_state(env: Env<'_>, state: State) -> Term<'_> {
    // SAFETY: allocated for a `Pipe`, and initialised before anybody sees it.
    unsafe {
        let this = enif_alloc_resource(resource_type(), size_of::<Pipe>());
        this.cast::<Pipe>().write(Pipe { state: Mutex::new(state) });
        let owner = env.pid();
        let mut monitor = std::mem::MaybeUninit::uninit();
        enif_monitor_process(env.as_c_arg(), this, owner.as_c_arg(), monitor.as_mut_ptr());
        let term = Term::new(env, enif_make_resource(env.as_c_arg(), this));
        // The term holds it now.
        enif_release_resource(this);
        term
    }
}

/// An argument that is a pipe.
pub struct PipeTerm(*const c_void);

impl PipeTerm {
    /// Calls `fun` with the descriptor, which is open for as long as that takes.
    pub fn with_fd<T>(
        &self,
        fun: impl FnOnce(BorrowedFd<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        fun(borrow(&self.pipe().lock())?)
    }

    fn pipe(&self) -> &Pipe {
        // SAFETY: decoded from a term of this call, which keeps the resource alive.
        unsafe { &*self.0.cast::<Pipe>() }
    }

    /// `enif_select`: the calling process gets `{select, pipe, reference, ready_input | ready_output}`.
    fn watch(&self, env: Env, state: &mut State, mode: ErlNifSelectFlags, tag: Term) -> Answer<()> {
        let fd = state.fd.as_ref().ok_or(Errno::EBADF).map_err(Error::os("pipe"))?.as_raw_fd();
        state.watched = true;
        let caller = std::ptr::null();
        // SAFETY: the descriptor is open while the lock is held, and the resource is alive.
        let result =
            unsafe { enif_select(env.as_c_arg(), fd, mode, self.0, caller, tag.as_c_arg()) };
        if result < 0 {
            Err(Error::os("select")(Errno::EINVAL))?;
        }
        Ok(())
    }
}

impl<'a> rustler::Decoder<'a> for PipeTerm {
    fn decode(term: Term<'a>) -> rustler::NifResult<Self> {
        let mut this: *const c_void = std::ptr::null();
        // SAFETY: writes the address of a resource of this type, or returns 0.
        let found = unsafe {
            enif_get_resource(
                term.get_env().as_c_arg(),
                term.as_c_arg(),
                resource_type(),
                &raw mut this,
            )
        };
        if found == 0 { Err(rustler::Error::BadArg) } else { Ok(Self(this)) }
    }
}

fn borrow(state: &State) -> Result<BorrowedFd<'_>, Error> {
    state.fd.as_ref().map(AsFd::as_fd).ok_or(Errno::EBADF).map_err(Error::os("pipe"))
}

/// `Snakepit.Native.pipe_read/2`: what there is, `:eof`, or `:again`; then the caller gets a message when there
/// is more.
#[rustler::nif]
fn pipe_read<'a>(env: Env<'a>, pipe: PipeTerm, tag: Term<'a>) -> Answer<Term<'a>> {
    let mut state = pipe.pipe().lock();
    let mut buffer = [const { MaybeUninit::<u8>::uninit() }; MAX_READ];
    match read_into(borrow(&state)?, &mut buffer) {
        // Of a terminal that no program has open any more.
        Ok([]) | Err(Errno::EIO) => Ok(eof().encode(env)),
        Ok(read) => {
            let mut data = NewBinary::new(env, read.len());
            data.as_mut_slice().copy_from_slice(read);
            Ok(data.into())
        }
        Err(Errno::EAGAIN | Errno::EINTR) => {
            pipe.watch(env, &mut state, ERL_NIF_SELECT_READ, tag)?;
            Ok(again().encode(env))
        }
        Err(errno) => Err(Error::os("pipe read")(errno))?,
    }
}

/// `read(2)`. To write zeros first takes longer than to read a short answer.
fn read_into<'b>(fd: BorrowedFd, buffer: &'b mut [MaybeUninit<u8>]) -> Result<&'b [u8], Errno> {
    // SAFETY: the kernel writes at most as much as there is room for.
    let length = unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
    let length = usize::try_from(Errno::result(length)?).unwrap_or_default();
    // SAFETY: so many bytes were written.
    Ok(unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast(), length) })
}

/// `Snakepit.Native.pipe_await/2`: whether there is something to read within so many microseconds. Keeps its
/// scheduler busy meanwhile, as a scheduler does anyway that has nothing to do for a moment.
#[rustler::nif]
fn pipe_await(pipe: PipeTerm, microseconds: u64) -> Answer<bool> {
    let deadline = Instant::now() + Duration::from_micros(microseconds.min(MAX_AWAIT_US));
    let readable = pipe.with_fd(|fd| {
        let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
        loop {
            let found = poll(&mut fds, PollTimeout::ZERO).map_err(Error::os("poll"))?;
            if found > 0 || Instant::now() >= deadline {
                return Ok(found > 0);
            }
        }
    })?;
    Ok(readable)
}

/// `Snakepit.Native.pipe_write/3`: how many bytes were written, or `:again`; then the caller gets a message when
/// there is room.
#[rustler::nif]
fn pipe_write<'a>(env: Env<'a>, pipe: PipeTerm, data: Binary, tag: Term<'a>) -> Answer<Term<'a>> {
    let mut state = pipe.pipe().lock();
    let data = &data[..data.len().min(MAX_WRITE)];
    match write(borrow(&state)?, data) {
        Ok(length) => Ok((length as u64).encode(env)),
        Err(Errno::EAGAIN | Errno::EINTR) => {
            pipe.watch(env, &mut state, ERL_NIF_SELECT_WRITE, tag)?;
            Ok(again().encode(env))
        }
        // Of a terminal that no program has open any more.
        Err(Errno::EIO) => Err(Error::os("pipe write")(Errno::EPIPE))?,
        Err(errno) => Err(Error::os("pipe write")(errno))?,
    }
}

/// `Snakepit.Native.pipe_close/1`. Closing a pipe does not wait.
#[rustler::nif]
fn pipe_close(env: Env, pipe: PipeTerm) -> Atom {
    // SAFETY: the resource of this argument, and the environment of this call.
    unsafe { pipe.pipe().close(env.as_c_arg(), pipe.0) };
    atom::ok()
}

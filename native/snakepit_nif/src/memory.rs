//! Memory files as resources: one that was made is open until nobody needs it, one that was mapped is a binary.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use rustler::types::atom;
use rustler::{Atom, Encoder, Env, ResourceArc, Term};
use snakepit_core::memory_file::{self, Mapping};
use snakepit_core::msgpack::Memory;

use crate::terms::errno_of;

/// A memory file that another process is to map.
pub struct MemoryFile(Mutex<Option<OwnedFd>>);

#[rustler::resource_impl]
impl rustler::Resource for MemoryFile {}

/// What another process has made. It is unmapped when no binary refers to it any more.
pub struct Mapped(Mapping);

#[rustler::resource_impl]
impl rustler::Resource for Mapped {}

/// A file with these bytes: how others find it, and the resource that keeps it open.
pub fn create<'a>(env: Env<'a>, bytes: &[u8]) -> Result<(Memory, Term<'a>), Atom> {
    let fd = memory_file::create(bytes).map_err(|error| errno_of(env, &error))?;
    let memory = memory_file::describe(&fd, bytes.len());
    Ok((memory, ResourceArc::new(MemoryFile(Mutex::new(Some(fd)))).encode(env)))
}

/// A binary that is the bytes of that file.
pub fn map(env: Env<'_>, memory: Memory) -> Result<Term<'_>, Atom> {
    let mapping = Mapping::open(memory).map_err(|error| errno_of(env, &error))?;
    let mapped = ResourceArc::new(Mapped(mapping));
    Ok(mapped.make_binary(env, |mapped| mapped.0.as_slice()).to_term(env))
}

/// `Snakepit.Native.memory_close/1`. Who has mapped them has them still.
#[rustler::nif]
fn memory_close(files: Vec<ResourceArc<MemoryFile>>) -> Atom {
    for file in files {
        file.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
    atom::ok()
}

//! What a child is to do, laid out so that it needs no memory of its own to read it.
//!
//! The child reads the image through its gate, or maps it if it is large, turns offsets into pointers
//! in place, and passes those to the kernel. A child that was forked long ago thus learns what to run
//! without parsing and without allocating.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use snakepit_core::error::errno;
use snakepit_core::marker;
use snakepit_core::wire::{Spawn, Stdio};

/// Where programs are looked for when the environment has no `PATH`.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

/// At the start of the image. Offsets count from there; 0 is "none". Words only, so that there is nothing
/// between them: padding has no value that could be sent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Header {
    /// Pointers to the arguments, with a null at the end.
    pub arguments: usize,
    /// Pointers to the environment, with a null at the end.
    pub environment: usize,
    /// Pointers to the paths to try in turn, with a null at the end.
    pub programs: usize,
    /// Text.
    pub directory: usize,
    /// Text for `/proc/self/oom_score_adj`.
    pub oom_score_adj: usize,
    /// `gid_t` values.
    pub groups: usize,
    pub group_count: usize,
    /// Triples of resource, soft and hard limit.
    pub limits: usize,
    pub limit_count: usize,
    umask: Number,
    uid: Number,
    gid: Number,
    nice: Number,
    has_lifeline: usize,
    has_terminal: usize,
}

/// How many words a header has: nine of its own, four numbers of two, and two that are 0 or 1.
const HEADER_WORDS: usize = 9 + 4 * 2 + 2;
const _: () = assert!(size_of::<Header>() == HEADER_WORDS * size_of::<usize>());

/// 32 bits, or none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Number {
    is_given: usize,
    bits: usize,
}

impl Number {
    fn new(value: Option<u32>) -> Self {
        let bits = value.and_then(|value| usize::try_from(value).ok());
        Self { is_given: bits.is_some().into(), bits: bits.unwrap_or_default() }
    }

    // Async-signal-safe, as all of what follows.
    #[allow(clippy::cast_possible_truncation, reason = "made from 32 bits")]
    fn get(self) -> Option<u32> {
        if self.is_given == 0 { None } else { Some(self.bits as u32) }
    }
}

impl Header {
    pub fn umask(&self) -> Option<u32> {
        self.umask.get()
    }

    pub fn uid(&self) -> Option<u32> {
        self.uid.get()
    }

    pub fn gid(&self) -> Option<u32> {
        self.gid.get()
    }

    pub fn nice(&self) -> Option<i32> {
        self.nice.get().map(|bits| i32::from_ne_bytes(bits.to_ne_bytes()))
    }

    pub fn has_lifeline(&self) -> bool {
        self.has_lifeline != 0
    }

    pub fn has_terminal(&self) -> bool {
        self.has_terminal != 0
    }

    fn as_bytes(&self) -> &[u8] {
        // SAFETY: words behind words without padding, all of them set; and they live as long as the slice.
        unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(self).cast::<u8>(), size_of::<Self>())
        }
    }
}

/// A resource limit, as the child sets it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub resource: u64,
    pub soft: u64,
    pub hard: u64,
}

/// Returns the guardian's own environment, which is the BEAM's at its start and does not change.
pub fn own_environment() -> Vec<Vec<u8>> {
    std::env::vars_os()
        .map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'='))
        .collect()
}

/// Returns the environment of a child: the guardian's own or nothing, less what is unset, plus what is set, and
/// which child it is.
fn environment<'a>(spawn: &'a Spawn, own: &'a [Vec<u8>], marker: &'a [u8]) -> Vec<&'a [u8]> {
    // A few names, so going through them is quicker than any index.
    let is_changed = |pair: &[u8]| {
        let name = name_of(pair);
        name == marker::CHILD.as_bytes()
            || spawn.set.iter().any(|pair| name_of(pair) == name)
            || spawn.unset.iter().any(|unset| unset.as_slice() == name)
    };
    let inherited = if spawn.inherit { own } else { &[] };
    let kept = inherited.iter().map(Vec::as_slice).filter(|pair| !is_changed(pair));
    let set = spawn.set.iter().map(|pair| pair.as_slice());
    let set = set.filter(|pair| name_of(pair) != marker::CHILD.as_bytes());
    kept.chain(set).chain([marker]).collect()
}

fn name_of(pair: &[u8]) -> &[u8] {
    pair.split(|byte| *byte == b'=').next().unwrap_or(pair)
}

/// Returns the paths that `execve` is tried with: the program itself if it has a slash, otherwise each
/// directory of the child's own `PATH`, an empty one being the working directory, as in a shell.
fn programs(program: &[u8], environment: &[&[u8]]) -> Vec<Vec<u8>> {
    if program.contains(&b'/') {
        return vec![program.to_vec()];
    }
    let path = environment.iter().find_map(|pair| pair.strip_prefix(b"PATH="));
    path.unwrap_or(DEFAULT_PATH)
        .split(|byte| *byte == b':')
        .map(|directory| if directory.is_empty() { b"." } else { directory })
        .map(|directory| [directory, program].join(&b'/'))
        .collect()
}

/// Returns the image of `spawn`; `own` is [`own_environment`]. With `as_file` it goes into a file, whatever its
/// size: many that wait for their release would take memory that is not given back.
///
/// # Errors
///
/// `EINVAL` for an empty command or a NUL byte in an argument; what the kernel says otherwise.
pub fn build(spawn: &Spawn, own: &[Vec<u8>], as_file: bool) -> Result<Image, Errno> {
    let program = spawn.arguments.first().filter(|program| !program.is_empty());
    let marker = format!("{}={}", marker::CHILD, spawn.id);
    let environment = environment(spawn, own, marker.as_bytes());
    let programs = programs(program.ok_or(Errno::EINVAL)?, &environment);
    let mut layout = Layout::new();
    let name = spawn.arg0.as_ref().or(spawn.arguments.first()).into_iter();
    let arguments = name.chain(spawn.arguments.iter().skip(1)).map(|item| item.as_slice());
    let mut header = Header {
        arguments: layout.pointers(arguments)?,
        environment: layout.pointers(environment.iter().copied())?,
        programs: layout.pointers(programs.iter().map(Vec::as_slice))?,
        umask: Number::new(spawn.umask),
        uid: Number::new(spawn.uid),
        gid: Number::new(spawn.gid),
        nice: Number::new(spawn.nice.map(|nice| u32::from_ne_bytes(nice.to_ne_bytes()))),
        has_lifeline: spawn.lifeline.is_some().into(),
        has_terminal: matches!(spawn.stdio, Stdio::Terminal(_)).into(),
        ..Header::default()
    };
    if let Some(directory) = &spawn.directory {
        header.directory = layout.text(directory)?;
    }
    if let Some(score) = spawn.oom_score_adj {
        header.oom_score_adj = layout.text(score.to_string().as_bytes())?;
    }
    if let Some(groups) = &spawn.groups {
        header.groups = layout.bytes(groups.iter().flat_map(|gid| gid.to_ne_bytes()));
        header.group_count = groups.len();
    }
    let limits =
        spawn.limits.iter().flat_map(|(resource, soft, hard)| [u64::from(*resource), *soft, *hard]);
    header.limits = layout.words(limits);
    header.limit_count = spawn.limits.len();
    layout.finish(&header, as_file)
}

/// An image, on its way to a child.
pub enum Image {
    /// Fits into what a socket holds without anybody waiting for its reader.
    Small(Vec<u8>),
    /// A memory file, and its length.
    Large(OwnedFd, usize),
}

/// The most that goes through the gate itself: far less than the kernel's default for sockets.
const MAX_SMALL: usize = super::gate::ROOM;

impl Image {
    pub fn length(&self) -> usize {
        match self {
            Self::Small(bytes) => bytes.len(),
            Self::Large(_, length) => *length,
        }
    }
}

/// The whole image, with room for the header at its start.
struct Layout {
    bytes: Vec<u8>,
}

impl Layout {
    fn new() -> Self {
        let mut bytes = Vec::with_capacity(8192);
        bytes.resize(size_of::<Header>(), 0);
        Self { bytes }
    }

    fn offset(&self) -> usize {
        self.bytes.len()
    }

    fn text(&mut self, text: &[u8]) -> Result<usize, Errno> {
        if text.contains(&0) {
            return Err(Errno::EINVAL);
        }
        let offset = self.offset();
        self.bytes.extend_from_slice(text);
        self.bytes.push(0);
        Ok(offset)
    }

    fn words(&mut self, words: impl Iterator<Item = u64>) -> usize {
        self.bytes(words.flat_map(u64::to_ne_bytes))
    }

    /// Aligned for any integer.
    fn bytes(&mut self, bytes: impl Iterator<Item = u8>) -> usize {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let offset = self.offset();
        self.bytes.extend(bytes);
        offset
    }

    fn pointers<'a>(&mut self, items: impl Iterator<Item = &'a [u8]>) -> Result<usize, Errno> {
        let offsets: Vec<u64> = items
            .map(|item| self.text(item).map(|offset| offset as u64))
            .collect::<Result<_, _>>()?;
        Ok(self.words(offsets.into_iter().chain([0])))
    }

    fn finish(mut self, header: &Header, as_file: bool) -> Result<Image, Errno> {
        let head = header.as_bytes();
        self.bytes[..head.len()].copy_from_slice(head);
        if self.bytes.len() <= MAX_SMALL && !as_file {
            return Ok(Image::Small(self.bytes));
        }
        let mut file = File::from(memfd_create(c"snakepit", MFdFlags::MFD_CLOEXEC)?);
        file.write_all(&self.bytes).map_err(|error| errno(&error))?;
        Ok(Image::Large(file.into(), self.bytes.len()))
    }
}

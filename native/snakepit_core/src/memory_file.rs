//! `memfd_create(2)`: bytes that another process maps instead of being sent them.
//!
//! A file is sealed before anybody is told of it, so that nobody can change or shorten it under those who have mapped
//! it: without the seals a mapping could change, or end its reader with SIGBUS. It has no name, and is gone with the
//! last descriptor and mapping, however those processes end.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::Mode;

use crate::Error;
use crate::msgpack::Memory;

const SEALS: [SealFlag; 4] =
    [SealFlag::F_SEAL_SEAL, SealFlag::F_SEAL_SHRINK, SealFlag::F_SEAL_GROW, SealFlag::F_SEAL_WRITE];

fn seals() -> SealFlag {
    SEALS.into_iter().collect()
}

/// A sealed file with these bytes.
///
/// # Errors
///
/// What the kernel says, for example `ENOMEM`.
pub fn create(bytes: &[u8]) -> Result<OwnedFd, Error> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create(c"snakepit", flags).map_err(Error::os("memfd_create"))?;
    let mut file = File::from(fd);
    file.write_all(bytes).map_err(|error| Error::io("write", &error))?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals())).map_err(Error::os("seal"))?;
    Ok(file.into())
}

/// How another process finds a file that this one has made.
pub fn describe(fd: &OwnedFd, length: usize) -> Memory {
    Memory {
        pid: std::process::id(),
        fd: u32::try_from(fd.as_raw_fd()).unwrap_or_default(),
        length: length as u64,
    }
}

/// The bytes of a memory file, for as long as this is there.
#[derive(Debug)]
pub struct Mapping {
    address: NonNull<libc::c_void>,
    length: usize,
}

// SAFETY: nobody writes to what is mapped: the file is sealed.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the file that another process has made, whose descriptor has to be open still.
    ///
    /// # Errors
    ///
    /// `EINVAL` for what is not a sealed memory file of that length, otherwise what the kernel says.
    pub fn open(memory: Memory) -> Result<Self, Error> {
        let path = format!("/proc/{}/fd/{}", memory.pid, memory.fd);
        // Whatever else it may be, opening it does not wait.
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let fd = open(path.as_str(), flags, Mode::empty()).map_err(Error::os("memory file"))?;
        Self::map(&fd, memory.length).map_err(Error::os("memory file"))
    }

    fn map(fd: &OwnedFd, length: u64) -> Result<Self, Errno> {
        let found = fcntl(fd, FcntlArg::F_GET_SEALS)?;
        let size = nix::sys::stat::fstat(fd)?.st_size;
        if !SealFlag::from_bits_truncate(found).contains(seals())
            || u64::try_from(size) != Ok(length)
        {
            return Err(Errno::EINVAL);
        }
        let length = usize::try_from(length).map_err(|_| Errno::ENOMEM)?;
        if length == 0 {
            return Ok(Self { address: NonNull::dangling(), length });
        }
        let protection = libc::PROT_READ;
        // SAFETY: a new mapping, at an address that the kernel chooses. The seals keep the file as it is.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let address = NonNull::new(address).ok_or(Errno::EINVAL)?;
        Ok(Self { address, length })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped for as long as `self` is there, and never written.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr().cast(), self.length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.length > 0 {
            // SAFETY: the mapping of this, which nobody uses any more.
            unsafe { libc::munmap(self.address.as_ptr(), self.length) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_outlives_its_descriptor() {
        let fd = create(b"some bytes").unwrap();
        let mapping = Mapping::open(describe(&fd, 10)).unwrap();
        drop(fd);
        assert_eq!(mapping.as_slice(), b"some bytes");
    }

    #[test]
    fn a_file_of_another_length_is_refused() {
        let fd = create(b"some bytes").unwrap();
        assert!(Mapping::open(describe(&fd, 11)).is_err());
    }

    #[test]
    fn nothing_is_mapped_that_somebody_may_change() {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let fd = memfd_create(c"open", flags).unwrap();
        assert!(Mapping::open(describe(&fd, 0)).is_err());
        let file = OwnedFd::from(File::open("/proc/self/exe").unwrap());
        assert!(Mapping::open(describe(&file, 0)).is_err());
    }

    #[test]
    fn an_empty_file_is_no_bytes() {
        let fd = create(b"").unwrap();
        assert_eq!(Mapping::open(describe(&fd, 0)).unwrap().as_slice(), b"");
    }
}

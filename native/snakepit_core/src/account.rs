//! Users and groups by name.
//!
//! The account database may be on the network and take its time, so the guardian, which must never
//! wait, is told numbers.

use std::ffi::CString;

use nix::errno::Errno;
use nix::unistd::{self, Group, User};

use crate::Error;

/// What a process of a user needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The user.
    pub uid: u32,
    /// Its main group.
    pub gid: u32,
    /// All its groups.
    pub groups: Vec<u32>,
}

/// The account of this name.
///
/// # Errors
///
/// [`Error::Os`] with `ENOENT` if there is none.
pub fn user(name: &str) -> Result<Account, Error> {
    let call = "getpwnam";
    let text = CString::new(name).map_err(|_| Error::Os { call, errno: Errno::EINVAL })?;
    let user = User::from_name(name).map_err(Error::os(call))?;
    let user = user.ok_or(Error::Os { call, errno: Errno::ENOENT })?;
    Ok(Account { uid: user.uid.as_raw(), gid: user.gid.as_raw(), groups: groups(&text, user.gid)? })
}

/// The number of the group of this name.
///
/// # Errors
///
/// [`Error::Os`] with `ENOENT` if there is none.
pub fn group(name: &str) -> Result<u32, Error> {
    let call = "getgrnam";
    let group = Group::from_name(name).map_err(Error::os(call))?;
    group.map(|group| group.gid.as_raw()).ok_or(Error::Os { call, errno: Errno::ENOENT })
}

#[cfg(not(target_os = "macos"))]
fn groups(name: &CString, gid: unistd::Gid) -> Result<Vec<u32>, Error> {
    let groups = unistd::getgrouplist(name, gid).map_err(Error::os("getgrouplist"))?;
    Ok(groups.into_iter().map(unistd::Gid::as_raw).collect())
}

/// macOS has no portable call for the whole list; the main group it is.
#[cfg(target_os = "macos")]
fn groups(_name: &CString, gid: unistd::Gid) -> Result<Vec<u32>, Error> {
    Ok(vec![gid.as_raw()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_and_nobody_made_up_is() {
        let root = user("root").unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0));
        for name in ["no-such-account", "", "a\0b"] {
            assert!(user(name).is_err(), "{name:?}");
            assert!(group(name).is_err(), "{name:?}");
        }
    }
}

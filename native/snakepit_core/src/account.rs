//! Users and groups, by name and by number.
//!
//! The account database may be on the network and slow, so the guardian, which must never wait, gets
//! numbers.

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

/// `getpwnam_r(3)` and `getgrouplist(3)`: the account of this name.
///
/// # Errors
///
/// [`Error::Os`] with `ENOENT` if there is none.
pub fn user(name: &str) -> Result<Account, Error> {
    let call = "getpwnam";
    let user = User::from_name(name).map_err(Error::os(call))?;
    account(user.ok_or(Error::Os { call, errno: Errno::ENOENT })?)
}

/// `getpwuid_r(3)`: the account of this number; for a number without one, the group of the same number and no
/// other, so that no process keeps the groups of the user that started it. `None` for the user that this
/// process is and must stay: there is nothing to change.
///
/// # Errors
///
/// [`Error::Os`].
pub fn numbered(uid: u32) -> Result<Option<Account>, Error> {
    let own = unistd::geteuid();
    if own.as_raw() == uid && !own.is_root() {
        return Ok(None);
    }
    match User::from_uid(unistd::Uid::from_raw(uid)).map_err(Error::os("getpwuid"))? {
        Some(user) => account(user).map(Some),
        None => Ok(Some(Account { uid, gid: uid, groups: Vec::new() })),
    }
}

fn account(user: User) -> Result<Account, Error> {
    let invalid = |_| Error::Os { call: "getgrouplist", errno: Errno::EINVAL };
    let name = CString::new(user.name).map_err(invalid)?;
    Ok(Account { uid: user.uid.as_raw(), gid: user.gid.as_raw(), groups: groups(&name, user.gid)? })
}

/// `getgrnam_r(3)`: the number of the group of this name.
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
    fn a_number_brings_the_groups_of_its_account_or_its_own() {
        let unused = 3_999_999_999;
        let account = Account { uid: unused, gid: unused, groups: Vec::new() };
        assert_eq!(numbered(unused).unwrap(), Some(account));
        let root = if unistd::geteuid().is_root() { Some(user("root").unwrap()) } else { None };
        assert_eq!(numbered(unistd::geteuid().as_raw()).unwrap(), root);
    }

    #[test]
    fn root_is_known_and_a_made_up_name_is_not() {
        let root = user("root").unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0));
        for name in ["no-such-account", "", "a\0b"] {
            assert!(user(name).is_err(), "{name:?}");
            assert!(group(name).is_err(), "{name:?}");
        }
    }
}

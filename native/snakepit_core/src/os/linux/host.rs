//! Which boot and which pid namespace this is.

use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// `/proc/sys/kernel/random/boot_id`, all zeroes where it cannot be read.
///
/// Zeroes compare equal only to zeroes, so a machine without the file loses the distinction
/// between boots and nothing else.
pub(crate) fn boot_id() -> [u8; 16] {
    static BOOT_ID: OnceLock<[u8; 16]> = OnceLock::new();
    *BOOT_ID.get_or_init(|| {
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .ok()
            .and_then(|text| parse_uuid(text.trim()))
            .unwrap_or_default()
    })
}

/// The inode of this process's pid namespace. The boot id does not differ between containers;
/// this does.
pub(crate) fn pid_namespace() -> u64 {
    static PID_NAMESPACE: OnceLock<u64> = OnceLock::new();
    *PID_NAMESPACE
        .get_or_init(|| std::fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino()))
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32).map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_sixteen_bytes_and_nothing_else_is_one() {
        let bytes = parse_uuid("00112233-4455-6677-8899-aabbccddeeff").unwrap();
        assert_eq!(bytes[..3], [0x00, 0x11, 0x22]);
        assert_eq!(bytes[15], 0xff);
        for text in ["", "0011", "00112233-4455-6677-8899-aabbccddeefg", "+0112233-4455-6677-8899"]
        {
            assert_eq!(parse_uuid(text), None, "{text:?}");
        }
    }

    #[test]
    fn this_machine_has_a_boot_and_a_namespace() {
        assert_ne!(boot_id(), [0; 16]);
        assert_ne!(pid_namespace(), 0);
    }
}

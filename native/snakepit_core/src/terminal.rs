//! What a person's terminal is set to, for the guardian to set it to that again when the BEAM cannot.

use nix::sys::termios::{ControlFlags, InputFlags, LocalFlags, OutputFlags, Termios, cfmakeraw};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// How many control characters the kernel knows. The C library has room for more, and musl leaves there what was in
/// memory before.
const CHARACTERS: usize = 19;

/// All that raw mode changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    input: u64,
    output: u64,
    control: u64,
    local: u64,
    characters: ByteBuf,
}

impl Settings {
    /// Returns those of a terminal.
    pub fn of(modes: &Termios) -> Self {
        Self {
            input: widen(modes.input_flags.bits()),
            output: widen(modes.output_flags.bits()),
            control: widen(modes.control_flags.bits()),
            local: widen(modes.local_flags.bits()),
            characters: ByteBuf::from(&modes.control_chars[..CHARACTERS]),
        }
    }

    /// Returns whether a terminal that had these settings is in raw mode, and nobody has changed it since.
    pub fn became_raw(&self, modes: &Termios) -> bool {
        let mut raw = modes.clone();
        self.apply(&mut raw);
        cfmakeraw(&mut raw);
        Self::of(&raw) == Self::of(modes)
    }

    /// Writes these settings over others.
    pub fn apply(&self, modes: &mut Termios) {
        modes.input_flags = InputFlags::from_bits_retain(narrow(self.input));
        modes.output_flags = OutputFlags::from_bits_retain(narrow(self.output));
        modes.control_flags = ControlFlags::from_bits_retain(narrow(self.control));
        modes.local_flags = LocalFlags::from_bits_retain(narrow(self.local));
        for (own, saved) in modes.control_chars.iter_mut().zip(self.characters.iter()) {
            *own = *saved;
        }
    }

    /// Returns them as bytes.
    pub fn encode(&self) -> Vec<u8> {
        rmp_serde::to_vec(self).unwrap_or_default()
    }

    /// Reads what [`Settings::encode`] has written.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        rmp_serde::from_slice(bytes).ok()
    }
}

/// The width of flags differs from system to system.
fn widen(flags: libc::tcflag_t) -> u64 {
    u64::from(flags)
}

fn narrow(flags: u64) -> libc::tcflag_t {
    libc::tcflag_t::try_from(flags).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use nix::pty::openpty;
    use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, tcgetattr, tcsetattr};

    use super::*;

    #[test]
    fn a_terminal_is_as_it_was() {
        let pty = openpty(None, None).unwrap();
        let mut before = tcgetattr(&pty.slave).unwrap();
        before.local_flags.remove(LocalFlags::ECHOE);
        before.control_chars[SpecialCharacterIndices::VINTR as usize] = 7;
        tcsetattr(&pty.slave, SetArg::TCSANOW, &before).unwrap();
        let saved = Settings::decode(&Settings::of(&before).encode()).unwrap();
        assert!(!saved.became_raw(&before));

        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(&pty.slave, SetArg::TCSANOW, &raw).unwrap();
        let mut now = tcgetattr(&pty.slave).unwrap();
        assert!(saved.became_raw(&now));

        saved.apply(&mut now);
        tcsetattr(&pty.slave, SetArg::TCSANOW, &now).unwrap();
        let after = tcgetattr(&pty.slave).unwrap();
        assert_eq!(Settings::of(&after), Settings::of(&before));

        // What musl leaves behind the last character.
        let mut dirty = after;
        dirty.control_chars[CHARACTERS] = 7;
        assert_eq!(Settings::of(&dirty), Settings::of(&before));

        // A shell that has taken over sets what it needs.
        let mut another = raw;
        another.local_flags.insert(LocalFlags::ISIG);
        assert!(!saved.became_raw(&another));
        assert_eq!(Settings::decode(b"nonsense"), None);
    }
}

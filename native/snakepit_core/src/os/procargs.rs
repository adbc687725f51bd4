//! What `sysctl(KERN_PROCARGS2)` of macOS returns, taken apart. Kept by itself, with nothing of
//! macOS in it, so that its tests run everywhere.

/// The strings a program was started with, each with a NUL at its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProcArgs<'a> {
    pub(super) arguments: &'a [u8],
    /// Empty when the kernel withheld it: behind a readable environment, even one without
    /// variables, there are strings of the system's own.
    pub(super) environment: &'a [u8],
}

impl<'a> ProcArgs<'a> {
    /// `argc`, the program's path, NULs up to the next word, `argc` arguments, the environment.
    ///
    /// `None` for anything shorter. An empty `argv[0]` cannot be told from the NULs before it; the
    /// first variable then counts as the last argument.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (argc, strings) = bytes.split_first_chunk::<4>()?;
        let argc = usize::try_from(i32::from_ne_bytes(*argc)).ok()?;
        let path = strings.iter().position(|byte| *byte == 0)?;
        let (_, strings) = strings.split_at(path);
        let padding = strings.iter().take_while(|byte| **byte == 0).count();
        let (_, strings) = strings.split_at(padding);
        let mut ends = strings.iter().enumerate().filter(|(_, byte)| **byte == 0);
        let length = match argc.checked_sub(1) {
            Some(last) => ends.nth(last)?.0 + 1,
            None => 0,
        };
        let (arguments, environment) = strings.split_at(length);
        Some(Self { arguments, environment })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        /// Arguments and environment, one behind the other, are the end of what was given, and there
        /// are as many arguments as it says.
        #[test]
        fn any_bytes_are_refused_or_divided(argc in -1..5i32, strings in vec(0..3u8, 0..40)) {
            let bytes = bytes(argc, &strings);
            if let Some(parsed) = ProcArgs::parse(&bytes) {
                prop_assert!(bytes.ends_with(&[parsed.arguments, parsed.environment].concat()));
                let pieces: Vec<_> = parsed.arguments.split(|byte| *byte == 0).collect();
                prop_assert_eq!(i32::try_from(pieces.len() - 1), Ok(argc));
                prop_assert_eq!(pieces.last().copied(), Some(&b""[..]), "each with its NUL");
            }
        }
    }

    fn bytes(argc: i32, strings: &[u8]) -> Vec<u8> {
        [&argc.to_ne_bytes(), strings].concat()
    }

    #[test]
    fn arguments_end_after_argc_strings_and_the_environment_follows() {
        let bytes = bytes(3, b"/bin/sleep\0\0\0\0\0\0sleep\0\0 60 \0A=1\0\0B=\0");
        let parsed = ProcArgs::parse(&bytes).unwrap();
        assert_eq!(parsed.arguments, b"sleep\0\0 60 \0");
        assert_eq!(parsed.environment, b"A=1\0\0B=\0");
    }

    #[test]
    fn an_environment_that_was_withheld_is_empty() {
        let parsed =
            ProcArgs::parse(&bytes(1, b"/bin/sh\0sh\0")).map(|parsed| parsed.environment.len());
        assert_eq!(parsed, Some(0));
    }

    #[test]
    fn a_program_may_have_no_arguments_at_all() {
        let bytes = bytes(0, b"/bin/sh\0\0\0A=1\0");
        let parsed = ProcArgs::parse(&bytes).unwrap();
        assert_eq!((parsed.arguments, parsed.environment), (&b""[..], &b"A=1\0"[..]));
    }

    #[test]
    fn what_is_cut_or_senseless_is_refused() {
        let whole = bytes(2, b"/bin/sleep\0\0sleep\0 60 \0");
        for length in 0..whole.len() {
            assert_eq!(ProcArgs::parse(&whole[..length]), None, "{length}");
        }
        for argc in [-1, i32::MIN, 3, i32::MAX] {
            assert_eq!(ProcArgs::parse(&bytes(argc, b"/x\0a\0b\0")), None, "{argc}");
        }
    }
}

//! A term with a checksum in front, as `Snakepit.Ledger.Seal` writes it.

use crate::external_term::Term;

/// Of SHA-256, the first bytes.
const DIGEST: usize = 8;

/// Returns the term, if it is what was sealed.
pub fn open(sealed: &[u8]) -> Option<Term> {
    let (digest, content) = sealed.split_at_checked(DIGEST)?;
    let whole = hmac_sha256::Hash::hash(content);
    if whole[..DIGEST] == *digest { Term::decode(content) } else { None }
}

//! API keys, of which the server knows the SHA-256 alone.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;

use sha2::{Digest, Sha256};
use trifuse::read::read_file;
use trifuse::{Error, Result};

use crate::queueing::queues::Tenant;
use crate::queueing::rate::Rates;

/// The most bytes of a file of keys.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// One key of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Who has it.
    pub name: String,
    /// The SHA-256 of the key.
    pub digest: [u8; 32],
    /// Whether it may change what is served.
    pub admin: bool,
    /// The share of the device against that of other keys.
    pub share: u32,
    /// What it may ask for a second.
    pub rates: Rates,
}

/// Who may ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    keys: Vec<Key>,
    /// The number of each name, also of those whose key is gone: what they left behind is nobody else's.
    numbers: BTreeMap<String, u32>,
}

impl Keys {
    /// Reads a file of lines `NAME:SHA256`, which `:admin`, `:share=N`, `:requests=N` and `:tokens=N`, both a second, may follow. Lines that begin with # say nothing.
    ///
    /// # Errors
    /// A file that cannot be read, or that has no key; a line that is none.
    pub fn open(path: &Path) -> Result<Self> {
        let text = String::from_utf8(read_file(path, MAX_FILE_BYTES)?).map_err(|_| Error::input(path, "expected text in UTF-8, found other bytes"))?;
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim())).filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let fault = |at: usize, problem: String| Error::input_item(path, format!("line {at}"), problem);
        let mut keys: Vec<Key> = Vec::new();
        for (at, line) in lines {
            let key = key(line).map_err(|problem| fault(at, problem))?;
            if keys.iter().any(|other| other.name == key.name || other.digest == key.digest) {
                return Err(fault(at, format!("expected a name and a key of its own, found {:?} twice", key.name)));
            }
            keys.push(key);
        }
        if keys.is_empty() {
            return Err(Error::input(path, "expected at least one line NAME:SHA256, found none: nobody could ask"));
        }
        let numbers = keys.iter().map(|key| key.name.clone()).zip(1..).collect();
        Ok(Self { keys, numbers })
    }

    /// These keys in place of those `before`: a name that was known then is the same tenant still, and no other is.
    #[must_use]
    pub fn in_place_of(self, before: &Self) -> Self {
        let mut numbers = before.numbers.clone();
        for key in &self.keys {
            let next = numbers.len() as u32 + 1;
            numbers.entry(key.name.clone()).or_insert(next);
        }
        Self { keys: self.keys, numbers }
    }

    /// Whether everybody may ask.
    pub fn are_open(&self) -> bool {
        self.keys.is_empty()
    }

    /// Who has this key, and whether it may change what is served. The time does not depend on how much of it is right.
    pub fn tenant(&self, key: &str) -> Option<(Tenant, bool)> {
        let digest: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let mut found = None;
        for key in &self.keys {
            let differs = key.digest.iter().zip(&digest).fold(0, |differs, (a, b)| black_box(differs | (a ^ b)));
            if differs == 0 {
                found = Some(key);
            }
        }
        let key = found?;
        Some((Tenant { number: *self.numbers.get(&key.name)?, share: key.share }, key.admin))
    }

    /// What a tenant may ask for a second.
    pub fn rates(&self, tenant: Tenant) -> Rates {
        let own = self.keys.iter().find(|key| !key.rates.are_none() && self.numbers.get(&key.name) == Some(&tenant.number));
        own.map_or_else(Rates::default, |key| key.rates)
    }
}

fn key(line: &str) -> Result<Key, String> {
    let mut parts = line.split(':').map(str::trim);
    let (name, digest) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if name.is_empty() {
        return Err("expected NAME:SHA256, found no name".into());
    }
    let nibbles: Option<Vec<u8>> = digest.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let bytes = nibbles.filter(|nibbles| nibbles.len() == 64).map(|nibbles| nibbles.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect::<Vec<u8>>());
    let digest =
        bytes.and_then(|bytes| bytes.try_into().ok()).ok_or("expected NAME:SHA256 with 64 hexadecimal digits; `printf %s KEY | sha256sum` gives them")?;
    let mut key = Key { name: name.into(), digest, admin: false, share: 1, rates: Rates::default() };
    let rate = |most: &str| most.parse().ok().filter(|most| *most > 0).map(Some).ok_or("expected a whole number a second, 1 or more");
    for part in parts {
        match part.split_once('=') {
            None if part == "admin" => key.admin = true,
            Some(("share", share)) => key.share = share.parse().ok().filter(|share| (1..=1000).contains(share)).ok_or("expected a share of 1 to 1000")?,
            Some(("requests", most)) => key.rates.requests = rate(most)?,
            Some(("tokens", most)) => key.rates.tokens = rate(most)?,
            _ => return Err(format!("expected admin, share=N, requests=N or tokens=N, found {part:?}")),
        }
    }
    Ok(key)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn open(text: &str) -> Result<Keys> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(&path, text).unwrap();
        Keys::open(&path)
    }

    #[test]
    fn a_key_leads_to_its_tenant_and_another_to_none() {
        let digest = |key: &str| Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let keys = open(&format!("# who\n\nann:{}\nbob : {} : admin : share=3\n", digest("a"), digest("b"))).unwrap();
        assert_eq!(keys.tenant("a"), Some((Tenant { number: 1, share: 1 }, false)));
        assert_eq!(keys.tenant("b"), Some((Tenant { number: 2, share: 3 }, true)));
        assert_eq!(keys.tenant(""), None);
        let bounded = open(&format!("ann:{}\nbob:{}:tokens=50:requests=7\n", digest("a"), digest("b"))).unwrap();
        let rates = ["a", "b"].map(|key| bounded.rates(bounded.tenant(key).unwrap().0));
        assert_eq!(rates, [Rates::default(), Rates { requests: Some(7), tokens: Some(50) }]);
    }

    #[test]
    fn a_name_stays_the_same_tenant_when_the_file_changes_and_nobody_gets_its_number() {
        let digest = |key: &str| Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let file = |lines: &[(&str, &str)]| open(&lines.iter().map(|(name, key)| format!("{name}:{}\n", digest(key))).collect::<String>()).unwrap();
        let number = |keys: &Keys, key: &str| keys.tenant(key).map(|(tenant, _)| tenant.number);
        let first = file(&[("ann", "a"), ("bob", "b")]);
        let second = file(&[("eve", "e"), ("bob", "new")]).in_place_of(&first);
        assert_eq!(["a", "b", "new", "e"].map(|key| number(&second, key)), [None, None, Some(2), Some(3)]);
        let third = file(&[("kim", "k"), ("ann", "a")]).in_place_of(&second);
        assert_eq!(["k", "a", "e"].map(|key| number(&third, key)), [Some(4), Some(1), None]);
    }

    #[test]
    fn a_line_that_is_no_key_is_told_by_its_number() {
        let digest = "0".repeat(64);
        for (text, told) in [
            (String::new(), "at least one line"),
            ("ann".into(), "line 1"),
            (format!("\n:{digest}"), "line 2"),
            (format!("ann:{}", &digest[1..]), "64 hexadecimal"),
            (format!("ann:{digest}:root"), "admin, share"),
            (format!("ann:{digest}:share=0"), "1 to 1000"),
            (format!("ann:{digest}:tokens=0"), "a second"),
            (format!("ann:{digest}:requests=-1"), "a second"),
            (format!("ann:{digest}\nbob:{digest}"), "twice"),
        ] {
            let error = open(&text).unwrap_err().to_string();
            assert!(error.contains(told), "{text:?}: {error}");
        }
    }
}
